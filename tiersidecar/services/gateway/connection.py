"""One client and its broker: a connection to each, and between them their conversation.

The broker connection is the client's own, from its first byte to its last: the broker authenticates and authorises it as if
the gateway were not there, and what happens to one of the two happens to the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from tiersidecar.reading.reader_limits import ASKER
from tiersidecar.services.client_limits import LeastPace
from tiersidecar.services.gateway.audit import AuditTopic, audit_end, audit_refused
from tiersidecar.services.gateway.conversation import Conversation, ListenerShare
from tiersidecar.services.gateway.exchange import Buffer, ConnectionState
from tiersidecar.services.gateway.host import Refusal
from tiersidecar.services.gateway.side import MakeSide, SideEvents
from tiersidecar.services.gateway.unauthenticated import PendingLogin

log = structlog.get_logger(__name__)

_CLOSE_TIMEOUT_S = 10.0
_SLOW_READER = "slow_reader"


class GatewayConnection:
    """The :class:`Host` of a conversation: carries its bytes, runs its work, looks at the clock, and ends what must end.

    ``client_address`` is for the audit log.  ``when_closed`` is called once, when both connections are gone.
    """

    def __init__(
        self,
        *,
        client_address: str,
        login: PendingLogin,
        share: ListenerShare,
        make_client: MakeSide,
        make_broker: MakeSide,
        audit: AuditTopic,
        monotonic_s: Callable[[], float],
        when_closed: Callable[[GatewayConnection], None],
    ) -> None:
        limits = share.limits
        self._traffic, self._limits, self._audit = share.traffic, limits, audit
        self._monotonic_s, self._when_closed = monotonic_s, when_closed
        self._task: asyncio.Task[None] | None = None
        self._closed_s: float | None = None
        self._deadline_s: float | None = None  # for the request under way
        self._deadline_of = 0
        self._looked_s, self._taken_bytes = 0.0, 0  # at the client, by the sweep before
        self._pace = LeastPace(bytes_per_s=limits.least_taken_bytes_per_s, over_s=limits.write_timeout_s)
        self._state = ConnectionState(client=client_address)
        self._login = login
        self.client = make_client(self._events_of("client", self._client_data))
        self.broker = make_broker(self._events_of("broker", self._broker_data))
        self._conversation = Conversation(
            state=self._state,
            share=share,
            client=self.client,
            broker=self.broker,
            host=self,
            login=login,
        )

    # What happens to it

    def connected(self) -> None:
        """Begin: both sides are connected."""
        self._conversation.connected()
        self._sides_changed()

    def close(self, reason: str) -> None:
        """End both connections, after what is on its way; ``reason`` is for the metrics."""
        if self._closed_s is not None:
            return
        self._closed_s = self._monotonic_s()
        self._login.ends(reason)
        self._traffic.closed[reason] += 1
        if self._task is not None:
            self._task.cancel()
        self._conversation.close()
        self.client.close()
        self.broker.close()

    def gone(self) -> None:
        """Count it no longer: both connections are gone."""
        self._login.done()

    @property
    def is_closed(self) -> bool:
        """Return whether it has been ended, by whatever."""
        return self._closed_s is not None

    def shed(self, reason: str) -> None:
        """End it at once: it has not logged in, and others need what it holds."""
        self.close(reason)
        self.client.abort()
        self.broker.abort()

    def sweep(self, now_s: float) -> None:
        """Look at the clock: called about once a second."""
        if self._closed_s is not None:
            if now_s - self._closed_s > _CLOSE_TIMEOUT_S:
                self.client.abort()
                self.broker.abort()
            return
        slowness = self._slowness(now_s)
        if self._deadline_s is not None and self.broker.full_since_s is not None:
            self._deadline_s += 1  # the broker is slow, not the client
        elif self._deadline_s is not None and now_s > self._deadline_s:
            self.close("slow_request")
        if slowness:
            audit_refused(self._traffic.listener, self._state, _SLOW_READER, slowness, self._audit)
            self.close(_SLOW_READER)
            self.client.abort()

    def _slowness(self, now_s: float) -> str:
        """Return why the client takes its answers too slowly; nothing where it does not."""
        side, looked_s = self.client, self._looked_s
        taken_bytes = side.taken_bytes - self._taken_bytes
        self._looked_s, self._taken_bytes = now_s, side.taken_bytes
        if side.full_since_s is None or side.owes_since_s is None:
            self._pace.begin_anew()
            return ""
        if now_s - side.full_since_s > self._limits.write_timeout_s:
            return f"the client took nothing for {now_s - side.full_since_s:.0f} s of what was waiting for it"
        return self._pace.took(taken_bytes, now_s - max(side.owes_since_s, looked_s))

    # As the host of the conversation

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin ``work``, one at a time; its exceptions go to :meth:`Conversation.fail`."""
        self._task = asyncio.get_running_loop().create_task(self._guarded(work))

    def soon(self, call: Callable[[], None]) -> None:
        """Call, but not now."""

        def later() -> None:
            call()
            self._sides_changed()

        asyncio.get_running_loop().call_soon(later)

    def ended(self, refusal: Refusal, error: Exception) -> None:
        """Note that nothing more comes out; what has goes on its way, then both connections end."""
        if refusal is Refusal.FAULT:
            log.error("gateway.connection.failed", listener=self._traffic.listener, exc_info=error)
        audit_end(self._traffic.listener, self._state, refusal, error, self._audit)
        self.close(refusal.value)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        ASKER.set(self._conversation.asker)
        try:
            await work
        except Exception as error:  # noqa: BLE001 - whatever it is ends this connection and no other
            self._conversation.fail(error)
        self._task = None
        self._sides_changed()

    # Flow

    def _client_data(self, data: Buffer) -> None:
        self._conversation.from_client(data)
        self._count_held()
        self._sides_changed()

    def _broker_data(self, data: Buffer) -> None:
        self._conversation.from_broker(data)
        if not self._login.is_done and self._conversation.is_let_in:
            self._login.let_in(by_sasl=bool(self._state.login.mechanism))
        self._count_held()
        self._sides_changed()

    def _count_held(self) -> None:
        if not self._login.is_done:
            waiting = self.client.waiting_bytes + self.broker.waiting_bytes
            self._login.hold(self._conversation.kept_bytes + waiting)

    def _sides_changed(self) -> None:
        """Read from a side what the other, and the conversation, can take."""
        if self._closed_s is not None:
            return
        self._set_deadline()
        if self.client.full_since_s is None and self._task is None:
            self._conversation.taken()
        self.client.read(wanted=self.broker.full_since_s is None and self._conversation.wants_request_bytes)
        self.broker.read(wanted=self.client.full_since_s is None and self._conversation.wants_answer_bytes)

    def _set_deadline(self) -> None:
        number, unfinished_bytes = self._conversation.unfinished_request
        if unfinished_bytes == 0:
            self._deadline_s = None
        elif self._deadline_s is None or number != self._deadline_of:
            allowed_s = self._limits.request_timeout_s + unfinished_bytes / self._limits.slowest_bytes_per_s
            self._deadline_s, self._deadline_of = self._monotonic_s() + allowed_s, number

    def _events_of(self, which: str, received: Callable[[Buffer], None]) -> SideEvents:
        def lost() -> None:
            self.close(which)
            if self.client.is_gone and self.broker.is_gone:
                self._when_closed(self)

        return SideEvents(received=received, lost=lost, changed=self._sides_changed)
