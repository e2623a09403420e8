"""Whether a finished segment's objects are in the store, by what the store says now: nothing cached, no content read."""

from __future__ import annotations

from tiersidecar.domain.errors import CorruptDataError, ObjectNotFoundError
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.manifest import Manifest, read_manifest
from tiersidecar.formats.aiven.segment_bounds import ANY_SEGMENT, SegmentBounds, bounds_of
from tiersidecar.ports.store import Store, StoredObject
from tiersidecar.reading.manifests import fetch_manifest, recorded_keys


class SegmentPresence:
    """Raises StoreError where the store is away: not to know is not the same as not to be there."""

    def __init__(self, store: Store, key_prefix: str) -> None:
        self._store, self._key_prefix = store, key_prefix

    async def is_whole(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """Whether its manifest can be read, is of this segment, and the other two objects have the sizes that it says.  One
        whose custom metadata are another plugin's is not: nothing tells where its objects are."""
        try:
            keys = recorded_keys(metadata, self._key_prefix)
        except CorruptDataError:
            return False
        manifest, _ = await self.read_manifest(keys.manifest, bounds_of(metadata))
        if manifest is None or not _is_of(manifest, metadata):
            return False
        log, indexes = await self.head(keys.log), await self.head(keys.indexes)
        return (
            log is not None
            and indexes is not None
            and log.size_bytes == manifest.chunk_index.transformed_size
            and indexes.size_bytes == manifest.indexes.size_bytes
        )

    async def read_manifest(self, key: str, bounds: SegmentBounds = ANY_SEGMENT) -> tuple[Manifest | None, str]:
        """The manifest, and what is wrong with the object: neither where there is no object."""
        try:
            return read_manifest(await fetch_manifest(self._store, key, bounds), where=key, bounds=bounds), ""
        except ObjectNotFoundError:
            return None, ""
        except CorruptDataError as error:
            return None, f"the manifest cannot be read: {error}"

    async def head(self, key: str) -> StoredObject | None:
        """None where it is not there."""
        try:
            return await self._store.head_object(key)
        except ObjectNotFoundError:
            return None


def _is_of(manifest: Manifest, metadata: RemoteLogSegmentMetadata) -> bool:
    """What a manifest says of itself must agree; the plugin's oldest ones say nothing."""
    said = manifest.segment
    if manifest.chunk_index.original_file_size != metadata.segment_size_in_bytes:
        return False
    return said is None or (
        said.remote_log_segment_id == metadata.remote_log_segment_id
        and (said.start_offset, said.end_offset) == (metadata.start_offset, metadata.end_offset)
        and said.segment_leader_epochs == metadata.segment_leader_epochs
    )
