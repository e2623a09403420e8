"""Ranged GETs of neighbouring chunks made one, and no more of them at once than may be (U3, U4)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.metrics.reading import READ_STORE_BYTES, READ_STORE_REQUESTS
from tiersidecar.ports.store import Buffer, FetchRange
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.reading.time_limit import fetch_within


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    key: str
    byte_range: ByteRange
    answer: asyncio.Future[Buffer]


class MergedFetches:
    """At most ``max_parallel`` requests run; what is asked for meanwhile waits, and of that neighbours in the same object go
    together, as long as they have ``max_bytes`` or less.

    Nothing waits for neighbours: those that are asked for in one turn of the loop, or while all places are taken, are found
    together.  Where chunks are as large as ``max_bytes``, each is a request of its own.
    """

    def __init__(
        self, store: FetchRange, *, max_parallel: int, max_bytes: int, timeout_s: float, telemetry: Telemetry
    ) -> None:
        self._store = store
        self._free = max_parallel
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._telemetry = telemetry
        self._waiting: list[_Wanted] = []
        self._running: dict[asyncio.Task[None], list[_Wanted]] = {}

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        """As :class:`FetchRange` has it; a view where others have come with it.

        Raises:
            As :meth:`FetchRange.fetch_range`; StoreError also when it does not come in time.
        """
        if 2 * len(byte_range) > self._max_bytes and self._is_idle:
            return await self._alone(key, byte_range)
        return await self._with_others(key, byte_range)

    async def fetch_part(self, key: str, byte_range: ByteRange) -> Buffer:
        """As :meth:`fetch_range`, of what hardly has a neighbour: it goes alone where a place is free."""
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
        """Give up what is in flight; who still waits is cancelled."""
        for wanted in self._waiting:
            wanted.answer.cancel()
        self._waiting.clear()
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _alone(self, key: str, byte_range: ByteRange) -> Buffer:
        """No neighbour of the same size can come with it: it needs no task of its own."""
        self._free -= 1
        try:
            return await self._request(key, byte_range)
        finally:
            self._give_back()

    async def _leave(self, wanted: _Wanted) -> None:
        """End the request that nobody waits for any more."""
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
        """The one that has waited longest, and what adjoins it."""
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
        data = await fetch_within(self._timeout_s, key, self._store.fetch_range(key, byte_range))
        self._telemetry.count(READ_STORE_BYTES, len(data))
        return data

    def _give_back(self) -> None:
        self._free += 1
        if self._waiting:
            self._start()


def _part(data: Buffer, whole: ByteRange, part: ByteRange) -> memoryview:
    return memoryview(data)[part.start - whole.start : part.stop - whole.start]
