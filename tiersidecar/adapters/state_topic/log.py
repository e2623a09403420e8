"""``__tiersidecar_state`` over a compacted topic (docs/design/0002).

Every sidecar reads all of it (:mod:`~tiersidecar.adapters.state_topic.replica`).  A publish returns after our own consumer has
read it back, so that a delete may act on it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import structlog

from tiersidecar.adapters.internal_topics import TopicBroker
from tiersidecar.adapters.kafka_clients import KafkaTopicClients, SendRecord, TopicClients
from tiersidecar.adapters.sessions import running
from tiersidecar.adapters.state_topic.codec import Writer, partition_key, stamped, topic_key
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
from tiersidecar.adapters.state_topic.remembered import TopicMemory
from tiersidecar.adapters.state_topic.replica import StateReplica
from tiersidecar.adapters.state_topic.settings import StateTopicSettings
from tiersidecar.domain.cleaner import CleanerClaim
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError, PublishTimeoutError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.lease import Lease
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.policy import Pause, PauseKind, why_paused
from tiersidecar.domain.trash import TrashEntry, TrashKind
from tiersidecar.ports.clock import Clock, Ids
from tiersidecar.ports.failpoints import NO_FAILPOINTS, Failpoints
from tiersidecar.ports.state_log import ForeignState, PartitionOfTopic, PartitionState, TopicState
from tiersidecar.ports.state_records import RecopyRequest
from tiersidecar.ports.telemetry import Telemetry

_log = structlog.get_logger(__name__)

_FETCH_MAX_WAIT_MS = 5_000


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
    """Keep the state log running for as long as the body does.  Entering asks no broker: it may be away.

    Raises:
        PartitionCountError: at any time, cancelling the body: the topic has more than one partition.
    """
    clients = clients or KafkaTopicClients(
        settings.bootstrap_servers,
        settings.security,
        client_id=settings.client_id,
        fetch_max_wait_ms=_FETCH_MAX_WAIT_MS,
    )
    replica = StateReplica(
        settings, broker=broker, clock=clock, ids=ids, telemetry=telemetry, clients=clients, memory=memory
    )
    log = TopicBasedStateLog(
        settings, replica=replica, producer=clients.producer(), clock=clock, ids=ids, failpoints=failpoints
    )
    await replica.remember()
    try:
        async with running(replica.run(log.mend if settings.may_write else None), name="state log"):
            yield log
    finally:
        await log.close()


class TopicBasedStateLog:
    """The :class:`~tiersidecar.ports.state_log.StateLog`; made by :func:`open_state_topic`."""

    def __init__(
        self,
        settings: StateTopicSettings,
        *,
        replica: StateReplica,
        producer: SendRecord,
        clock: Clock,
        ids: Ids,
        failpoints: Failpoints,
    ) -> None:
        self._settings, self._replica, self._producer = settings, replica, producer
        self._clock, self._ids, self._failpoints = clock, ids, failpoints
        self._writing: defaultdict[bytes, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def close(self) -> None:
        """Stop the producer, and keep what is known of the topic."""
        await self._producer.close()
        await self._replica.close()

    # -- reading

    @property
    def is_ready(self) -> bool:
        """Return whether the topic has been read to the end that was seen when it was first reached."""
        return self._replica.is_ready

    @property
    def missing_right(self) -> BrokerRefusedError | None:
        """Return the refusal for want of a right by which contact was lost last."""
        return self._replica.missing_right

    @property
    def readiness_reason(self) -> str | None:
        """Return why the state cannot be answered or written, for /readyz; None when it can."""
        return self._replica.readiness_reason

    @property
    def halted_reason(self) -> str | None:
        """Return why nothing may be trimmed or deleted because of this topic, else None."""
        return self._replica.halted_reason

    def partition_state(self, topic_id_partition: TopicIdPartition) -> PartitionState:
        return self._replica.ready_fold().partition_state(topic_id_partition)

    def highest_start(self, topic_id: Uuid, partition: int) -> Offset:
        return self._replica.fold.highest_start(topic_id, partition)

    def topic_state(self, topic_id: Uuid) -> TopicState | None:
        return self._replica.ready_fold().topic_state(topic_id)

    def partitions(self) -> Sequence[TopicIdPartition]:
        return self._replica.ready_fold().partitions()

    def is_ours(self, topic_id_partition: TopicIdPartition) -> bool:
        return self._replica.ready_fold().is_ours(topic_id_partition)

    def foreign_partitions(self) -> Mapping[TopicIdPartition, ForeignState]:
        return self._replica.ready_fold().foreign_partitions()

    async def catch_up(self) -> None:
        """Return once all that was durable at the call is applied, within ``consume_wait_ms``."""
        await self._replica.catch_up()

    def why_paused(self, topic_id: Uuid | None, kind: PauseKind) -> str:
        """Return why ``kind`` stands still for the topic, or, with None, for all topics."""
        return why_paused(self._replica.ready_fold().pauses, topic_id, kind)

    def pauses(self) -> Sequence[Pause]:
        """Return all pauses, that of all topics first, then by topic."""
        found = self._replica.ready_fold().pauses.values()
        return sorted(found, key=lambda pause: (pause.thing.topic_id is not None, pause.topic))

    def recopies(self, topic_id_partition: TopicIdPartition) -> Sequence[RecopyRequest]:
        return self._replica.ready_fold().recopies(topic_id_partition)

    def lease(self, name: str) -> Lease | None:
        return self._replica.ready_fold().lease(name)

    def known_leases(self) -> Sequence[Lease]:
        return self._replica.ready_fold().leases()

    def cleaner_claims(self, topic_id_partition: TopicIdPartition) -> Sequence[CleanerClaim]:
        """Return the leaders' claims of how far they had cleaned a partition."""
        return self._replica.ready_fold().cleaner_claims(topic_id_partition)

    def trash(self, topic_id_partition: TopicIdPartition) -> Sequence[TrashEntry]:
        return self._replica.ready_fold().trash(topic_id_partition)

    def trash_partitions(self) -> Sequence[TopicIdPartition]:
        return self._replica.ready_fold().trash_partitions()

    @property
    def topic_id(self) -> str:
        """Return the state topic's present id; empty while that is not known."""
        return self._replica.topic_id

    def accepted_losses(self) -> Collection[str]:
        """Return the topic ids whose lost data was accepted."""
        return frozenset().union(*self._replica.ready_fold().losses.values())

    async def accept_losses(self, topic_ids: Mapping[str, str], *, by: str) -> None:
        """Publish that lost data is accepted; raises as :meth:`publish_partition_state`."""
        key = loss_key(format_uuid(self._ids.random_uuid()))
        async with self._writing_of(key):
            self._replica.require_ready()
            await self._write(key, write_loss(topic_ids, by=by, now_ms=self._clock.now_ms()), subject=key.decode())

    @property
    def changes(self) -> int:
        """Return how many records were applied so far that say something of topics or partitions."""
        return self._replica.fold.changes

    def changed_since(self, changes: int) -> frozenset[PartitionOfTopic] | None:
        """Return the partitions of which something was said since :attr:`changes` was that."""
        return self._replica.fold.changed_since(changes)

    async def advanced(self) -> None:
        """Return once more of the topic has been applied than when this was called."""
        await self._replica.advanced()

    # -- publishing

    async def publish_lease(self, lease: Lease) -> Lease:
        """Claim, renew or release the lease; raises as :meth:`publish_partition_state`."""
        key = lease_key(lease.name)
        async with self._writing[key]:
            self._replica.require_ready()
            await self._write(key, write_lease(lease), subject=key.decode())
            counts = self._replica.fold.lease(lease.name)
        assert counts is not None, "it was read back"
        return counts

    async def publish_partition_state(self, topic_id_partition: TopicIdPartition, state: PartitionState) -> None:
        """Merge ``state`` with what is known and publish it; return at once when all of it is known already.

        Raises:
            MetadataNotReadyError: the topic has not been read to its end yet.
            PublishTimeoutError: not read back in time.
            BrokerUnreachableError: the topic is out of reach.
            BrokerRefusedError: the broker did not take it.
        """
        key = partition_key(topic_id_partition)
        async with self._writing_of(key):  # each write contains the one before
            value = self._replica.ready_fold().merged_value(topic_id_partition, state)
            if value is not None:
                await self._write(key, value, subject=str(topic_id_partition))

    async def publish_topic_state(self, topic_id: Uuid, state: TopicState) -> None:
        """Replace the topic's state; raises as :meth:`publish_partition_state`."""
        key = topic_key(topic_id)
        async with self._writing_of(key):
            value = self._replica.ready_fold().topic_value(topic_id, state)
            if value is not None:
                await self._write(key, value, subject=f"topic {state.topic} ({format_uuid(topic_id)})")

    async def forget_partition(self, topic_id_partition: TopicIdPartition) -> None:
        """Remove the partition's state; raises as :meth:`publish_partition_state`.  Requests about it go as well, and last
        the entries in its trash: a read-only mount of another cluster that has only read so far takes a state without
        segments and without trash for a log from which all has expired.  Of the trash the topic's own entry goes last: where
        there is no state any more, only that one shows a later process that the deletion is not over."""
        thrown = sorted(self.trash(topic_id_partition), key=lambda entry: entry.kind is TrashKind.TOPIC)
        for request in self.recopies(topic_id_partition):
            await self.forget_recopy(request)
        await self._forget(cleaner_key(topic_id_partition), subject=cleaner_key(topic_id_partition).decode())
        await self._forget(partition_key(topic_id_partition), subject=str(topic_id_partition))
        await self.take_out_of_trash(topic_id_partition, thrown)

    async def forget_topic(self, topic_id: Uuid) -> None:
        """Remove the topic's state; raises as :meth:`publish_partition_state`."""
        await self._forget(topic_key(topic_id), subject=f"topic {format_uuid(topic_id)}")

    async def request_recopy(self, request: RecopyRequest) -> None:
        """Request a copy, or request it again; return after read-back; raises as :meth:`publish_partition_state`."""
        key = recopy_key(request)
        async with self._writing_of(key):
            if self._replica.ready_fold().recopy(key) != request:
                await self._write(key, write_recopy(request), subject=key.decode())

    async def decline_recopy(self, request: RecopyRequest, broker_id: BrokerId, reason: str) -> None:
        """Note in the request why the broker does not copy again; raises as :meth:`publish_partition_state`."""
        key = recopy_key(request)
        async with self._writing_of(key):
            now = self._replica.ready_fold().recopy(key)
            if now is not None and now.declined.get(broker_id) != reason:
                declined = replace(now, declined={**now.declined, broker_id: reason})
                await self._write(key, write_recopy(declined), subject=key.decode())

    async def forget_recopy(self, request: RecopyRequest) -> None:
        """Remove the request; raises as :meth:`publish_partition_state`."""
        await self._forget(recopy_key(request), subject=recopy_key(request).decode())

    async def publish_pause(self, pause: Pause) -> None:
        """Begin the pause, in place of one of the same thing; raises as :meth:`publish_partition_state`."""
        key = pause_key(pause.thing)
        async with self._writing_of(key):
            if self._replica.ready_fold().pauses.get(pause.thing) != pause:
                await self._write(key, write_pause(pause), subject=key.decode())

    async def forget_pause(self, pause: Pause) -> None:
        """End the pause; raises as :meth:`publish_partition_state`."""
        await self._forget(pause_key(pause.thing), subject=pause_key(pause.thing).decode())

    async def publish_cleaner_claim(self, topic_id_partition: TopicIdPartition, claim: CleanerClaim) -> None:
        """Merge ``claim`` with what is known, write it, return after read-back; raises as :meth:`publish_partition_state`."""
        key = cleaner_key(topic_id_partition)
        async with self._writing_of(key):  # each write contains the one before
            value = self._replica.ready_fold().cleaner_value(topic_id_partition, claim)
            if value is not None:
                await self._write(key, value, subject=key.decode())

    async def put_into_trash(self, topic_id_partition: TopicIdPartition, entries: Iterable[TrashEntry]) -> None:
        """Merge each with what is known of its id, and write it; raises as :meth:`publish_partition_state`."""
        for entry in entries:
            key = trash_key(topic_id_partition, entry.id)
            async with self._writing_of(key):
                value = self._replica.ready_fold().trash_value(topic_id_partition, entry)
                if value is not None:
                    await self._write(key, value, subject=key.decode())

    async def take_out_of_trash(self, topic_id_partition: TopicIdPartition, entries: Iterable[TrashEntry]) -> None:
        """Remove the entries from the trash; raises as :meth:`publish_partition_state`."""
        for entry in entries:
            key = trash_key(topic_id_partition, entry.id)
            async with self._writing_of(key):
                fold = self._replica.ready_fold()
                if fold.is_known(key) and not fold.has_more_than(topic_id_partition, entry):
                    await self._write(key, None, subject=key.decode())

    async def mend(self) -> None:
        """Write again what a deposed leader's record lowered.  Every sidecar sees it; the jitter lets one be first."""
        while True:
            await self._clock.sleep(self._settings.mend_after_ms * (0.5 + self._ids.random()) / 1000)
            if not self._replica.is_ready:
                continue
            for key in sorted(self._replica.fold.lowered):
                async with self._writing_of(key):
                    value = self._replica.fold.mended_value(key)
                    if value is not None:
                        _log.info("state.record.mended", key=key.decode())
                        await self._write(key, value, subject=key.decode())

    def _writing_of(self, key: bytes) -> asyncio.Lock:
        """Return the lock of the key.  Entries of a partition's trash come and go: they have one lock between them."""
        return self._writing[key if read_trash_key(key) is None else key.rsplit(b"/", 4)[0]]

    async def _forget(self, key: bytes, *, subject: str) -> None:
        async with self._writing_of(key):
            if self._replica.ready_fold().is_known(key):
                await self._write(key, None, subject=subject)

    @property
    def _writer(self) -> Writer:
        return Writer(self._replica.fold.cluster_id, self._settings.broker_id, self._settings.incarnation)

    async def _write(self, key: bytes, value: bytes | None, *, subject: str) -> None:
        assert self._settings.may_write, "this process only reads the state topic"
        if self._replica.unreachable is not None:
            raise BrokerUnreachableError(address=self._settings.bootstrap_servers, reason=self._replica.unreachable)
        if value is not None:
            value = stamped(value, self._writer)
        wait_s = self._settings.consume_wait_ms / 1000
        until_s = self._clock.monotonic_s() + wait_s
        try:
            async with asyncio.timeout(wait_s):
                offset = await self._producer.send(
                    self._settings.topic,
                    partition=0,
                    key=key,
                    value=value,
                    timestamp_ms=self._clock.now_ms(),
                    until_s=until_s,
                )
                await self._failpoints.reach("state.sent")
                await self._replica.read_back.wait(offset)
        except TimeoutError as error:
            raise PublishTimeoutError(subject=subject, waited_ms=self._settings.consume_wait_ms) from error
