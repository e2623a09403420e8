"""The state topic as this process has read it: from session to session, and whether it is the topic that was read before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from tiersidecar.adapters.end_offsets import EndOffsets
from tiersidecar.adapters.internal_topics import TopicBroker, TopicFacts, ensure_topic
from tiersidecar.adapters.kafka_clients import TopicClients, translated
from tiersidecar.adapters.read_back import ReadBack
from tiersidecar.adapters.sessions import keep_trying, missing_right_of, run_until_one_ends
from tiersidecar.adapters.state_topic.fold import StateFold
from tiersidecar.adapters.state_topic.remembered import LastRecord, NoMemory, RememberedTopic, TopicMemory
from tiersidecar.adapters.state_topic.settings import StateTopicSettings
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError, MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition, format_uuid
from tiersidecar.domain.offsets import NO_EPOCH, Offset
from tiersidecar.domain.policy import Pause, PausedThing, pause_sentence
from tiersidecar.ports.broker import OffsetSpec
from tiersidecar.ports.clock import Clock, Ids
from tiersidecar.ports.metrics.retention import PAUSED, UNSAFE_TOPICS
from tiersidecar.ports.telemetry import Telemetry

_log = structlog.get_logger(__name__)

_POLL_MS = 500
_MAX_RECORDS = 200
"""A few milliseconds of folding between two looks at the loop."""
_RECOVERY = (
    "Nothing is deleted, and what no record says any more is not guessed at, also after a restart. Restore the topic, or "
    "accept the loss with `tiersidecar accept-topic-loss`, and start the sidecars again that ran when it was lost: remote log "
    "starts, users' deletes, holds, pauses, the trash and tiering settings that are in no record any more are then forgotten."
)

Work = Callable[[], Coroutine[object, object, None]]
"""Makes what runs until it is cancelled."""


class StateReplica:
    """Reads all of the topic into ``fold``, and says what its state is worth.

    ``read_back`` is where publishers wait for their records; ``unreachable`` is why the topic is out of reach, or not the one
    that was read before, None while it is read.
    """

    def __init__(
        self,
        settings: StateTopicSettings,
        *,
        broker: TopicBroker,
        clock: Clock,
        ids: Ids,
        telemetry: Telemetry,
        clients: TopicClients,
        memory: TopicMemory | None = None,
    ) -> None:
        self._settings, self._broker, self._clock, self._ids, self._telemetry = settings, broker, clock, ids, telemetry
        self._clients, self._ends, self._memory = clients, EndOffsets(broker), memory or NoMemory()
        self.fold, self.read_back = StateFold(), ReadBack()
        self._partition = TopicPartition(settings.topic, 0)
        self._facts: TopicFacts | None = None
        self._position, self._begin = -1, -1
        self._ready_at: int | None = None
        self.unreachable: str | None = "the state topic has not been reached yet"
        self.missing_right: BrokerRefusedError | None = None
        self._lost: str | None = None
        self._gap: str | None = None
        self._rewritten: str | None = None
        self._last: ConsumerRecord | None = None
        self._reported: str | None = None
        self._paused: dict[PausedThing, Pause] = {}
        self._remembered: RememberedTopic | None = None

    # -- running

    async def remember(self) -> None:
        """Learn what a process before this one knew of the topic."""
        self._remembered = await self._memory.read()

    async def run(self, mend: Work | None = None) -> None:
        """Connect, read, and begin again whenever contact is lost.  ``mend`` runs beside the reading.

        Raises:
            PartitionCountError: the topic has more than one partition.
        """
        await keep_trying(
            partial(self._session, mend),
            topic=self._settings.topic,
            clock=self._clock,
            ids=self._ids,
            first_interval_ms=self._settings.retry_interval_ms,
            max_interval_ms=self._settings.retry_max_interval_ms,
            give_up_after_ms=None,
            on_failure=self._contact_was_lost,
        )

    async def close(self) -> None:
        """Keep what is known of the topic, for the next process."""
        if (known := self._known()) is not None:
            await self._memory.write(known)

    async def _session(self, mend: Work | None, connected: Callable[[], None]) -> None:
        facts = await self._topic()
        self._forget_other_cluster(facts)
        begin, end = await self._offset(facts, OffsetSpec.EARLIEST), await self._offset(facts, OffsetSpec.LATEST)
        connected()
        self._lost = self._loss(facts, end)
        if self._lost is not None and await self._is_accepted(facts, begin, end):
            self._lost = self._rewritten = self._remembered = None
        if self._lost is None:
            self._begin_reading(facts, begin, end)
        self._report_halt()
        if self._lost is not None:
            self.unreachable = self._lost
            await self._clock.sleep(self._settings.watch_interval_ms / 1000)
            return
        work = {"state topic": self._read(), "state topic, watch": self._watch(), "state topic, memory": self._keep()}
        if mend is not None:
            work["state topic, mend"] = mend()
        await run_until_one_ends(work)

    def _begin_reading(self, facts: TopicFacts, begin: Offset, end: Offset) -> None:
        """Note where the topic begins and ends.  It is ready without an end that was lost before it was read, and halts."""
        if self._ready_at is not None and self._position <= end < self._ready_at:
            self._gap = f"{self._settings.topic} lost offsets {end} to {self._ready_at - 1} before they were read"
        self._facts, self.unreachable, self.missing_right = facts, None, None
        self.fold.cluster_id = facts.cluster_id
        self._begin, self._position, self._ready_at = begin, max(self._position, begin), end

    async def _topic(self) -> TopicFacts:
        """Return the topic, made if need be; a topic that was read before is never made again.

        Raises:
            BrokerRefusedError: it is gone, or cannot be made.
        """
        is_known = self._facts is not None or self._remembered is not None
        try:
            return await ensure_topic(self._broker, self._settings.required_topic, may_create=not is_known)
        except BrokerRefusedError as error:
            if is_known and error.error == "UNKNOWN_TOPIC_OR_PARTITION":
                self._lost = f"{self._settings.topic} is gone"
                self._report_halt()
            raise

    def _forget_other_cluster(self, facts: TopicFacts) -> None:
        remembered = self._remembered
        if remembered is not None and remembered.cluster_id != facts.cluster_id:
            _log.warning("state.memory.discarded", reason=f"it is of cluster {remembered.cluster_id}")
            self._remembered = None

    def _loss(self, facts: TopicFacts, end: Offset) -> str | None:
        """Return why this is not the topic that was read before, by this process or one before it."""
        if self._rewritten is not None:
            return self._rewritten
        now, known = format_uuid(facts.topic_id), self._remembered
        before = format_uuid(self._facts.topic_id) if self._facts is not None else None
        if before is None and known is not None:
            before = known.topic_id
        if before is not None and before != now:
            return f"{self._settings.topic} was created again: it has topic id {now}, {before} was read before"
        position = max(self._position, -1 if known is None else known.position)
        if position > end:
            return f"{self._settings.topic} ends at offset {end}, but was read up to {position} before"
        return None

    async def _is_accepted(self, facts: TopicFacts, begin: Offset, end: Offset) -> bool:
        """Return whether the topic now has an acceptance that was not in it before.  A process that read the former topic keeps
        what it knows until it is started again."""
        if self._facts is not None or self._remembered is None:
            return False
        found = StateFold(facts.cluster_id)
        async with self._clients.open_consumer() as consumer:
            consumer.assign([self._partition])
            consumer.seek(self._partition, begin)
            while await consumer.position(self._partition) < end:
                for records in (await consumer.getmany(timeout_ms=_POLL_MS, max_records=_MAX_RECORDS)).values():
                    for record in records:
                        found.apply(record.key, record.value, where=f"{self._settings.topic}-0 offset {record.offset}")
                await asyncio.sleep(0)
        new = sorted(found.losses.keys() - self._remembered.accepted)
        if new:
            _log.warning("state.loss.accepted", topic=self._settings.topic, loss=self._lost, acceptance=new[0])
        return bool(new)

    async def _keep(self) -> None:
        """Keep in ``state.dir`` what is known of the topic."""
        kept = None
        while True:
            known = self._known()
            if known is not None and known != kept:
                await self._memory.write(known)
                kept = known
            await self._clock.sleep(self._settings.remember_interval_ms / 1000)

    def _known(self) -> RememberedTopic | None:
        """Return what is known of the topic; None while it is not all read, or lost."""
        facts, last = self._facts, self._last
        if facts is None or self._lost is not None or not self.is_ready:
            return None
        return RememberedTopic(
            cluster_id=facts.cluster_id,
            topic_id=format_uuid(facts.topic_id),
            position=Offset(self._position),
            last=None if last is None else LastRecord.of(last.offset, last.key, last.value),
            accepted=frozenset(self.fold.losses),
        )

    async def _offset(self, facts: TopicFacts, spec: OffsetSpec) -> Offset:
        asked = self._partition_of(facts)
        answer = (await self._broker.list_offsets({asked: NO_EPOCH}, spec))[asked]
        if answer.error is not None:
            raise BrokerRefusedError(api="ListOffsets", subject=self._settings.topic, error=answer.error)
        return answer.offset

    def _partition_of(self, facts: TopicFacts) -> TopicIdPartition:
        return TopicIdPartition(topic_id=facts.topic_id, topic=self._settings.topic, partition=0)

    async def _read(self) -> None:
        async with self._clients.open_consumer() as consumer:
            consumer.assign([self._partition])
            # Once more the last record: a topic that lost its end may have been written on.
            last = self._last
            again = last is not None and last.offset >= self._begin
            consumer.seek(self._partition, last.offset if last is not None and again else self._position)
            while True:
                with translated("Fetch", self._settings.topic, self._settings.bootstrap_servers):
                    await self._read_some(consumer)

    async def _read_some(self, consumer: AIOKafkaConsumer) -> None:
        await asyncio.sleep(0)  # a long replay always has more at hand
        for records in (await consumer.getmany(timeout_ms=_POLL_MS, max_records=_MAX_RECORDS)).values():
            for record in records:
                if record.offset < self._position:
                    self._require_same(record)
                    continue
                self._require_as_remembered(record)
                self._last = record
                self.fold.apply(record.key, record.value, where=f"{self._settings.topic}-0 offset {record.offset}")
        self._position = max(self._position, await consumer.position(self._partition))
        if self.fold.pauses != self._paused:
            self._report_pauses()
        self.read_back.advance(self._position)

    def _require_same(self, record: ConsumerRecord) -> None:
        """Halt if the last record that was read is another: compaction may have removed it, but never replaces it.

        Raises:
            BrokerRefusedError: there is another one in its place; the next session says what that means.
        """
        last = self._last
        if last is None or record.offset != last.offset or (record.key, record.value) == (last.key, last.value):
            return
        self.unreachable = self._lost = self._rewritten = (
            f"{self._settings.topic} has another record at offset {record.offset} than was read there before"
        )
        # What was known stays what readers go by, as when the topic was made anew.
        self._ready_at = self._position
        self._report_halt()
        raise BrokerRefusedError(api="Fetch", subject=self._settings.topic, error="LOG_TRUNCATION_DETECTED")

    def _require_as_remembered(self, record: ConsumerRecord) -> None:
        """Halt unless the record that an earlier process read last is unchanged.  What is there now is not taken for it.

        Raises:
            BrokerRefusedError: as above.
        """
        last = None if self._remembered is None else self._remembered.last
        if last is None or record.offset != last.offset:
            return
        if LastRecord.of(record.offset, record.key, record.value) == last:
            return
        self.unreachable = self._lost = self._rewritten = (
            f"{self._settings.topic} has another record at offset {record.offset} than was read there before"
        )
        self.fold, self._facts, self._last = self.fold.emptied(), None, None
        self._position, self._ready_at = -1, None
        self._report_halt()
        raise BrokerRefusedError(api="Fetch", subject=self._settings.topic, error="LOG_TRUNCATION_DETECTED")

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(self._settings.watch_interval_ms / 1000)
            before = self._facts
            facts = await ensure_topic(self._broker, self._settings.required_topic, may_create=False)
            if before is None or (facts.topic_id, facts.leader_epochs) != (before.topic_id, before.leader_epochs):
                raise BrokerRefusedError(api="Metadata", subject=self._settings.topic, error="leader changed")
            self._facts = facts
            self._report_halt()

    def _contact_was_lost(self, error: BaseException) -> None:
        self.unreachable, self.missing_right = str(error), missing_right_of(error)
        self._report_halt()

    def _report_halt(self) -> None:
        halted = self.halted_reason
        if halted != self._reported:
            self._reported = halted
            if halted is None:
                _log.info("state.topic.sound", topic=self._settings.topic)
            else:
                _log.error("state.topic.halted", topic=self._settings.topic, reason=halted)
        self._telemetry.gauge(UNSAFE_TOPICS, float(halted is not None), topic=self._settings.topic)

    def _report_pauses(self) -> None:
        before, self._paused = self._paused, dict(self.fold.pauses)
        for thing in before.keys() - self._paused.keys():
            _log.info("pause.ended", topic=before[thing].topic, kind=thing.kind.value)
            self._telemetry.forget(PAUSED, topic=before[thing].topic, kind=thing.kind.value)
        for thing, pause in self._paused.items():
            if thing not in before:
                _log.warning("pause.began", topic=pause.topic, kind=thing.kind.value, reason=pause_sentence(pause))
            self._telemetry.gauge(PAUSED, 1.0, topic=pause.topic, kind=thing.kind.value)

    # -- what it is worth

    @property
    def is_ready(self) -> bool:
        """Return whether the topic has been read to the end that was seen when it was first reached."""
        return self._ready_at is not None and self._position >= self._ready_at

    @property
    def readiness_reason(self) -> str | None:
        """Return why the state cannot be answered or written, for /readyz; None when it can."""
        if self.unreachable is not None:
            return self.unreachable
        return None if self.is_ready else f"{self._settings.topic} is being read"

    @property
    def halted_reason(self) -> str | None:
        """Return why nothing may be trimmed or deleted because of this topic, else None."""
        if self._lost is not None:
            return f"{self._lost}: the topic lost data. {self._settings.recovery or _RECOVERY}"
        if self._gap is not None:
            return f"{self._gap}. {self._settings.recovery or _RECOVERY}"
        return ("; ".join(self._facts.weaknesses) or None) if self._facts is not None else None

    @property
    def topic_id(self) -> str:
        """Return the topic's id, as text; "" before it was reached."""
        return "" if self._facts is None else format_uuid(self._facts.topic_id)

    def require_ready(self) -> None:
        """Return if the topic has been read to the end that was seen when it was first reached.

        Raises:
            MetadataNotReadyError: it has not.
        """
        if not self.is_ready:
            raise MetadataNotReadyError(subject=self._settings.topic)

    def ready_fold(self) -> StateFold:
        """Return all that is known; raises as :meth:`require_ready`."""
        self.require_ready()
        return self.fold

    async def catch_up(self) -> None:
        """Return once all is read that the topic has now, within ``consume_wait_ms``.

        Raises:
            MetadataNotReadyError: it was not read in time.
            BrokerUnreachableError: the topic is out of reach.
            BrokerRefusedError: its leader does not report its end.
        """
        facts, unreachable = self._facts, self.unreachable
        if facts is None or unreachable is not None:
            reason = unreachable or "it has not been reached yet"
            raise BrokerUnreachableError(address=self._settings.bootstrap_servers, reason=reason)
        end_offset = await self._ends.of(self._partition_of(facts))
        try:
            async with asyncio.timeout(self._settings.consume_wait_ms / 1000):
                await self.read_back.reach(end_offset)
        except TimeoutError as error:
            raise MetadataNotReadyError(subject=self._settings.topic) from error
        self.require_ready()

    async def advanced(self) -> None:
        """Return once a further record has been read."""
        await self.read_back.reach(self._position + 1)
