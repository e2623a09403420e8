"""A compacted partition in a remote tier, and the cleaner lane over it: objects in memory, the real folds, files on disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.support.compacted_logs import LogSegment, committed_records, table
from tests.support.delete_switch import DeleteSwitch
from tests.support.held_journal import HeldJournal
from tests.support.inline_blocking import InlineBlocking
from tests.support.lane_parts import actor_of, sources_of
from tests.support.local_batches import LocalBatch
from tests.support.manual_clock import ManualClock
from tests.support.memory_metadata_log import LaggingMetadataLog
from tests.support.remote_builder import RemoteBuilder, SegmentSource
from tests.support.scripted import MemoryStateLog, ScriptedBroker, ScriptedFailpoints
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.log_dirs_fs.segment_file import OpenSegmentFile
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LeaderView, LocalPartition, LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.producer_state import ProducerState, ProducerStates, TransactionWalk
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import Record, read_control_marker, read_records
from tiersidecar.ports.failpoints import NO_FAILPOINTS, Failpoints
from tiersidecar.ports.log_dirs import LogDirsView
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.remote_objects import ManifestCache
from tiersidecar.reading.segment_stream import SegmentStream
from tiersidecar.tasks.clean import CleanedChunk, CleanSettings, CleanTask, local_engine
from tiersidecar.tasks.clean_passes import aborted_of
from tiersidecar.tasks.clean_rights import LeadersRights
from tiersidecar.tasks.ownership import InFlight
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.segment_objects import LayoutSettings, SegmentObjects
from tiersidecar.tasks.segment_put import SwapStore
from tiersidecar.tasks.segment_swap import SegmentSwap

BROKER = BrokerId(1)
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": str(2**63 - 1),
    "segment.bytes": str(1 << 30),
    "segment.index.bytes": str(10 << 20),
    "delete.retention.ms": "1000",
}


class FixedLineage:
    """A lineage that a test sets."""

    def __init__(self) -> None:
        self.known = Lineage((EpochEntry(LeaderEpoch(0), Offset(0)),))

    async def lineage(self, topic_id_partition: TopicIdPartition, max_age_s: float = 0.0) -> Lineage:
        return self.known


class KilledError(Exception):
    """Stands for SIGKILL: nothing of ours catches it."""


@dataclass(slots=True)
class CleanWorld:
    """One partition, led by broker 1 in leader epoch 0."""

    scratch: Path
    builder: RemoteBuilder = field(default_factory=RemoteBuilder)
    clock: ManualClock = field(default_factory=lambda: ManualClock(1_790_000_000_000))
    broker: ScriptedBroker = field(default_factory=ScriptedBroker)
    state: MemoryStateLog = field(default_factory=MemoryStateLog)
    lineages: FixedLineage = field(default_factory=FixedLineage)
    table: PartitionTable = field(default_factory=PartitionTable)
    journal: HeldJournal = field(default_factory=HeldJournal)
    switch: DeleteSwitch = field(default_factory=DeleteSwitch)
    dedupe_bytes: int = 24 * 10_000
    takes_all: bool = False
    layout: LayoutSettings = field(default_factory=LayoutSettings)
    states: ProducerStates = field(default_factory=ProducerStates)
    walk: TransactionWalk = field(default_factory=TransactionWalk)
    _aborted: int = 0

    def __post_init__(self) -> None:
        self.builder.run = replace(self.builder.run, metadata=LaggingMetadataLog())
        self.broker.settings[self.owner.topic] = dict(COMPACTED)
        self.broker.last_stable_offsets[self.owner] = Offset(2**40)
        self.lead(0)

    @property
    def filters(self) -> Path:
        """Return where the key filters are."""
        return self.scratch.with_name(f"{self.scratch.name}-filters")

    @property
    def owner(self) -> TopicIdPartition:
        return self.builder.partition

    @property
    def partition(self) -> TieredPartition:
        return self.table.assignment[self.owner]

    def lead(self, epoch: int, role: PartitionRole = PartitionRole.LEADER) -> None:
        """Give broker 1 this role in this epoch from now on."""
        view = LeaderView(
            topic_id_partition=self.owner,
            leader_id=BROKER,
            leader_epoch=LeaderEpoch(epoch),
            replicas=(BROKER,),
            in_sync_replicas=(BROKER,),
        )
        self.table.assignment = {self.owner: TieredPartition(view=view, role=role, policy=TopicPolicy())}
        active = LocalSegment(
            directory="/log/built-0", base_offset=Offset(0), next_base_offset=None, size_bytes=0, modified_ms=0
        )
        local = LocalPartition(
            topic_id_partition=self.owner,
            log_dir="/log",
            directory="/log/built-0",
            segments=(active,),
            leader_epochs=(EpochEntry(LeaderEpoch(epoch), Offset(0)),),
        )
        self.table.local = LogDirsView(partitions={self.owner: local}, faults={})

    def configure(self, **settings: str | None) -> None:
        """Change settings of the topic, by names with underscores for dots."""
        changed = {name.replace("_", "."): value for name, value in settings.items()}
        self.broker.settings[self.owner.topic] = {**self.broker.settings[self.owner.topic], **changed}

    async def add(self, *segments: LogSegment, epochs: dict[int, int] | None = None) -> list[RemoteLogSegmentMetadata]:
        """Upload them as the copy lane would: with the snapshot of the producers, and the transaction index off the batches."""
        added = []
        for segment in segments:
            batches = []
            for position, header in iter_batch_headers(segment.log):
                data = segment.log[position : position + header.size_bytes]
                batches.append(LocalBatch(header, data))
                self._follow(batches[-1])
            seen = self.walk.finish().aborted
            new, self._aborted = seen[self._aborted :], len(seen)
            added.append(
                await self.builder.add(
                    SegmentSource(
                        batches=batches,
                        start_offset=segment.base_offset,
                        end_offset=segment.next_base_offset - 1,
                        epochs=epochs or {0: 0},
                        aborted_transactions=new,
                        producers=self.producers,
                    )
                )
            )
        return added

    @property
    def producers(self) -> tuple[ProducerState, ...]:
        """Return the producers of all that was added."""
        return self.states.states

    def _follow(self, batch: LocalBatch) -> None:
        header = batch.header
        if not header.is_control:
            self.states.add_batch(header)
        for record in read_records(batch.data) if header.is_control else ():
            marker = read_control_marker(record)
            if marker is not None:
                self.states.add_marker(header, marker, record.timestamp_ms)
        if header.is_transactional or header.is_control:
            self.walk.take(memoryview(batch.data), where="log", position=0)

    def task(self, actions: dict[str, Callable[[], Awaitable[None]]] | None = None) -> CleanTask:
        """Return a new process's."""
        blocking, ids, failpoints = InlineBlocking(), SystemIds(), ScriptedFailpoints(actions)
        metadata, telemetry = self.builder.run.metadata, NoTelemetry()
        segments = self.swap_store(failpoints)
        swap = SegmentSwap(
            metadata=metadata, store=segments, clock=self.clock, ids=ids, failpoints=failpoints, place="clean"
        )
        sources = sources_of(
            table=self.table, broker=self.broker, metadata=metadata, state=self.state, lineages=self.lineages
        )
        in_flight = InFlight(clock=self.clock, telemetry=telemetry, journal=self.journal)
        rights = LeadersRights(sources, actor_of(self.switch, broker_id=BROKER), in_flight, self.clock)
        settings = CleanSettings(
            dedupe_buffer_bytes=self.dedupe_bytes,
            scratch=self.scratch,
            filters=self.filters,
            delays=TrashDelays(retention_ms=3_600_000, user_ms=60_000),
            takes_all=self.takes_all,
        )
        engine = local_engine(
            settings,
            segments,
            swap,
            blocking=blocking,
            failpoints=failpoints,
            cleaned_here=rights.cleaned_here,
        )
        return CleanTask(
            sources=sources,
            clock=self.clock,
            failpoints=failpoints,
            rights=rights,
            engine=engine,
            blobs=segments.blobs,
            settings=settings,
        )

    def swap_store(self, failpoints: Failpoints = NO_FAILPOINTS) -> SwapStore:
        """Return what segments are read and put with."""
        blocking, store = InlineBlocking(), self.builder.run.store
        stream, blobs, pace = self._reading()

        @asynccontextmanager
        async def opened(segment: LocalSegment) -> AsyncIterator[OpenSegmentFile]:
            file = OpenSegmentFile(segment, blocking=blocking)
            await file.open()
            try:
                yield file
            finally:
                await file.close()

        objects = SegmentObjects(
            settings=self.layout, store=store, blocking=blocking, ids=SystemIds(), failpoints=failpoints
        )
        return SwapStore(
            objects=objects,
            stream=stream,
            blobs=blobs,
            pace=pace,
            open_file=opened,
            most_custom_metadata_bytes=128,
        )

    def _reading(self) -> tuple[SegmentStream, IndexBlobReader, UploadPace]:
        store, blocking = self.builder.run.store, InlineBlocking()
        manifests = ManifestCache(store=store, blocking=blocking, max_bytes=0)
        blobs = IndexBlobReader(store=store, blocking=blocking, manifests=manifests)
        return SegmentStream(store=store, blocking=blocking), blobs, UploadPace(None, self.clock)

    async def clean(self, actions: dict[str, Callable[[], Awaitable[None]]] | None = None) -> CleanedChunk:
        return await self.task(actions).run(self.partition)

    async def clean_all(self) -> list[CleanedChunk]:
        """Clean until there is nothing to do."""
        done = []
        while True:
            done.append(await self.clean())
            if not done[-1].swapped and done[-1].cleaner_offset < 0:
                return done
            self.clock.jump(0.001)

    def segments(self, *states: State) -> list[RemoteLogSegmentMetadata]:
        known = self.builder.run.metadata.list_remote_log_segments(self.owner)
        return [one for one in known if not states or one.state in states]

    def in_trash(self) -> set[Uuid]:
        return {uuid for entry in self.state.trash(self.owner) for uuid in entry.segments}

    async def log_of(self, metadata: RemoteLogSegmentMetadata) -> bytes:
        parts: list[bytes] = []
        stream, _, pace = self._reading()
        async for _ in stream.feed_log(metadata, lambda part: parts.append(bytes(part)), pace):
            await asyncio.sleep(0)
        return b"".join(parts)

    async def aborted_in(self, metadata: RemoteLogSegmentMetadata) -> list[AbortedTransaction]:
        _, blobs, _ = self._reading()
        return await aborted_of(blobs, [metadata])

    def given(self, offset: int) -> RemoteLogSegmentMetadata | None:
        """Return what a reader of the offset is given."""
        epoch = self.lineages.known.epoch_for_offset(offset)
        metadata = self.builder.run.metadata
        return None if epoch is None else metadata.remote_log_segment_metadata(self.owner, epoch, offset)

    async def read(self, start_offset: int = 0) -> list[LogSegment]:
        """Read as a consumer would that begins at ``start_offset``, one segment after the other."""
        found, offset = list[LogSegment](), start_offset
        while (segment := self.given(offset)) is not None:
            log = await self.log_of(segment)
            found.append(LogSegment(base_offset=segment.start_offset, next_base_offset=segment.next_offset, log=log))
            offset = segment.next_offset
        return found

    async def table_read(self) -> dict[bytes, Record]:
        """Return key to last record; tombstones are in it."""
        return table(committed_records(await self.read()))


def live(found: dict[bytes, Record]) -> dict[bytes, tuple[int, bytes | None]]:
    """Return it without tombstones: what a reader takes for the state of things."""
    return {key: (one.offset, one.value) for key, one in found.items() if one.value is not None}
