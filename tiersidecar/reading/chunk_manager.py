"""Chunks of remote segments, in the original bytes (the plugin's ChunkManager).

One Protocol, and layers that compose: a cache is a ChunkManager in front of another one, down to the store.  The lowest layer
makes ranged GETs of neighbouring chunks into one, makes no more of them at once than it may, and measures how long they take
(U3, U4).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from tiersidecar.decide.read_ahead import UsualTimes
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import RemoteLogSegmentId
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.formats.aiven.transforms import Chunk
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.metrics.reading import READ_CACHE_BYTES, READ_STORE_BYTES, READ_STORE_REQUESTS
from tiersidecar.ports.store import Buffer, FetchRange, ReadStore, Take
from tiersidecar.ports.telemetry import NoTelemetry, Telemetry
from tiersidecar.reading.gone_segments import CachedSegment, cached_segment
from tiersidecar.reading.remote_objects import FETCH_TIMEOUT_S, ByteLru, RemoteSegment, SingleFlight, fetch_within

ChunkKey = tuple[RemoteLogSegmentId, int]

_MOST_FLIGHTS = 1024
"""Twice the small chunks that may be fetched ahead (``read_ahead``) by default.  How many are fetched at once is the last
layer's."""


class ChunkManager(Protocol):
    async def get_chunk(self, segment: RemoteSegment, index: int) -> Buffer:
        """Return the original bytes of chunk ``index``, whole: their number is checked, and with encryption their seal.

        Raises:
            IndexError: the segment has no such chunk.
            ObjectNotFoundError: the .log is gone.
            StoreError: the store did not deliver, or not in time.
            CorruptDataError: twice in a row the bytes did not open.
            QuotaExceededError: too much is in flight already.
        """

    async def get_part(self, segment: RemoteSegment, part: ByteRange) -> memoryview:
        """Return the original bytes from ``part.start`` on: at least ``part``, which lies in one chunk, at most to its end.

        Where the chunk is at hand it comes from there, else the part alone is fetched, if the transform lets it.

        Raises:
            As :meth:`get_chunk`.
        """

    def is_local(self, segment: RemoteSegment) -> bool:
        """Return whether :meth:`feed` is to read the .log: it lies here, as the broker had it, and nothing else keeps it."""

    async def feed(self, segment: RemoteSegment, byte_range: ByteRange, take: Take) -> None:
        """Hand a range of the original bytes of a segment that :meth:`is_local` to ``take``, in the thread that reads them;
        see :meth:`FeedRange.feed_range`.

        Raises:
            ObjectNotFoundError: the .log is gone.
            StoreError: the store did not deliver, or not in time.
        """

    def discard(self, segment: RemoteSegment, index: int) -> None:
        """Forget a chunk whose content a reader found broken, so that the next :meth:`get_chunk` fetches it anew."""

    async def aclose(self) -> None:
        """Give up what is in flight."""


def _one_place(key: str) -> str:
    return ""


class FetchLatency:
    """The usual times of fetches, and of opening what was fetched: measured in the lowest layer, used where it is decided how
    far to read ahead (U3).

    ``place_of`` says of an object's key where the object is: a near place says nothing about a far one.
    """

    def __init__(self, clock: Clock, place_of: Callable[[str], str] = _one_place) -> None:
        self._clock, self._place_of = clock, place_of
        self._fetching = defaultdict[str, UsualTimes](UsualTimes)
        self._opening = UsualTimes()

    def now_s(self) -> float:
        """Return the clock's time, of which the differences count."""
        return self._clock.monotonic_s()

    def fetched(self, key: str, size_bytes: int, began_s: float) -> None:
        """Count a fetch of the object under ``key`` that has just ended."""
        now_s = self._clock.monotonic_s()
        self._fetching[self._place_of(key)].add(size_bytes, now_s - began_s, now_s)

    def opened(self, size_bytes: int, began_s: float) -> None:
        """Count a chunk that has just been decrypted or decompressed."""
        now_s = self._clock.monotonic_s()
        self._opening.add(size_bytes, now_s - began_s, now_s)

    def usual_s(self, key: str, size_bytes: int) -> float | None:
        """Return how long it usually takes until a fetch of about that size is there, where that object is; None: not known."""
        now_s = self._clock.monotonic_s()
        fetching_s = self._fetching[self._place_of(key)].usual_s(size_bytes, now_s)
        if fetching_s is None:
            return None
        return fetching_s + (self._opening.usual_s(size_bytes, now_s) or 0.0)

    def is_probing(self, key: str, size_bytes: int) -> bool:
        """Return whether less is to be in flight there now, so that the store's own time shows."""
        return self._fetching[self._place_of(key)].is_probing(size_bytes, self._clock.monotonic_s())


