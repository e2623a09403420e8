"""``__tiersidecar_state`` over a compacted topic (DESIGN.md section 5, where state lives).

Every sidecar reads all of it.  A publish returns after our own consumer has read it back, so that a delete may act on it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from tiersidecar.adapters.end_offsets import EndOffsets
from tiersidecar.adapters.internal_topics import TopicBroker, TopicFacts, ensure_topic
from tiersidecar.adapters.kafka_clients import KafkaTopicClients, TopicClients, translated
from tiersidecar.adapters.read_back import ReadBack
from tiersidecar.adapters.sessions import keep_trying, run_until_one_ends, running
from tiersidecar.adapters.state_topic.codec import Writer, partition_key, stamped, topic_key
from tiersidecar.adapters.state_topic.fold import StateFold
from tiersidecar.adapters.state_topic.record_codecs import (
    cleaner_key,
    lease_key,
    loss_key,
    pause_key,
    read_trash_key,
    recopy_key,
    trash_key,
    write_lease,
    write_loss,
    write_pause,
    write_recopy,
)
from tiersidecar.adapters.state_topic.remembered import LastRecord, NoMemory, RememberedTopic, TopicMemory
from tiersidecar.adapters.state_topic.settings import StateTopicSettings
from tiersidecar.decide.pauses import told, why_paused
from tiersidecar.domain.cleaner import CleanerClaim
from tiersidecar.domain.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    MetadataNotReadyError,
    PublishTimeoutError,
)
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.lease import Lease
from tiersidecar.domain.offsets import NO_EPOCH, Offset
from tiersidecar.domain.pauses import Pause, PausedThing, PauseKind
from tiersidecar.domain.trash import TrashEntry
from tiersidecar.ports.broker import OffsetSpec
from tiersidecar.ports.clock import Clock, Ids
from tiersidecar.ports.failpoints import NO_FAILPOINTS, Failpoints
from tiersidecar.ports.metrics.retention import PAUSED, UNSAFE_TOPICS
from tiersidecar.ports.state_log import ForeignState, PartitionState, TopicState
from tiersidecar.ports.state_records import RecopyRequest
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


@asynccontextmanager
async def open_state_topic(
    settings: StateTopicSettings,
    *,
    broker: TopicBroker,
    clock: Clock,
    ids: Ids,
    telemetry: Telemetry,
    failpoints: Failpoints = NO_FAILPOINTS,
    clients: TopicClients | None = None,
    memory: TopicMemory | None = None,
) -> AsyncIterator[TopicBasedStateLog]:
    """Keep the state log running for as long as the body does.  Entering asks nobody: the broker may be away.

    Raises:
        PartitionCountError: at any time, cancelling the body: the topic has more than one partition.
    """
    clients = clients or KafkaTopicClients(settings.bootstrap_servers, settings.security, client_id=settings.client_id)
    log = TopicBasedStateLog(
        settings,
        broker=broker,
        clock=clock,
        ids=ids,
        telemetry=telemetry,
        failpoints=failpoints,
        clients=clients,
        memory=memory or NoMemory(),
    )
    await log.remember()
    try:
        async with running(log.run(), name="state log"):
            yield log
    finally:
        await log.close()


class TopicBasedStateLog:
    """The :class:`~tiersidecar.ports.state_log.StateLog`; made by :func:`open_state_topic`."""

    def __init__(
        self,
        settings: StateTopicSettings,
        *,
        broker: TopicBroker,
        clock: Clock,
        ids: Ids,
        telemetry: Telemetry,
        failpoints: Failpoints,
        clients: TopicClients,
        memory: TopicMemory | None = None,
    ) -> None:
        self._settings, self._broker, self._clock, self._ids, self._telemetry = settings, broker, clock, ids, telemetry
        self._failpoints, self._ends = failpoints, EndOffsets(broker)
        self._fold, self._read_back = StateFold(), ReadBack()
        self._clients, self._producer = clients, clients.producer()
        self._writing: defaultdict[bytes, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._partition = TopicPartition(settings.topic, 0)
        self._facts: TopicFacts | None = None
        self._position, self._begin = -1, -1
        self._ready_at: int | None = None
        self._unreachable: str | None = "the state topic has not been reached yet"
        self._lost: str | None = None
        self._rewritten: str | None = None
        self._last: ConsumerRecord | None = None
        self._reported: str | None = None
        self._paused: dict[PausedThing, Pause] = {}
        self._memory = memory or NoMemory()
        self._remembered: RememberedTopic | None = None

    # -- running

    async def remember(self) -> None:
        """Learn what a process before this one knew of the topic."""
        self._remembered = await self._memory.read()

    async def run(self) -> None:
        """Connect, read, and begin again whenever contact is lost.

        Raises:
            PartitionCountError: see :func:`open_state_topic`.
        """
        await keep_trying(
            self._session,
            topic=self._settings.topic,
            clock=self._clock,
            ids=self._ids,
            first_interval_ms=self._settings.retry_interval_ms,
            max_interval_ms=self._settings.retry_max_interval_ms,
            give_up_after_ms=None,
            on_failure=self._contact_was_lost,
        )

    async def _session(self, connected: Callable[[], None]) -> None:
        facts = await self._topic()
        self._forget_other_cluster(facts)
        begin, end = await self._offset(facts, OffsetSpec.EARLIEST), await self._offset(facts, OffsetSpec.LATEST)
        connected()
        self._lost = self._loss(facts, end)
        if self._lost is not None and await self._is_accepted(facts, begin, end):
            self._lost = self._rewritten = self._remembered = None
        if self._lost is None:
            self._facts, self._unreachable = facts, None
            self._fold.cluster_id = facts.cluster_id
            self._begin, self._position, self._ready_at = begin, max(self._position, begin), end
        self._report_halt()
        if self._lost is not None:
            self._unreachable = self._lost
            await self._clock.sleep(self._settings.watch_interval_ms / 1000)
            return
        work = {"state topic": self._read(), "state topic, watch": self._watch(), "state topic, memory": self._keep()}
        if self._settings.may_write:
            work["state topic, mend"] = self._mend()
        await run_until_one_ends(work)

    async def _topic(self) -> TopicFacts:
        """Of a topic that was read before, nobody makes another one.

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
            return f"{self._settings.topic} was made anew: it has topic id {now}, {before} was read before"
        position = max(self._position, -1 if known is None else known.position)
        if position > end:
            return f"{self._settings.topic} ends at offset {end}, but was read up to {position} before"
        return None

    async def _is_accepted(self, facts: TopicFacts, begin: Offset, end: Offset) -> bool:
        """Whether the topic, as it is now, has an acceptance that was not in it before.  A process that read the former one
        keeps what it knows until it is started again."""
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
        """None while it is not all read, or lost."""
        facts, last = self._facts, self._last
        if facts is None or self._lost is not None or not self.is_ready:
            return None
        return RememberedTopic(
            cluster_id=facts.cluster_id,
            topic_id=format_uuid(facts.topic_id),
            position=Offset(self._position),
            last=None if last is None else LastRecord.of(last.offset, last.key, last.value),
            accepted=frozenset(self._fold.losses),
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
                self._fold.apply(record.key, record.value, where=f"{self._settings.topic}-0 offset {record.offset}")
        self._position = max(self._position, await consumer.position(self._partition))
        if self._fold.pauses != self._paused:
            self._report_pauses()
        self._read_back.advance(self._position)

    def _require_same(self, record: ConsumerRecord) -> None:
        """Compaction may have removed the last record that was read, but never replaces it.

        Raises:
            BrokerRefusedError: there is another one in its place; the next session says what that means.
        """
        last = self._last
        if last is None or record.offset != last.offset or (record.key, record.value) == (last.key, last.value):
            return
        self._unreachable = self._lost = self._rewritten = (
            f"{self._settings.topic} has another record at offset {record.offset} than was read there before"
        )
        # What was known stays what readers go by, as when the topic was made anew.
        self._ready_at = self._position
        self._report_halt()
        raise BrokerRefusedError(api="Fetch", subject=self._settings.topic, error="LOG_TRUNCATION_DETECTED")

    def _require_as_remembered(self, record: ConsumerRecord) -> None:
        """Likewise of the record that a process before this one read last.  What is there now is not taken for what was known.

        Raises:
            BrokerRefusedError: as above.
        """
        last = None if self._remembered is None else self._remembered.last
        if last is None or record.offset != last.offset:
            return
        if LastRecord.of(record.offset, record.key, record.value) == last:
            return
        self._unreachable = self._lost = self._rewritten = (
            f"{self._settings.topic} has another record at offset {record.offset} than was read there before"
        )
        self._fold, self._facts, self._last = StateFold(self._fold.cluster_id), None, None
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

    async def _mend(self) -> None:
        """Write again what a deposed leader's record lowered.  Every sidecar sees it; the jitter lets one be first."""
        while True:
            await self._clock.sleep(self._settings.mend_after_ms * (0.5 + self._ids.random()) / 1000)
            if not self.is_ready:
                continue
            for key in sorted(self._fold.lowered):
                async with self._writing_of(key):
                    value = self._fold.mended_value(key)
                    if value is not None:
                        _log.info("state.record.mended", key=key.decode())
                        await self._write(key, value, subject=key.decode())

    def _contact_was_lost(self, reason: str) -> None:
        self._unreachable = reason
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
        before, self._paused = self._paused, dict(self._fold.pauses)
        for thing in before.keys() - self._paused.keys():
            _log.info("pause.ended", topic=before[thing].topic, kind=thing.kind.value)
            self._telemetry.forget(PAUSED, topic=before[thing].topic, kind=thing.kind.value)
        for thing, pause in self._paused.items():
            if thing not in before:
                _log.warning("pause.began", topic=pause.topic, kind=thing.kind.value, reason=told(pause))
            self._telemetry.gauge(PAUSED, 1.0, topic=pause.topic, kind=thing.kind.value)

    async def close(self) -> None:
        """Stop the producer, and keep what is known of the topic."""
        await self._producer.close()
        if (known := self._known()) is not None:
            await self._memory.write(known)

    # -- reading

    @property
    def is_ready(self) -> bool:
        """Return whether the topic has been read to the end that was seen when it was first reached."""
        return self._ready_at is not None and self._position >= self._ready_at

    @property
    def readiness_reason(self) -> str | None:
        """Return why the state cannot be answered or written, for /readyz; None when it can."""
        if self._unreachable is not None:
            return self._unreachable
        return None if self.is_ready else f"{self._settings.topic} is being read"

    @property
    def halted_reason(self) -> str | None:
        """As the port says."""
        if self._lost is not None:
            return f"{self._lost}: the topic lost data. {_RECOVERY}"
        return ("; ".join(self._facts.weaknesses) or None) if self._facts is not None else None

    def partition_state(self, topic_id_partition: TopicIdPartition) -> PartitionState:
        self._require_ready()
        return self._fold.partition_state(topic_id_partition)

    def highest_start(self, topic_id: Uuid, partition: int) -> Offset:
        return self._fold.highest_start(topic_id, partition)

    def topic_state(self, topic_id: Uuid) -> TopicState | None:
        self._require_ready()
        return self._fold.topic_state(topic_id)

    def partitions(self) -> Sequence[TopicIdPartition]:
        self._require_ready()
        return self._fold.partitions()

    def is_ours(self, topic_id_partition: TopicIdPartition) -> bool:
        self._require_ready()
        return self._fold.is_ours(topic_id_partition)

    def foreign_partitions(self) -> Mapping[TopicIdPartition, ForeignState]:
        self._require_ready()
        return self._fold.foreign_partitions()

    async def catch_up(self) -> None:
        """As the port says, within ``consume_wait_ms``."""
        facts, unreachable = self._facts, self._unreachable
        if facts is None or unreachable is not None:
            reason = unreachable or "it has not been reached yet"
            raise BrokerUnreachableError(address=self._settings.bootstrap_servers, reason=reason)
        end_offset = await self._ends.of(self._partition_of(facts))
        try:
            async with asyncio.timeout(self._settings.consume_wait_ms / 1000):
                await self._read_back.reach(end_offset)
        except TimeoutError as error:
            raise MetadataNotReadyError(subject=self._settings.topic) from error
        self._require_ready()

    def why_paused(self, topic_id: Uuid | None, kind: PauseKind) -> str:
        """See :class:`~tiersidecar.ports.state_log.Pauses`."""
        self._require_ready()
        return why_paused(self._fold.pauses, topic_id, kind)

    def pauses(self) -> Sequence[Pause]:
        """Likewise."""
        self._require_ready()
        return sorted(self._fold.pauses.values(), key=lambda pause: (pause.thing.topic_id is not None, pause.topic))

    def recopies(self, topic_id_partition: TopicIdPartition) -> Sequence[RecopyRequest]:
        self._require_ready()
        return self._fold.recopies(topic_id_partition)

    def lease(self, name: str) -> Lease | None:
        self._require_ready()
        return self._fold.lease(name)

    def known_leases(self) -> Sequence[Lease]:
        self._require_ready()
        return self._fold.leases()

    def cleaner_claims(self, topic_id_partition: TopicIdPartition) -> Sequence[CleanerClaim]:
        """See :class:`~tiersidecar.ports.state_records.CleanerLog`."""
        self._require_ready()
        return self._fold.cleaner_claims(topic_id_partition)

    def trash(self, topic_id_partition: TopicIdPartition) -> Sequence[TrashEntry]:
        self._require_ready()
        return self._fold.trash(topic_id_partition)

    def trash_partitions(self) -> Sequence[TopicIdPartition]:
        self._require_ready()
        return self._fold.trash_partitions()

    @property
    def topic_id(self) -> str:
        """See :class:`~tiersidecar.ports.state_records.AcceptedLosses`."""
        return "" if self._facts is None else format_uuid(self._facts.topic_id)

    def accepted_losses(self) -> Collection[str]:
        """Likewise."""
        self._require_ready()
        return frozenset().union(*self._fold.losses.values())

    async def accept_losses(self, topic_ids: Mapping[str, str], *, by: str) -> None:
        """Likewise; raises as :meth:`publish_partition_state`."""
        key = loss_key(format_uuid(self._ids.random_uuid()))
        async with self._writing_of(key):
            self._require_ready()
            await self._write(key, write_loss(topic_ids, by=by, now_ms=self._clock.now_ms()), subject=key.decode())

    async def advanced(self) -> None:
        """See :class:`~tiersidecar.ports.state_log.StateChanges`."""
        await self._read_back.reach(self._position + 1)

    # -- publishing

    async def publish_lease(self, lease: Lease) -> Lease:
        """See :class:`~tiersidecar.ports.state_records.Leases`; raises as :meth:`publish_partition_state`."""
        key = lease_key(lease.name)
        async with self._writing[key]:
            self._require_ready()
            await self._write(key, write_lease(lease), subject=key.decode())
            counts = self._fold.lease(lease.name)
        assert counts is not None, "it was read back"
        return counts

    async def publish_partition_state(self, topic_id_partition: TopicIdPartition, state: PartitionState) -> None:
        """As the port says; returns at once when all of ``state`` is known already.

        Raises:
            MetadataNotReadyError: the topic has not been read to its end yet.
            PublishTimeoutError: not read back in time.
            BrokerUnreachableError: the topic is out of reach.
            BrokerRefusedError: the broker did not take it.
        """
        key = partition_key(topic_id_partition)
        async with self._writing_of(key):  # each write contains the one before
            self._require_ready()
            value = self._fold.merged_value(topic_id_partition, state)
            if value is not None:
                await self._write(key, value, subject=str(topic_id_partition))

    async def publish_topic_state(self, topic_id: Uuid, state: TopicState) -> None:
        """As the port says; raises as :meth:`publish_partition_state`."""
        key = topic_key(topic_id)
        async with self._writing_of(key):
            self._require_ready()
            value = self._fold.topic_value(topic_id, state)
            if value is not None:
                await self._write(key, value, subject=f"topic {state.topic} ({format_uuid(topic_id)})")

    async def forget_partition(self, topic_id_partition: TopicIdPartition) -> None:
        """As the port says; raises as :meth:`publish_partition_state`.  What was asked for of it goes as well, and
        what stands in its trash."""
        for request in self.recopies(topic_id_partition):
            await self.forget_recopy(request)
        await self.take_out_of_trash(topic_id_partition, self.trash(topic_id_partition))
        await self._forget(cleaner_key(topic_id_partition), subject=cleaner_key(topic_id_partition).decode())
        await self._forget(partition_key(topic_id_partition), subject=str(topic_id_partition))

    async def forget_topic(self, topic_id: Uuid) -> None:
        """As the port says; raises as :meth:`publish_partition_state`."""
        await self._forget(topic_key(topic_id), subject=f"topic {format_uuid(topic_id)}")

    async def request_recopy(self, request: RecopyRequest) -> None:
        """See :class:`~tiersidecar.ports.state_records.RecopyRequests`; raises as :meth:`publish_partition_state`."""
        key = recopy_key(request)
        async with self._writing_of(key):
            self._require_ready()
            if self._fold.recopy(key) != request:
                await self._write(key, write_recopy(request), subject=key.decode())

    async def decline_recopy(self, request: RecopyRequest, broker_id: BrokerId, reason: str) -> None:
        """Likewise."""
        key = recopy_key(request)
        async with self._writing_of(key):
            self._require_ready()
            now = self._fold.recopy(key)
            if now is not None and now.declined.get(broker_id) != reason:
                declined = replace(now, declined={**now.declined, broker_id: reason})
                await self._write(key, write_recopy(declined), subject=key.decode())

    async def forget_recopy(self, request: RecopyRequest) -> None:
        """Likewise."""
        await self._forget(recopy_key(request), subject=recopy_key(request).decode())

    async def publish_pause(self, pause: Pause) -> None:
        """See :class:`~tiersidecar.ports.state_log.PauseLog`; raises as :meth:`publish_partition_state`."""
        key = pause_key(pause.thing)
        async with self._writing_of(key):
            self._require_ready()
            if self._fold.pauses.get(pause.thing) != pause:
                await self._write(key, write_pause(pause), subject=key.decode())

    async def forget_pause(self, pause: Pause) -> None:
        """Likewise."""
        await self._forget(pause_key(pause.thing), subject=pause_key(pause.thing).decode())

    async def publish_cleaner_claim(self, topic_id_partition: TopicIdPartition, claim: CleanerClaim) -> None:
        """See :class:`~tiersidecar.ports.state_records.CleanerLog`; raises as :meth:`publish_partition_state`."""
        key = cleaner_key(topic_id_partition)
        async with self._writing_of(key):  # each write contains the one before
            self._require_ready()
            value = self._fold.cleaner_value(topic_id_partition, claim)
            if value is not None:
                await self._write(key, value, subject=key.decode())

    async def put_into_trash(self, topic_id_partition: TopicIdPartition, entries: Iterable[TrashEntry]) -> None:
        """See :class:`~tiersidecar.ports.state_records.TrashLog`; raises as :meth:`publish_partition_state`."""
        for entry in entries:
            key = trash_key(topic_id_partition, entry.id)
            async with self._writing_of(key):
                self._require_ready()
                value = self._fold.trash_value(topic_id_partition, entry)
                if value is not None:
                    await self._write(key, value, subject=key.decode())

    async def take_out_of_trash(self, topic_id_partition: TopicIdPartition, entries: Iterable[TrashEntry]) -> None:
        """Likewise."""
        for entry in entries:
            key = trash_key(topic_id_partition, entry.id)
            async with self._writing_of(key):
                self._require_ready()
                if self._fold.is_known(key) and not self._fold.has_more_than(topic_id_partition, entry):
                    await self._write(key, None, subject=key.decode())

    def _writing_of(self, key: bytes) -> asyncio.Lock:
        """Entries of a partition's trash come and go: they have one lock between them."""
        return self._writing[key if read_trash_key(key) is None else key.rsplit(b"/", 4)[0]]

    async def _forget(self, key: bytes, *, subject: str) -> None:
        async with self._writing_of(key):
            self._require_ready()
            if self._fold.is_known(key):
                await self._write(key, None, subject=subject)

    @property
    def _writer(self) -> Writer:
        return Writer(self._fold.cluster_id, self._settings.broker_id, self._settings.incarnation)

    async def _write(self, key: bytes, value: bytes | None, *, subject: str) -> None:
        assert self._settings.may_write, "this process only reads the state topic"
        if self._unreachable is not None:
            raise BrokerUnreachableError(address=self._settings.bootstrap_servers, reason=self._unreachable)
        if value is not None:
            value = stamped(value, self._writer)
        try:
            async with asyncio.timeout(self._settings.consume_wait_ms / 1000):
                offset = await self._producer.send(
                    self._settings.topic, partition=0, key=key, value=value, timestamp_ms=self._clock.now_ms()
                )
                await self._failpoints.reach("state.sent")
                await self._read_back.wait(offset)
        except TimeoutError as error:
            raise PublishTimeoutError(subject=subject, waited_ms=self._settings.consume_wait_ms) from error

    def _require_ready(self) -> None:
        if not self.is_ready:
            raise MetadataNotReadyError(subject=self._settings.topic)
