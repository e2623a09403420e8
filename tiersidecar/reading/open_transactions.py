"""Transactions that readers of committed records must know: open where the history leaves a segment, aborted, or undecided.

Where the history leaves a segment, at its own end or where an election has cut it, its producer snapshot says which are open.

A transaction whose end lies in a hole of the remote tier may have been committed or not: its marker may have been in the hole,
and then no transaction index has it.  Without this, read_committed would show what was aborted.  Only a hole makes it cost
anything (docs/design/0011; S-155 to S-159).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tiersidecar.domain.errors import CorruptDataError, ObjectNotFoundError, UndecidedTransactionError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.kafka.indexes import AbortedTransaction, collect_aborted
from tiersidecar.formats.kafka.producer_state import ProducerState, open_states
from tiersidecar.formats.kafka.record_batches import NO_PRODUCER_ID
from tiersidecar.reading.carried_transactions import OpenAtCuts
from tiersidecar.reading.index_blobs import RemoteIndexCache
from tiersidecar.reading.remote_objects import ByteLru, SingleFlight
from tiersidecar.reading.segment_lookup import Hole, Located, SegmentLookup

_SEGMENTS_KEPT = 10_000
_Open = frozenset[tuple[int, int]]
"""Producer ids and first offsets."""


class ReadProducerSnapshot(Protocol):
    async def read_producer_snapshot(self, metadata: RemoteLogSegmentMetadata) -> Sequence[ProducerState]:
        """Return the producers' state at the segment's next base offset."""


class OpenTransactions:
    """Read producer snapshots, and keep what follows from them.

    A deposed leader's segment may go on past the end of its history, and its snapshot is of its own end.  What the snapshot
    shows as ended may be open, or end differently, in the history that counts (simulation, cluster seed 925).  The batches up
    to there decide: they are walked once, for all callers.
    """

    def __init__(self, *, lookup: SegmentLookup, snapshots: ReadProducerSnapshot, cuts: OpenAtCuts) -> None:
        self._lookup, self._snapshots, self._cuts = lookup, snapshots, cuts
        self._at_ends: ByteLru[RemoteLogSegmentId, _Open] = ByteLru(_SEGMENTS_KEPT)
        self._walks: SingleFlight[tuple[RemoteLogSegmentId, Offset], _Open] = SingleFlight("walks up to a cut")

    async def first(self, located: Located) -> Offset:
        """Return the least first offset of the transactions open at ``located.stop_offset``; that offset if none is open.

        Raises:
            StoreError: a snapshot or a segment could not be read.
            CorruptDataError: a snapshot that fails its checks, also when fetched anew.
        """
        return Offset(min([located.stop_offset, *(first for _, first in await self.bounded(located))]))

    async def bounded(self, located: Located) -> _Open:
        """Return what :meth:`at` does; of a cut segment whose batches or files are lost, that any producer (id -1) may have one
        open from the start of the segment on, or from where one is open there."""
        try:
            return await self.at(located)
        except (CorruptDataError, ObjectNotFoundError):
            if not is_cut(located):
                raise
        first = await self._least_first(located)
        return frozenset({(NO_PRODUCER_ID, first)} if first < located.stop_offset else ())

    async def at(self, located: Located) -> _Open:
        """Return producer ids and first offsets of those that are open at ``located.stop_offset``.

        Raises:
            As :meth:`first`, and CorruptDataError for batches, too.
            HistoryChangedError: an election has cut the segment again meanwhile.
        """
        if not is_cut(located):
            return await self.at_end(located)
        key = (located.metadata.remote_log_segment_id, located.stop_offset)
        return await self._walks.run(key, partial(self._at_cut, located))

    async def at_end(self, located: Located) -> _Open:
        """Return those that are open at the segment's own end."""
        segment_id = located.metadata.remote_log_segment_id
        found = self._at_ends.get(segment_id)
        if found is None:
            found = _named(open_states(await self._snapshots.read_producer_snapshot(located.metadata)))
            self._at_ends.put(segment_id, found, 1 + len(found))
        return found

    async def aclose(self) -> None:
        """Give up what is in flight."""
        await self._walks.aclose()

    async def _at_cut(self, located: Located) -> _Open:
        history = await self._lookup.history(located.metadata.topic_id_partition)
        return _named(await self._cuts.at(located.metadata, located.stop_offset, history.lineage))

    async def _least_first(self, located: Located) -> Offset:
        bound, whole = located.stop_offset, located
        while is_cut(whole):
            bound = min(bound, whole.metadata.start_offset)
            before = await self._lookup.locate(whole.metadata.topic_id_partition, bound - 1) if bound else None
            if before is None:
                return bound
            whole = before
        return Offset(min([bound, *(first for _, first in await self.at_end(whole))]))


def is_cut(located: Located) -> bool:
    """Return whether the segment goes on past the end of its history."""
    return located.stop_offset < located.metadata.next_offset


def _named(states: Iterable[ProducerState]) -> _Open:
    return frozenset((state.producer_id, state.current_transaction_first_offset) for state in states)


