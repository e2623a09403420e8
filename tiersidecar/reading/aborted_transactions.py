"""Aborted transactions of a range of offsets, and how far the remote tier alone can tell them (S-155 to S-159)."""

from __future__ import annotations

from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction, collect_aborted
from tiersidecar.reading.index_cache import RemoteIndexCache
from tiersidecar.reading.open_transactions import OpenTransactions
from tiersidecar.reading.segment_lookup import Located, SegmentLookup


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
