"""Remote log metadata over ``__remote_log_metadata``, as Kafka's TopicBasedRemoteLogMetadataManager keeps it (S-083 to S-107).

The broker may be away at any time: then :attr:`TopicBasedMetadataLog.readiness_reason` says so, what was read before still
answers, and we try again without end.  Only a wrong partition count ends the process (docs/design/0002).

Reads of the replayed metadata (:class:`~tiersidecar.ports.metadata_log.MetadataView`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import structlog

from tiersidecar.adapters.end_offsets import EndOffsets
from tiersidecar.adapters.internal_topics import TopicBroker
from tiersidecar.adapters.kafka_clients import KafkaTopicClients, TopicClients
from tiersidecar.adapters.metadata_topic.bulk import record_batches
from tiersidecar.adapters.metadata_topic.consumer import MetadataConsumers
from tiersidecar.adapters.metadata_topic.partition_replica import PartitionReplica
from tiersidecar.adapters.metadata_topic.replica import MetadataReplica
from tiersidecar.adapters.metadata_topic.settings import MetadataTopicSettings
from tiersidecar.adapters.metadata_topic.snapshot_keeper import SnapshotKeeper
from tiersidecar.adapters.sessions import keep_trying, missing_right_of, running
from tiersidecar.domain.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    MetadataNotReadyError,
    PublishTimeoutError,
)
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.metadata_cache_rows import SegmentPicture
from tiersidecar.domain.offsets import ByteRange, Offset
from tiersidecar.domain.segments import (
    MetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentEvent,
)
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.metadata.serde import write_event
from tiersidecar.ports.clock import Blocking, Clock, Ids
from tiersidecar.ports.failpoints import NO_FAILPOINTS, Failpoints
from tiersidecar.ports.telemetry import Telemetry


class MetadataLookups:
    """Each look-up goes to the partition's cache, or raises MetadataNotReadyError (S-096)."""

    def __init__(self, replica: MetadataReplica) -> None:
        self._replica = replica

    def is_ready(self, topic_id_partition: TopicIdPartition) -> bool:
        held = self._replica.held(topic_id_partition)
        return held is not None and held.is_ready

    @property
    def changes(self) -> int:
        return self._replica.changes

    def applied_to(self, topic_id_partition: TopicIdPartition) -> int:
        held = self._replica.held(topic_id_partition)
        if held is None or not held.is_ready:
            raise MetadataNotReadyError(subject=str(topic_id_partition))
        return held.applied_to

    def remote_log_segment_metadata(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self._replica.require(topic_id_partition).remote_log_segment_metadata(leader_epoch, offset)

    def finished_segments_at(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> Iterator[RemoteLogSegmentMetadata]:
        return self._replica.require(topic_id_partition).finished_segments_at(leader_epoch, offset)

    def highest_offset_for_epoch(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> int | None:
        return self._replica.require(topic_id_partition).highest_offset_for_epoch(leader_epoch)

    def segment(self, remote_log_segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        return self._replica.require(remote_log_segment_id.topic_id_partition).segment(remote_log_segment_id.uuid)

    def list_remote_log_segments(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> Iterator[RemoteLogSegmentMetadata]:
        return self._replica.require(topic_id_partition).list_remote_log_segments(leader_epoch)

    def picture(self, topic_id_partition: TopicIdPartition) -> SegmentPicture:
        return self._replica.require(topic_id_partition).picture()

    def mark(self, topic_id_partition: TopicIdPartition) -> int:
        return self._replica.require(topic_id_partition).mark

    def segments_with(
        self, topic_id_partition: TopicIdPartition, offsets: ByteRange
    ) -> Sequence[RemoteLogSegmentMetadata]:
        return self._replica.require(topic_id_partition).segments_with(offsets)

    def latest_leader_epoch(self, topic_id_partition: TopicIdPartition) -> int:
        return self._replica.require(topic_id_partition).latest_leader_epoch

    def list_unfinished_segments(self, topic_id_partition: TopicIdPartition) -> Iterator[RemoteLogSegmentMetadata]:
        return self._replica.require(topic_id_partition).list_unfinished_segments()

    def segment_count(self, topic_id_partition: TopicIdPartition) -> int:
        return len(self._replica.require(topic_id_partition))

    def remote_log_size_bytes(self, topic_id_partition: TopicIdPartition, leader_epoch: int | None = None) -> int:
        return self._replica.require(topic_id_partition).remote_log_size_bytes(leader_epoch)

    def next_segment_with_txn_index(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self._replica.require(topic_id_partition).next_segment_with_txn_index(leader_epoch, offset)

    def finished_runs(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> Sequence[tuple[int, int]]:
        return self._replica.require(topic_id_partition).finished_runs(leader_epoch)


_log = structlog.get_logger(__name__)

_FETCH_MAX_WAIT_MS = 2_000
"""A new record ends the wait at once.  After its leader has moved, a metadata partition waits for the fetch that the new leader
holds."""
_SENT = {
    RemoteLogSegmentState.COPY_SEGMENT_STARTED: "copy.started.sent",
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED: "copy.finished.sent",
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED: "delete.started.sent",
    RemoteLogSegmentState.DELETE_SEGMENT_FINISHED: "delete.finished.sent",
}
"""Failpoints: the broker has the event, and we have not read it back."""


@asynccontextmanager
async def open_metadata_topic(
    settings: MetadataTopicSettings,
    *,
    broker: TopicBroker,
    clock: Clock,
    ids: Ids,
    telemetry: Telemetry,
    blocking: Blocking,
    failpoints: Failpoints = NO_FAILPOINTS,
    knows_txn_index_empty: Callable[[], bool] = lambda: True,
    clients: TopicClients | None = None,
) -> AsyncIterator[TopicBasedMetadataLog]:
    """Read the snapshot, and keep the metadata log running for as long as the body does.

    Raises:
        PartitionCountError: at any time, cancelling the body: the topic has another partition count than configured.
            MetadataTopicUnavailableError: at any time as well, only if ``initialization_retry_max_timeout_ms`` is set.
    """
    keeper = SnapshotKeeper(settings, clock=clock, blocking=blocking) if settings.snapshot_path is not None else None
    replica = MetadataReplica(
        topic=settings.topic,
        partition_count=settings.partitions,
        recovery=settings.recovery or _recovery(settings.snapshot_path),
        telemetry=telemetry,
        restored=await keeper.load() if keeper is not None else None,
    )
    if keeper is not None:
        keeper.keep(replica)
    log = TopicBasedMetadataLog(
        settings,
        replica,
        topic=TopicAccess(
            broker=broker,
            clients=clients
            or KafkaTopicClients(
                settings.bootstrap_servers,
                settings.security,
                client_id=settings.client_id,
                fetch_max_wait_ms=_FETCH_MAX_WAIT_MS,
            ),
        ),
        clock=clock,
        ids=ids,
        snapshot=keeper,
        failpoints=failpoints,
        knows_txn_index_empty=knows_txn_index_empty,
    )
    try:
        async with running(log.run(), name="metadata log"):
            yield log
    finally:
        await log.close()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TopicAccess:
    """Access to the topic: ``broker`` makes it and knows its ends, ``clients`` read and write it."""

    broker: TopicBroker
    clients: TopicClients


class TopicBasedMetadataLog(MetadataLookups):
    """The :class:`~tiersidecar.ports.metadata_log.MetadataLog`; made by :func:`open_metadata_topic`."""

    def __init__(
        self,
        settings: MetadataTopicSettings,
        replica: MetadataReplica,
        *,
        topic: TopicAccess,
        clock: Clock,
        ids: Ids,
        snapshot: SnapshotKeeper | None,
        failpoints: Failpoints,
        knows_txn_index_empty: Callable[[], bool],
    ) -> None:
        super().__init__(replica)
        self._settings, self._clock, self._ids = settings, clock, ids
        self._snapshot, self._failpoints, self._knows_txn_index_empty = snapshot, failpoints, knows_txn_index_empty
        self._ends = EndOffsets(topic.broker)
        self._consumers = MetadataConsumers(settings, replica, broker=topic.broker, clients=topic.clients, clock=clock)
        self._producer = topic.clients.producer()
        self._unreachable: str | None = "the metadata topic has not been reached yet"
        self.missing_right: BrokerRefusedError | None = None

    # -- running

    async def run(self) -> None:
        """Connect, read, and begin again whenever contact is lost.

        Raises:
                PartitionCountError: the topic has another partition count than configured.
                MetadataTopicUnavailableError: the topic is out of reach for ``initialization_retry_max_timeout_ms``, if set.
        """
        async with asyncio.TaskGroup() as tasks:
            if self._snapshot is not None:
                tasks.create_task(self._snapshot.run(), name="metadata snapshot")
            await keep_trying(
                self._session,
                topic=self._settings.topic,
                clock=self._clock,
                ids=self._ids,
                first_interval_ms=self._settings.initialization_retry_interval_ms,
                max_interval_ms=self._settings.retry_max_interval_ms,
                give_up_after_ms=self._settings.initialization_retry_max_timeout_ms,
                on_failure=self._contact_was_lost,
            )

    async def _session(self, connected: Callable[[], None]) -> None:
        other_topic = await self._consumers.connect()
        connected()
        if other_topic is not None:
            self._unreachable = other_topic
            await self._clock.sleep(self._settings.watch_interval_ms / 1000)
            return
        self._unreachable = self.missing_right = None
        await self._consumers.run()

    def _contact_was_lost(self, error: BaseException) -> None:
        self._unreachable, self.missing_right = str(error), missing_right_of(error)

    async def close(self) -> None:
        """Stop the producer and write the snapshot."""
        await self._producer.close()
        if self._snapshot is not None:
            await self._snapshot.save()

    # -- publishing

    async def publish(self, event: MetadataEvent, *, until_s: float | None = None) -> None:
        """Write the event, and return once it has been read back.  An event of a partition that is not ready is not written:
        nothing here could check it.

        Raises:
            MetadataNotReadyError: the partition is not assigned, or not ready.
            IllegalTransitionError: refused before anything was written, or written and dropped at read-back, because another
                leader's event came first.
                UnknownSegmentError: refused at the same moments.
            PublishTimeoutError: not read back in time.
            BrokerUnreachableError: the metadata topic is out of reach.
            BrokerRefusedError: the broker did not take it.
        """
        owner = _owner(event)
        cache = self._replica.require(owner)
        cache.check(event)
        if _is_done_already(event, cache.segment):
            return
        partition = self._writable(owner)
        value = write_event(event, knows_txn_index_empty=self._knows_txn_index_empty())
        async with self._in_time(owner, until_s) as send_until_s:
            offset = await self._producer.send(
                self._settings.topic,
                partition=partition.number,
                key=None,
                value=value,
                timestamp_ms=self._clock.now_ms(),
                until_s=send_until_s,
            )
            if isinstance(event, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate):
                await self._failpoints.reach(_SENT[event.state])
            await partition.read_back.wait(offset)

    async def publish_all(self, events: Sequence[SegmentEvent], *, until_s: float | None = None) -> None:
        """Write the events batch by batch, each sent when the one before is written, and return once all have been read back.

        Raises:
            TiersidecarError: as :meth:`publish`.
        """
        if not events:
            return
        owner = _owner(events[0])
        self._replica.require(owner).check_all(events)
        partition = self._writable(owner)
        async with self._in_time(owner, until_s) as send_until_s:
            with partition.read_back.remembering():
                written = [one async for one in self._write_batches(events, partition.number, send_until_s)]
                await partition.read_back.wait_all(written)

    async def _write_batches(self, events: Iterable[SegmentEvent], number: int, until_s: float) -> AsyncIterator[range]:
        """Yield the offsets of each batch."""
        write = partial(write_event, knows_txn_index_empty=self._knows_txn_index_empty())
        for values in record_batches(events, write):
            offset = await self._producer.send_batch(
                self._settings.topic,
                partition=number,
                values=values,
                timestamp_ms=self._clock.now_ms(),
                until_s=until_s,
            )
            yield range(offset, offset + len(values))

    def _writable(self, owner: TopicIdPartition) -> PartitionReplica:
        partition = self._replica.partition_of(owner)
        unreachable = self._unreachable or partition.trouble
        if unreachable is not None:
            raise BrokerUnreachableError(address=self._settings.bootstrap_servers, reason=unreachable)
        return partition

    @asynccontextmanager
    async def _in_time(self, owner: TopicIdPartition, until_s: float | None) -> AsyncIterator[float]:
        """Give the body until ``until_s``, or as long as all publishes have, and the moment after which it sends nothing."""
        now_s, wait_ms = self._clock.monotonic_s(), self._settings.consume_wait_ms
        if until_s is not None:
            wait_ms = max(min(wait_ms, round((until_s - now_s) * 1000)), 0)
        if wait_ms == 0:  # what is sent may be written, however soon it is given up
            raise PublishTimeoutError(subject=str(owner), waited_ms=wait_ms)
        try:
            async with asyncio.timeout(wait_ms / 1000):
                yield now_s + wait_ms / 1000
        except TimeoutError as error:
            raise PublishTimeoutError(subject=str(owner), waited_ms=wait_ms) from error

    async def catch_up(self, topic_id_partition: TopicIdPartition) -> None:
        """Return once all that was in the topic at the call has been applied; ``consume_wait_ms`` at most."""
        partition = self._replica.partition_of(topic_id_partition)
        for _ in range(2):  # a replay may have begun while we waited
            self._replica.require(topic_id_partition)
            end_offset = await self._end_offset(partition.number)
            try:
                async with asyncio.timeout(self._settings.consume_wait_ms / 1000):
                    await partition.read_back.reach(end_offset)
            except TimeoutError as error:
                raise MetadataNotReadyError(subject=str(topic_id_partition)) from error
            if (partition.position or 0) >= end_offset:
                break
        self._replica.require(topic_id_partition)

    async def _end_offset(self, number: int) -> Offset:
        facts, unreachable = self._replica.facts, self._unreachable or self._replica.partitions[number].trouble
        if facts is None or unreachable is not None:
            reason = unreachable or "it has not been reached yet"
            raise BrokerUnreachableError(address=self._settings.bootstrap_servers, reason=reason)
        asked = TopicIdPartition(topic_id=facts.topic_id, topic=self._settings.topic, partition=number)
        return await self._ends.of(asked)

    # -- assignment

    async def assign(self, partitions: Iterable[TopicIdPartition]) -> None:
        self._replica.assign(partitions)

    async def wait_until_ready(self, topic_id_partition: TopicIdPartition) -> None:
        """Wait until the partition is ready.

        Raises:
            MetadataNotReadyError: the partition is not assigned, or not any more.
        """
        while True:
            held = self._replica.held(topic_id_partition)
            if held is None:
                raise MetadataNotReadyError(subject=str(topic_id_partition))
            if held.is_ready:
                return
            await held.wait()

    @property
    def readiness_reason(self) -> str | None:
        """Return why not everything that is assigned can be answered from, for /readyz; None when it can."""
        if self._unreachable is not None:
            return self._unreachable
        waiting = self._replica.waiting()
        if waiting:
            return f"remote log metadata of {waiting} partitions is being replayed"
        return None

    @property
    def halted_reason(self) -> str | None:
        return self._replica.halted_reason

    @property
    def topic_id(self) -> str:
        """Return the topic's id."""
        facts = self._replica.facts
        return "" if facts is None else format_uuid(facts.topic_id)


def _owner(event: MetadataEvent) -> TopicIdPartition:
    if isinstance(event, RemoteLogSegmentMetadataUpdate):
        return event.remote_log_segment_id.topic_id_partition
    return event.topic_id_partition


def _is_done_already(event: MetadataEvent, segment: Callable[[Uuid], RemoteLogSegmentMetadata | None]) -> bool:
    """Return whether it is a repeated DELETE_SEGMENT_FINISHED: the segment is gone, writing so again would only be dropped."""
    return (
        isinstance(event, RemoteLogSegmentMetadataUpdate)
        and event.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
        and segment(event.remote_log_segment_id.uuid) is None
    )


def _recovery(path: str | None) -> str:
    what = f"remove {path}, and start it" if path is not None else "start it again"
    return (
        "Reads go on from what was read before; copying, trimming and expiry rest. Restore the topic, or accept the loss: "
        f"stop the sidecar, {what}; it replays what is left, and the reconcile job finds the objects that nothing names."
    )
