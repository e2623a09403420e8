"""A remote segment read whole and anew, past every cache, which proves what stands in the store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.index_blob import MOST_CHUNK_BYTES, MOST_INDEX_BYTES
from tiersidecar.formats.aiven.key_ring import DataKeys
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.store import FeedWithRests, HeadObject, ReadStore
from tiersidecar.reading.chunk_manager import StoreChunkManager
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.remote_objects import FETCH_TIMEOUT_S, ManifestCache, RemoteSegment, fetch_within

_SLICE_BYTES = 256 * 1024
"""Part of a chunk that is looked at in one go."""
_PART_BYTES = 4 * 1024 * 1024
"""Part of a local .log that is read and looked at in one request, at most."""
_PARTS_PER_S = 16
"""At a rate below 64 MiB/s.  A request to a store costs the event loop about 0.3 ms, so there are few; but one of a second's
worth would be a burst."""


class SegmentStore(ReadStore, FeedWithRests, HeadObject, Protocol):
    """The operations of the store that reading a whole segment needs."""


class Pace(Protocol):
    @property
    def bytes_per_s(self) -> int | None:
        """Return the rate in force; None: no limit."""

    async def grant(self, wanted_bytes: int) -> int:
        """Wait until some of ``wanted_bytes`` may move, and return how many."""


class SegmentStream:
    """Stream remote segments part by part."""

    def __init__(
        self,
        *,
        store: SegmentStore,
        blocking: Blocking,
        key_prefix: str = "",
        key_ring: DataKeys | None = None,
        most_chunk_bytes: int = MOST_CHUNK_BYTES,
        most_index_bytes: int = MOST_INDEX_BYTES,
    ) -> None:
        self._store, self._blocking = store, blocking
        self._manifests = ManifestCache(
            store=store,
            blocking=blocking,
            key_prefix=key_prefix,
            key_ring=key_ring,
            max_bytes=0,
            most_chunk_bytes=most_chunk_bytes,
            most_index_bytes=most_index_bytes,
        )
        self._chunks = StoreChunkManager(store=store, blocking=blocking)
        self._blobs = IndexBlobReader(store=store, blocking=blocking, manifests=self._manifests)

    async def feed_log(
        self, metadata: RemoteLogSegmentMetadata, look: Callable[[memoryview], None], pace: Pace
    ) -> AsyncGenerator[int]:
        """Show ``look`` the original .log from its first byte to its last, in a thread, and yield the size of each part;
        ``look`` must not keep them.  ``pace`` is asked before each part.  Before the first one, the companions that nothing
        else could replace are read: the leader epochs, which decide what is history, and the producers' state.

        Raises:
            StoreError: an object is missing or could not be read.
            CorruptDataError: manifest, sizes or chunks do not fit each other or the metadata.
            Exception: what ``look`` raises.
        """
        segment = await self._open_with_companions(metadata)
        if self._chunks.is_local(segment):
            async for count in self._feed_file(segment, look, pace):
                yield count
            return
        for index in range(segment.chunk_index.chunk_count):
            rest = memoryview(await self._chunks.get_chunk(segment, index))
            while rest:
                count = await pace.grant(min(len(rest), _SLICE_BYTES))
                await self._blocking.run(look, rest[:count])
                rest = rest[count:]
                yield count

    async def stored_checksum(self, metadata: RemoteLogSegmentMetadata) -> int | None:
        """Read the companions of a remote segment as :meth:`feed_log` does, and return the CRC32C that the store keeps of the
        whole .log: of the broker's own bytes.  None where it keeps none, or the .log is compressed or encrypted.

        Raises:
            StoreError: an object is missing or could not be read.
            CorruptDataError: manifest and sizes do not fit each other or the metadata.
        """
        segment = await self._open_with_companions(metadata)
        if not segment.transform.is_identity:
            return None
        stored = await self._store.head_object(segment.keys.log)
        if stored.size_bytes != metadata.segment_size_in_bytes:
            reason = f"it has {stored.size_bytes} bytes, the metadata say {metadata.segment_size_in_bytes}"
            raise CorruptDataError(where=segment.keys.log, position=0, reason=reason)
        return stored.crc32c

    async def _open_with_companions(self, metadata: RemoteLogSegmentMetadata) -> RemoteSegment:
        segment = await self._manifests.open(metadata)
        await self._check_indexes(segment)
        await self._blobs.read_leader_epochs(metadata)
        await self._blobs.read_producer_snapshot(metadata)
        return segment

    async def _feed_file(
        self, segment: RemoteSegment, look: Callable[[memoryview], None], pace: Pace
    ) -> AsyncGenerator[int]:
        """Feed a local .log: it is looked at while it is in the processor's cache, and no chunk is ever in memory."""
        position, stop = 0, segment.chunk_index.original_file_size
        while position < stop:
            rate = pace.bytes_per_s
            part_bytes = _PART_BYTES if rate is None else min(max(rate // _PARTS_PER_S, 1), _PART_BYTES)
            count = await _granted(pace, min(stop - position, part_bytes))
            feed = self._store.feed_range if rate is None else self._store.feed_with_rests
            looking, key = _Looking(look), segment.keys.log
            await fetch_within(FETCH_TIMEOUT_S, key, feed(key, ByteRange(position, position + count), looking.take))
            if looking.error is not None:
                raise looking.error
            position += count
            yield count

    async def _check_indexes(self, segment: RemoteSegment) -> None:
        expected = segment.manifest.indexes.size_bytes
        stored = await self._store.head_object(segment.keys.indexes)
        if stored.size_bytes != expected:
            reason = f"it has {stored.size_bytes} bytes, the manifest says {expected}"
            raise CorruptDataError(where=segment.keys.indexes, position=0, reason=reason)


async def _granted(pace: Pace, wanted_bytes: int) -> int:
    """Wait until all of ``wanted_bytes`` may move; return them."""
    left_bytes = wanted_bytes
    while left_bytes > 0:
        left_bytes -= await pace.grant(left_bytes)
    return wanted_bytes


class _Looking:
    """Keep an error of ``look``: a callback of the store must not raise."""

    def __init__(self, look: Callable[[memoryview], None]) -> None:
        self._look = look
        self.error: Exception | None = None

    def take(self, piece: memoryview) -> int:
        try:
            self._look(piece)
        except Exception as error:  # noqa: BLE001 - the asker gets it as it is
            self.error = error
            return 0
        return len(piece)
