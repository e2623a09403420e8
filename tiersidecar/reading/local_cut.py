"""A .log that the store keeps as a file here: read and cut in one go, in the thread that reads it (U3, U22).

The page cache is its cache, and the kernel reads ahead.  What costs time is Python: the way to the store and back takes as
much of it as reading 4 MiB takes altogether.  So for a reader that keeps up one visit lasts for several steps.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.reading.batch_cutter import BatchCutter, BatchSlice, CutStep, step_of
from tiersidecar.reading.chunk_manager import ChunkManager
from tiersidecar.reading.read_ahead import ReadAhead
from tiersidecar.reading.remote_objects import RemoteSegment

_FIRST_STEP_BYTES = 1024 * 1024
_STEP_BYTES = 4 * 1024 * 1024
_VISIT_BYTES = 16 * 1024 * 1024
_VISIT_S = 0.1
"""A visit that has lasted so long, its wait for a place included, ends with the present step: on a slow disk a visit is one
step, which has all the time of a request, and others wait for their turn no longer than that."""
_STEPS_AHEAD = 2
"""Steps that may wait for a reader.  With one, a visit would end after each step."""
_MOST_WANTED_BYTES = 8 * 1024 * 1024 + 64 * 1024
"""Most bytes of the wanted part of a bounded read, at once: as much as the gateway reads ahead, and a little besides."""
_READ_AGAIN_SHARE = 16
"""The part of a batch at the end of a step is read again with the next step, if it is so many times smaller than the step: so a
step is one slice, whose way to the reader costs more than those bytes."""
_TURNS_A_STEP = 2
"""Left to the loop before each step, since its reader may leave none: others wait no longer for theirs than a step takes to be
written.  A task begins in the next turn, and its request, which has a task of its own, in the one after that."""
_FURTHER_BYTES = 128 * 1024
"""The first step past the wanted part: to the end of a batch, or to the batch asked for where the index is sparse."""


class LocalCut:
    """Feed ``cutter``, which no other code may touch meanwhile, with ``segment`` from its position on.

    A reader without a bound has a first step of 1 MiB, so that it comes soon, and further ones of 4 MiB.  While it handles a
    step, the following ones are cut, as many as its window has room for, two at most; a visit to the store ends when so many
    wait, after 16 MiB, and after a tenth of a second.  Without a window each step is cut when it is asked for.
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
        self._size_bytes = segment.chunk_index.original_file_size
        self._next_bytes = _FIRST_STEP_BYTES
        self._reads_on = True
        self._returning: set[asyncio.Task[None]] = set()

    def steps(self, wanted_bytes: int | None) -> AsyncGenerator[CutStep, None]:
        """Yield steps to the end of the segment, or until the cutter is done.  ``wanted_bytes`` is how far the reader is likely
        to read from here; None if it goes on.

        Raises:
            As :meth:`ChunkManager.feed`.
            CorruptDataError: a batch fails its checks.
        """
        if wanted_bytes is not None:
            self._reads_on = False
            self._wanted_stop, self._next_bytes = self._position + wanted_bytes, _FURTHER_BYTES
        return self._steps_on() if self._reads_on else self._wanted_steps()

    async def _wanted_steps(self) -> AsyncGenerator[CutStep, None]:
        """Yield each step once it is asked for, read in the task that asks: a task in between takes some turns of the loop,
        which a crowd makes long."""
        while self._position < self._size_bytes:
            visit = self._visit(0)
            step = await visit.only_step(self._chunks, self._segment)
            self._position = visit.position
            yield step
            if step.is_done:
                return

    async def _steps_on(self) -> AsyncGenerator[CutStep, None]:
        """Yield steps of visits that read ahead."""
        visit: _Visit | None = None
        try:
            while visit is not None or self._position < self._size_bytes:
                visit = visit or self._begin(0)
                step = await visit.next_step()
                if step is None:
                    self._position, visit = visit.position, None
                    continue
                if step.is_done:
                    await visit.end()
                    yield step
                    return
                if visit.has_ended and visit.position < self._size_bytes and (steps_ahead := self._steps_ahead()):
                    self._position = visit.position
                    self._let_return(visit)
                    visit = self._begin(steps_ahead)
                for _ in range(_TURNS_A_STEP):
                    await asyncio.sleep(0)
                yield step
        finally:
            if visit is not None:  # the reader leaves: what has still to come back may hang in a dead mount
                for returning in self._returning:
                    returning.cancel()
                await visit.abandon()
            await asyncio.gather(*self._returning, return_exceptions=True)

    def _steps_ahead(self) -> int:
        """Return how many steps the reader's window has room for now."""
        return self._read_ahead.fit(_STEP_BYTES, most_steps=_STEPS_AHEAD)

    def _begin(self, steps_ahead: int) -> _Visit:
        visit = self._visit(steps_ahead)
        visit.begin(self._chunks, self._segment)
        return visit

    def _visit(self, steps_ahead: int) -> _Visit:
        return _Visit(
            self._cutter,
            self._next_range(steps_ahead),
            where=self._segment.keys.log,
            steps_ahead=steps_ahead,
            reads_on=self._reads_on,
            now_s=self._read_ahead.now_s,
        )

    def _let_return(self, visit: _Visit) -> None:
        """Begin the next visit without waiting until this one, which has read all, has come back through every layer."""
        self._returning.add(visit.feeding)
        visit.feeding.add_done_callback(self._returned)

    def _returned(self, feeding: asyncio.Task[None]) -> None:
        self._returning.discard(feeding)
        if not feeding.cancelled():
            feeding.exception()  # nothing of what was handed over depends on it

    def _next_range(self, steps_ahead: int) -> ByteRange:
        size_bytes = min(self._wanted_stop - self._position, _MOST_WANTED_BYTES)
        if size_bytes <= 0:
            size_bytes = self._next_bytes
            self._next_bytes = min(4 * size_bytes, _VISIT_BYTES if self._reads_on else _STEP_BYTES)
        if self._reads_on and steps_ahead < _STEPS_AHEAD:
            size_bytes = min(size_bytes, _STEP_BYTES)
        return ByteRange(self._position, min(self._position + size_bytes, self._size_bytes))


