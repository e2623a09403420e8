"""The content of a bucket, in memory: the remote log metadata of its manifests, as the readers want to see it.

It stands in for the metadata topic (:class:`~tiersidecar.ports.metadata_log.MetadataView`) and for what the state topic would
say of log starts, which no bucket knows.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tiersidecar.domain.errors import CorruptDataError, MetadataNotReadyError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.domain.metadata_cache import RemoteLogMetadataCache
from tiersidecar.domain.metadata_cache_rows import SegmentPicture
from tiersidecar.domain.offsets import NO_EPOCH, NO_OFFSET, ByteRange, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.ports.clock import Blocking
from tiersidecar.reading.lineage import LineageKeeper
from tiersidecar.reading.remote_objects import SingleFlight
from tiersidecar.services.bucket.manifests import as_started, in_event_order

_MOST_ON_THE_LOOP = 64
"""Segments: a millisecond."""


@dataclass(slots=True)
class _Partition:
    """``version`` changes with its segments; ``size_bytes`` and the two newest ones are over all segments: the status of many
    segments need not add them up each time."""

    cache: RemoteLogMetadataCache
    version: int
    newest_event_ms: int = -1
    size_bytes: int = 0
    latest_epoch: LeaderEpoch = NO_EPOCH
    uuids: set[Uuid] = field(default_factory=set)


class BucketPicture:
    """Partitions and their segments.  Changed by :meth:`change` alone; everything else is a look-up.

    A topic that was made anew under its name has two ids in the bucket.  The name stands for the one of which something was
    copied last; the others are :attr:`shadowed`.
    """

    def __init__(self, blocking: Blocking) -> None:
        self._blocking = blocking
        self._partitions: dict[TopicIdPartition, _Partition] = {}
        self._topics: dict[str, dict[int, TopicIdPartition]] = {}
        self._counts: dict[str, int] = {}
        self._names: dict[Uuid, str] = {}
        self._changed = asyncio.Event()
        self._version = 0
        self.shadowed: tuple[tuple[str, Uuid], ...] = ()

    # -- changes

    def has(self, segment_id: RemoteLogSegmentId) -> bool:
        """Return whether the segment is in the picture."""
        known = self._partitions.get(segment_id.topic_id_partition)
        return known is not None and segment_id.uuid in known.uuids

    def gone(self, seen: Mapping[TopicIdPartition, Collection[Uuid]]) -> list[RemoteLogSegmentId]:
        """Return those of the picture that are not among ``seen``."""
        return [
            RemoteLogSegmentId(topic_id_partition=partition, uuid=uuid)
            for partition, known in self._partitions.items()
            for uuid in known.uuids - set(seen.get(partition, ()))
        ]

    async def change(
        self, *, added: Iterable[RemoteLogSegmentMetadata] = (), removed: Iterable[RemoteLogSegmentId] = ()
    ) -> None:
        """Put segments in, and take others out.  Readers see each partition as it was before, or as it is then."""
        additions, removals = defaultdict(list), defaultdict(set)
        for segment in added:
            additions[segment.topic_id_partition].append(segment)
        for segment_id in removed:
            removals[segment_id.topic_id_partition].add(segment_id.uuid)
        for partition in additions.keys() | removals.keys():
            await self._change(partition, additions[partition], removals[partition])
        if additions or removals:
            self._name_topics()
            self._changed.set()
            self._changed = asyncio.Event()

    async def _change(
        self, partition: TopicIdPartition, added: list[RemoteLogSegmentMetadata], removed: set[Uuid]
    ) -> None:
        known = self._partitions.get(partition)
        self._version += 1
        if known is not None and not removed and _is_growth(known, added):
            _fold(known.cache, added)
            made = known
        else:
            # What is gone leaves no trace: the picture is what the bucket holds now, whatever it held before.
            before = () if known is None else known.cache.picture().segments()
            kept = [one for one in before if one.remote_log_segment_id.uuid not in removed]
            made = _Partition(await self._blocking.run(_folded, partition, [*kept, *added]), self._version)
            made.uuids = {one.remote_log_segment_id.uuid for one in kept}
            _note(made, kept)
            if known is not None:
                # Java's clients take no metadata with a lower epoch than they saw, and would be refused for ever.
                made.latest_epoch = known.latest_epoch
        made.version = self._version
        made.uuids.update(segment.remote_log_segment_id.uuid for segment in added)
        _note(made, added)
        if made.uuids:
            self._partitions[partition] = made
        else:
            self._partitions.pop(partition, None)

    def _name_topics(self) -> None:
        newest: dict[tuple[str, Uuid], int] = {}
        for partition, known in self._partitions.items():
            owner = partition.topic, partition.topic_id
            newest[owner] = max(newest.get(owner, -1), known.newest_event_ms)
        living = dict(sorted(newest, key=lambda owner: (newest[owner], owner[1])))  # of a name the newest comes last
        self.shadowed = tuple(sorted(owner for owner in newest if living[owner[0]] != owner[1]))
        self._names = {topic_id: name for name, topic_id in living.items()}
        topics: dict[str, dict[int, TopicIdPartition]] = {name: {} for name in sorted(living)}
        for partition in self._partitions:
            if living[partition.topic] == partition.topic_id:
                topics[partition.topic][partition.partition] = partition
        self._topics = topics
        self._counts = {name: max(numbers) + 1 for name, numbers in topics.items()}

    async def wait_for_change(self, timeout_s: float) -> None:
        """Return after the next change, or after ``timeout_s`` at the latest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    # -- topics

    def topics(self) -> Collection[str]:
        """Return their names, in order."""
        return self._topics.keys()

    def topic(self, name: str) -> Mapping[int, TopicIdPartition]:
        """Return the partitions of a topic by number; empty for one that the bucket does not have."""
        return self._topics.get(name, {})

    def partition_count(self, name: str) -> int:
        """Return one more than the highest partition number of a topic; 0 where there is no such topic."""
        return self._counts.get(name, 0)

    def name_of(self, topic_id: Uuid) -> str | None:
        """Return the name that now stands for ``topic_id``."""
        return self._names.get(topic_id)

    def partitions(self) -> Collection[TopicIdPartition]:
        """Return all of them, each topic's under its living id."""
        return [partition for topic in self._topics.values() for partition in topic.values()]

    def latest_epoch(self, partition: TopicIdPartition) -> LeaderEpoch:
        """Return the highest leader epoch of which the bucket has had a segment, while it had some; -1 where it has none."""
        known = self._partitions.get(partition)
        return NO_EPOCH if known is None else known.latest_epoch

    def version(self, partition: TopicIdPartition) -> int:
        """Return another number after each change of the partition's segments; -1 where there are none."""
        known = self._partitions.get(partition)
        return -1 if known is None else known.version

    def totals(self) -> tuple[int, int]:
        """Return the segments, and the bytes of their logs before any transform, of all partitions."""
        known = self._partitions.values()
        return sum(len(one.cache) for one in known), sum(one.size_bytes for one in known)

    # -- MetadataView

    def is_ready(self, topic_id_partition: TopicIdPartition) -> bool:
        """Return whether the partition is known (:class:`~tiersidecar.ports.metadata_log.MetadataView`, as all below)."""
        return topic_id_partition in self._partitions

    def remote_log_segment_metadata(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self._cache(topic_id_partition).remote_log_segment_metadata(leader_epoch, offset)

    def finished_segments_at(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> Iterator[RemoteLogSegmentMetadata]:
        return self._cache(topic_id_partition).finished_segments_at(leader_epoch, offset)

    def highest_offset_for_epoch(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> int | None:
        return self._cache(topic_id_partition).highest_offset_for_epoch(leader_epoch)

    def segment(self, remote_log_segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        return self._cache(remote_log_segment_id.topic_id_partition).segment(remote_log_segment_id.uuid)

    def list_remote_log_segments(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> Iterator[RemoteLogSegmentMetadata]:
        return self._cache(topic_id_partition).list_remote_log_segments(leader_epoch)

    def picture(self, topic_id_partition: TopicIdPartition) -> SegmentPicture:
        return self._cache(topic_id_partition).picture()

    def mark(self, topic_id_partition: TopicIdPartition) -> int:
        return self._cache(topic_id_partition).mark

    def segments_with(
        self, topic_id_partition: TopicIdPartition, offsets: ByteRange
    ) -> Sequence[RemoteLogSegmentMetadata]:
        return self._cache(topic_id_partition).segments_with(offsets)

    def latest_leader_epoch(self, topic_id_partition: TopicIdPartition) -> int:
        return self._cache(topic_id_partition).latest_leader_epoch

    def list_unfinished_segments(self, topic_id_partition: TopicIdPartition) -> Iterator[RemoteLogSegmentMetadata]:
        return self._cache(topic_id_partition).list_unfinished_segments()

    def segment_count(self, topic_id_partition: TopicIdPartition) -> int:
        return len(self._cache(topic_id_partition))

    def remote_log_size_bytes(self, topic_id_partition: TopicIdPartition, leader_epoch: int | None = None) -> int:
        cache = self._cache(topic_id_partition)
        if leader_epoch is None:
            return self._partitions[topic_id_partition].size_bytes
        return cache.remote_log_size_bytes(leader_epoch)

    def next_segment_with_txn_index(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self._cache(topic_id_partition).next_segment_with_txn_index(leader_epoch, offset)

    def finished_runs(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> Sequence[tuple[int, int]]:
        return self._cache(topic_id_partition).finished_runs(leader_epoch)

    def _cache(self, topic_id_partition: TopicIdPartition) -> RemoteLogMetadataCache:
        known = self._partitions.get(topic_id_partition)
        if known is None:
            raise MetadataNotReadyError(subject=str(topic_id_partition))
        return known.cache


def _is_growth(known: _Partition, added: Sequence[RemoteLogSegmentMetadata]) -> bool:
    """Return whether a few segments came after all that are known: then the fold goes on, else it begins anew in a thread."""
    return len(added) <= _MOST_ON_THE_LOOP and all(
        segment.event_timestamp_ms > known.newest_event_ms for segment in added
    )


def _folded(partition: TopicIdPartition, segments: Sequence[RemoteLogSegmentMetadata]) -> RemoteLogMetadataCache:
    cache = RemoteLogMetadataCache(partition)
    cache.mark_loaded()
    _fold(cache, segments)
    return cache


def _fold(cache: RemoteLogMetadataCache, segments: Sequence[RemoteLogSegmentMetadata]) -> None:
    """Apply the segments as a replay of their events would: which of several copies is read follows from the order alone."""
    for segment in in_event_order(segments):
        cache.apply(as_started(segment))
        cache.apply(
            RemoteLogSegmentMetadataUpdate(
                remote_log_segment_id=segment.remote_log_segment_id,
                broker_id=segment.broker_id,
                event_timestamp_ms=segment.event_timestamp_ms,
                state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            )
        )


def _note(partition: _Partition, segments: Iterable[RemoteLogSegmentMetadata]) -> None:
    for segment in segments:
        partition.size_bytes += segment.segment_size_in_bytes
        partition.newest_event_ms = max(partition.newest_event_ms, segment.event_timestamp_ms)
        partition.latest_epoch = max(partition.latest_epoch, segment.segment_leader_epochs[-1].epoch)


class BucketLineages:
    """Lineages by the epoch blobs alone, kept until the partition's segments change."""

    def __init__(self, picture: BucketPicture, keeper: LineageKeeper) -> None:
        self._picture, self._keeper = picture, keeper
        self._known: dict[TopicIdPartition, tuple[int, Lineage]] = {}
        self._flights: SingleFlight[tuple[TopicIdPartition, int], Lineage] = SingleFlight("lineage", max_flights=10_000)

    async def lineage(self, topic_id_partition: TopicIdPartition, *, max_age_s: float = 30.0) -> Lineage:
        """Return the lineage; it is never older than the picture."""
        version = self._picture.version(topic_id_partition)
        known = self._known.get(topic_id_partition)
        if known is not None and known[0] == version:
            return known[1]
        return await self._flights.run((topic_id_partition, version), lambda: self._chosen(topic_id_partition, version))

    async def refresh(self, topic_id_partition: TopicIdPartition) -> Lineage:
        """Return :meth:`lineage`, chosen anew from every segment that is finished now."""
        return await self.lineage(topic_id_partition)

    def last(self, topic_id_partition: TopicIdPartition) -> Lineage | None:
        """Return the last lineage given out, which may be out of date; None where there was none."""
        return self._keeper.last(topic_id_partition)

    def log_end_offset(self, topic_id_partition: TopicIdPartition) -> Offset:
        """Return the end of what is remote."""
        return self._keeper.log_end_offset(topic_id_partition)

    async def aclose(self) -> None:
        """Give up what is in flight."""
        await self._flights.aclose()

    async def _chosen(self, topic_id_partition: TopicIdPartition, version: int) -> Lineage:
        lineage = await self._keeper.refresh(topic_id_partition)
        _check_entries(topic_id_partition, lineage)
        self._known[topic_id_partition] = version, lineage
        return lineage


def _check_entries(partition: TopicIdPartition, lineage: Lineage) -> None:
    """Check the entries of an epoch blob, which may be of any size: those that go to clients may not."""
    for epoch, start_offset in lineage.entries:
        if not (0 <= epoch < 1 << 31 and 0 <= start_offset < 1 << 63):
            reason = f"leader epoch {epoch} from offset {start_offset} is none that Kafka can have"
            raise CorruptDataError(where=f"leader epochs of {partition}", position=0, reason=reason)


class NoLogStarts:
    """No bucket says what users have deleted, or what trims gave up: all that it holds may be read."""

    def remote_log_start_offset(self, topic_id_partition: TopicIdPartition, lineage: Lineage) -> Offset:
        return NO_OFFSET

    def held_offset(self, topic_id_partition: TopicIdPartition, lineage: Lineage) -> Offset:
        return NO_OFFSET

    def log_start_for(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> Offset:
        return NO_OFFSET

    def replaced_segments(self, topic_id_partition: TopicIdPartition) -> frozenset[Uuid]:
        return frozenset()
