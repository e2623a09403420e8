"""The view that a hand-over is decided on: events, history, broker's log, state and objects of each partition, read from
outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace

from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.builders.store import open_key_ring, open_store
from tiersidecar.app.commands.events import event_consumer, next_events
from tiersidecar.app.commands.session import Session
from tiersidecar.app.config.config import Config
from tiersidecar.app.handover.plan import PlannedPartition, PlannedSegment
from tiersidecar.app.handover.settings import NATIVE_METADATA_TOPIC, as_native, has_own_topic
from tiersidecar.decide.handover import (
    HandoverView,
    Obstacle,
    PartitionHandover,
    decide_handover,
    last_before_mounts,
)
from tiersidecar.decide.native_events import gone_from, published_into
from tiersidecar.decide.native_tiering import NativeLog, NativeRetention
from tiersidecar.domain.errors import BrokerRefusedError, CorruptDataError, ObjectNotFoundError
from tiersidecar.domain.ids import TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.native_segments import NativeSegments
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import (
    LeaderView,
    MetadataEvent,
    RemoteLogSegmentMetadata,
)
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.domain.trash import replaced_segments
from tiersidecar.formats.aiven.keys import place_in, plugin_keys
from tiersidecar.formats.kafka.producer_state import open_states
from tiersidecar.formats.metadata.partitioner import metadata_partition
from tiersidecar.ports.broker import EndOfEpochs, EpochAsked, OffsetSpec
from tiersidecar.ports.metadata_log import MetadataLog
from tiersidecar.ports.state_records import segments_of
from tiersidecar.ports.store import ListObjects, Store
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.lineage import LineageKeeper
from tiersidecar.reading.remote_objects import ManifestCache
from tiersidecar.tasks.remembered_epochs import RememberedEpochs

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPartition:
    """A partition as it was seen, and the decision on it.  ``log_start_offset`` is the broker's now.

    ``unpublished`` are events that Kafka's metadata topic lacks, since the sidecar has one of its own; ``gone`` are segments
    that only Kafka's has, and that these events delete.
    """

    plan: PartitionHandover
    segments: NativeSegments
    log_start_offset: Offset
    high_watermark: Offset
    unpublished: tuple[MetadataEvent, ...] = ()
    gone: tuple[RemoteLogSegmentMetadata, ...] = ()
    object_bytes: Mapping[str, int] = field(default_factory=dict)
    key_prefix: str = ""

    def planned(self) -> PlannedPartition:
        """Return it as the plan's file has it."""
        goes = {one.segment.remote_log_segment_id.uuid: one.reason.value for one in self.plan.prepared.deletions}
        return PlannedPartition(
            owner=self.plan.owner,
            log_start_offset=self.plan.log_start_offset,
            leader_epochs=self.plan.leader_epochs,
            high_watermark=self.high_watermark,
            copied_stop=self.plan.prepared.copies_from,
            foretold_start=self.plan.prepared.log_start_offset,
            broker_log_start_offset=self.log_start_offset,
            segments=tuple(
                PlannedSegment(
                    uuid=segment.remote_log_segment_id.uuid,
                    start_offset=segment.start_offset,
                    end_offset=segment.end_offset,
                    size_bytes=segment.segment_size_in_bytes,
                    object_bytes=sizes_of(segment, self.object_bytes, self.key_prefix),
                    goes=goes.get(segment.remote_log_segment_id.uuid, ""),
                )
                for segment in finished_of(self.segments)
            ),
        )

    @property
    def without_objects(self) -> list[RemoteLogSegmentMetadata]:
        """Return finished segments that the store lacks an object of; what lies in another place has an obstacle of its own."""
        return [
            one
            for one in finished_of(self.segments)
            if not place_in(one.custom_metadata or b"") and min(sizes_of(one, self.object_bytes, self.key_prefix)) < 0
        ]

    @property
    def with_objects(self) -> list[RemoteLogSegmentMetadata]:
        """Return those of the ``gone`` segments that have any object: the sidecar did not delete them, a native broker copied
        them."""
        return [
            one
            for one in self.gone
            if any(format_uuid(one.remote_log_segment_id.uuid) in key for key in self.object_bytes)
        ]


