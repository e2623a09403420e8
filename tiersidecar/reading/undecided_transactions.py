"""Transactions whose end lies in a hole of the remote tier: nobody can know whether they were committed.

A segment's producer snapshot says which transactions were open where the hole begins.  Their markers may have been in the
hole, and then no transaction index has them: without this, read_committed would show what was aborted.  Only where a hole
is does it cost anything (docs/design/0011).

Aborted transactions of a range of offsets, and how far the remote tier alone can tell them (S-155 to S-159).
"""

from __future__ import annotations

from dataclasses import dataclass

from tiersidecar.domain.errors import UndecidedTransactionError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction, collect_aborted
from tiersidecar.reading.byte_lru import ByteLru
from tiersidecar.reading.index_cache import RemoteIndexCache
from tiersidecar.reading.open_transactions import OpenTransactions
from tiersidecar.reading.segment_lookup import Hole, Located, SegmentLookup


class AbortedTransactions:
    """Searches the transaction indexes of remote segments.

    An abort marker stands in the index of the segment that holds the marker, which may come long after the segment that
    is read, and may still be local.  So the remote tier alone answers for offsets below :meth:`last_stable_offset`.
    """

    def __init__(
        self, *, lookup: SegmentLookup, indexes: RemoteIndexCache, open_transactions: OpenTransactions
    ) -> None:
        self._lookup, self._indexes, self._open = lookup, indexes, open_transactions

    async def collect(self, located: Located, start_offset: int, stop_offset: int) -> tuple[AbortedTransaction, ...]:
        """Those that overlap the offsets from ``start_offset``, which is in ``located``, up to ``stop_offset``
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
        """Below it (exclusive) every transaction has been decided within the remote tier.

        It is the first offset of the earliest transaction that is still open at the end of the last remote segment, by
        that segment's producer snapshot; the end of the remote tier when none is.
        """
        end_offset = await self._lookup.end_offset(topic_id_partition)
        last = await self._lookup.locate(topic_id_partition, end_offset - 1) if end_offset else None
        if last is None:
            return end_offset
        return min(await self._open.first(last), end_offset)

    async def open_at(self, topic_id_partition: TopicIdPartition, end_offset: Offset) -> frozenset[tuple[int, int]]:
        """Producer ids and first offsets of the transactions that are open at ``end_offset``, the end (exclusive) of the remote
        tier."""
        last = await self._lookup.locate(topic_id_partition, end_offset - 1) if end_offset else None
        return frozenset() if last is None else await self._open.at(last)


_HOLES_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Undecided:
    """A transaction from its first offset on, and the hole that its end may lie in.  ``producer_id`` -1: nobody can tell
    whether there is one."""

    producer_id: int
    first_offset: Offset
    hole: Hole


_Key = tuple[Hole, RemoteLogSegmentId, RemoteLogSegmentId]


class UndecidedTransactions:
    """Finds them, and keeps what it found for as long as the same segments lie around the hole."""

    def __init__(
        self, *, lookup: SegmentLookup, indexes: RemoteIndexCache, open_transactions: OpenTransactions
    ) -> None:
        self._lookup, self._indexes, self._open = lookup, indexes, open_transactions
        self._found: ByteLru[_Key, tuple[Undecided, ...]] = ByteLru(_HOLES_KEPT)

    async def above(self, topic_id_partition: TopicIdPartition, offset: int) -> tuple[Undecided, ...]:
        """Those of all holes above ``offset``.

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
        """What a read_committed reader is told at ``offset``; the operator is told of the hole, too."""
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
        """Transactions whose fate is told behind the hole: aborted in the first segment there, or still open at its end."""
        aborted = (await self._indexes.indexes(after.metadata)).aborted_transactions
        return await self._open.at_end(after) | {(one.producer_id, one.first_offset) for one in aborted}
