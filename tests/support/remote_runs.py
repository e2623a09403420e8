"""Data that the real plugin left in the store and in the metadata topic, loaded into memory: remote partitions to read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePath

from tests.support.golden import AIVEN_OBJECTS, read_json_lines
from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.recorded_telemetry import RecordedTelemetry
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.decide.reader_quotas import ReaderQuotaRule
from tiersidecar.domain.errors import BrokerUnreachableError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import NO_OFFSET, Lineage, Offset
from tiersidecar.domain.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.aiven.key_ring import KeyRing, read_rsa_key_pair
from tiersidecar.formats.metadata.serde import read_event
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.store import BytesBody, Store
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.reading.admission import FetchQuota
from tiersidecar.reading.chunk_manager import ChunkLayer
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.lineage import LineageKeeper, LiveLog, NoLiveLog
from tiersidecar.reading.read_path import ReadPath, ReadSettings, open_read_path
from tiersidecar.reading.reader_limits import ColdReads
from tiersidecar.reading.remote_objects import ManifestCache

SegmentEvent = RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate
RUNS = ("plain", "prefix-custommeta", "compressed", "compressed-bigchunk", "encrypted")
_KEY_PREFIXES = {"prefix-custommeta": "tiered/some-prefix/"}


class FixedLogStarts:
    """``reading.log_starts.LogStarts``: as a test sets them."""

    def __init__(self) -> None:
        self.offsets: dict[TopicIdPartition, int] = {}
        self.held: dict[TopicIdPartition, int] = {}
        self.erased: frozenset[Uuid] = frozenset()

    def remote_log_start_offset(self, topic_id_partition: TopicIdPartition, lineage: Lineage) -> Offset:
        assert isinstance(lineage, Lineage), "the real one needs it"
        return Offset(self.offsets.get(topic_id_partition, NO_OFFSET))

    def held_offset(self, topic_id_partition: TopicIdPartition, lineage: Lineage) -> Offset:
        return Offset(self.held.get(topic_id_partition, NO_OFFSET))

    def log_start_for(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> Offset:
        assert isinstance(leader_epoch, int), "the real one needs it"
        return Offset(self.offsets.get(topic_id_partition, NO_OFFSET))

    def replaced_segments(self, topic_id_partition: TopicIdPartition) -> frozenset[Uuid]:
        return self.erased


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRun:
    """Store and metadata of one run of the plugin, before it deleted anything."""

    store: MemoryStore
    metadata: MemoryMetadataLog
    partitions: tuple[TopicIdPartition, ...]
    key_prefix: str
    log_starts: FixedLogStarts

    def partition(self, name: str) -> TopicIdPartition:
        return next(one for one in self.partitions if str(one) == name)


class LateMetadata(MemoryMetadataLog):
    """Has read nothing yet of what was published: it comes with :meth:`catch_up`, or never where it is out of reach."""

    def __init__(self, published: MemoryMetadataLog, *, is_reachable: bool) -> None:
        super().__init__()
        self._published, self._is_reachable = published, is_reachable

    async def catch_up(self, topic_id_partition: TopicIdPartition) -> None:
        if not self._is_reachable:
            raise BrokerUnreachableError(address="metadata:9092", reason="connection refused")
        for event in self._published.events[len(self.events) :]:
            await self.publish(event)


async def behind(run: RemoteRun, *, is_reachable: bool = True) -> RemoteRun:
    """``run`` as a process sees it whose broker has just come back."""
    metadata = LateMetadata(run.metadata, is_reachable=is_reachable)
    await metadata.assign(run.partitions)
    return replace(run, metadata=metadata)


@cache
def key_ring() -> KeyRing:
    """Opens the ``encrypted`` run.  Made once: its primes are proved when they are read."""
    keys = AIVEN_OBJECTS / "keys"
    pair = read_rsa_key_pair((keys / "rsa-public.spki.der").read_bytes(), (keys / "rsa-private.pkcs8.der").read_bytes())
    return KeyRing(active_key_id="key1", keys={"key1": pair})


async def load_run(run: str) -> RemoteRun:
    """Return the partitions of ``run`` whose objects were kept."""
    store = MemoryStore(clock=ManualClock(), ids=SystemIds())
    objects = _objects(run)
    for key, data in objects.items():
        await store.put_object(key, BytesBody(data))
    metadata = MemoryMetadataLog()
    kept = {PurePath(key).parent.parent.name for key in objects}
    partitions: dict[TopicIdPartition, None] = {}
    for event in _events(run):
        partition = event.remote_log_segment_id.topic_id_partition
        is_deletion = event.state >= RemoteLogSegmentState.DELETE_SEGMENT_STARTED
        if partition.qualified.partition("/")[0] in kept and not is_deletion:
            await metadata.assign([partition])
            await metadata.publish(event)
            partitions[partition] = None
    return RemoteRun(
        store=store,
        metadata=metadata,
        partitions=tuple(sorted(partitions)),
        key_prefix=_KEY_PREFIXES.get(run, ""),
        log_starts=FixedLogStarts(),
    )


@cache
def _objects(run: str) -> dict[str, bytes]:
    """Return them by key, in its order."""
    root = AIVEN_OBJECTS / run
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@cache
def _events(run: str) -> list[SegmentEvent]:
    events: list[SegmentEvent] = []
    for line in read_json_lines("remote-log-metadata", f"{run}.jsonl"):
        event = read_event(bytes.fromhex(line["value"]), where=run)
        assert not isinstance(event, RemotePartitionDeleteMetadata)
        events.append(event)
    return events


@asynccontextmanager
async def open_run(
    run: RemoteRun,
    *,
    store: Store | None = None,
    live: LiveLog | None = None,
    clock: Clock | None = None,
    blocking: Blocking | None = None,
    quota: FetchQuota | None = None,
    budgets: Sequence[ReaderQuotaRule] = (),
    telemetry: Telemetry | None = None,
    settings: ReadSettings | None = None,
    chunk_layers: Sequence[ChunkLayer] = (),
) -> AsyncIterator[ReadPath]:
    """Yield the read path over ``run``; ``store`` stands in front of the run's own."""
    store, clock, blocking = store or run.store, clock or ManualClock(), blocking or InlineBlocking()
    telemetry = telemetry or RecordedTelemetry()
    async with AsyncExitStack() as stack:
        manifests = ManifestCache(store=store, blocking=blocking, key_prefix=run.key_prefix, key_ring=key_ring())
        stack.push_async_callback(manifests.aclose)
        lineages = LineageKeeper(
            metadata=run.metadata,
            epochs=IndexBlobReader(store=store, blocking=blocking, manifests=manifests),
            live=live or NoLiveLog(),
            blocking=blocking,
            clock=clock,
        )
        stack.push_async_callback(lineages.aclose)
        yield await stack.enter_async_context(
            open_read_path(
                store=store,
                metadata=run.metadata,
                manifests=manifests,
                lineages=lineages,
                log_starts=run.log_starts,
                blocking=blocking,
                clock=clock,
                quota=quota,
                cold=ColdReads(clock=clock, rules=budgets, telemetry=telemetry),
                telemetry=telemetry,
                settings=settings,
                catch_up=run.metadata.catch_up,
                chunk_layers=chunk_layers,
            )
        )


def segments_of(run: RemoteRun, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
    """Return the partition's segments, ascending."""
    return list(run.metadata.list_remote_log_segments(partition))
