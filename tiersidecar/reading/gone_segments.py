"""Chunks of segments that are deleted go from the caches.

Nothing reads them any more, but they would stay until others take their place: on a disk with room, for ever.  An erasure and
the cleaner put new segments in the place of old ones, and what they have taken out must not stay here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence, Set
from contextlib import asynccontextmanager, suppress
from typing import Protocol

import structlog

from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.ports.clock import Clock

_log = structlog.get_logger(__name__)

_INTERVAL_S = 5.0
_LATE_S = 300.0
"""A fetch that began before a segment was deleted may put its chunk into the cache after that; none takes so long."""

CachedSegment = tuple[Uuid, int, Uuid]
"""Topic id, partition and segment id of chunks that a cache keeps."""


def cached_segment(segment_id: RemoteLogSegmentId) -> CachedSegment:
    """Return the segment as caches name it."""
    owner = segment_id.topic_id_partition
    return owner.topic_id, owner.partition, segment_id.uuid


class ChunkCache(Protocol):
    """A layer that keeps chunks."""

    async def segments(self) -> Set[CachedSegment]:
        """Return the segments of which there are chunks."""

    async def drop(self, segments: Set[CachedSegment]) -> None:
        """Drop the chunks of these segments."""


class KnownSegments(Protocol):
    """Part of :class:`~tiersidecar.ports.metadata_log.MetadataLog`."""

    @property
    def changes(self) -> int:
        """Return how many events were applied so far."""
        ...

    def segment(self, remote_log_segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """Return one segment in any state but DELETE_SEGMENT_FINISHED.

        Raises:
            MetadataNotReadyError: the partition is not ready.
        """


class GoneSegments:
    """Drops from ``caches`` what is of segments that are deleted, or of partitions that are not read here any more.

    ``assigned`` gives the partitions whose metadata this process keeps: as long as there are none, nothing is dropped.
    """

    def __init__(
        self,
        caches: Sequence[ChunkCache],
        *,
        metadata: KnownSegments,
        assigned: Callable[[], Iterable[TopicIdPartition]],
        clock: Clock,
    ) -> None:
        self._caches, self._metadata, self._assigned, self._clock = caches, metadata, assigned, clock
        self._changes, self._until_s = -1, 0.0

    async def run(self) -> None:
        """Look every few seconds, for ever; where nothing has changed for minutes only at the count of events."""
        while True:
            await self._clock.sleep(_INTERVAL_S)
            if self._metadata.changes != self._changes:
                self._changes, self._until_s = self._metadata.changes, self._clock.monotonic_s() + _LATE_S
            if self._clock.monotonic_s() <= self._until_s:
                await self.drop()

    async def drop(self) -> None:
        """Drop what is gone now."""
        owners = {(one.topic_id, one.partition): one for one in self._assigned()}
        if not owners:
            return
        for cache in self._caches:
            gone = {one for one in await cache.segments() if self._is_gone(one, owners)}
            if gone:
                await cache.drop(gone)
                _log.info("read.cache.dropped", segments=sorted(format_uuid(uuid) for _, _, uuid in gone))

    def _is_gone(self, cached: CachedSegment, owners: dict[tuple[Uuid, int], TopicIdPartition]) -> bool:
        topic_id, partition, uuid = cached
        owner = owners.get((topic_id, partition))
        if owner is None:
            return True
        try:
            return self._metadata.segment(RemoteLogSegmentId(topic_id_partition=owner, uuid=uuid)) is None
        except MetadataNotReadyError:
            self._until_s = max(self._until_s, self._clock.monotonic_s() + _LATE_S)
            return False


@asynccontextmanager
async def dropping(gone: GoneSegments) -> AsyncIterator[None]:
    """Drop in the background while the context lasts."""
    task = asyncio.create_task(gone.run(), name="drop chunks of deleted segments")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
