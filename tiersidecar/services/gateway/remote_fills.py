"""Reads of the remote tier for Fetch requests: shared, finished even if the client stops waiting, begun early (U2, U3)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from struct import Struct

from tiersidecar.domain.errors import TiersidecarError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.record_batches import BATCH_HEADER_SIZE, LOG_OVERHEAD, read_batch_header
from tiersidecar.ports.clock import Clock
from tiersidecar.reading.batch_cutter import BatchSlice
from tiersidecar.reading.remote_log_reader import FetchedBatches, RemoteLogReader
from tiersidecar.reading.remote_objects import ByteLru, SingleFlight
from tiersidecar.reading.segment_lookup import History

_READY_BYTES = 32 * 1024 * 1024
_READY_S = 2.0
"""How long a fill is kept that was read before it was asked for: as long as a response may take to arrive."""
_EXPECTED = 10_000
_RUN_FILLS = 8
"""The longest read-ahead run of one reader: with Java's default of 1 MiB a fill, two chunks.  A read costs hardly more
Python for eight than for one."""
_FIRST_RUN_FILLS = 2
_FOLLOWED_AT = 3
"""The next run is read when so many fills of the last one are left: it comes from the store while those are fetched."""
_WALKS_S = 0.0005
"""How long batches are walked over before others have a turn of the loop, which is not free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FillWant:
    """The arguments of one :meth:`RemoteLogReader.read_batches`.  Equal ones are read once."""

    partition: TopicIdPartition
    offset: int
    max_bytes: int
    read_committed: bool
    aborted_beyond: tuple[AbortedTransaction, ...] | None = None
    history: History | None = None


@dataclass(slots=True)
class _Run:
    """``fills`` that were read ahead together, ``left`` of them not fetched yet; ``following`` is wanted after the last."""

    following: FillWant
    fills: int
    left: int
    is_followed: bool = False


@dataclass(frozen=True, slots=True)
class _Ready:
    batches: FetchedBatches
    since_s: float
    run: _Run


