"""One Kafka client: its login, then request after request, each answered before the next is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from struct import Struct

import structlog
from kio.schema.errors import ErrorCode

from tiersidecar.domain.errors import QuotaExceededError
from tiersidecar.formats.wire.cursor import Buffer
from tiersidecar.formats.wire.framing import RequestHeader, read_request_header
from tiersidecar.formats.wire.messages import MalformedMessageError
from tiersidecar.ports.metrics.bucket import BUCKET_LOGINS, BUCKET_REQUESTS
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.services.bucket.answers import Asked, has_flexible_header
from tiersidecar.services.bucket.apis import (
    API_VERSIONS,
    BEFORE_LOGIN,
    SASL_HANDSHAKE,
    Api,
    api_versions_body,
)
from tiersidecar.services.bucket.memory_budget import MemoryBudget, Share
from tiersidecar.services.bucket.sasl import Login, LoginRefusedError, Mechanisms
from tiersidecar.services.bucket.users import ANYBODY, User
from tiersidecar.services.client_limits import LeastPace
from tiersidecar.services.failed_logins import FailedLogins

log = structlog.get_logger(__name__)

_SIZE, _KEY = Struct(">i"), Struct(">h")
_WRITTEN_AT_ONCE = 256 * 1024
_KEY_AND_VERSION = Struct(">hhi")
_SMALL_BYTES = 1024
_READ_AT_ONCE, _LEAST_ROOM_BYTES = 64 * 1024, 4 * 1024
_STALLED_S = 5.0
"""A request of no more takes nothing of the memory that is shared: all users can ask something, whatever others hold."""
_MOST_BEFORE_LOGIN = 16
"""Requests: twice ApiVersions, a handshake and two tokens are what a client needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """The limits of one client.  Each part of a request (its size, its API key, the rest) has to arrive whole within
    ``request_timeout_s``, and for as long a request waits for memory; between requests a client may be silent for
    ``idle_timeout_s``."""

    request_bytes_before_login: int = 64 * 1024
    request_bytes: int = 1024 * 1024
    login_timeout_s: float = 30.0
    request_timeout_s: float = 30.0
    idle_timeout_s: float = 600.0
    write_timeout_s: float = 60.0
    least_taken_bytes_per_s: int = 16 * 1024
    failed_login_delay_s: float = 0.5


class EndedError(Exception):
    """The connection ends, for ``reason``."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Shared by all connections of a listener.  ``request_memory`` is for whole requests of clients that are logged in,
    ``arriving_memory`` for parts of them that have arrived: a client that sends nothing holds up no other."""

    apis: Mapping[int, Api]
    mechanisms: Mechanisms
    limits: ClientLimits
    telemetry: Telemetry
    failed_logins: FailedLogins
    request_memory: MemoryBudget
    arriving_memory: MemoryBudget


