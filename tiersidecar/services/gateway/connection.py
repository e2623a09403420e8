"""One client and its broker: a connection to each, and between them the two pumps.

The broker connection is the client's own, from its first byte to its last: the broker authenticates and authorises it as if
the gateway were not there, and what happens to one of the two happens to the other.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine, Sequence
from enum import Flag, auto
from typing import Any, TypeVar

import structlog

from tiersidecar.formats.wire.cursor import Cursor
from tiersidecar.formats.wire.messages import MalformedMessageError
from tiersidecar.services.gateway.api_keys import ApiKey
from tiersidecar.services.gateway.exchange import (
    Buffer,
    ConnectionState,
    Exchange,
    Rewrites,
    Rewritten,
    UpstreamClosedError,
)
from tiersidecar.services.gateway.limits import GatewayLimits, ResponseMemory
from tiersidecar.services.gateway.pending import Fate, Pending, PendingQueue
from tiersidecar.services.gateway.request_heads import (
    client_id_and_body,
    has_flexible_header,
    read_head,
    write_request_header,
)
from tiersidecar.services.gateway.request_pump import RequestPump
from tiersidecar.services.gateway.response_pump import ResponsePump
from tiersidecar.services.gateway.rewrites import unsupported_api_versions
from tiersidecar.services.gateway.side import MakeSide, SideEvents
from tiersidecar.services.gateway.traffic import Traffic

log = structlog.get_logger(__name__)

T = TypeVar("T")

_SIZE_BYTES = 4
_RESPONSE_HEAD_BYTES = 8
_CLOSE_TIMEOUT_S = 10.0


class _Hold(Flag):
    """Why no further request goes to the broker for now."""

    NOTHING = 0
    CONNECTING = auto()
    ALONE = auto()
    FULL = auto()


class GatewayConnection:
    """Implements the sinks of both pumps, and :class:`Upstream` for the rewrites.

    ``when_closed`` is called once, when both connections are gone.
    """

    def __init__(
        self,
        *,
        traffic: Traffic,
        rewrites: Rewrites,
        limits: GatewayLimits,
        memory: ResponseMemory,
        make_client: MakeSide,
        make_broker: MakeSide,
        monotonic_s: Callable[[], float],
        when_closed: Callable[[GatewayConnection], None],
    ) -> None:
        self._traffic, self._rewrites, self._limits, self._memory = traffic, rewrites, limits, memory
        self._monotonic_s, self._when_closed = monotonic_s, when_closed
        self._pending: PendingQueue = PendingQueue()
        self._requests = RequestPump(self, rewrites, limits, monotonic_s)
        self._responses = ResponsePump(self, self._pending, memory)
        self._state = ConnectionState()
        self._holds = _Hold.NOTHING
        self._task: asyncio.Task[None] | None = None
        self._asked = 0
        self._memory_bytes = 0  # of responses that are written, but not yet taken by the client
        self._closed_s: float | None = None
        self.client = make_client(self._events_of("client", self._client_data))
        self.broker = make_broker(self._events_of("broker", self._broker_data))
        self._hold(_Hold.CONNECTING)

    # What happens to it

    def connected(self) -> None:
        """Both sides are there."""
        self._guarded("malformed", lambda: self._unhold(_Hold.CONNECTING))
        self._sides_changed()

    def close(self, reason: str) -> None:
        """End both connections, after what is on its way; ``reason`` is for the metrics."""
        if self._closed_s is not None:
            return
        self._closed_s = self._monotonic_s()
        self._traffic.closed[reason] += 1
        if self._task is not None:
            self._task.cancel()
        for pending in self._pending:
            if pending.answer is not None and not pending.answer.done():
                pending.answer.set_exception(UpstreamClosedError("the broker connection is gone"))
        self._pending.clear()
        self._responses.close()
        self.give_memory_back(self._memory_bytes)
        self.client.close()
        self.broker.close()

    def sweep(self, now_s: float) -> None:
        """Look at the clock: called about once a second."""
        if self._closed_s is not None:
            if now_s - self._closed_s > _CLOSE_TIMEOUT_S:
                self.client.abort()
                self.broker.abort()
            return
        deadline_s, stuck_s = self._requests.deadline_s, self.client.full_since_s
        if deadline_s is not None and self.broker.full_since_s is not None:
            self._requests.deadline_s = deadline_s + 1  # the broker is slow, not the client
        elif deadline_s is not None and now_s > deadline_s:
            self.close("slow_request")
        if stuck_s is not None and now_s - stuck_s > self._limits.write_timeout_s:
            self.close("slow_reader")
            self.client.abort()

    # From the client

    def _client_data(self, data: Buffer) -> None:
        self._traffic.bytes_in += len(data)
        self._guarded("malformed", lambda: self._requests.feed(data))
        self._sides_changed()

    def forward(self, data: memoryview) -> None:
        self.broker.write(data)

    def request_begins(self, api_key: int, api_version: int, correlation_id: int) -> None:
        rewrite = self._rewrites.get(api_key)
        if rewrite is None:
            self._expect(Pending(Fate.PASS, correlation_id))
            return
        exchange = self._exchange(api_key, api_version, correlation_id, None, memoryview(b""))
        self._expect(Pending(Fate.REWRITE, correlation_id, exchange, rewrite))
        if rewrite.alone:
            self._hold(_Hold.ALONE)

    def whole_request(self, frame: memoryview) -> None:
        frame = memoryview(bytes(frame))  # it is kept until it is answered
        _, api_key, api_version, correlation_id = read_head(frame, 0)
        client_id, body_at = client_id_and_body(frame)
        exchange = self._exchange(api_key, api_version, correlation_id, client_id, frame[body_at:])
        rewrite = self._rewrites[api_key]
        body = _at_once(rewrite.prepare(exchange))
        self._expect(Pending(Fate.REWRITE, correlation_id, exchange, rewrite))
        if body is None:
            self.broker.write(frame)
        else:
            self.broker.write_all(_framed(frame[_SIZE_BYTES:body_at], body))
        if rewrite.alone:
            self._hold(_Hold.ALONE)

    def unknown_api_versions(self, correlation_id: int) -> None:
        self._expect(Pending(Fate.OWN, correlation_id, frame=unsupported_api_versions(correlation_id)))
        if self._pending[0].fate is Fate.OWN:
            self._responses.flush_own()

    def token_begins(self) -> None:
        self._expect(Pending(Fate.OPAQUE, 0))

    def tokens_end(self) -> None:
        """A mechanism may end without a last token from the broker."""
        while self._pending and self._pending[0].fate is Fate.OPAQUE:
            self._pending.popleft()

    def _exchange(
        self, api_key: int, api_version: int, correlation_id: int, client_id: str | None, request: memoryview
    ) -> Exchange:
        return Exchange(
            api_key=api_key,
            api_version=api_version,
            correlation_id=correlation_id,
            client_id=client_id,
            request=request,
            upstream=self,
            connection=self._state,
            listener=self._traffic.listener,
        )

    def _expect(self, pending: Pending) -> None:
        self._traffic.requests += 1
        self._pending.append(pending)
        if len(self._pending) >= self._limits.max_in_flight_requests:
            self._hold(_Hold.FULL)

    # From the broker

    def _broker_data(self, data: Buffer) -> None:
        self._guarded("broker_malformed", lambda: self._responses.feed(data))
        self._sides_changed()

    def forward_response(self, data: memoryview) -> None:
        self._traffic.bytes_out += len(data)
        self.client.write(data)

    def collected(self, pending: Pending, frame: memoryview, memory_bytes: int) -> None:
        self._memory_bytes += memory_bytes
        if pending.answer is not None:
            if not pending.answer.done():
                pending.answer.set_result(frame)
            return
        if pending.rewrite is None or pending.exchange is None:
            raise AssertionError(f"{pending.fate} is not collected")
        header_bytes = _body_offset(frame, pending.exchange.api_key, pending.exchange.api_version)
        body = frame[header_bytes:]
        rewritten = pending.rewrite.rewrite(pending.exchange, body)
        if isinstance(rewritten, Coroutine) and pending.rewrite.alone:
            self._start(self._rewrite_alone(rewritten, frame, header_bytes))
            return
        self._write_rewritten(
            _at_once(rewritten) if isinstance(rewritten, Coroutine) else rewritten, frame, header_bytes
        )
        self.passed(pending)

    def passed(self, pending: Pending) -> None:
        if pending.rewrite is not None and pending.rewrite.alone:
            self._unhold(_Hold.ALONE)

    def answered(self) -> None:
        if _Hold.FULL in self._holds and len(self._pending) <= self._limits.max_in_flight_requests // 2:
            self._guarded("malformed", lambda: self._unhold(_Hold.FULL))

    def room_found(self) -> None:
        # Not now: whoever has given memory back is in the middle of something.
        asyncio.get_running_loop().call_soon(self._broker_data, b"")

    async def _rewrite_alone(
        self, rewriting: Coroutine[Any, Any, Rewritten], frame: memoryview, header_bytes: int
    ) -> None:
        self._write_rewritten(await rewriting, frame, header_bytes)
        self._task = None
        self._unhold(_Hold.ALONE)

    def _write_rewritten(self, body: Rewritten, frame: memoryview, header_bytes: int) -> None:
        if body is None:
            self.forward_response(frame)
            return
        self._traffic.rewritten += 1
        pieces = _framed(frame[_SIZE_BYTES:header_bytes], body)
        self._traffic.bytes_out += sum(map(len, pieces))
        self.client.write_all(pieces)

    # For the rewrites

    async def ask(self, api_key: int, api_version: int, body: bytes, timeout_s: float) -> memoryview:
        """As :meth:`Upstream.ask` promises."""
        if self._closed_s is not None:
            raise UpstreamClosedError("the broker connection is gone")
        self._asked = (self._asked + 1) % 2**31
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._pending.append(Pending(Fate.ASK, self._asked, answer=answer))
        header = write_request_header(api_key, api_version, self._asked, "tiersidecar-gateway")
        self.broker.write_all(_framed(header, (body,)))
        async with asyncio.timeout(timeout_s):
            frame = await answer
        return frame[_body_offset(frame, api_key, api_version) :]

    def take_memory(self, size_bytes: int) -> int:
        """As :meth:`Upstream.take_memory` promises."""
        taken = self._memory.take_some(size_bytes) if self._closed_s is None else 0
        self._memory_bytes += taken
        return taken

    def give_memory_back(self, size_bytes: int) -> None:
        """As :meth:`Upstream.give_memory_back` promises; a connection that has ended has given all back."""
        size_bytes = min(size_bytes, self._memory_bytes)
        self._memory_bytes -= size_bytes
        self._memory.give_back(size_bytes)

    # Flow

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._guarded_work(work))

    async def _guarded_work(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except UpstreamClosedError:
            self.close("broker")
        except MalformedMessageError as error:
            self._complain("malformed", error)
        except Exception as error:  # noqa: BLE001 - whatever it is ends this connection and no other
            self._complain("error", error)
        self._sides_changed()

    def _guarded(self, reason: str, work: Callable[[], None]) -> None:
        if self._closed_s is not None:
            return
        try:
            work()
        except MalformedMessageError as error:
            self._complain(reason, error)
        except Exception as error:  # noqa: BLE001 - whatever it is ends this connection and no other
            self._complain("error", error)

    def _complain(self, reason: str, error: Exception) -> None:
        listener = self._traffic.listener
        if reason == "malformed":
            log.info("gateway.client.malformed", listener=listener, reason=str(error))
        elif reason == "broker_malformed":
            log.warning("gateway.broker.malformed", listener=listener, reason=str(error))
        else:
            log.error("gateway.connection.failed", listener=listener, exc_info=error)
        self.close(reason)

    def _hold(self, why: _Hold) -> None:
        self._holds |= why
        self._requests.hold()

    def _unhold(self, why: _Hold) -> None:
        if not self._holds:
            return
        self._holds &= ~why
        if not self._holds:
            self._requests.release()

    def _sides_changed(self) -> None:
        """Read from a side what the other, and its pump, can take."""
        if self._closed_s is not None:
            return
        if self.client.full_since_s is None and self._task is None:
            self.give_memory_back(self._memory_bytes)
        self.client.read(wanted=self.broker.full_since_s is None and self._requests.takes_bytes)
        self.broker.read(wanted=self.client.full_since_s is None and self._responses.takes_bytes)

    def _events_of(self, which: str, received: Callable[[Buffer], None]) -> SideEvents:
        def lost() -> None:
            self.close(which)
            if self.client.is_gone and self.broker.is_gone:
                self._when_closed(self)

        return SideEvents(received=received, lost=lost, changed=self._sides_changed)


def _framed(header: Buffer, body: Sequence[Buffer]) -> list[Buffer]:
    size = len(header) + sum(map(len, body))
    return [struct.pack(">i", size), header, *body]


def _body_offset(frame: memoryview, api_key: int, api_version: int) -> int:
    """Where the body begins in a whole response: behind size, correlation id and, in flexible versions, tagged fields."""
    flexible = api_key != ApiKey.API_VERSIONS and has_flexible_header(api_key, api_version)
    cursor = Cursor(frame, flexible=flexible, position=_RESPONSE_HEAD_BYTES)
    cursor.skip_tagged_fields()
    return cursor.position


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that awaits nothing."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("only the rewrite of an API that is alone may await something")
