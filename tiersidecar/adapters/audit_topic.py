"""Write the gateway's audit events as records of a topic, for pipelines that do not read log files."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import chain, islice

import structlog

from tiersidecar.adapters.kafka_clients import SendRecord
from tiersidecar.adapters.sessions import running
from tiersidecar.domain.errors import RetriableError
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.gateway import GATEWAY_AUDIT_LOST, GATEWAY_AUDIT_WRITTEN
from tiersidecar.ports.telemetry import Telemetry

log = structlog.get_logger(__name__)

_MAX_QUEUED = 10_000
"""Events of each kind that wait in memory."""
_MAX_QUEUED_BYTES = 16 * 2**20
"""For each kind: an event names what its client has named, in a request of 16 KiB."""
_MAX_TEXT = 512
_AT_ONCE = 100
"""Events of each kind that are written together."""
_PAUSE_S, _MAX_PAUSE_S = 0.2, 10.0
_LAST_WORDS_S = 2.0


@asynccontextmanager
async def open_audit_topic(
    topic: str, *, producer: SendRecord, clock: Clock, telemetry: Telemetry
) -> AsyncIterator[KafkaAuditTopic]:
    """Write in the background for as long as the body does, and a moment longer for what is queued."""
    audit = KafkaAuditTopic(topic, producer=producer, clock=clock, telemetry=telemetry)
    try:
        async with running(audit.run(), name="audit topic"):
            try:
                yield audit
            finally:
                await audit.drained(_LAST_WORDS_S)
    finally:
        await producer.close()


class KafkaAuditTopic:
    """``services.gateway.audit.AuditTopic``: a bounded queue for each kind of event, written with acks=all; what does not
    fit is counted as lost.

    Any client can cause refusals and fill their queue while the topic is unavailable; deletes have a queue of their own.
    """

    def __init__(self, topic: str, *, producer: SendRecord, clock: Clock, telemetry: Telemetry) -> None:
        self._topic, self._producer, self._clock, self._telemetry = topic, producer, clock, telemetry
        self._queues: defaultdict[str, deque[tuple[int, bytes]]] = defaultdict(deque)
        self._bytes = Counter[str]()
        self._filled, self._empty = asyncio.Event(), asyncio.Event()
        self._empty.set()

    def record(self, event: str, facts: Mapping[str, object]) -> None:
        """Queue the event, or count it as lost if the queue of its kind is full."""
        queue = self._queues[event]
        if len(queue) >= _MAX_QUEUED or self._bytes[event] >= _MAX_QUEUED_BYTES:
            self._telemetry.count(GATEWAY_AUDIT_LOST)
            return
        now_ms = self._clock.now_ms()
        document = {"v": 1, "event": event, "time_ms": now_ms, **{name: _cut(value) for name, value in facts.items()}}
        value = json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
        queue.append((now_ms, value))
        self._bytes[event] += len(value)
        self._empty.clear()
        self._filled.set()

    async def drained(self, within_s: float) -> None:
        """Return once nothing is queued, or ``within_s`` are over; what is left then is lost, and counted so."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._empty.wait()
        left = sum(map(len, self._queues.values()))
        if left:
            self._telemetry.count(GATEWAY_AUDIT_LOST, left)
            log.warning("gateway.audit.lost", number=left, reason="the process ends")

    async def run(self) -> None:
        """Write what is queued; never ends."""
        pause_s = _PAUSE_S
        while True:
            await self._filled.wait()
            batch = {event: list(islice(queue, _AT_ONCE)) for event, queue in self._queues.items()}
            try:
                await asyncio.gather(*(self._send(*one) for one in chain.from_iterable(batch.values())))
            except RetriableError as error:
                # Some of them may be there twice then, which a reader of an audit log can bear; none of them is missing.
                if pause_s == _PAUSE_S:
                    log.warning("gateway.audit.retry", topic=self._topic, reason=str(error))
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
                continue
            pause_s = _PAUSE_S
            self._written({event: len(sent) for event, sent in batch.items()})

    async def _send(self, now_ms: int, value: bytes) -> None:
        await self._producer.send(self._topic, partition=0, key=None, value=value, timestamp_ms=now_ms)

    def _written(self, numbers: Mapping[str, int]) -> None:
        for event, number in numbers.items():
            for _ in range(number):
                _, value = self._queues[event].popleft()
                self._bytes[event] -= len(value)
        self._telemetry.count(GATEWAY_AUDIT_WRITTEN, sum(numbers.values()))
        if not any(self._queues.values()):
            self._filled.clear()
            self._empty.set()


def _cut(value: object) -> object:
    return value[:_MAX_TEXT] if isinstance(value, str) else value