class _Visit:
    """One visit to the store: cuts ``byte_range`` in the thread that reads it, and hands the loop a step after each 4 MiB, of
    a bounded read all as one.  It ends before its time when ``steps_ahead`` steps wait for the reader, or when it takes long.

    A damaged batch is no fault of the store, so its error does not pass through the store.
    """

    def __init__(
        self,
        cutter: BatchCutter,
        byte_range: ByteRange,
        *,
        where: str,
        steps_ahead: int,
        reads_on: bool,
        now_s: Callable[[], float],
    ) -> None:
        self._cutter, self._where = cutter, where
        self._byte_range = byte_range
        self._steps_ahead = steps_ahead
        self._reads_on = reads_on
        self._now_s, self._end_s = now_s, now_s() + _VISIT_S
        self._step_bytes = _STEP_BYTES if reads_on else len(byte_range)
        self._step_start = self.position = byte_range.start
        """Where the next visit begins, once this one has ended."""
        self._slices: list[BatchSlice] = []
        self._waiting: deque[CutStep] = deque()
        self._error: CorruptDataError | None = None
        self._is_through = self._is_abandoned = False
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._came = asyncio.Event()

    def begin(self, chunks: ChunkManager, segment: RemoteSegment) -> None:
        """Begin, in a task."""
        feeding = chunks.feed(segment, self._byte_range, self._take)
        self.feeding = asyncio.create_task(feeding, name=f"next of {segment.id}")
        self.feeding.add_done_callback(lambda _: self._came.set())

    async def only_step(self, chunks: ChunkManager, segment: RemoteSegment) -> CutStep:
        """Make the visit, which has one step, without a task.

        Raises:
            As :meth:`next_step`.
        """
        try:
            await chunks.feed(segment, self._byte_range, self._take)
        finally:
            self._is_abandoned = True  # a thread that was left alone in a dead mount may come back
        self._check()
        return self._waiting.popleft()

    @property
    def has_ended(self) -> bool:
        """Return whether it has read what it was to read, and no step waits."""
        return self._is_through and not self._waiting

    async def next_step(self) -> CutStep | None:
        """Wait for the next step; None at the end.

        Raises:
            As :meth:`ChunkManager.feed`.
            CorruptDataError: a batch is damaged, or not as many bytes came.
        """
        while not self._waiting:
            if self.feeding.done():
                await self.end()
                return None
            self._came.clear()
            if not self._waiting:  # the thread may have handed one over since
                await self._came.wait()
        return self._waiting.popleft()

    async def end(self) -> None:
        """Wait for the end.

        Raises:
            As :meth:`next_step`.
        """
        await self.feeding
        self._check()

    async def abandon(self) -> None:
        """Give up what has not been read."""
        self._is_abandoned = True
        self.feeding.cancel()
        await asyncio.gather(self.feeding, return_exceptions=True)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if not self._is_through:
            raise self._wrong_size()

    # -- in the thread that reads

    def _take(self, piece: memoryview) -> int:
        """Cut what was read; return how many bytes of it are done with, 0 to end the visit."""
        if self._is_abandoned or self._is_through:  # the cutter may be another visit's
            return 0
        try:
            self._slices += self._cutter.cut(piece)
        except CorruptDataError as error:
            self._error = error
            return 0
        self.position += len(piece)
        if self.position > self._byte_range.stop and not self._cutter.is_done:
            self._error = self._wrong_size()
            return 0
        is_last = self._cutter.is_done or self.position >= self._byte_range.stop
        if not is_last and self.position - self._step_start < self._step_bytes:
            return len(piece)
        again_bytes = self._drop_tail(len(piece))
        self.position -= again_bytes
        is_last = is_last or len(self._waiting) + 1 >= self._steps_ahead or self._now_s() >= self._end_s
        self._hand_over(is_last=is_last)
        return 0 if is_last else len(piece) - again_bytes

    def _wrong_size(self) -> CorruptDataError:
        reason = f"{self.position - self._byte_range.start} bytes came of {len(self._byte_range)}"
        return CorruptDataError(where=self._where, position=self._byte_range.start, reason=reason)

    def _drop_tail(self, piece_bytes: int) -> int:
        """Return how many bytes at the end of the piece are to be read again."""
        if not self._reads_on or not self._slices:
            return 0
        step_bytes = self.position - self._step_start
        return self._cutter.drop_tail(at_most_bytes=min(step_bytes // _READ_AGAIN_SHARE, piece_bytes - 1))

    def _hand_over(self, *, is_last: bool) -> None:
        step, self._slices, self._step_start = step_of(self._cutter, self._slices), [], self.position
        self._waiting.append(step)
        self._is_through = is_last  # only now: the loop may begin the next visit at once
        if threading.get_ident() == self._thread:  # a store that has no thread
            self._came.set()
            return
        with suppress(RuntimeError):  # the loop has closed meanwhile
            self._loop.call_soon_threadsafe(self._came.set)
