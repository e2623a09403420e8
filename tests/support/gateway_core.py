"""A conversation of the gateway without sockets: bytes in, bytes out, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from tiersidecar.services.gateway import audit
from tiersidecar.services.gateway.conversation import Conversation, ListenerShare
from tiersidecar.services.gateway.exchange import Buffer, ConnectionState, Rewrites
from tiersidecar.services.gateway.frames import ResponseMemory
from tiersidecar.services.gateway.host import Refusal
from tiersidecar.services.gateway.limits import GatewayLimits
from tiersidecar.services.gateway.traffic import Traffic


@dataclass(slots=True)
class Collected:
    """``services.gateway.conversation.End``."""

    data: bytearray = field(default_factory=bytearray)
    is_full: bool = False
    has_hung_up: bool = False

    def write(self, data: Buffer) -> None:
        self.data += data

    def write_all(self, pieces: Sequence[Buffer]) -> None:
        for piece in pieces:
            self.data += piece

    def take(self) -> bytes:
        taken, self.data = bytes(self.data), bytearray()
        return taken


class RecordedAudit:
    """``services.gateway.audit.AuditTopic``: the events it got, in order."""

    def __init__(self) -> None:
        self.events = list[tuple[str, Mapping[str, object]]]()

    def record(self, event: str, facts: Mapping[str, object]) -> None:
        self.events.append((event, facts))

    def of(self, event: str) -> list[Mapping[str, object]]:
        return [facts for name, facts in self.events if name == event]


_ENOUGH_TURNS = 1000


class Core:
    """The core and the conversation's host: its work are tasks of the running loop, until :meth:`idle`."""

    def __init__(
        self,
        rewrites: Rewrites,
        *,
        limits: GatewayLimits | None = None,
        memory: ResponseMemory | None = None,
        new_id: Callable[[], int] | None = None,
        address: str = "127.0.0.1:1",
    ) -> None:
        self.client, self.broker = Collected(), Collected()
        self.state = ConnectionState(client=address)
        self.memory = memory or ResponseMemory(2**26)
        self.refusal: Refusal | None = None
        self.error: Exception | None = None
        self.audited = RecordedAudit()
        self._tasks: set[asyncio.Task[None]] = set()
        self.conversation = Conversation(
            state=self.state,
            share=ListenerShare(
                traffic=Traffic(listener="GATEWAY"),
                rewrites=rewrites,
                limits=limits or GatewayLimits(),
                memory=self.memory,
            ),
            client=self.client,
            broker=self.broker,
            host=self,
            **cast("dict[str, Any]", {} if new_id is None else {"new_id": new_id}),
        )
        self.conversation.connected()

    @property
    def has_ended(self) -> bool:
        return self.refusal is not None

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def soon(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(call)

    def ended(self, refusal: Refusal, error: Exception) -> None:
        assert self.refusal is None, "it ends once"
        self.refusal, self.error = refusal, error
        audit.audit_end("GATEWAY", self.state, refusal, error, self.audited)

    @property
    def is_rewriting(self) -> bool:
        """Return whether an answer waits to be passed on: what goes to the broker now, no client has sent."""
        return self.conversation._rewriting is not None

    async def settled(self) -> None:
        """Wait until all work is done, or waits for the broker."""
        for _ in range(_ENOUGH_TURNS):
            if not self._tasks or self.broker.data:
                break
            await asyncio.sleep(0)
        if not self._tasks:
            self.conversation.taken()

    async def idle(self) -> None:
        """Wait until all work is done."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        self.conversation.taken()

    def close(self) -> None:
        """Close as a connection does that is lost."""
        self.conversation.close()
        for task in self._tasks:
            task.cancel()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - as a connection does
            self.conversation.fail(error)