def finished_of(segments: NativeSegments) -> list[RemoteLogSegmentMetadata]:
    """Return those that are COPY_SEGMENT_FINISHED, ascending by offset."""
    finished = (one for one in segments if one.state is _FINISHED)
    return sorted(finished, key=lambda one: (one.start_offset, one.end_offset, one.remote_log_segment_id.uuid))


def sizes_of(segment: RemoteLogSegmentMetadata, listed: Mapping[str, int], key_prefix: str) -> tuple[int, int, int]:
    """Return the sizes of its three objects, -1 for one that is not listed."""
    try:
        log, indexes, manifest = (listed.get(key, -1) for key in plugin_keys(segment, key_prefix).in_upload_order)
    except CorruptDataError:
        return -1, -1, -1
    return log, indexes, manifest


async def look_at_topic(
    session: Session,
    topic: str,
    policy: TopicPolicy,
    say: Say,
    *,
    accepted: frozenset[Obstacle] = frozenset(),
    is_copying: bool = True,
) -> list[SeenPartition]:
    """Look at every partition of a topic, ascending.

    Raises:
        BrokerRefusedError: there is no such topic, or a leader changed meanwhile.
        StoreError: the store is away.
        MetadataNotReadyError: the metadata topic could not be replayed.
    """
    views = await session.partitions(topic)
    owners = [view.topic_id_partition for view in views]
    say(f"reading the events of {topic}")
    events = await _events_of(session, owners)
    sizes = await session.broker.describe_log_sizes(topic)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_command_store(session))
        histories = await open_histories(session, stack, store, owners)
        found = []
        for view in views:
            owner = view.topic_id_partition
            say(f"looking at its partitions: {owner}")
            one = _Looked(
                session, view, events[owner].known, sizes.get(owner.partition, 0), policy, is_copying=is_copying
            )
            seen = await one.see(histories, accepted)
            prefix = session.config.store.key_prefix
            found.append(
                replace(
                    seen,
                    unpublished=events[owner].unpublished,
                    gone=events[owner].gone,
                    object_bytes=await list_objects_of(store, owner, prefix),
                    key_prefix=prefix,
                )
            )
    return found


