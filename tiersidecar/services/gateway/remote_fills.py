"""Reads of the remote tier for Fetch requests: shared, finished even if the client stops waiting, begun early (U2, U3)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial

from tiersidecar.domain.errors import TiersidecarError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.ports.clock import Clock
from tiersidecar.reading.byte_lru import ByteLru
from tiersidecar.reading.remote_log_reader import FetchedBatches, RemoteLogReader
from tiersidecar.reading.single_flight import SingleFlight

_READY_BYTES = 32 * 1024 * 1024
_READY_S = 2.0
"""How long a fill is kept that was read before it was asked for: as long as a response may take to arrive."""
_EXPECTED = 10_000
_FILLS_AHEAD = 4
"""Of one reader, while others leave room: with Java's default of 1 MiB a fill, that is a chunk, so that the next one comes
from the store while this one is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FillWant:
    """What is to be read: as :meth:`RemoteLogReader.read_batches` takes it.  Equal ones are read once."""

    partition: TopicIdPartition
    offset: int
    max_bytes: int
    read_committed: bool
    aborted_beyond: tuple[AbortedTransaction, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Ready:
    batches: FetchedBatches
    since_s: float


class RemoteFills:
    """Reads what is wanted, and for a reader that goes on from one fill to the next already what it will want then."""

    def __init__(self, *, reader: RemoteLogReader, clock: Clock, ready_bytes: int = _READY_BYTES) -> None:
        self._reader, self._clock, self._ready_bytes = reader, clock, ready_bytes
        self._flights: SingleFlight[FillWant, FetchedBatches] = SingleFlight("remote fills")
        self._ready: ByteLru[FillWant, _Ready] = ByteLru(ready_bytes)
        self._expected: ByteLru[tuple[TopicIdPartition, int], bool] = ByteLru(_EXPECTED)
        self._ahead: set[asyncio.Task[None]] = set()

    async def read(self, want: FillWant) -> FetchedBatches:
        """The batches wanted; a caller that is cancelled leaves the read going on.

        Raises:
            As :meth:`RemoteLogReader.read_batches`.
        """
        ready = self._ready.discard(want)
        if ready is not None and self._clock.monotonic_s() - ready.since_s <= _READY_S:
            fetched = ready.batches
        else:
            fetched = await self._flights.run(want, lambda: self._read(want))
            self._ready.discard(want)  # it was read ahead, and had not come yet
        self._look_ahead(want, fetched)
        return fetched

    async def aclose(self) -> None:
        """Give up what is in flight."""
        for one in self._ahead:
            one.cancel()
        await asyncio.gather(*self._ahead, return_exceptions=True)
        await self._flights.aclose()

    async def _read(self, want: FillWant) -> FetchedBatches:
        return await self._reader.read_batches(
            want.partition,
            want.offset,
            max_bytes=want.max_bytes,
            read_committed=want.read_committed,
            aborted_beyond=want.aborted_beyond,
        )

    def _look_ahead(self, want: FillWant, fetched: FetchedBatches) -> None:
        goes_on = self._expected.discard((want.partition, want.offset)) is not None
        if not fetched.slices:
            return
        self._expected.put((want.partition, fetched.next_offset), True, 1)  # noqa: FBT003 - a set, in order of use
        if goes_on and self._has_room(want):
            task = asyncio.create_task(self._read_ahead(want, fetched), name=f"remote fills after {want.offset}")
            self._ahead.add(task)
            task.add_done_callback(self._ahead.discard)

    def _has_room(self, want: FillWant) -> bool:
        return (len(self._ahead) + 1) * want.max_bytes <= self._ready_bytes

    async def _read_ahead(self, want: FillWant, fetched: FetchedBatches) -> None:
        """One after the other, as each tells where the next begins: the first in any case, more where they displace nothing."""
        for number in range(_FILLS_AHEAD):
            want = replace(want, offset=fetched.next_offset)
            self._forget_old()
            if number and self._ready.size_bytes + len(self._ahead) * want.max_bytes > self._ready_bytes // 2:
                return
            ready = self._ready.get(want)
            if ready is not None:
                fetched = ready.batches
                continue
            try:
                fetched = await self._flights.run(want, partial(self._read, want))
            except TiersidecarError:
                return  # whoever asks for it will find out
            if not fetched.slices:
                return
            self._ready.put(want, _Ready(fetched, self._clock.monotonic_s()), fetched.size_bytes)

    def _forget_old(self) -> None:
        """What nobody came for."""
        now_s = self._clock.monotonic_s()
        while (oldest := self._ready.oldest()) is not None and now_s - oldest[1].since_s > _READY_S:
            self._ready.discard(oldest[0])
