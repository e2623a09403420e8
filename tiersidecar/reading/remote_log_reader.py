"""Reads of the remote tier (Kafka's RemoteLogManager.read and RemoteLogReader; S-138 to S-150, T-52 to T-54).

A walk goes from segment to segment along the lineage, and reads ahead across the border between two (U3, U25).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple

from tiersidecar.domain.errors import ObjectNotFoundError, OffsetOutOfRangeError, TiersidecarError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metadata_log import MetadataView
from tiersidecar.ports.metrics.reading import FETCH_BYTES, FETCH_ERRORS, FETCH_REQUESTS, READ_REQUESTED_BYTES
from tiersidecar.ports.telemetry import NoTelemetry, Telemetry
from tiersidecar.reading.admission import ReaderPool
from tiersidecar.reading.batch_cutter import BatchSlice
from tiersidecar.reading.open_transactions import AbortedTransactions, Undecided, UndecidedTransactions
from tiersidecar.reading.read_ahead import ReadAhead
from tiersidecar.reading.segment_lookup import CatchUp, History, Located, OffsetBounds, SegmentLookup
from tiersidecar.reading.segment_reader import Allowance, SegmentReader


class NextSegment:
    """Open the next segment, and let ``read_ahead`` go on in it, while a reader is still in the last chunks of the one before.
    Errors are left for the read itself to find."""

    def __init__(self, *, lookup: SegmentLookup, segments: SegmentReader, read_ahead: ReadAhead) -> None:
        self._lookup = lookup
        self._segments = segments
        self._read_ahead = read_ahead
        self._opening: asyncio.Task[None] | None = None
        self._border: int | None = None

    async def __aenter__(self) -> NextSegment:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)

    def consider(self, located: Located, next_offset: int, stop_offset: int) -> None:
        """Begin, once, if the border lies within the window of a reader that has come to ``next_offset`` of ``located``, on its
        way to ``stop_offset``."""
        left_bytes = _bytes_left(located, next_offset)
        is_due = located.stop_offset < stop_offset and left_bytes < self._read_ahead.window_bytes
        if is_due and self._border != located.stop_offset:
            self._border = located.stop_offset
            if self._opening is not None:
                self._opening.cancel()
            self._opening = asyncio.create_task(
                self._open(located), name=f"segment after {located.metadata.remote_log_segment_id}"
            )

    async def _open(self, located: Located) -> None:
        try:
            following = await self._lookup.locate(located.metadata.topic_id_partition, located.stop_offset)
            opened = None if following is None else await self._segments.open_at(following, located.stop_offset)
            if opened is not None:
                self._read_ahead.follow_with(*opened)
        except TiersidecarError:
            return


def _bytes_left(located: Located, next_offset: int) -> int:
    """Return about how many bytes of the segment are still to come, as if its offsets were of equal size."""
    metadata = located.metadata
    offsets = metadata.next_offset - metadata.start_offset
    return metadata.segment_size_in_bytes * max(located.stop_offset - next_offset, 0) // offsets


class Walked(NamedTuple):
    """Batches of a segment that a look-up of ``offset`` gave."""

    located: Located
    offset: Offset
    batches: BatchSlice


class SegmentWalk:
    """Batches of a partition, across its segments."""

    def __init__(self, *, metadata: MetadataView, lookup: SegmentLookup, segments: SegmentReader) -> None:
        self._metadata = metadata
        self._lookup = lookup
        self._segments = segments

    async def batches(
        self, topic_id_partition: TopicIdPartition, offset: int, stop_offset: int, allowance: Allowance
    ) -> AsyncGenerator[Walked, None]:
        """Yield batches from ``offset`` on, below ``stop_offset`` (exclusive), as far as ``allowance`` reaches, each slice with
        the segment that holds it.  ``stop_offset`` lies at the end of the remote tier at most.

        Raises:
            OffsetOutOfRangeError: no segment holds ``offset``, and it is not the end of the remote tier; or a read without
                a bound in bytes has come to a hole, which it must not skip unseen.
        """
        asked = next_offset = Offset(offset)
        located = await self._first(topic_id_partition, offset)
        with self._segments.read_ahead() as read_ahead:
            async with NextSegment(lookup=self._lookup, segments=self._segments, read_ahead=read_ahead) as following:
                while located is not None and next_offset < stop_offset and not allowance.is_used_up:
                    slices = self._segments.slices(located, next_offset, stop_offset, allowance, read_ahead)
                    try:
                        async with aclosing(slices):
                            async for batches in slices:
                                next_offset = batches.next_offset
                                following.consider(located, next_offset, stop_offset)
                                yield Walked(located, asked, batches)
                    except ObjectNotFoundError:
                        if self._is_finished(located):
                            raise
                        # Deleted while it was read: what holds the offset now, if anything does, is looked up anew.
                        asked = next_offset
                        located = await self._first(topic_id_partition, asked)
                        continue
                    asked = next_offset = max(next_offset, located.stop_offset)
                    if not allowance.is_used_up:
                        located = await self._lookup.locate(topic_id_partition, next_offset)
        if next_offset < stop_offset and allowance.left_bytes is None:
            raise await self._lookup.out_of_range(topic_id_partition, next_offset)

    async def is_replaced(self, topic_id_partition: TopicIdPartition, walked: Walked) -> bool:
        """Return whether the look-up gives another segment by now, or none."""
        now = await self._lookup.locate(topic_id_partition, walked.offset)
        then = walked.located.metadata.remote_log_segment_id
        return now is None or now.metadata.remote_log_segment_id != then

    async def _first(self, topic_id_partition: TopicIdPartition, offset: int) -> Located | None:
        located = await self._lookup.locate(topic_id_partition, offset)
        if located is None and offset != await self._lookup.end_offset(topic_id_partition):
            raise await self._lookup.out_of_range(topic_id_partition, offset)
        return located

    def _is_finished(self, located: Located) -> bool:
        now = self._metadata.segment(located.metadata.remote_log_segment_id)
        return now is not None and now.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteBatches:
    """Batches of one segment, with the aborted transactions that touch them; None for read_uncommitted."""

    batches: BatchSlice
    aborted_transactions: tuple[AbortedTransaction, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedBatches:
    """The answer to one bounded read.

    ``next_offset`` is where to read on; with no batch in ``slices`` it is the offset asked for, or lies past a range in
    which compaction left nothing.
    """

    slices: tuple[BatchSlice, ...]
    next_offset: Offset
    aborted_transactions: tuple[AbortedTransaction, ...] | None

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.slices))


class RemoteLogReader:
    """Read record batches of finished remote segments, along the lineage, without opening them."""

    def __init__(
        self,
        *,
        lookup: SegmentLookup,
        walk: SegmentWalk,
        aborted: AbortedTransactions,
        undecided: UndecidedTransactions,
        pool: ReaderPool,
        clock: Clock,
        telemetry: Telemetry | None = None,
        catch_up: CatchUp | None = None,
    ) -> None:
        self._lookup = lookup
        self._catch_up = catch_up
        self._walk = walk
        self._aborted = aborted
        self._undecided = undecided
        self._pool = pool
        self._clock = clock
        self._telemetry = telemetry or NoTelemetry()

    async def bounds(self, topic_id_partition: TopicIdPartition) -> OffsetBounds:
        """Return the offsets that can be read."""
        return await self._lookup.bounds(topic_id_partition)

    async def end_offset(self, topic_id_partition: TopicIdPartition) -> Offset:
        """Return the end (exclusive) of :meth:`bounds` alone, which takes less."""
        return await self._lookup.end_offset(topic_id_partition)

    async def current_bounds(self, topic_id_partition: TopicIdPartition) -> OffsetBounds:
        """Return the same, once all is applied that was durable at the call: for an answer that sends a reader away.

        A broker that has just come back answers before our own consumers have caught up, and an offset that it no longer has
        looks as if no tier had it (simulation, cluster seed 801519).

        Raises:
            RetriableError: the topics of metadata and state are out of reach, or were not read that far in time.
        """
        if self._catch_up is None:
            return await self._lookup.bounds(topic_id_partition)
        return await self._lookup.bounds_after(topic_id_partition, self._catch_up)

    def check_batch_start(
        self, topic_id_partition: TopicIdPartition, offset: int, leader_epoch: int, end: Offset
    ) -> None:
        """Check where a batch begins (:meth:`SegmentLookup.check_batch_start`)."""
        self._lookup.check_batch_start(topic_id_partition, offset, leader_epoch, end)

    async def last_stable_offset(self, topic_id_partition: TopicIdPartition) -> Offset:
        """Return the end (exclusive) of what a read_committed reader may read."""
        return await self._aborted.last_stable_offset(topic_id_partition)

    async def open_at(self, topic_id_partition: TopicIdPartition, end_offset: Offset) -> frozenset[tuple[int, int]]:
        """Return the transactions open there (:meth:`AbortedTransactions.open_at`)."""
        return await self._aborted.open_at(topic_id_partition, end_offset)

    async def read_batches(
        self,
        topic_id_partition: TopicIdPartition,
        offset: int,
        *,
        max_bytes: int,
        stop_offset: int | None = None,
        min_one_message: bool = True,
        read_committed: bool = False,
        aborted_beyond: Sequence[AbortedTransaction] | None = None,
        history: History | None = None,
    ) -> FetchedBatches:
        """Return whole batches from the first whose last offset is ``offset`` or above, up to ``max_bytes``, and of those that
        begin below ``stop_offset``.

        The first batch is returned even if it is larger, if ``min_one_message``; else nothing is (T-53).  At the end of
        the remote tier, and for read_committed at its last stable offset, the answer is empty; with ``aborted_beyond`` and
        ``history`` as for :meth:`stream_batches` it goes on there.

        Raises:
            OffsetOutOfRangeError: the remote tier does not hold ``offset``.
            UndecidedTransactionError: read_committed has come to a transaction whose end lies in a hole.
            HistoryChangedError: an unclean election has undone what this read went by.
            QuotaExceededError: the read was shed, at once.
            MetadataNotReadyError: the partition has not been replayed.
            StoreError: the store is away.
            CorruptDataError: bytes that fail their checks, also after they were fetched anew.
        """
        self._telemetry.count(READ_REQUESTED_BYTES, max_bytes)
        allowance = Allowance(max_bytes, min_one_message)
        async with (
            self._pool.admit(),
            aclosing(
                self._read(
                    topic_id_partition,
                    offset,
                    stop_offset,
                    allowance,
                    read_committed=read_committed,
                    aborted_beyond=aborted_beyond,
                    history=history,
                )
            ) as parts,
        ):
            found = list[RemoteBatches]()
            try:
                async for part in parts:
                    found.append(part)
            except TiersidecarError:
                if not found:
                    raise
                # The slices before it are whole: the next read reports a hole, or a store that went away.
        return FetchedBatches(
            slices=tuple(one.batches for one in found),
            next_offset=found[-1].batches.next_offset if found else Offset(offset),
            aborted_transactions=_distinct(found) if read_committed else None,
        )

    async def stream_batches(
        self,
        topic_id_partition: TopicIdPartition,
        offset: int,
        *,
        stop_offset: int | None = None,
        read_committed: bool = False,
        aborted_beyond: Sequence[AbortedTransaction] | None = None,
        history: History | None = None,
    ) -> AsyncGenerator[RemoteBatches, None]:
        """Yield what :meth:`read_batches` returns, without a bound, to ``stop_offset`` (exclusive) or the remote tier's end.

        A read_committed reader gets past the remote tier's last stable offset with ``aborted_beyond``: the aborted
        transactions whose markers lie above ``stop_offset``, all that are undecided below it having been decided.
        A caller that has chosen one of the two by the remote tier's state gives that as ``history``: nothing past its end is
        returned, and nothing for which it is no longer true.

        Each part is fetched when it is asked for, but for the read-ahead.  The place in the pool is given back between
        parts, and a quota that is used up meanwhile delays the read: it has begun and is no longer shed.
        Close it (``contextlib.aclosing``) when you leave before its end.
        """
        parts = self._read(
            topic_id_partition,
            offset,
            stop_offset,
            Allowance(),
            read_committed=read_committed,
            aborted_beyond=aborted_beyond,
            history=history,
        )
        async with aclosing(parts), aclosing(self._pool.in_steps(parts, self._clock)) as steps:
            async for part in steps:
                # A stream asks for no number of bytes: each part is requested when its turn comes.
                self._telemetry.count(READ_REQUESTED_BYTES, len(part.batches))
                yield part

    async def _read(
        self,
        topic_id_partition: TopicIdPartition,
        offset: int,
        stop_offset: int | None,
        allowance: Allowance,
        *,
        read_committed: bool,
        aborted_beyond: Sequence[AbortedTransaction] | None = None,
        history: History | None = None,
    ) -> AsyncGenerator[RemoteBatches, None]:
        topic = topic_id_partition.topic
        self._telemetry.count(FETCH_REQUESTS, topic=topic)
        self._pool.begun(topic)
        try:
            await self._lookup.check_start(topic_id_partition, offset)
            if history is None:
                history = await self._lookup.history(topic_id_partition)
            stop = history.end if stop_offset is None else min(stop_offset, history.end)
            if read_committed and aborted_beyond is None:
                stop = min(stop, await self._aborted.last_stable_offset(topic_id_partition))
            undecided = await self._first_undecided(topic_id_partition, offset, stop) if read_committed else None
            if undecided is not None:
                stop = undecided.first_offset
                if stop <= offset:
                    raise self._undecided.error(topic_id_partition, offset, undecided)
            beyond = (aborted_beyond or ()) if read_committed else None
            async with aclosing(self._walked(topic_id_partition, offset, stop, allowance, beyond)) as parts:
                async for part in parts:
                    await self._lookup.check_history(topic_id_partition, history, part.batches.base_offset)
                    self._telemetry.count(FETCH_BYTES, len(part.batches), topic=topic)
                    self._pool.charge(topic, len(part.batches))
                    yield part
            if undecided is not None and allowance.left_bytes is None:
                raise self._undecided.error(topic_id_partition, stop, undecided)
        except OffsetOutOfRangeError:
            raise  # the reader's mistake, if it is one
        except TiersidecarError:
            self._telemetry.count(FETCH_ERRORS, topic=topic)
            raise

    async def _walked(
        self,
        topic_id_partition: TopicIdPartition,
        offset: int,
        stop_offset: int,
        allowance: Allowance,
        beyond: Sequence[AbortedTransaction] | None,
    ) -> AsyncGenerator[RemoteBatches, None]:
        """Yield the batches, and for read_committed, to which ``beyond`` is given, what was aborted of them.

        A cleaner may replace a segment while it is read.  Its aborted records go in one round, the entries of their markers,
        which may be in later segments, in the next.  So entries that are looked up now say nothing of a segment that look-ups
        do not give any more: what has taken its place is read from here on.
        """
        next_offset, is_first = Offset(offset), True
        while True:
            replaced: Walked | None = None
            async with aclosing(self._walk.batches(topic_id_partition, next_offset, stop_offset, allowance)) as parts:
                async for walked in parts:
                    batches, aborted = walked.batches, None
                    if beyond is not None:
                        aborted = await self._aborted_in(walked, beyond)
                        if await self._walk.is_replaced(topic_id_partition, walked):
                            replaced = walked
                            break
                    next_offset, is_first = batches.next_offset, False
                    yield RemoteBatches(batches=batches, aborted_transactions=aborted)
            if replaced is None:
                return
            next_offset = max(next_offset, replaced.offset)
            allowance.give_back(len(replaced.batches), takes_any_size=is_first)

    async def _aborted_in(self, walked: Walked, beyond: Sequence[AbortedTransaction]) -> tuple[AbortedTransaction, ...]:
        batches = walked.batches
        aborted = await self._aborted.collect(walked.located, batches.base_offset, batches.next_offset)
        return aborted + tuple(one for one in beyond if one.first_offset < batches.next_offset)

    async def _first_undecided(self, topic_id_partition: TopicIdPartition, offset: int, stop: int) -> Undecided | None:
        """Return the first transaction, beginning below ``stop``, that a read_committed reader of ``offset`` cannot pass."""
        above = await self._undecided.above(topic_id_partition, offset)
        within = (one for one in above if one.first_offset < stop)
        return min(within, key=lambda one: one.first_offset, default=None)


def _distinct(parts: Sequence[RemoteBatches]) -> tuple[AbortedTransaction, ...]:
    return tuple(dict.fromkeys(entry for part in parts for entry in part.aborted_transactions or ()))
