"""Chunks of one partition in order, fetched ahead of a reader that goes on reading (U3).

How far is decided in ``decide.read_ahead``, from the time that fetches take and the rate at which the reader reads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from types import TracebackType

from tiersidecar.decide.read_ahead import ReadAheadView, ReadRate, WindowBound, decide_window
from tiersidecar.ports.metrics.reading import READ_AHEAD_BYTES, READ_AHEAD_WINDOWS
from tiersidecar.ports.store import Buffer
from tiersidecar.ports.telemetry import NoTelemetry, Telemetry
from tiersidecar.reading.chunk_manager import ChunkKey, ChunkManager, FetchLatency
from tiersidecar.reading.remote_objects import RemoteSegment

_TOGETHER_BYTES = 4 * 1024 * 1024
_FIRST_BYTES = 16 * 1024 * 1024
"""Most bytes ahead of a reader while the store's latency is not known, and the least ahead of one that waits for the store."""
_MOST_CHUNKS_AHEAD = 128
"""Most chunks of one such reader, however small they are: all readers together must not want more than may be in flight."""


class ReadAheadBudget:
    """Bytes that may be fetched ahead: ``reader_bytes`` for each reader, ``total_bytes`` for all of them together.

    As long as nothing is measured, without ``latency`` always, windows grow to ``first_bytes``.  A chunk counts as 1/128 of
    that at least.
    """

    def __init__(
        self,
        *,
        reader_bytes: int,
        total_bytes: int,
        first_bytes: int = _FIRST_BYTES,
        latency: FetchLatency | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.reader_bytes = reader_bytes
        self.first_bytes = min(reader_bytes, first_bytes)
        self.latency = latency
        self._total_bytes = self._free_bytes = total_bytes
        self._telemetry = telemetry or NoTelemetry()
        for bound in WindowBound:
            self._telemetry.count(READ_AHEAD_WINDOWS, 0, bound=bound.value)

    @property
    def most_flights(self) -> int:
        """Return how many chunks may be in flight: twice as many as may be fetched ahead."""
        return max(1024, 2 * self._total_bytes // self.charge_of(1))

    @property
    def total_bytes(self) -> int:
        """Return what all readers may take together."""
        return self._total_bytes

    @property
    def free_bytes(self) -> int:
        """Return what no reader has taken."""
        return self._free_bytes

    def charge_of(self, chunk_bytes: int) -> int:
        """Return what a chunk of this size counts as."""
        return max(chunk_bytes, self.first_bytes // _MOST_CHUNKS_AHEAD, 1)

    def take(self, size_bytes: int) -> bool:
        """Reserve, if there is as much left."""
        if size_bytes > self._free_bytes:
            return False
        self._free_bytes -= size_bytes
        self._report_held()
        return True

    def give_back(self, size_bytes: int) -> None:
        """Undo :meth:`take`."""
        self._free_bytes += size_bytes
        self._report_held()

    def bounded_by(self, bound: WindowBound) -> None:
        """Count what a reader's window came from, once in a round."""
        self._telemetry.count(READ_AHEAD_WINDOWS, bound=bound.value)

    def _report_held(self) -> None:
        self._telemetry.gauge(READ_AHEAD_BYTES, self._total_bytes - self._free_bytes)


class ReadAhead:
    """Fetches ahead as far as one reader has proved to read on, as latency and rate ask for, and as the budget lets it.

    Nothing is fetched ahead of the first chunk: most reads end in it.  With each further chunk that is asked for, the
    window may double.  One object serves one reader, from segment to segment: the window outlives the border, and chunks
    behind it are fetched while the reader is still before it (:meth:`follow_with`).  A reader that stops asking holds its
    window's chunks and no more; once closed it waits for none of them.
    """

    def __init__(self, chunks: ChunkManager, budget: ReadAheadBudget) -> None:
        self._chunks = chunks
        self._budget = budget
        self._latency = budget.latency
        self._window_bytes = self._held_bytes = self._read_bytes = 0
        self._rate = ReadRate(self.now_s())
        self._following: tuple[RemoteSegment, int] | None = None
        self._ahead_bytes = 0
        self._begun: dict[ChunkKey, asyncio.Task[Buffer]] = {}

    @property
    def window_bytes(self) -> int:
        """Return how far it reads ahead now; 0 while the reader has not proved to read on."""
        return self._window_bytes

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._drop_following()
        self._budget.give_back(self._held_bytes)
        self._window_bytes = self._held_bytes = 0

    def fit(self, step_bytes: int, *, most_steps: int) -> int:
        """Make the window as many steps large as there is room for, ``most_steps`` at most, and return how many: more than one
        only while few read, so that they leave half of the memory free.

        Many that have more ahead are hardly faster, and keep the processor from small reads.
        """
        for steps in range(most_steps, 0, -1):
            window_bytes = steps * step_bytes
            left_bytes = self._budget.free_bytes + self._held_bytes - window_bytes
            least_bytes = self._budget.total_bytes // 2 if steps > 1 else 0
            if window_bytes <= self._budget.reader_bytes and left_bytes >= least_bytes:
                self._change(window_bytes)
                return steps
        return 0

    def follow_with(self, segment: RemoteSegment, first: int) -> None:
        """Begin with chunk ``first`` of ``segment``, with which the reader will go on behind the end of the present one, if
        there is room for it."""
        self._drop_following()
        self._following = segment, first
        self._begin_following(self._charge_of(segment))

    async def read(self, segment: RemoteSegment, first: int) -> AsyncGenerator[Buffer, None]:
        """Yield the chunks of ``segment`` from number ``first`` to its last one."""
        chunk_count = segment.chunk_index.chunk_count
        charge_bytes = self._charge_of(segment)
        ahead = self._take_begun(segment, first)
        following = first + len(ahead)
        try:
            for index in range(first, chunk_count):
                reach = index + 1 + self._window_bytes // charge_bytes
                stop = min(reach, chunk_count)
                is_end = following < stop == chunk_count  # no more neighbours will come
                if following <= index or is_end or self._is_worth_it(stop - following, charge_bytes):
                    ahead.extend(self._start(segment, number) for number in range(following, stop))
                    following = stop
                # The one that is read next is not ahead, as the first chunk of a reader is not.
                self._ahead_bytes = (len(ahead) - 1) * charge_bytes
                if reach > chunk_count:
                    self._begin_following(self._window_bytes - self._ahead_bytes)
                began_s = self.now_s()
                chunk = await ahead[0]
                ahead.popleft()
                waited_s = self.now_s() - began_s
                yield chunk
                self._adapt(segment, len(chunk), charge_bytes, waited_s)
        finally:
            self._ahead_bytes = 0
            await _abandon(ahead)

    def _is_worth_it(self, missing: int, charge_bytes: int) -> bool:
        """Return whether enough is missing: small chunks are fetched by a quarter of a window, so that neighbours merge."""
        return missing * charge_bytes >= self._request_bytes(charge_bytes)

    def _request_bytes(self, charge_bytes: int) -> int:
        """Return about how much is asked of the store in one request."""
        return max(charge_bytes, min(_TOGETHER_BYTES, self._window_bytes // 4))

    def _adapt(self, segment: RemoteSegment, size_bytes: int, charge_bytes: int, waited_s: float) -> None:
        """Make the window as large as decided."""
        self._read_bytes += size_bytes
        is_round = self._rate.add(
            size_bytes,
            waited_s=waited_s,
            round_bytes=max(self._window_bytes, charge_bytes),
            now_s=self.now_s(),
        )
        latency, request_bytes = self._latency, self._request_bytes(charge_bytes)
        window = decide_window(
            ReadAheadView(
                unit_bytes=charge_bytes,
                fetch_s=None if latency is None else latency.usual_s(segment.keys.log, request_bytes),
                bytes_per_s=self._rate.bytes_per_s,
                has_waited=self._rate.has_waited,
                window_bytes=self._window_bytes,
                read_bytes=self._read_bytes,
                first_bytes=self._budget.first_bytes,
                most_bytes=self._budget.reader_bytes,
                left_bytes=self._budget.free_bytes + self._held_bytes,
                is_probing=latency is not None and latency.is_probing(segment.keys.log, request_bytes),
                is_round=is_round,
            )
        )
        if is_round:
            self._budget.bounded_by(window.bound)
        self._change(window.size_bytes)

    def _change(self, window_bytes: int) -> None:
        """Have that window, if there is room for it."""
        if self._hold(max(window_bytes, self._ahead_bytes + self._begun_bytes)):
            self._window_bytes = window_bytes

    def _hold(self, size_bytes: int) -> bool:
        """Return whether so much of the budget is this reader's now; what is too much goes back to the others.  Chunks of a
        larger window before count until they are read, and so do those behind a border."""
        more_bytes = size_bytes - self._held_bytes
        if more_bytes > 0 and not self._budget.take(more_bytes):
            return False
        if more_bytes < 0:
            self._budget.give_back(-more_bytes)
        self._held_bytes += more_bytes
        return True

    @property
    def _begun_bytes(self) -> int:
        """Return what the chunks behind the border count as."""
        return 0 if self._following is None else len(self._begun) * self._charge_of(self._following[0])

    def _charge_of(self, segment: RemoteSegment) -> int:
        return self._budget.charge_of(segment.chunk_index.original_chunk_size)

    def _start(self, segment: RemoteSegment, index: int) -> asyncio.Task[Buffer]:
        return asyncio.create_task(self._chunks.get_chunk(segment, index), name=f"chunk {index} of {segment.id}")

    def _begin_following(self, room_bytes: int) -> None:
        """Begin with as many chunks of the segment behind the border as there is room for: they may be of another size."""
        if self._following is None:
            return
        segment, first = self._following
        chunks = room_bytes // self._charge_of(segment)
        for index in range(first, min(first + chunks, segment.chunk_index.chunk_count)):
            if (segment.id, index) in self._begun:
                continue
            held_bytes = self._ahead_bytes + self._begun_bytes + self._charge_of(segment)
            if not self._hold(max(self._held_bytes, held_bytes)):
                return
            self._begun[segment.id, index] = self._start(segment, index)

    def _take_begun(self, segment: RemoteSegment, first: int) -> deque[asyncio.Task[Buffer]]:
        """Return what was begun of the segment that is read from now on; what has failed meanwhile is begun anew."""
        taken: deque[asyncio.Task[Buffer]] = deque()
        while (task := self._begun.pop((segment.id, first + len(taken)), None)) is not None:
            taken.append(self._start(segment, first + len(taken)) if _has_failed(task) else task)
        self._drop_following()
        return taken

    def _drop_following(self) -> None:
        for task in self._begun.values():
            task.cancel()
            task.add_done_callback(_has_failed)
        self._begun.clear()
        self._following = None

    def now_s(self) -> float:
        """Return the time by which fetches are measured; 0 if none are."""
        return 0.0 if self._latency is None else self._latency.now_s()


async def _abandon(ahead: deque[asyncio.Task[Buffer]]) -> None:
    """Stop waiting; a fetch that a cache below has begun goes on to its end."""
    for task in ahead:
        task.cancel()
    await asyncio.gather(*ahead, return_exceptions=True)


def _has_failed(task: asyncio.Task[Buffer]) -> bool:
    """Return whether it has, and keep asyncio from reporting the error as never retrieved."""
    return task.done() and (task.cancelled() or task.exception() is not None)
