"""A remote segment read whole and anew, past every cache: what is proven by it stands in the store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.key_ring import KeyRing
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.store import Buffer, HeadObject, ReadStore
from tiersidecar.reading.chunk_manager import StoreChunkManager
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.manifests import ManifestCache, RemoteSegment


class SegmentStore(ReadStore, HeadObject, Protocol):
    """What reading a segment whole asks of the store."""


class SegmentStream:
    """Streams remote segments chunk by chunk."""

    def __init__(
        self, *, store: SegmentStore, blocking: Blocking, key_prefix: str = "", key_ring: KeyRing | None = None
    ) -> None:
        self._store = store
        self._manifests = ManifestCache(
            store=store, blocking=blocking, key_prefix=key_prefix, key_ring=key_ring, max_bytes=0
        )
        self._chunks = StoreChunkManager(store=store, blocking=blocking)
        self._blobs = IndexBlobReader(store=store, blocking=blocking, manifests=self._manifests)

    async def stream_log(self, metadata: RemoteLogSegmentMetadata) -> AsyncIterator[Buffer]:
        """The original .log from its first byte to its last, once its companions that nothing else could replace were read:
        the leader epochs, which decide what is history, and the producers' state.

        Raises:
            StoreError: an object is missing or could not be read.
            CorruptDataError: manifest, sizes or chunks do not fit each other or the metadata.
        """
        segment = await self._manifests.open(metadata)
        await self._check_indexes(segment)
        await self._blobs.read_leader_epochs(metadata)
        await self._blobs.read_producer_snapshot(metadata)
        for index in range(segment.chunk_index.chunk_count):
            yield await self._chunks.get_chunk(segment, index)

    async def _check_indexes(self, segment: RemoteSegment) -> None:
        expected = segment.manifest.indexes.size_bytes
        stored = await self._store.head_object(segment.keys.indexes)
        if stored.size_bytes != expected:
            reason = f"it has {stored.size_bytes} bytes, the manifest says {expected}"
            raise CorruptDataError(where=segment.keys.indexes, position=0, reason=reason)
