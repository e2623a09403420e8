"""Keep one connection to one broker: frames, correlation ids, versions, time limits."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version as distribution_version
from typing import Any, TypeVar, cast

from kio.index import load_response_schema
from kio.schema.api_versions.v0 import ApiVersionsResponse as OldestApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.static.protocol import RequestPayload, ResponsePayload

from tiersidecar.adapters.kafka import apis
from tiersidecar.adapters.kafka.apis import Api
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError
from tiersidecar.formats.wire.framing import (
    DEFAULT_MAX_FRAME_BYTES,
    FrameSplitter,
    read_correlation_id,
    read_response,
    write_request,
)
from tiersidecar.formats.wire.messages import MalformedMessageError

R = TypeVar("R", bound=ResponsePayload)

_DECODED_INLINE_BYTES = 64 * 1024
"""Above it a response is decoded in a thread: Metadata of 4,000 partitions takes 50 ms."""
_CLOSE_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of one connection.  ``request_timeout_s`` counts from the request to the whole answer."""

    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    max_in_flight_requests: int = 16
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES


async def open_socket(
    address: str, *, client_id: str, tls: ssl.SSLContext | None, limits: ConnectionLimits
) -> BrokerConnection:
    """Return a connection to ``host:port`` that knows the broker's API versions, not logged in yet.

    Raises:
        BrokerUnreachableError: no answer, TLS fails, or the answer is not a Kafka broker's.
        BrokerRefusedError: a broker too old or too new for us.
    """
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    responses = _Responses(address, limits)
    try:
        async with asyncio.timeout(limits.connect_timeout_s):
            await loop.create_connection(lambda: responses, host, port, ssl=tls)
    except (OSError, UnicodeError, TimeoutError) as error:
        responses.fail(error)
        raise BrokerUnreachableError(address=address, reason=_reason(error, "no connection in time")) from error
    connection = BrokerConnection(address=address, client_id=client_id, responses=responses, limits=limits)
    try:
        await connection.learn_versions()
    except BaseException:
        await connection.close()
        raise
    return connection


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port``, or ``[IPv6]:port``.

    Raises:
        BrokerUnreachableError: there is no valid port.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BrokerUnreachableError(address=address, reason="not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


class BrokerConnection:
    """Requests in flight side by side on one connection, each answered or failed exactly once.

    After any failure of the connection, a request that got no answer in time among them, it is closed for good.
    ``usable_until_s`` is the monotonic time from which the login is too old for new requests.
    """

    def __init__(self, *, address: str, client_id: str, responses: _Responses, limits: ConnectionLimits) -> None:
        self.address = address
        self.usable_until_s = math.inf
        self._client_id = client_id
        self._responses = responses
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.max_in_flight_requests)
        self._correlation_id = -1
        self._versions: Mapping[int, tuple[int, int]] = {}

    @property
    def is_open(self) -> bool:
        return self._responses.failure is None

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is in flight."""
        return not self._responses.pending

    async def ask(self, api: Api[R], make: Callable[[int], RequestPayload]) -> R:
        """Send ``make(version)`` in the newest version that the broker and we have in common; return its answer.

        When cancelled, the connection stays usable; whether the broker acts on the request is then unknown.

        Raises:
            BrokerUnreachableError: no valid answer in time, or the connection is closed.
            BrokerRefusedError: no version in common.
        """
        request = make(self._agreed_version(api))
        return cast(R, await self._exchange(api, request, load_response_schema(api.key, request.__version__)))

    async def ask_unless_known(
        self, api: Api[R], make: Callable[[int], RequestPayload], is_known: Callable[[bytes, int], bool]
    ) -> R | None:
        """Ask like :meth:`ask`; None where ``is_known`` says so of the answer's payload and version, which is not decoded then.

        ``is_known`` may raise MalformedMessageError.
        """
        request = make(self._agreed_version(api))
        response_type = load_response_schema(api.key, request.__version__)
        payload = await self._answer(api, request)
        with self._closed_if_malformed():
            if is_known(payload, request.__version__):
                return None
            return cast(R, await _decode(api, response_type, payload))

    async def learn_versions(self) -> None:
        """Ask for the versions that the broker knows of each API (KIP-35), by the newest request that it understands."""
        answer, supported = await self._ask_versions(apis.API_VERSIONS.newest)
        if answer is ErrorCode.unsupported_version:
            # A broker that does not know our version says so in version 0, with the versions it knows.
            self._versions = supported
            answer, supported = await self._ask_versions(self._agreed_version(apis.API_VERSIONS))
        if answer is not ErrorCode.none:
            raise refused(apis.API_VERSIONS, self.address, answer)
        self._versions = supported

    def newest_version(self, api: Api[Any]) -> int:
        """Return the newest version of ``api`` that the broker knows; -1 when it knows none."""
        return self._versions.get(api.key, (0, -1))[1]

    async def close(self) -> None:
        """Fail what is in flight and close the socket; once only, later calls have no effect."""
        self._responses.fail(None)
        await self._responses.wait_closed()

    async def _ask_versions(self, version: int) -> tuple[ErrorCode, Mapping[int, tuple[int, int]]]:
        request = apis.api_versions(version, software_version=distribution_version("tiersidecar"))
        response_type = load_response_schema(apis.API_VERSIONS.key, version)
        response: Any = await self._exchange(apis.API_VERSIONS, request, response_type)
        return response.error_code, {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}

    def _agreed_version(self, api: Api[Any]) -> int:
        oldest, newest = self._versions.get(api.key, (0, -1))
        version = min(newest, api.newest)
        if version < max(oldest, api.oldest):
            raise refused(api, f"{self.address} (knows {oldest} to {newest})", ErrorCode.unsupported_version)
        return version

    async def _exchange(
        self, api: Api[Any], request: RequestPayload, response_type: type[ResponsePayload]
    ) -> ResponsePayload:
        payload = await self._answer(api, request)
        with self._closed_if_malformed():
            return await _decode(api, response_type, payload)

    async def _answer(self, api: Api[Any], request: RequestPayload) -> bytes:
        try:
            async with asyncio.timeout(self._limits.request_timeout_s):
                return await self._send(request)
        except TimeoutError as error:
            # Answers come in order: everything behind this one would wait as well.
            self._responses.fail(error)
            reason = f"no answer to {api.name} within {self._limits.request_timeout_s:g} s"
            raise BrokerUnreachableError(address=self.address, reason=reason) from error

    @contextmanager
    def _closed_if_malformed(self) -> Iterator[None]:
        try:
            yield
        except MalformedMessageError as error:
            self._responses.fail(error)
            raise BrokerUnreachableError(address=self.address, reason=_reason(error, "")) from error

    async def _send(self, request: RequestPayload) -> bytes:
        # The slot is free again when the answer is there, even if no caller waits for it any more.
        await self._slots.acquire()
        self._correlation_id = (self._correlation_id + 1) % 2**31
        answer = self._responses.expect(self._correlation_id, self._slots.release)
        self._responses.write(write_request(request, correlation_id=self._correlation_id, client_id=self._client_id))
        return await answer


async def _decode(api: Api[Any], response_type: type[ResponsePayload], payload: bytes) -> ResponsePayload:
    if api is apis.API_VERSIONS and payload[4:6] == ErrorCode.unsupported_version.to_bytes(2, "big"):
        response_type = OldestApiVersionsResponse
    if len(payload) <= _DECODED_INLINE_BYTES:
        return read_response(response_type, payload)
    return await asyncio.to_thread(read_response, response_type, payload)


def refused(api: Api[Any], subject: str, error: ErrorCode, message: str | None = None) -> BrokerRefusedError:
    """Return ``error`` as ours, by Kafka's name; ``message`` is the broker's own explanation."""
    return BrokerRefusedError(
        api=api.name,
        subject=f"{subject} ({message})" if message else subject,
        error=error.name.upper(),
        retriable=error.retriable,
    )


def _reason(error: BaseException | None, timed_out: str) -> str:
    match error:
        case None:
            return "the connection is closed"
        case TimeoutError() if not str(error):
            return timed_out
        case ssl.SSLError():
            return (
                f"TLS: {error.reason or error}" if not isinstance(error, ssl.SSLCertVerificationError) else str(error)
            )
        case MalformedMessageError():
            return f"not a valid answer: {error}"
        case socket.gaierror():
            return f"unknown host: {(error.strerror or str(error)).lower()}"
        case OSError() if error.errno:
            return os.strerror(error.errno).lower()
        case _:
            return str(error) or type(error).__name__


class _Responses(asyncio.Protocol):
    """The reading side: passes each frame to the request with its correlation id."""

    def __init__(self, address: str, limits: ConnectionLimits) -> None:
        self._address = address
        self._splitter = FrameSplitter(limits.max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._closed = asyncio.Event()
        self.pending: dict[int, tuple[asyncio.Future[bytes], Callable[[], None]]] = {}
        self.failure: BrokerUnreachableError | None = None

    def expect(self, correlation_id: int, when_answered: Callable[[], None]) -> asyncio.Future[bytes]:
        """Return the payload that will come for this id; ``when_answered`` runs when it came or never will."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.pending[correlation_id] = (answer, when_answered)
        if self.failure is not None:
            self._fail_pending(self.failure)
        return answer

    def write(self, frame: bytes) -> None:
        if self._transport is not None and self.failure is None:
            self._transport.write(frame)

    def fail(self, error: BaseException | None) -> None:
        """End the connection; ``error`` None when we close it ourselves."""
        if self.failure is None:
            self.failure = BrokerUnreachableError(address=self._address, reason=_reason(error, "timed out"))
            self.failure.__cause__ = error
            self._fail_pending(self.failure)
        if self._transport is None:
            self._closed.set()
        else:
            self._transport.close()

    async def wait_closed(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._closed.wait()
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self._splitter.feed(data):
                self._accept(payload)
        except MalformedMessageError as error:
            self.fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()
        self.fail(exc or ConnectionResetError("the broker closed the connection"))

    def _accept(self, payload: bytes) -> None:
        correlation_id = read_correlation_id(payload)
        if correlation_id not in self.pending:
            raise MalformedMessageError(f"an answer to request {correlation_id}, which is not in flight")
        answer, when_answered = self.pending.pop(correlation_id)
        when_answered()
        if not answer.done():
            answer.set_result(payload)

    def _fail_pending(self, failure: BrokerUnreachableError) -> None:
        pending, self.pending = self.pending, {}
        for answer, when_answered in pending.values():
            when_answered()
            if not answer.done():
                error = BrokerUnreachableError(address=failure.address, reason=failure.reason)
                error.__cause__ = failure.__cause__
                answer.set_exception(error)