class BucketConnection:
    """Reads from one stream, writes to the other.  ``when_logged_in`` may refuse a user who has too many connections."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        shared: Shared,
        *,
        when_logged_in: Callable[[User], bool],
        address: str,
    ) -> None:
        self._reader, self._writer = reader, writer
        apis, limits = shared.apis, shared.limits
        self._apis, self._mechanisms, self._limits = apis, shared.mechanisms, limits
        self._telemetry, self._when_logged_in, self._address = shared.telemetry, when_logged_in, address
        self._failed_logins = shared.failed_logins
        self._memory, self._arriving = shared.request_memory, shared.arriving_memory
        self._pace = LeastPace(bytes_per_s=limits.least_taken_bytes_per_s, over_s=limits.write_timeout_s)
        self._known = {**{key: api.versions for key, api in apis.items()}, **BEFORE_LOGIN}
        self._login: Login | None = None

    async def run(self) -> None:
        """Serve until the client leaves.

        Raises:
            EndedError: why it was ended instead.
            OSError: the connection was lost.
        """
        user = ANYBODY
        if self._mechanisms.names:
            try:
                async with asyncio.timeout(self._limits.login_timeout_s):
                    user = await self._log_in()
            except TimeoutError as error:
                raise EndedError("login_timeout") from error
            except MalformedMessageError as error:
                raise EndedError("malformed", str(error)) from error
        while True:
            size, api_key = await self._next_head(self._limits.request_bytes)
            api = self._apis.get(api_key)
            async with AsyncExitStack() as stack:
                payload = await self._arrived(stack, user, size, api_key)
                room = await stack.enter_async_context(self._room(user, size, 1 if api is None else api.memory_factor))
                try:
                    await self._answer(payload, user, room)
                except MalformedMessageError as error:
                    raise EndedError("malformed", str(error)) from error

    # -- before the login

    async def _log_in(self) -> User:
        for _ in range(_MOST_BEFORE_LOGIN):
            size, api_key = await self._next_head(self._limits.request_bytes_before_login)
            payload = await self._rest(size, api_key)
            head = _read_head(payload)
            if head.api_key == API_VERSIONS:
                await self._answer_api_versions(head)
                continue
            if head.api_version not in BEFORE_LOGIN.get(head.api_key, ()):
                raise EndedError("not_logged_in", f"API {head.api_key} version {head.api_version} before a login")
            asked = _asked(head, payload, ANYBODY)
            if head.api_key == SASL_HANDSHAKE:
                await self._shake_hands(asked)
            elif (user := await self._authenticate(asked)) is not None:
                return user
        raise EndedError("not_logged_in", f"{_MOST_BEFORE_LOGIN} requests without a login")

    async def _shake_hands(self, asked: Asked) -> None:
        name = str(asked.message().mechanism)
        self._login = self._mechanisms.begin(name)
        error = ErrorCode.none if self._login is not None else ErrorCode.unsupported_sasl_mechanism
        await self._send(asked, asked.answered(error_code=error, mechanisms=self._mechanisms.names))

    async def _authenticate(self, asked: Asked) -> User | None:
        login = self._login
        if login is None:
            await self._send(asked, asked.answered(error_code=ErrorCode.illegal_sasl_state))
            raise EndedError("malformed", "a SASL token without a handshake")
        try:
            step = login.step(asked.message().auth_bytes)
        except LoginRefusedError as error:
            raise await self._refused_login(asked, error) from error
        if step.user is not None:
            await self._settle(step.user.name, is_right=True)
            if not self._when_logged_in(step.user):
                raise EndedError("max_connections", f"user {step.user.name} has too many")
        await self._send(asked, asked.answered(auth_bytes=step.answer))
        if step.user is not None:
            self._telemetry.count(BUCKET_LOGINS, outcome="accepted")
        return step.user

    async def _refused_login(self, asked: Asked, error: LoginRefusedError) -> EndedError:
        if error.guessed is not None:
            await self._settle(error.guessed, is_right=False)
        # Not before: a guesser that does not wait would see it in the metrics, which are public.
        self._telemetry.count(BUCKET_LOGINS, outcome="refused")
        log.info("bucket.login.refused", address=self._address, reason=str(error))
        await asyncio.sleep(self._limits.failed_login_delay_s)
        answer = asked.answered(
            error_code=ErrorCode.sasl_authentication_failed, error_message="Authentication failed: invalid credentials"
        )
        await self._send(asked, answer)
        return EndedError("login_refused")

    async def _settle(self, user: str, *, is_right: bool) -> None:
        try:
            await self._failed_logins.settle(self._address, user, is_right=is_right)
        except QuotaExceededError as error:
            raise EndedError("logins_held_back") from error

    # -- requests

    @asynccontextmanager
    async def _room(self, user: User, size_bytes: int, factor: int) -> AsyncIterator[Share | None]:
        """Take memory for a request, before it is parsed; None for one that needs none."""
        if size_bytes <= _SMALL_BYTES:
            yield None
            return
        async with self._memory.taken(user.name, size_bytes * factor, self._limits.request_timeout_s) as share:
            yield _with_room(share, size_bytes)

    async def _arrived(self, stack: AsyncExitStack, user: User, size_bytes: int, api_key: int) -> bytes:
        """Return the request, without its size; memory for it, until ``stack`` ends, is taken as it arrives, doubling."""
        if size_bytes <= _SMALL_BYTES:
            return await self._rest(size_bytes, api_key)
        arrived, room_bytes = bytearray(_KEY.pack(api_key)), 0
        try:
            async with asyncio.timeout(self._limits.request_timeout_s):
                while left := size_bytes - len(arrived):
                    arrived += await self._read_some(min(left, _READ_AT_ONCE))
                    while room_bytes < len(arrived):
                        more = self._arriving.taken(
                            user.name, max(room_bytes, _LEAST_ROOM_BYTES), self._limits.request_timeout_s
                        )
                        room_bytes += _with_room(await stack.enter_async_context(more), size_bytes).size_bytes
        except TimeoutError as error:
            raise EndedError("idle") from error
        return bytes(arrived)

    async def _answer(self, payload: bytes, user: User, room: Share | None) -> None:
        head = _read_head(payload)
        if head.api_key == API_VERSIONS:
            await self._answer_api_versions(head)
            return
        api = self._apis.get(head.api_key)
        if head.api_key == SASL_HANDSHAKE and head.api_version in BEFORE_LOGIN[SASL_HANDSHAKE]:
            asked = _asked(head, payload, user)
            await self._send(asked, asked.answered(error_code=ErrorCode.illegal_sasl_state))
            return
        if api is None or head.api_version not in api.versions:
            raise EndedError("malformed", f"API {head.api_key} version {head.api_version} was not offered")
        asked = _asked(head, payload, user)
        async with api.answer(asked) as body:
            if room is not None and not api.is_kept:
                self._memory.keep(room, 2 * len(payload) + sum(map(len, body or ())))
            if body is not None:
                await self._send(asked, body)
        self._telemetry.count(BUCKET_REQUESTS, api_key=str(head.api_key))

    async def _answer_api_versions(self, head: RequestHeader) -> None:
        body = api_versions_body(self._known, head.api_version)
        await self._write([_SIZE.pack(head.correlation_id), *body])
        self._telemetry.count(BUCKET_REQUESTS, api_key=str(API_VERSIONS))

    # -- bytes

    async def _next_head(self, most_bytes: int) -> tuple[int, int]:
        """Return the size of the next request, and its API key, which counts in it."""
        # Neither what has arrived already nor what goes out at once gives others a turn: of small requests thousands would.
        await asyncio.sleep(0)
        first = await self._read(1, self._limits.idle_timeout_s)
        (size,) = _SIZE.unpack(first + await self._read(_SIZE.size - 1, self._limits.request_timeout_s))
        if not _KEY_AND_VERSION.size <= size <= most_bytes:
            raise EndedError("malformed", f"a request of {size} bytes, {most_bytes} are the most")
        (api_key,) = _KEY.unpack(await self._read(_KEY.size, self._limits.request_timeout_s))
        return size, api_key

    async def _rest(self, size_bytes: int, api_key: int) -> bytes:
        """Return the request, without its size."""
        return _KEY.pack(api_key) + await self._read(size_bytes - _KEY.size, self._limits.request_timeout_s)

    async def _read_some(self, most_bytes: int) -> bytes:
        """
        Raises:
            TimeoutError: nothing has come for a while: what has arrived before is held meanwhile.
        """
        async with asyncio.timeout(_STALLED_S):
            if not (data := await self._reader.read(most_bytes)):
                raise EndedError("left")
        return data

    async def _read(self, size_bytes: int, timeout_s: float) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._reader.readexactly(size_bytes)
        except TimeoutError as error:
            raise EndedError("idle") from error
        except asyncio.IncompleteReadError as error:
            raise EndedError("left") from error

    async def _send(self, asked: Asked, body: list[Buffer]) -> None:
        tags = b"\0" if has_flexible_header(asked.api_key, asked.version) else b""
        await self._write([_SIZE.pack(asked.correlation_id) + tags, *body])

    async def _write(self, pieces: list[Buffer]) -> None:
        """Write little by little, so that what waits for a client is not in memory twice."""
        small = bytearray(_SIZE.pack(sum(map(len, pieces))))
        for piece in pieces:
            if len(piece) < _WRITTEN_AT_ONCE:
                small += piece
                if len(small) < _WRITTEN_AT_ONCE:
                    continue
                await self._write_piece(small)
                small = bytearray()
            else:
                if small:
                    await self._write_piece(small)
                    small = bytearray()
                view = memoryview(piece)
                for start in range(0, len(view), _WRITTEN_AT_ONCE):
                    await self._write_piece(view[start : start + _WRITTEN_AT_ONCE])
        if small:
            await self._write_piece(small)
        self._pace.begin_anew()

    async def _write_piece(self, piece: Buffer) -> None:
        now_s = asyncio.get_running_loop().time
        begun_s = now_s()
        self._writer.write(piece)
        try:
            async with asyncio.timeout(self._limits.write_timeout_s):
                await self._writer.drain()
        except TimeoutError as error:
            raise EndedError("slow_client") from error
        if reason := self._pace.took(len(piece), now_s() - begun_s):
            raise EndedError("slow_client", reason)


def _with_room(share: Share, size_bytes: int) -> Share:
    if not share.has_room:
        raise EndedError("request_memory", f"no memory for a request of {size_bytes} bytes")
    return share


def _read_head(payload: bytes) -> RequestHeader:
    """Read the header as far as possible: an ApiVersions request of an unknown version has its key, version and number.

    Raises:
        EndedError: it is no request.
    """
    api_key, api_version, correlation_id = _KEY_AND_VERSION.unpack_from(payload)
    if api_key == API_VERSIONS:
        return RequestHeader(
            api_key=api_key, api_version=api_version, correlation_id=correlation_id, client_id=None, body_offset=0
        )
    try:
        return read_request_header(payload)
    except MalformedMessageError as error:
        raise EndedError("malformed", str(error)) from error


def _asked(head: RequestHeader, payload: bytes, user: User) -> Asked:
    return Asked(
        api_key=head.api_key,
        version=head.api_version,
        correlation_id=head.correlation_id,
        client_id=head.client_id or "",
        body=payload[head.body_offset :],
        user=user,
    )