class RemoteFills:
    """Reads what is wanted, and for a reader that goes on from one fill to the next already what it will want then."""

    def __init__(self, *, reader: RemoteLogReader, clock: Clock, ready_bytes: int = _READY_BYTES) -> None:
        self._reader, self._clock, self._ready_bytes = reader, clock, ready_bytes
        self._flights: SingleFlight[FillWant, tuple[FetchedBatches, ...]] = SingleFlight("remote fills")
        self._ready: ByteLru[FillWant, _Ready] = ByteLru(ready_bytes)
        self._expected: ByteLru[tuple[TopicIdPartition, int], bool] = ByteLru(_EXPECTED)
        self._waiting: Counter[FillWant] = Counter()
        self._ahead: dict[asyncio.Task[None], int] = {}
        """Reads ahead that are under way, and how many bytes each may bring."""

    def take_ready(self, wants: Sequence[FillWant]) -> list[FetchedBatches] | None:
        """Return the batches of all ``wants``, if they have been read ahead; None if one has not."""
        if not all(self._is_ready(want) for want in wants):
            return None
        found = [one for want in wants if (one := self._take(want)) is not None]
        return found if len(found) == len(wants) else None  # one may have grown too old between the two looks

    async def read(self, want: FillWant) -> FetchedBatches:
        """Return the batches wanted; the read goes on if the caller is cancelled, and is there when it asks again.

        Raises:
            As :meth:`RemoteLogReader.read_batches`.
        """
        fetched = self._take(want)
        if fetched is not None:
            return fetched
        self._waiting[want] += 1
        try:
            (fetched, *_) = await self._flights.run(want, partial(self._read_alone, want))
        finally:
            self._waiting[want] -= 1
            if not self._waiting[want]:
                del self._waiting[want]
        if self._take(want) is None:  # else it was being read ahead, with what follows
            self._look_ahead(want, fetched)
        return fetched

    async def aclose(self) -> None:
        """Give up what is in flight."""
        for one in self._ahead:
            one.cancel()
        await asyncio.gather(*self._ahead, return_exceptions=True)
        await self._flights.aclose()

    async def _read_alone(self, want: FillWant) -> tuple[FetchedBatches, ...]:
        """Read one fill, kept if its reader could not wait (U2): caches smaller than a fill would have it read again, and too
        late again, for ever (simulation, cluster seed 54)."""
        (fetched,) = await self._read(want, 1)
        if fetched.slices and not self._waiting[want]:
            self._forget_old()
            run = _Run(following=replace(want, offset=fetched.next_offset), fills=1, left=1)
            self._ready.put(want, _Ready(fetched, self._clock.monotonic_s(), run), fetched.size_bytes)
        return (fetched,)

    async def _read(self, want: FillWant, fills: int) -> tuple[FetchedBatches, ...]:
        fetched = await self._reader.read_batches(
            want.partition,
            want.offset,
            max_bytes=want.max_bytes * fills,
            read_committed=want.read_committed,
            aborted_beyond=want.aborted_beyond,
            history=want.history,
        )
        if fills == 1 or fetched.size_bytes <= want.max_bytes:
            return (fetched,)
        parts, taken_bytes, began_s = list[FetchedBatches](), 0, self._clock.monotonic_s()
        for slices in islice(parts_of(fetched.slices, want.max_bytes), fills):  # what is over would be a small one
            if taken_bytes > len(parts) * want.max_bytes:
                break  # so would this: a batch that is larger than a fill has taken its room
            parts.append(_part(fetched, slices))
            taken_bytes += parts[-1].size_bytes
            if self._clock.monotonic_s() - began_s > _WALKS_S:  # of small batches there are thousands
                await asyncio.sleep(0)
                began_s = self._clock.monotonic_s()
        return tuple(parts)

    def _is_ready(self, want: FillWant) -> bool:
        ready = self._ready.get(want)
        return ready is not None and self._clock.monotonic_s() - ready.since_s <= _READY_S

    def _take(self, want: FillWant) -> FetchedBatches | None:
        ready = self._ready.discard(want)
        if ready is None or self._clock.monotonic_s() - ready.since_s > _READY_S:
            return None
        run = ready.run
        run.left -= 1
        if run.left <= _FOLLOWED_AT and not run.is_followed:
            run.is_followed = True
            self._read_on(run.following, self._soon(run.fills - run.left, ready.since_s))
        return ready.batches

    def _look_ahead(self, want: FillWant, fetched: FetchedBatches) -> None:
        goes_on = self._expected.discard((want.partition, want.offset)) is not None
        if not fetched.slices:
            return
        self._expected.put((want.partition, fetched.next_offset), True, 1)  # noqa: FBT003 - a set, in order of use
        if goes_on:
            self._read_on(replace(want, offset=fetched.next_offset), _FIRST_RUN_FILLS)

    def _soon(self, fills: int, since_s: float) -> int:
        """Return how many fills a reader that fetched ``fills`` since then will fetch in half of the time that they are kept.
        Fills that a slow reader does not fetch would be read, and charged to the quota, again and again."""
        elapsed_s = self._clock.monotonic_s() - since_s
        return _RUN_FILLS if elapsed_s <= 0 else int(fills * _READY_S / 2 / elapsed_s)

    def _read_on(self, want: FillWant, soon: int) -> None:
        """Read one fill in any case, and as many more as are wanted ``soon`` and need at most half of the free room."""
        under_way = sum(self._ahead.values())
        if under_way + want.max_bytes > self._ready_bytes:
            self._expected.put((want.partition, want.offset), True, 1)  # noqa: FBT003 - begun anew when there is room
            return
        self._forget_old()
        free_bytes = self._ready_bytes - self._ready.size_bytes - under_way
        fills = max(min(free_bytes // 2 // max(want.max_bytes, 1), soon, _RUN_FILLS), 1)
        task = asyncio.create_task(self._read_run(want, fills), name=f"remote fills from {want.offset}")
        self._ahead[task] = fills * want.max_bytes
        task.add_done_callback(lambda _: self._ahead.pop(task))

    async def _read_run(self, want: FillWant, fills: int) -> None:
        try:
            found = await self._flights.run(want, partial(self._read, want, fills))
        except TiersidecarError:
            return  # the client's own read will raise it
        if not found[-1].slices:
            return
        following = replace(want, offset=found[-1].next_offset)
        run = _Run(following=following, fills=len(found), left=len(found))
        now_s = self._clock.monotonic_s()
        for one in found:
            self._ready.put(want, _Ready(one, now_s, run), one.size_bytes)
            want = replace(want, offset=one.next_offset)

    def _forget_old(self) -> None:
        """Drop the fills that no client fetched in time."""
        now_s = self._clock.monotonic_s()
        while (oldest := self._ready.oldest()) is not None and now_s - oldest[1].since_s > _READY_S:
            self._ready.discard(oldest[0])


def _part(whole: FetchedBatches, slices: tuple[BatchSlice, ...]) -> FetchedBatches:
    """Cut out a part and the aborted transactions that touch it: one that had ended before it would hide later records of its
    producer."""
    start, stop = slices[0].base_offset, slices[-1].next_offset
    aborted = whole.aborted_transactions
    if aborted is not None:
        aborted = tuple(one for one in aborted if one.first_offset < stop and one.last_offset >= start)
    return FetchedBatches(slices=slices, next_offset=stop, aborted_transactions=aborted)


_WHERE = "batches that were read"
_WALKED = Struct(">qi4xb6xi")
"""Base offset, length, magic and last offset delta of a format 2 header."""


def parts_of(slices: Sequence[BatchSlice], max_bytes: int) -> Iterator[tuple[BatchSlice, ...]]:
    """Cut ``slices`` in order, without copying, each part of whole batches and at most ``max_bytes``; a batch that is larger is
    a part of its own.

    ``slices`` are the checked ones of a :class:`BatchCutter`.
    """
    part, left_bytes = list[BatchSlice](), max_bytes
    for one in slices:
        view, begin, base, at, next_offset = one.buffer, 0, one.base_offset, 0, one.base_offset
        while at < len(view) and len(view) - begin > left_bytes:
            batch_base, batch_next, stop = _batch_at(view, at)
            if stop - begin > left_bytes and (part or at > begin):
                if at > begin:
                    part.append(BatchSlice(view[begin:at], base, next_offset))
                yield tuple(part)
                part, left_bytes, begin, base = [], max_bytes, at, batch_base
            else:
                at, next_offset = stop, batch_next
        part.append(BatchSlice(view[begin:], base, one.next_offset))
        left_bytes -= len(view) - begin
    if part:
        yield tuple(part)


def _batch_at(view: memoryview, at: int) -> tuple[Offset, Offset, int]:
    """Return base and next offset of the batch at byte ``at``, and where it ends."""
    if len(view) - at >= BATCH_HEADER_SIZE:
        base, length, magic, delta = _WALKED.unpack_from(view, at)
        if magic == 2:
            return Offset(base), Offset(base + delta + 1), at + LOG_OVERHEAD + length
    header = read_batch_header(view[at:], where=_WHERE, position=at)
    return header.base_offset, header.next_offset, at + header.size_bytes
