"""A local .log, read and cut in one go: the page cache is its cache, and the kernel reads ahead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.reading.batch_cutter import BatchCutter, BatchSlice
from tiersidecar.reading.chunk_manager import ChunkManager
from tiersidecar.reading.manifests import RemoteSegment
from tiersidecar.reading.read_ahead import ReadAhead

_FIRST_STEP_BYTES = 1024 * 1024
_STEP_BYTES = 4 * 1024 * 1024
"""A change of thread and back costs as much as reading half a MiB."""
_MOST_WANTED_BYTES = 8 * 1024 * 1024 + 64 * 1024
"""Most bytes of the wanted part of a bounded read, at once: as much as the gateway reads ahead, and a little besides."""
_FURTHER_BYTES = 128 * 1024
"""The first step past the wanted part: to the end of a batch, or to the batch asked for where the index is sparse."""


@dataclass(frozen=True, slots=True)
class CutStep:
    """Result of one step of reading, and the state of the cutter after it."""

    slices: list[BatchSlice]
    is_done: bool
    is_full: bool
    position: int
    next_offset: int


def step_of(cutter: BatchCutter, slices: list[BatchSlice]) -> CutStep:
    """Return ``slices`` with the present state of the cutter."""
    return CutStep(slices, cutter.is_done, cutter.is_full, cutter.position, cutter.next_offset)


class LocalCut:
    """Feed ``cutter``, which no other code may touch meanwhile, with ``segment`` from its position on.

    A reader without a bound has a first step of 1 MiB, so that it comes soon; each is four times the one before, up to 4 MiB.
    While the reader handles a step, the next one is cut, if its window can be that large: it holds two steps at most.
    The wanted part of a bounded read comes in steps of up to 8 MiB, anything needed besides in small ones.
    """

    def __init__(
        self, chunks: ChunkManager, segment: RemoteSegment, cutter: BatchCutter, read_ahead: ReadAhead
    ) -> None:
        self._chunks = chunks
        self._segment = segment
        self._cutter = cutter
        self._read_ahead = read_ahead
        self._position = self._wanted_stop = cutter.position
        self._step_bytes = _FIRST_STEP_BYTES

    async def steps(self, wanted_bytes: int | None) -> AsyncGenerator[CutStep, None]:
        """Yield steps to the end of the segment, or until the cutter is done.  ``wanted_bytes`` is how far the reader is likely
        to read from here; None if it goes on.

        Raises:
            As :meth:`ChunkManager.feed`.
            CorruptDataError: a batch fails its checks.
        """
        if wanted_bytes is not None:
            self._wanted_stop, self._step_bytes = self._position + wanted_bytes, _FURTHER_BYTES
        size_bytes = self._segment.chunk_index.original_file_size
        following: asyncio.Task[CutStep] | None = None
        try:
            while self._position < size_bytes or following is not None:
                step = await (following or self._step())
                following = None
                if not step.is_done and self._position < size_bytes and self._reads_ahead(wanted_bytes):
                    following = asyncio.create_task(self._step(), name=f"next of {self._segment.id}")
                yield step
                if step.is_done:
                    return
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    def _reads_ahead(self, wanted_bytes: int | None) -> bool:
        return wanted_bytes is None and self._read_ahead.widen(_STEP_BYTES)

    async def _step(self) -> CutStep:
        byte_range = self._next_range()
        self._position = byte_range.stop
        taken = _Taken(self._cutter)
        await self._chunks.feed(self._segment, byte_range, taken.take)
        taken.check(self._segment.keys.log, byte_range)
        return step_of(self._cutter, taken.slices)

    def _next_range(self) -> ByteRange:
        step_bytes = min(self._wanted_stop - self._position, _MOST_WANTED_BYTES)
        if step_bytes <= 0:
            step_bytes = self._step_bytes
            self._step_bytes = min(4 * step_bytes, _STEP_BYTES)
        stop = min(self._position + step_bytes, self._segment.chunk_index.original_file_size)
        return ByteRange(self._position, stop)


class _Taken:
    """The slices of what was fed.  A damaged batch is no fault of the store, so its error does not pass through the store."""

    def __init__(self, cutter: BatchCutter) -> None:
        self._cutter = cutter
        self.slices: list[BatchSlice] = []
        self._error: CorruptDataError | None = None
        self._taken_bytes = 0

    def take(self, piece: memoryview) -> bool:
        self._taken_bytes += len(piece)
        try:
            self.slices += self._cutter.cut(piece)
        except CorruptDataError as error:
            self._error = error
        return self._error is None and not self._cutter.is_done

    def check(self, key: str, byte_range: ByteRange) -> None:
        """Check that all of ``byte_range`` was fed.

        Raises:
            CorruptDataError: a batch is damaged, or not as many bytes came.
        """
        if self._error is not None:
            raise self._error
        if not self._cutter.is_done and self._taken_bytes != len(byte_range):
            reason = f"{self._taken_bytes} bytes came of {len(byte_range)}"
            raise CorruptDataError(where=key, position=byte_range.start, reason=reason)