class AbortedTransactions:
    """Search the transaction indexes of remote segments.

    An abort marker stands in the index of the segment that holds the marker, which may come long after the segment that
    is read, and may still be local.  So the remote tier alone answers for offsets below :meth:`last_stable_offset`.
    """

    def __init__(
        self, *, lookup: SegmentLookup, indexes: RemoteIndexCache, open_transactions: OpenTransactions
    ) -> None:
        self._lookup, self._indexes, self._open = lookup, indexes, open_transactions

    async def collect(self, located: Located, start_offset: int, stop_offset: int) -> tuple[AbortedTransaction, ...]:
        """Return those that overlap the offsets from ``start_offset``, which is in ``located``, up to ``stop_offset``
        (exclusive), in the order of their markers (``RemoteLogManager.collectAbortedTransactions``)."""
        topic_id_partition = located.metadata.topic_id_partition
        found: dict[AbortedTransaction, None] = {}
        segment: Located | None = located
        while segment is not None:
            indexes = await self._indexes.indexes(segment.metadata)
            # A segment copied by a deposed leader may have markers past the point at which its history ended.
            entries = [entry for entry in indexes.aborted_transactions if entry.last_offset < segment.stop_offset]
            overlapping, is_complete = collect_aborted(entries, start_offset, stop_offset)
            found.update(dict.fromkeys(overlapping))
            if is_complete:
                break
            segment = await self._lookup.next_with_aborted_transactions(topic_id_partition, segment.stop_offset)
        return tuple(found)

    async def last_stable_offset(self, topic_id_partition: TopicIdPartition) -> Offset:
        """Return the offset below which (exclusive) every transaction has been decided within the remote tier.

        It is the first offset of the earliest transaction that is still open at the end of the last remote segment, by
        that segment's producer snapshot; the end of the remote tier when none is.
        """
        end_offset = await self._lookup.end_offset(topic_id_partition)
        last = await self._lookup.locate(topic_id_partition, end_offset - 1) if end_offset else None
        if last is None:
            return end_offset
        return min(await self._open.first(last), end_offset)

    async def open_at(self, topic_id_partition: TopicIdPartition, end_offset: Offset) -> frozenset[tuple[int, int]]:
        """Return producer ids and first offsets of the transactions that are open at ``end_offset``, the end (exclusive) of the
        remote tier."""
        last = await self._lookup.locate(topic_id_partition, end_offset - 1) if end_offset else None
        return frozenset() if last is None else await self._open.at(last)


_HOLES_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Undecided:
    """A transaction from its first offset on, and the hole that its end may lie in.  ``producer_id`` -1: there may be one, of
    any producer."""

    producer_id: int
    first_offset: Offset
    hole: Hole


_Key = tuple[Hole, RemoteLogSegmentId, RemoteLogSegmentId]


class UndecidedTransactions:
    """Find undecided transactions, and keep them for as long as the same segments lie around the hole."""

    def __init__(
        self, *, lookup: SegmentLookup, indexes: RemoteIndexCache, open_transactions: OpenTransactions
    ) -> None:
        self._lookup, self._indexes, self._open = lookup, indexes, open_transactions
        self._found: ByteLru[_Key, tuple[Undecided, ...]] = ByteLru(_HOLES_KEPT)

    async def above(self, topic_id_partition: TopicIdPartition, offset: int) -> tuple[Undecided, ...]:
        """Return the undecided transactions of all holes above ``offset``.

        Raises:
            StoreError: a snapshot or an index could not be read.
            CorruptDataError: one that fails its checks, also when fetched anew.
        """
        found = list[Undecided]()
        for hole in await self._lookup.holes(topic_id_partition, offset):
            before = await self._lookup.locate(topic_id_partition, hole.start - 1)
            after = await self._lookup.locate(topic_id_partition, hole.stop)
            if before is not None and after is not None:  # else they have just gone, and the hole with them
                found += await self._over(hole, before, after)
        return tuple(found)

    def error(
        self, topic_id_partition: TopicIdPartition, offset: int, undecided: Undecided
    ) -> UndecidedTransactionError:
        """Return the error for a read_committed reader at ``offset``, and report the hole to the operator."""
        self._lookup.met(topic_id_partition, offset, undecided.hole)
        return UndecidedTransactionError(
            subject=str(topic_id_partition),
            offset=offset,
            first_offset=undecided.first_offset,
            hole_start=undecided.hole.start,
            hole_stop=undecided.hole.stop,
        )

    async def _over(self, hole: Hole, before: Located, after: Located) -> tuple[Undecided, ...]:
        key = (hole, before.metadata.remote_log_segment_id, after.metadata.remote_log_segment_id)
        found = self._found.get(key)
        if found is None:
            was_open = await self._open.bounded(before)
            known = await self._known_after(after) if was_open else frozenset()
            found = tuple(
                Undecided(producer_id, Offset(first), hole)
                for producer_id, first in sorted(was_open - known)
                if first < hole.start  # what a deposed leader's copy has past its history is not ours
            )
            self._found.put(key, found, 1)
        return found

    async def _known_after(self, after: Located) -> frozenset[tuple[int, int]]:
        """Return transactions whose fate is known behind the hole: aborted in the first segment there, or open at its end."""
        aborted = (await self._indexes.indexes(after.metadata)).aborted_transactions
        return await self._open.at_end(after) | {(one.producer_id, one.first_offset) for one in aborted}
