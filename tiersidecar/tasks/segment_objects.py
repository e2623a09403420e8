"""A segment's three objects, stored in the order that makes the manifest the commit mark: .log, .indexes, .rsm-manifest.

Reading a segment's .log as the body of an object: read, checked and transformed, chunk by chunk, off the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tiersidecar.domain.data_keys import context_of
from tiersidecar.domain.errors import SegmentChangedError, StoreError
from tiersidecar.domain.ids import DEFAULT_PLACE, RemoteLogSegmentId
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, SegmentScan
from tiersidecar.formats.aiven.index_blob import IndexArtefacts, IndexKind
from tiersidecar.formats.aiven.key_ring import DataKeys
from tiersidecar.formats.aiven.keys import (
    CustomMetadata,
    CustomMetadataField,
    read_custom_metadata,
    write_custom_metadata,
)
from tiersidecar.formats.aiven.layout import SegmentEncryption, SegmentLayout, new_segment_encryption, plan_objects
from tiersidecar.formats.aiven.transforms import IV_SIZE, ChunkIndex, TransformPlan
from tiersidecar.ports.clock import Blocking, Ids
from tiersidecar.ports.failpoints import Failpoints
from tiersidecar.ports.key_wrapping import key_threads
from tiersidecar.ports.log_dirs import SegmentFile
from tiersidecar.ports.store import Buffer, BytesBody, ObjectBody, PutObject, SourceFile
from tiersidecar.tasks.chunk_making import ChunkMaker


class LogReading(Protocol):
    """Reader that sees the whole .log on its way to the store, and has what goes up beside it."""

    @property
    def scan(self) -> SegmentScan | None:
        """Return what :meth:`finish` found; None before."""

    def look(self, part: memoryview) -> None:
        """See the next bytes of the file; raises where they are wrong."""

    def finish(self) -> None:
        """Note that all bytes were shown; raises where they are not what was published."""

    def artefacts(self) -> IndexArtefacts:
        """Return what belongs beside the .log; after :meth:`finish`."""


_BUFFERS = 2
"""Of chunks that are not transformed: one that the store has, one that is being filled meanwhile."""


class LogBody:
    """Piece ``i`` is chunk ``i`` transformed.  Asked for again, it has the same bytes: each chunk keeps its IV.

    ``reading`` is shown every byte once, in order, in any reader's thread, and is finished before the last ones go on: a
    segment that fails its checks never becomes an object.  An untransformed one is read by the store itself.  Else, while the
    store has one piece, the next is made, so that disk, processor and network work at once; memory is bounded by two chunks
    or what two have become.  :meth:`aclose` ends what is under way.
    """

    def __init__(
        self,
        *,
        file: SegmentFile,
        reading: LogReading,
        transform: TransformPlan,
        maker: ChunkMaker,
        ids: Ids,
        failpoints: Failpoints,
    ) -> None:
        self._file, self._reading, self._transform = file, reading, transform
        self._maker, self._failpoints = maker, failpoints
        self._size_bytes = file.size_bytes
        self._buffers: list[bytearray] = []
        self._seen_bytes = self._granted_bytes = 0
        self._is_half_up = False
        self._ahead: tuple[int, asyncio.Task[Buffer]] | None = None
        self._fixed = transform.fixed_chunk_index(self._size_bytes)
        self._sizes: list[int | None] = [None] * self.piece_count
        self._ivs = ids.random_bytes(IV_SIZE * self.piece_count) if transform.cipher is not None else b""

    @property
    def size_bytes(self) -> int | None:
        if self._fixed is not None:
            return self._fixed.transformed_size
        made = [size for size in self._sizes if size is not None]
        return sum(made) if len(made) == self.piece_count else None

    @property
    def piece_count(self) -> int:
        return self._transform.chunk_count(self._size_bytes)

    @property
    def source_file(self) -> SourceFile | None:
        if not self._transform.is_identity:
            return None
        return SourceFile(
            fileno=self._file.fileno,
            path=self._file.path,
            byte_range=ByteRange(0, self._size_bytes),
            look=self._look,
        )

    async def piece(self, index: int) -> Buffer:
        if self._ahead is not None and self._ahead[0] == index:
            _, making = self._ahead
            self._ahead = None
            piece = await _result_of(making)
        else:
            await self.aclose()
            piece = await self._make(index)
        if index + 1 < self.piece_count:
            self._ahead = index + 1, asyncio.create_task(self._make(index + 1), name=f"read ahead {self._file.path}")
        return piece

    async def grant(self, wanted_bytes: int) -> int:
        self._granted_bytes += wanted_bytes
        if not self._is_half_up and 2 * self._granted_bytes >= self._size_bytes:
            self._is_half_up = True
            await self._failpoints.reach("copy.log.half")
        return wanted_bytes

    def chunk_index(self) -> ChunkIndex:
        """Return the index of the chunks as they went up; every piece must have been asked for unless sizes are fixed."""
        if self._fixed is not None:
            return self._fixed
        sizes = [size for size in self._sizes if size is not None]
        assert len(sizes) == self.piece_count, "a stored body has had every piece asked for"
        return self._transform.chunk_index(self._size_bytes, tuple(sizes))

    async def aclose(self) -> None:
        """Return once nothing reads the file any more."""
        if self._ahead is not None:
            _, making = self._ahead
            self._ahead = None
            making.cancel()
            await asyncio.wait([making])
            making.cancelled() or making.exception()  # looked at: nothing asked for this piece

    async def _make(self, index: int) -> Buffer:
        start = index * self._transform.chunk_size
        size_bytes = min(self._transform.chunk_size, self._size_bytes - start)
        if self._transform.is_identity:
            return await self._chunk(index, start, size_bytes)
        iv = self._ivs[index * IV_SIZE : (index + 1) * IV_SIZE] or None

        def transformed(chunk: memoryview) -> Buffer:
            self._require_whole(len(chunk), size_bytes)
            return self._transform.transform(chunk, iv)

        piece = await self._maker.make(self._file, start, size_bytes, look=self._look, transform=transformed)
        self._sizes[index] = len(piece)
        return piece

    async def _chunk(self, index: int, start: int, size_bytes: int) -> memoryview:
        if not self._buffers:
            self._buffers = [bytearray(min(self._transform.chunk_size, self._size_bytes)) for _ in range(_BUFFERS)]
        chunk = memoryview(self._buffers[index % _BUFFERS])[:size_bytes]
        self._require_whole(await self._file.read_into(start, chunk, self._look), size_bytes)
        return chunk

    def _require_whole(self, count: int, size_bytes: int) -> None:
        if count != size_bytes:
            raise SegmentChangedError(path=self._file.path, reason=f"it is shorter than {self._size_bytes} bytes")

    def _look(self, position: int, part: memoryview) -> None:
        """Show a part, in the thread that reads.  What is read again was seen already."""
        if position == self._seen_bytes:
            self._reading.look(part)
            self._seen_bytes += len(part)
            if self._seen_bytes == self._size_bytes:
                self._reading.finish()
        self._file.let_go(position, len(part))


async def _result_of(making: asyncio.Task[Buffer]) -> Buffer:
    """Return the result of a task that ends with its only waiter."""
    try:
        return await making
    except asyncio.CancelledError:
        making.cancel()
        await asyncio.wait([making])
        raise


def _in_default_place(topic: str) -> str:
    return DEFAULT_PLACE


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSettings:
    """The way in which segments become objects; the plugin's settings of the same names.

    ``skip_compressed`` leaves out compression where the segment's first batch is compressed already (the plugin's
    ``compression.heuristic.enabled``).  ``kafka_version`` is (major, minor) of the broker whose bytes we write.

    ``place_of_topic`` says where new segments of a topic go; ``place_key_prefixes`` has the own prefix of each place but the
    default one.
    """

    key_prefix: str = ""
    place_of_topic: Callable[[str], str] = _in_default_place
    place_key_prefixes: Mapping[str, str] = field(default_factory=dict)
    chunk_size: int = 4 * 1024 * 1024
    compression: bool = False
    skip_compressed: bool = False
    key_ring: DataKeys | None = None
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
        self._maker = ChunkMaker()

    def custom_metadata_of_started(self, topic: str) -> bytes | None:
        """Return the custom metadata of a COPY_SEGMENT_STARTED of ``topic``: the place where its objects go, so that they are
        found there also when the copy ends half way; None for the default place."""
        return write_custom_metadata(CustomMetadata(place=self._settings.place_of_topic(topic))) or None

    async def new_encryption(self, segment_id: RemoteLogSegmentId) -> SegmentEncryption | None:
        """Return a data key for a new segment; None without encryption.  To be had before the segment is announced: a key
        service that is away must leave nothing behind.

        Raises:
            KeyServiceError: the key service is away.
            KeyRefusedError: it refuses.
        """
        keys = self._settings.key_ring
        if keys is None:
            return None
        context = context_of(segment_id)
        # RSA takes a millisecond, a service longer: not on the loop.
        threads = key_threads(self._blocking, keys, None, context)
        return await threads.run(new_segment_encryption, keys, self._ids.random_bytes, context)

    async def put(
        self,
        started: RemoteLogSegmentMetadata,
        file: SegmentFile,
        reading: LogReading,
        *,
        is_compressed: bool,
        encryption: SegmentEncryption | None,
    ) -> bytes | None:
        """Store all three, and return the custom metadata that names them; they are durable then.  ``encryption`` is what
        :meth:`new_encryption` gave for the segment.

        Raises:
            StoreError: one could not be stored, or the store says something else of it than what was sent.
            CorruptDataError, SegmentNotReadyError, SegmentChangedError: the segment is not what it was taken for.
        """
        layout = self._layout(started, encryption, is_compressed=is_compressed)
        body = LogBody(
            file=file,
            reading=reading,
            transform=layout.transform,
            maker=self._maker,
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

    def _layout(
        self, started: RemoteLogSegmentMetadata, encryption: SegmentEncryption | None, *, is_compressed: bool
    ) -> SegmentLayout:
        settings = self._settings
        place = read_custom_metadata(started.custom_metadata).place
        return plan_objects(
            metadata=started,
            key_prefix=settings.place_key_prefixes[place] if place else settings.key_prefix,
            place=place,
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

    async def _put_log(self, layout: SegmentLayout, body: LogBody, reading: LogReading) -> int:
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
        """Store, and compare what the store says of it with what we meant (rule 9); return the size in bytes."""
        stored = await self._store.put_object(key, body)
        if stored.size_bytes != body.size_bytes:
            raise _wrong_size(key, stored.size_bytes, body.size_bytes)
        return stored.size_bytes


def _wrong_size(key: str, size_bytes: int, meant_bytes: int | None) -> StoreError:
    return StoreError(verb="put", key=key, reason=f"it has {size_bytes} bytes instead of {meant_bytes}")