class StoreChunkManager:
    """The last layer: ranged GETs of stored chunks, detransformed off the loop.

    ``max_parallel`` GETs run at once, each with ``timeout_s``; neighbours are fetched together up to ``merged_bytes``.
    ``latency`` gets the time of each.
    """

    def __init__(
        self,
        *,
        store: ReadStore,
        blocking: Blocking,
        max_parallel: int = 16,
        merged_bytes: int = 0,
        timeout_s: float = FETCH_TIMEOUT_S,
        telemetry: Telemetry | None = None,
        latency: FetchLatency | None = None,
    ) -> None:
        self._store = store
        self._blocking = blocking
        self._latency = latency
        self._timeout_s = timeout_s
        self._telemetry = telemetry or NoTelemetry()
        self._local_places = asyncio.Semaphore(max_parallel)
        self._fetches = MergedFetches(
            store,
            max_parallel=max_parallel,
            max_bytes=merged_bytes,
            timeout_s=timeout_s,
            telemetry=self._telemetry,
            latency=latency,
        )

    async def get_chunk(self, segment: RemoteSegment, index: int) -> Buffer:
        """Return the original bytes of chunk ``index``, whole."""
        chunk = segment.chunk_index.chunk(index)
        try:
            return await self._fetch(segment, chunk)
        except CorruptDataError:
            # Once more: bytes are damaged on the way more often than at rest.
            return await self._fetch(segment, chunk)

    async def get_part(self, segment: RemoteSegment, part: ByteRange) -> memoryview:
        """Return the original bytes from ``part.start`` on; of a transformed segment only whole chunks can be read."""
        if not segment.transform.is_identity:
            return await rest_of_chunk(self, segment, part.start)
        data = await self._fetches.fetch_part(segment.keys.log, part)
        if len(data) != len(part):
            reason = f"{len(data)} bytes came of {len(part)}"
            raise CorruptDataError(where=segment.keys.log, position=part.start, reason=reason)
        return memoryview(data)

    def is_local(self, segment: RemoteSegment) -> bool:
        """Return whether :meth:`feed` is to read the .log."""
        return self._store.is_local and segment.transform.is_identity

    async def feed(self, segment: RemoteSegment, byte_range: ByteRange, take: Take) -> None:
        """Hand a range of the original bytes to ``take``, in the thread that reads them."""
        key, handed_bytes = segment.keys.log, 0

        def counted(piece: memoryview) -> int:
            nonlocal handed_bytes
            handed_bytes += len(piece)
            return take(piece)

        async with self._local_places:
            self._telemetry.count(READ_STORE_REQUESTS, kind="chunk")
            await fetch_within(self._timeout_s, key, self._store.feed_range(key, byte_range, counted))
        self._telemetry.count(READ_STORE_BYTES, handed_bytes)

    def discard(self, segment: RemoteSegment, index: int) -> None:
        """Do nothing: this layer keeps no chunks."""

    async def aclose(self) -> None:
        """Give up what is in flight."""
        await self._fetches.aclose()

    async def _fetch(self, segment: RemoteSegment, chunk: Chunk) -> Buffer:
        stored = await self._fetches.fetch_range(segment.keys.log, chunk.transformed)
        if segment.transform.is_identity and _is_all_of_its_memory(stored):
            # Only their number is checked then, and a hop to a thread costs as much as reading a MiB.
            return segment.transform.detransform(stored, len(chunk.original), where=_where(segment, chunk))
        began_s = None if self._latency is None else self._latency.now_s()
        original = await self._blocking.run(_original, segment, chunk, stored)
        if self._latency is not None and began_s is not None:
            self._latency.opened(len(stored), began_s)
        return original