def open_command_store(session: Session) -> AbstractAsyncContextManager[Store]:
    """Open the configured store, for one command."""
    clock = SystemClock()
    return open_store(
        session.config, pace=UploadPace(None, clock), clock=clock, ids=SystemIds(), telemetry=NoTelemetry()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Events:
    """``known`` is what Kafka's metadata manager will know of a partition, ``unpublished`` the events that its topic still
    lacks, ``gone`` the segments that only Kafka's topic has."""

    known: NativeSegments
    unpublished: tuple[MetadataEvent, ...] = ()
    gone: tuple[RemoteLogSegmentMetadata, ...] = ()


async def _events_of(session: Session, owners: Sequence[TopicIdPartition]) -> dict[TopicIdPartition, _Events]:
    config = session.config
    ours = await read_native_segments(config, owners)
    if not has_own_topic(config):
        return {owner: _Events(known=segments) for owner, segments in ours.items()}
    exists = bool(await session.broker.describe_partitions([NATIVE_METADATA_TOPIC]))
    native = await read_native_segments(as_native(config), owners) if exists else {}
    found = {}
    for owner in owners:
        kafkas = native.get(owner, NativeSegments())
        known, events = published_into(kafkas, ours[owner], session.clock.now_ms())
        found[owner] = _Events(known=known, unpublished=events, gone=tuple(gone_from(kafkas, ours[owner])))
    return found


async def read_native_segments(
    config: Config, owners: Sequence[TopicIdPartition]
) -> dict[TopicIdPartition, NativeSegments]:
    """Return Kafka's fold of all events of these partitions, in the order of the metadata topic.

    Raises:
        BrokerRefusedError: there is no metadata topic.
    """
    count = config.remote_log_metadata_topic_num_partitions
    found = {owner: NativeSegments() for owner in owners}
    async with event_consumer(config, {metadata_partition(owner, count) for owner in owners}) as consumer:
        ends = await consumer.end_offsets(consumer.assignment())
        while any([await consumer.position(one) < end for one, end in ends.items()]):
            for recorded in await next_events(consumer):
                if recorded.event is not None and recorded.owner in found:
                    found[recorded.owner].apply(recorded.event)
    return found


async def leader_epochs_of(broker: EndOfEpochs, view: LeaderView, log_start_offset: Offset) -> tuple[EpochEntry, ...]:
    """Return the leader's epoch file, asked for epoch by epoch, from the last one down to the log start (OffsetForLeaderEpoch).

    Below its first epoch a broker answers with the epoch that was asked for, and the start of the first one.

    Raises:
        BrokerRefusedError: another broker leads by now, or this one in another epoch.
    """
    entries: list[EpochEntry] = []
    asked: int = view.leader_epoch
    epoch, _ = await _epoch_at_most(broker, view, asked)
    while epoch >= 0:
        below, start = await _epoch_at_most(broker, view, epoch - 1) if epoch > 0 else (-1, int(log_start_offset))
        start = int(log_start_offset) if below < 0 else start
        if entries and start >= entries[-1].start_offset:
            break
        entries.append(EpochEntry(LeaderEpoch(epoch), Offset(start)))
        if start <= log_start_offset:
            break
        epoch = below
    return Lineage.of(reversed(entries)).entries


async def _epoch_at_most(broker: EndOfEpochs, view: LeaderView, epoch: int) -> tuple[int, int]:
    """Return the last epoch that is not after this one, and its end (exclusive); -1 where the log has none."""
    question = EpochAsked(current_epoch=view.leader_epoch, epoch=LeaderEpoch(epoch))
    answer = (await broker.end_of_epochs({view.topic_id_partition: question}))[view.topic_id_partition]
    if answer.error is not None:
        subject = str(view.topic_id_partition)
        raise BrokerRefusedError(api="OffsetForLeaderEpoch", subject=subject, error=answer.error)
    return answer.epoch, answer.end_offset


class LiveEpochs:
    """The leaders' epoch files, as they were asked for: there is no log dir of other brokers here, and no pin."""

    def __init__(self) -> None:
        self.epochs: dict[TopicIdPartition, tuple[EpochEntry, ...]] = {}

    def leader_epochs(self, topic_id_partition: TopicIdPartition) -> Sequence[EpochEntry]:
        return self.epochs.get(topic_id_partition, ())

    def pinned_leader_epochs(self, topic_id_partition: TopicIdPartition) -> Sequence[EpochEntry]:
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Histories:
    """``lineages`` has the history as the daemon reads it: blobs, what leaders said in the state topic, and ``live``."""

    lineages: LineageKeeper
    live: LiveEpochs
    blobs: IndexBlobReader
    metadata: MetadataLog

    async def of(self, owner: TopicIdPartition, live: tuple[EpochEntry, ...]) -> Lineage:
        self.live.epochs[owner] = live
        return await self.lineages.lineage(owner)

    async def with_open_end(self, segments: Iterable[RemoteLogSegmentMetadata]) -> tuple[RemoteLogSegmentMetadata, ...]:
        """Return those at whose end a transaction is open, or may be: its producer snapshot is lost."""
        return tuple([one for one in segments if await self._may_be_open(one)])

    async def _may_be_open(self, segment: RemoteLogSegmentMetadata) -> bool:
        try:
            return bool(open_states(await self.blobs.read_producer_snapshot(segment)))
        except (CorruptDataError, ObjectNotFoundError):
            return True


async def open_histories(
    session: Session, stack: AsyncExitStack, store: Store, owners: Sequence[TopicIdPartition]
) -> Histories:
    """Open the histories of these partitions, until ``stack`` ends.

    Raises:
        MetadataNotReadyError: the metadata topic could not be replayed in time.
    """
    metadata = await session.follow(owners)
    blocking = await stack.enter_async_context(ThreadBlocking(max_threads=2))
    manifests = ManifestCache(
        store=store,
        blocking=blocking,
        key_prefix=session.config.store.key_prefix,
        key_ring=open_key_ring(session.config),
    )
    stack.push_async_callback(manifests.aclose)
    live = LiveEpochs()
    blobs = IndexBlobReader(store=store, blocking=blocking, manifests=manifests)
    keeper = LineageKeeper(
        metadata=metadata,
        epochs=blobs,
        live=RememberedEpochs(live=live, state=session.state),
        blocking=blocking,
        clock=session.clock,
    )
    stack.push_async_callback(keeper.aclose)
    return Histories(lineages=keeper, live=live, blobs=blobs, metadata=metadata)


class _Looked:
    """One partition, while it is looked at."""

    def __init__(
        self,
        session: Session,
        view: LeaderView,
        segments: NativeSegments,
        local_bytes: int,
        policy: TopicPolicy,
        *,
        is_copying: bool,
    ) -> None:
        self._session, self._view, self._segments = session, view, segments
        self._local_bytes, self._policy, self._is_copying = local_bytes, policy, is_copying

    async def see(self, histories: Histories, accepted: frozenset[Obstacle]) -> SeenPartition:
        owner = self._view.topic_id_partition
        log_start = await self._session.offset(self._view, OffsetSpec.EARLIEST)
        high_watermark = await self._session.offset(self._view, OffsetSpec.LATEST)
        live = await leader_epochs_of(self._session.broker, self._view, log_start)
        lineage = await histories.of(owner, live)
        state = self._session.state.partition_state(owner)
        broker = NativeLog(
            log_start_offset=log_start,
            local_log_start_offset=log_start,
            log_end_offset=high_watermark,
            leader_epochs=Lineage.of(live),
            only_local_bytes=max(self._local_bytes - self._remote_bytes_from(log_start), 0),
        )
        view = HandoverView(
            owner=owner,
            segments=self._segments,
            lineage=lineage,
            broker=broker,
            remote_log_start_offset=state.start_in(lineage),
            retention=NativeRetention(
                retention_ms=self._policy.retention_ms,
                retention_bytes=self._policy.retention_bytes,
                is_copying=self._is_copying,
            ),
            in_trash=self._in_trash(owner, lineage),
            erased=replaced_segments(self._session.state.trash(owner)),
            recopied=segments_of(self._session.state.recopies(owner)),
            awaits_answer=state.awaits_answer,
            open_at_mounts=await histories.with_open_end(
                last_before_mounts(self._segments, lineage, state.start_in(lineage))
            ),
            elsewhere=segments_elsewhere(self._segments),
        )
        return SeenPartition(
            plan=decide_handover(view, self._session.clock.now_ms(), accepted),
            segments=self._segments,
            log_start_offset=log_start,
            high_watermark=high_watermark,
        )

    def _remote_bytes_from(self, log_start: Offset) -> int:
        return sum(one.segment_size_in_bytes for one in finished_of(self._segments) if one.start_offset >= log_start)

    def _in_trash(self, owner: TopicIdPartition, lineage: Lineage) -> frozenset[Uuid]:
        state = self._session.state
        generation = state.partition_state(owner).start_generation
        entries = [one for one in state.trash(owner) if not one.is_undone(generation)]
        return frozenset(
            segment.remote_log_segment_id.uuid
            for segment in finished_of(self._segments)
            if any(entry.covers(segment, lineage) for entry in entries)
        )


def segments_elsewhere(segments: NativeSegments) -> dict[str, list[RemoteLogSegmentMetadata]]:
    """Return, by the name of a place, what is not deleted and lies there, and not where the plugin looks."""
    found: dict[str, list[RemoteLogSegmentMetadata]] = {}
    for one in segments:
        if one.custom_metadata and (place := place_in(one.custom_metadata)):
            found.setdefault(place, []).append(one)
    return found


async def list_objects_of(store: ListObjects, owner: TopicIdPartition, key_prefix: str) -> dict[str, int]:
    """Return the sizes of all objects of the partition, by key.

    Raises:
        StoreError: they could not be listed.
    """
    return {one.key: one.size_bytes async for one in store.list_objects(f"{key_prefix}{owner.qualified}/")}
