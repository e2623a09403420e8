"""Remote segments, opened: their keys, their chunk index, and the way back from stored to original bytes."""

from __future__ import annotations

from dataclasses import dataclass

from tiersidecar.domain.chunks import ChunkIndex
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import RemoteLogSegmentId
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.custom_metadata import read_custom_metadata
from tiersidecar.formats.aiven.key_ring import KeyRing
from tiersidecar.formats.aiven.keys import ObjectKeys
from tiersidecar.formats.aiven.keys import recorded_keys as keys_under
from tiersidecar.formats.aiven.layout import reading_plan
from tiersidecar.formats.aiven.manifest import Manifest, read_manifest
from tiersidecar.formats.aiven.transforms import TransformPlan
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.store import FetchRange
from tiersidecar.reading.byte_lru import ByteLru
from tiersidecar.reading.single_flight import SingleFlight
from tiersidecar.reading.time_limit import FETCH_TIMEOUT_S, fetch_within

_OBJECTS_OF_AN_ENTRY_BYTES = 4096
"""What the Python objects of one entry weigh besides the manifest's own bytes: an estimate, for the bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSegment:
    """A finished remote segment whose manifest has been read."""

    metadata: RemoteLogSegmentMetadata
    manifest: Manifest
    keys: ObjectKeys
    transform: TransformPlan

    @property
    def id(self) -> RemoteLogSegmentId:
        return self.metadata.remote_log_segment_id

    @property
    def chunk_index(self) -> ChunkIndex:
        return self.manifest.chunk_index


def recorded_keys(metadata: RemoteLogSegmentMetadata, key_prefix: str) -> ObjectKeys:
    """Keys of the three objects: by the custom metadata as far as they say, else under the configured ``key_prefix``.

    The manifest went up beside the others, so the recorded prefix counts for it too; the plugin looks for it under the
    configured one and loses it when that changes (DESIGN.md section 5).
    """
    recorded = read_custom_metadata(
        metadata.custom_metadata, where=f"custom metadata of {metadata.remote_log_segment_id}"
    )
    return keys_under(metadata, key_prefix if recorded.object_prefix is None else recorded.object_prefix)


class ManifestCache:
    """Opens remote segments; keeps what it has opened, bounded by bytes."""

    def __init__(
        self,
        *,
        store: FetchRange,
        blocking: Blocking,
        key_prefix: str = "",
        key_ring: KeyRing | None = None,
        max_bytes: int = 32 * 1024 * 1024,
        timeout_s: float = FETCH_TIMEOUT_S,
    ) -> None:
        self._store = store
        self._blocking = blocking
        self._key_prefix = key_prefix
        self._key_ring = key_ring
        self._timeout_s = timeout_s
        self._opened: ByteLru[RemoteLogSegmentId, RemoteSegment] = ByteLru(max_bytes)
        self._flights: SingleFlight[RemoteLogSegmentId, RemoteSegment] = SingleFlight("manifest")

    async def open(self, metadata: RemoteLogSegmentMetadata) -> RemoteSegment:
        """The segment with its manifest.

        Raises:
            ObjectNotFoundError: there is no manifest under its key.
            CorruptDataError: it is no manifest, or one of another segment.
            DataKeyError: it is encrypted with a key that we do not have.
        """
        segment_id = metadata.remote_log_segment_id
        opened = self._opened.get(segment_id)
        return opened or await self._flights.run(segment_id, lambda: self._fetch(metadata))

    def forget(self, segment_id: RemoteLogSegmentId) -> None:
        """Drop one segment: it is gone, or its manifest does not fit what was read by it."""
        self._opened.discard(segment_id)

    async def aclose(self) -> None:
        """Give up what is in flight."""
        await self._flights.aclose()

    async def _fetch(self, metadata: RemoteLogSegmentMetadata) -> RemoteSegment:
        keys = recorded_keys(metadata, self._key_prefix)
        data = await fetch_within(self._timeout_s, keys.manifest, self._store.fetch_object(keys.manifest))
        # Unwrapping the data key is RSA: a millisecond that the loop should not spend.
        segment = await self._blocking.run(_opened_segment, metadata, keys, data, self._key_ring)
        self._opened.put(segment.id, segment, len(data) + _OBJECTS_OF_AN_ENTRY_BYTES)
        return segment


def _opened_segment(
    metadata: RemoteLogSegmentMetadata, keys: ObjectKeys, data: bytes, key_ring: KeyRing | None
) -> RemoteSegment:
    manifest = read_manifest(data, where=keys.manifest)
    original_file_size = manifest.chunk_index.original_file_size
    if original_file_size != metadata.segment_size_in_bytes:
        raise CorruptDataError(
            where=keys.manifest,
            position=0,
            reason=f"is of a segment of {original_file_size} bytes, the metadata say {metadata.segment_size_in_bytes}",
        )
    return RemoteSegment(metadata=metadata, manifest=manifest, keys=keys, transform=reading_plan(manifest, key_ring))
