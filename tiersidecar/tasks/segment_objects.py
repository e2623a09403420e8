"""A segment's three objects, stored in the order that makes the manifest the commit mark: .log, .indexes, .rsm-manifest."""

from __future__ import annotations

from dataclasses import dataclass

from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.custom_metadata import CustomMetadataField
from tiersidecar.formats.aiven.index_blob import IndexKind
from tiersidecar.formats.aiven.key_ring import KeyRing
from tiersidecar.formats.aiven.layout import SegmentLayout, new_segment_encryption, plan_objects
from tiersidecar.formats.aiven.transforms import IV_SIZE
from tiersidecar.ports.clock import Blocking, Ids
from tiersidecar.ports.failpoints import Failpoints
from tiersidecar.ports.log_dirs import SegmentFile
from tiersidecar.ports.store import BytesBody, ObjectBody, PutObject
from tiersidecar.tasks.log_body import LogBody
from tiersidecar.tasks.segment_reading import SegmentReading


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSettings:
    """How segments become objects; the plugin's settings of the same names.

    ``skip_compressed`` leaves out compression where the segment's first batch is compressed already (the plugin's
    ``compression.heuristic.enabled``).  ``kafka_version`` is (major, minor) of the broker whose bytes we write.
    """

    key_prefix: str = ""
    chunk_size: int = 4 * 1024 * 1024
    compression: bool = False
    skip_compressed: bool = False
    key_ring: KeyRing | None = None
    custom_metadata_fields: frozenset[CustomMetadataField] = frozenset()
    custom_metadata_max_bytes: int = 128
    kafka_version: tuple[int, int] = (4, 3)


class SegmentObjects:
    """Stores them; one instance serves all segments."""

    def __init__(
        self, *, settings: LayoutSettings, store: PutObject, blocking: Blocking, ids: Ids, failpoints: Failpoints
    ) -> None:
        self._settings, self._store = settings, store
        self._blocking, self._ids, self._failpoints = blocking, ids, failpoints

    async def put(
        self, started: RemoteLogSegmentMetadata, file: SegmentFile, reading: SegmentReading, *, is_compressed: bool
    ) -> bytes | None:
        """All three are durable when this returns; gives the custom metadata that names them.

        Raises:
            StoreError: one could not be stored, or the store says something else of it than what was sent.
            CorruptDataError, SegmentNotReadyError, SegmentChangedError: the segment is not what it was taken for.
        """
        layout = await self._layout(started, is_compressed=is_compressed)
        body = LogBody(
            file=file,
            reading=reading,
            transform=layout.transform,
            blocking=self._blocking,
            ids=self._ids,
            failpoints=self._failpoints,
        )
        if body.piece_count == 0:
            reading.finish()
        try:
            log_size = await self._put_log(layout, body, reading)
        finally:
            await body.aclose()
        await self._failpoints.reach("copy.log.stored")
        blob = layout.index_blob(reading.artefacts(), self._index_ivs(layout))
        indexes_size = await self._put(layout.keys.indexes, BytesBody(blob.data))
        await self._failpoints.reach("copy.indexes.stored")
        manifest = layout.manifest(body.chunk_index(), blob.indexes)
        manifest_size = await self._put(layout.keys.manifest, BytesBody(manifest))
        await self._failpoints.reach("copy.manifest.stored")
        return layout.custom_metadata((log_size, indexes_size, manifest_size))

    async def _layout(self, started: RemoteLogSegmentMetadata, *, is_compressed: bool) -> SegmentLayout:
        settings, encryption = self._settings, None
        if settings.key_ring is not None:  # RSA takes a millisecond: not on the loop
            encryption = await self._blocking.run(new_segment_encryption, settings.key_ring, self._ids.random_bytes)
        return plan_objects(
            metadata=started,
            key_prefix=settings.key_prefix,
            chunk_size=settings.chunk_size,
            compression=settings.compression and not (settings.skip_compressed and is_compressed),
            encryption=encryption,
            custom_metadata_fields=settings.custom_metadata_fields,
            kafka_version=settings.kafka_version,
        )

    def _index_ivs(self, layout: SegmentLayout) -> tuple[bytes, ...]:
        if layout.transform.cipher is None:
            return ()
        return tuple(self._ids.random_bytes(IV_SIZE) for _ in IndexKind)

    async def _put_log(self, layout: SegmentLayout, body: LogBody, reading: SegmentReading) -> int:
        stored = await self._store.put_object(layout.keys.log, body)
        if reading.scan is None:
            raise StoreError(verb="put", key=layout.keys.log, reason="it did not take the chunks in their order")
        if stored.size_bytes != body.size_bytes:
            raise _wrong_size(layout.keys.log, stored.size_bytes, body.size_bytes)
        if layout.transform.is_identity and stored.crc32c not in (None, reading.scan.crc32c):
            reason = f"CRC32C {stored.crc32c:08x} instead of {reading.scan.crc32c:08x}"
            raise StoreError(verb="put", key=layout.keys.log, reason=reason)
        return stored.size_bytes

    async def _put(self, key: str, body: ObjectBody) -> int:
        """Store, and compare what the store says of it with what we meant (rule 9); gives the size in bytes."""
        stored = await self._store.put_object(key, body)
        if stored.size_bytes != body.size_bytes:
            raise _wrong_size(key, stored.size_bytes, body.size_bytes)
        return stored.size_bytes


def _wrong_size(key: str, size_bytes: int, meant_bytes: int | None) -> StoreError:
    return StoreError(verb="put", key=key, reason=f"it has {size_bytes} bytes instead of {meant_bytes}")
