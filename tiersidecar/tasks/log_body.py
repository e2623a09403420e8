"""A segment's .log as the body of an object: read, checked and transformed, chunk by chunk, off the event loop."""

from __future__ import annotations

import asyncio

from tiersidecar.domain.chunks import ChunkIndex
from tiersidecar.domain.errors import SegmentChangedError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.formats.aiven.transforms import IV_SIZE, TransformPlan
from tiersidecar.ports.clock import Blocking, Ids
from tiersidecar.ports.failpoints import Failpoints
from tiersidecar.ports.log_dirs import SegmentFile
from tiersidecar.ports.store import Buffer, SourceFile
from tiersidecar.tasks.segment_reading import SegmentReading

_BUFFERS = 2
"""One that the store has, one that is being filled meanwhile."""


class LogBody:
    """Piece ``i`` is chunk ``i`` transformed.  Asked for again, it has the same bytes: each chunk keeps its IV.

    ``reading`` is shown every byte once, in order, whoever reads it, and is finished before the last ones are handed on: a
    segment that fails its checks never becomes an object.  An untransformed one is read by the store itself.  Else, while the
    store has one piece, the next is made, so that disk, processor and network work at once; memory is bounded by two chunks
    and what they become.  :meth:`aclose` ends what is under way.
    """

    def __init__(
        self,
        *,
        file: SegmentFile,
        reading: SegmentReading,
        transform: TransformPlan,
        blocking: Blocking,
        ids: Ids,
        failpoints: Failpoints,
    ) -> None:
        self._file, self._reading, self._transform = file, reading, transform
        self._blocking, self._failpoints = blocking, failpoints
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
        """The index of the chunks as they went up; every piece must have been asked for unless sizes are fixed."""
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
            making.cancelled() or making.exception()  # looked at: nobody asked for this piece

    async def _make(self, index: int) -> Buffer:
        chunk = await self._chunk(index)
        if self._transform.is_identity:
            return chunk
        iv = self._ivs[index * IV_SIZE : (index + 1) * IV_SIZE] or None
        piece: Buffer = await self._blocking.run(self._transform.transform, chunk, iv)
        self._sizes[index] = len(piece)
        return piece

    async def _chunk(self, index: int) -> memoryview:
        start = index * self._transform.chunk_size
        if not self._buffers:
            self._buffers = [bytearray(min(self._transform.chunk_size, self._size_bytes)) for _ in range(_BUFFERS)]
        chunk = memoryview(self._buffers[index % _BUFFERS])[: self._size_bytes - start]
        if await self._file.read_into(start, chunk, self._look) != len(chunk):
            raise SegmentChangedError(path=self._file.path, reason=f"it is shorter than {self._size_bytes} bytes")
        return chunk

    def _look(self, position: int, part: memoryview) -> None:
        """In the thread that reads.  What is read again was seen already."""
        if position == self._seen_bytes:
            self._reading.look(part)
            self._seen_bytes += len(part)
            if self._seen_bytes == self._size_bytes:
                self._reading.finish()
        self._file.let_go(position, len(part))


async def _result_of(making: asyncio.Task[Buffer]) -> Buffer:
    """Of a task that ends with its only waiter."""
    try:
        return await making
    except asyncio.CancelledError:
        making.cancel()
        await asyncio.wait([making])
        raise