class MemoryChunkCache:
    """Keep the chunks used last, at most ``max_bytes`` of them; fetch from ``inner`` once what several callers want at once.

    A fetch goes on when its caller leaves (U2).
    """

    def __init__(
        self,
        inner: ChunkManager,
        *,
        max_bytes: int,
        max_flights: int = _MOST_FLIGHTS,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._inner = inner
        self._chunks: ByteLru[ChunkKey, Buffer] = ByteLru(max_bytes)
        self._flights: SingleFlight[ChunkKey, Buffer] = SingleFlight("chunk", max_flights=max_flights)
        self._telemetry = telemetry or NoTelemetry()

    async def get_chunk(self, segment: RemoteSegment, index: int) -> Buffer:
        """Return the original bytes of chunk ``index``, whole."""
        key = (segment.id, index)
        kept = self._chunks.get(key)
        if kept is not None:
            self._telemetry.count(READ_CACHE_BYTES, len(kept), tier="memory")
            return kept
        return await self._flights.run(key, lambda: self._fill(key, segment))

    async def get_part(self, segment: RemoteSegment, part: ByteRange) -> memoryview:
        """Return the original bytes from ``part.start`` on; what is fetched alone is not kept."""
        key = (segment.id, segment.chunk_index.chunk_at(part.start).index)
        if not segment.transform.is_identity or key in self._chunks or self._flights.has(key):
            return await rest_of_chunk(self, segment, part.start)
        return await self._inner.get_part(segment, part)

    def is_local(self, segment: RemoteSegment) -> bool:
        """Return whether :meth:`feed` is to read the .log."""
        return self._inner.is_local(segment)

    async def feed(self, segment: RemoteSegment, byte_range: ByteRange, take: Take) -> None:
        """Hand a range of the original bytes to ``take``; nothing of it is kept."""
        await self._inner.feed(segment, byte_range, take)

    def discard(self, segment: RemoteSegment, index: int) -> None:
        """Forget a chunk whose content a reader found broken, so that the next :meth:`get_chunk` fetches it anew."""
        self._chunks.discard((segment.id, index))
        self._inner.discard(segment, index)

    async def segments(self) -> Set[CachedSegment]:
        """Return the segments of which there are chunks in memory."""
        keys = self._chunks.keys()
        return {cached_segment(segment_id) for segment_id, _ in keys}

    async def drop(self, segments: Set[CachedSegment]) -> None:
        """Drop the chunks of these segments from memory; readers that hold some keep them."""
        keys = self._chunks.keys()
        for key in keys:
            if cached_segment(key[0]) in segments:
                self._chunks.discard(key)

    async def aclose(self) -> None:
        """Give up what is in flight."""
        await self._flights.aclose()
        await self._inner.aclose()

    async def _fill(self, key: ChunkKey, segment: RemoteSegment) -> Buffer:
        data = await self._inner.get_chunk(segment, key[1])
        self._chunks.put(key, data, len(data))
        return data


async def rest_of_chunk(chunks: ChunkManager, segment: RemoteSegment, position: int) -> memoryview:
    """Return the original bytes from ``position`` to the end of the chunk that has it, by that chunk."""
    chunk = segment.chunk_index.chunk_at(position)
    return memoryview(await chunks.get_chunk(segment, chunk.index))[position - chunk.original.start :]


ChunkLayer = Callable[[ChunkManager], ChunkManager]
"""A layer to put in front of another one: ``functools.partial(MemoryChunkCache, max_bytes=…)``."""


def _original(segment: RemoteSegment, chunk: Chunk, stored: Buffer) -> Buffer:
    original = segment.transform.detransform(stored, len(chunk.original), where=_where(segment, chunk))
    return original if isinstance(original, bytes) else bytes(original)


def _where(segment: RemoteSegment, chunk: Chunk) -> str:
    return f"chunk {chunk.index} of {segment.keys.log}"


def _is_all_of_its_memory(data: Buffer) -> bool:
    """Return whether keeping ``data`` keeps nothing else: a view of what was fetched with its neighbours keeps them all."""
    return not isinstance(data, memoryview) or memoryview(data.obj).nbytes == data.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    key: str
    byte_range: ByteRange
    answer: asyncio.Future[Buffer]


class MergedFetches:
    """Run at most ``max_parallel`` requests.  What is asked for meanwhile waits, and neighbours in the same object are fetched
    together, up to ``max_bytes``.

    No request waits for neighbours: they are found among those asked for in one turn of the loop, or while all places are
    taken.  Where chunks are as large as ``max_bytes``, each is a request of its own.
    """

    def __init__(
        self,
        store: FetchRange,
        *,
        max_parallel: int,
        max_bytes: int,
        timeout_s: float,
        telemetry: Telemetry,
        latency: FetchLatency | None = None,
    ) -> None:
        self._store = store
        self._free = max_parallel
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._telemetry = telemetry
        self._latency = latency
        self._waiting: list[_Wanted] = []
        self._running: dict[asyncio.Task[None], list[_Wanted]] = {}

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        """Return what :meth:`FetchRange.fetch_range` does; a view where other bytes came with it.

        Raises:
            As :meth:`FetchRange.fetch_range`; StoreError also when it does not come in time.
        """
        if 2 * len(byte_range) > self._max_bytes and self._is_idle:
            return await self._alone(key, byte_range)
        return await self._with_others(key, byte_range)

    async def fetch_part(self, key: str, byte_range: ByteRange) -> Buffer:
        """Fetch a range that hardly has a neighbour, like :meth:`fetch_range`: alone where a place is free."""
        if self._is_idle:
            return await self._alone(key, byte_range)
        return await self._with_others(key, byte_range)

    @property
    def _is_idle(self) -> bool:
        return self._free > 0 and not self._waiting

    async def _with_others(self, key: str, byte_range: ByteRange) -> Buffer:
        loop = asyncio.get_running_loop()
        wanted = _Wanted(key, byte_range, loop.create_future())
        if not self._waiting:
            loop.call_soon(self._start)
        self._waiting.append(wanted)
        try:
            return await wanted.answer
        except asyncio.CancelledError:
            await self._leave(wanted)
            raise

    async def aclose(self) -> None:
        """Give up what is in flight; callers that still wait are cancelled."""
        for wanted in self._waiting:
            wanted.answer.cancel()
        self._waiting.clear()
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _alone(self, key: str, byte_range: ByteRange) -> Buffer:
        """Fetch without a task: no neighbour of the same size can come with it."""
        self._free -= 1
        try:
            return await self._request(key, byte_range)
        finally:
            self._give_back()

    async def _leave(self, wanted: _Wanted) -> None:
        """End the request that no caller waits for any more."""
        for task, taken in self._running.items():
            if wanted in taken and all(one.answer.done() for one in taken):
                task.cancel()
                await asyncio.wait([task])
                return

    def _start(self) -> None:
        self._waiting = [wanted for wanted in self._waiting if not wanted.answer.done()]
        while self._free and self._waiting:
            self._free -= 1
            taken = self._take_neighbours()
            task = asyncio.create_task(self._fetch(taken), name=f"fetch of {taken[0].key}")
            self._running[task] = taken
            task.add_done_callback(self._ended)

    def _take_neighbours(self) -> list[_Wanted]:
        """Return the range that has waited longest, and those that adjoin it."""
        taken = [self._waiting.pop(0)]
        size_bytes = len(taken[0].byte_range)
        following = {(wanted.key, wanted.byte_range.start): wanted for wanted in self._waiting}
        while (one := following.get((taken[-1].key, taken[-1].byte_range.stop))) is not None:
            size_bytes += len(one.byte_range)
            if size_bytes > self._max_bytes or not len(one.byte_range):
                break
            taken.append(one)
            self._waiting.remove(one)
        return taken

    async def _fetch(self, taken: Sequence[_Wanted]) -> None:
        key, whole = taken[0].key, ByteRange(taken[0].byte_range.start, taken[-1].byte_range.stop)
        try:
            data = await self._request(key, whole)
        except asyncio.CancelledError:
            for wanted in taken:
                wanted.answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the askers' to handle
            for wanted in taken:
                if not wanted.answer.done():
                    wanted.answer.set_exception(error)
            return
        for wanted in taken:
            if not wanted.answer.done():
                wanted.answer.set_result(data if len(taken) == 1 else _part(data, whole, wanted.byte_range))

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._give_back()

    async def _request(self, key: str, byte_range: ByteRange) -> Buffer:
        self._telemetry.count(READ_STORE_REQUESTS, kind="chunk")
        began_s = None if self._latency is None else self._latency.now_s()
        data = await fetch_within(self._timeout_s, key, self._store.fetch_range(key, byte_range))
        if self._latency is not None and began_s is not None:
            self._latency.fetched(key, len(data), began_s)
        self._telemetry.count(READ_STORE_BYTES, len(data))
        return data

    def _give_back(self) -> None:
        self._free += 1
        if self._waiting:
            self._start()


def _part(data: Buffer, whole: ByteRange, part: ByteRange) -> memoryview:
    return memoryview(data)[part.start - whole.start : part.stop - whole.start]
