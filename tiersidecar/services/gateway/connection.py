"""One client and its broker: a connection to each, and between them the two pumps.

The broker connection is the client's own, from its first byte to its last: the broker authenticates and authorises it as if
the gateway were not there, and what happens to one of the two happens to the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import Flag, auto
from typing import Any

import structlog

from tiersidecar.formats.wire.messages import MalformedMessageError
from tiersidecar.services.gateway.api_keys import BEFORE_LOGIN
from tiersidecar.services.gateway.exchange import Buffer, Rewrites, UpstreamClosedError
from tiersidecar.services.gateway.limits import GatewayLimits, ResponseMemory
from tiersidecar.services.gateway.pending import Fate, Pending, PendingQueue
from tiersidecar.services.gateway.request_pump import RequestPump
from tiersidecar.services.gateway.response_pump import ResponsePump
from tiersidecar.services.gateway.rewrites import unsupported_api_versions
from tiersidecar.services.gateway.rewriting import Rewriting
from tiersidecar.services.gateway.side import MakeSide, SideEvents
from tiersidecar.services.gateway.traffic import Traffic

log = structlog.get_logger(__name__)

_CLOSE_TIMEOUT_S = 10.0


class _Hold(Flag):
    """Why no further request goes to the broker for now."""

    NOTHING = 0
    CONNECTING = auto()
    ALONE = auto()
    FULL = auto()


class GatewayConnection:
    """Implements the sinks of both pumps: decides what may flow, and ends what must end.

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
        self._traffic, self._rewrites, self._limits = traffic, rewrites, limits
        self._monotonic_s, self._when_closed = monotonic_s, when_closed
        self._pending: PendingQueue = PendingQueue()
        self._requests = RequestPump(self, rewrites, limits, monotonic_s)
        self._responses = ResponsePump(self, self._pending, memory)
        self._holds = _Hold.NOTHING
        self._task: asyncio.Task[None] | None = None
        self._closed_s: float | None = None
        self.client = make_client(self._events_of("client", self._client_data))
        self.broker = make_broker(self._events_of("broker", self._broker_data))
        self._rewriting = Rewriting(
            traffic=traffic,
            rewrites=rewrites,
            memory=memory,
            pending=self._pending,
            client=self.client,
            broker=self.broker,
            run=self._start,
            when_sent=self.passed,
        )
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
        self._rewriting.close()
        self._pending.clear()
        self._responses.close()
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
            self._expect(Pending(Fate.PASS, correlation_id, needs_login=api_key not in BEFORE_LOGIN))
            return
        self._expect(self._rewriting.unread(api_key, api_version, correlation_id))
        if rewrite.alone:
            self._hold(_Hold.ALONE)

    def whole_request(self, frame: memoryview) -> None:
        pending, pieces = self._rewriting.read(frame)
        self._expect(pending)
        self.broker.write_all(pieces)
        if pending.rewrite is not None and pending.rewrite.alone:
            self._hold(_Hold.ALONE)
        self._rewriting.forwarded(pending)

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
        self._rewriting.collected(pending, frame, memory_bytes)

    def passed(self, pending: Pending) -> None:
        if pending.rewrite is not None and pending.rewrite.alone:
            self._task = None
            self._unhold(_Hold.ALONE)

    def answered(self, pending: Pending) -> None:
        if pending.needs_login:
            self._requests.let_in()
        if _Hold.FULL in self._holds and len(self._pending) <= self._limits.max_in_flight_requests // 2:
            self._guarded("malformed", lambda: self._unhold(_Hold.FULL))

    def room_found(self) -> None:
        # Not now: whoever has given memory back is in the middle of something.
        asyncio.get_running_loop().call_soon(self._broker_data, b"")

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
            self._rewriting.taken()
        self.client.read(wanted=self.broker.full_since_s is None and self._requests.takes_bytes)
        self.broker.read(wanted=self.client.full_since_s is None and self._responses.takes_bytes)

    def _events_of(self, which: str, received: Callable[[Buffer], None]) -> SideEvents:
        def lost() -> None:
            self.close(which)
            if self.client.is_gone and self.broker.is_gone:
                self._when_closed(self)

        return SideEvents(received=received, lost=lost, changed=self._sides_changed)
