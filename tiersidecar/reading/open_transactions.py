"""Transactions that are open where a remote segment ends, as far as its producer snapshot can tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tiersidecar.domain.ids import RemoteLogSegmentId
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.kafka.producer_snapshots import ProducerState
from tiersidecar.formats.kafka.transactions import open_states
from tiersidecar.reading.byte_lru import ByteLru
from tiersidecar.reading.segment_lookup import Located, SegmentLookup

_SEGMENTS_KEPT = 10_000


class ReadProducerSnapshot(Protocol):
    async def read_producer_snapshot(self, metadata: RemoteLogSegmentMetadata) -> Sequence[ProducerState]:
        """The producers' state at the segment's next base offset."""


class OpenTransactions:
    """Reads producer snapshots, and keeps what follows from them.

    A deposed leader's segment may go on past the end of its history, and its snapshot is of its own end: what it tells to be
    ended may have ended in what is no history, and be open, or have another end, in the one that counts (simulation, cluster
    seed 925).  So of such a one only the offset counts that it begins at.
    """

    def __init__(self, *, lookup: SegmentLookup, snapshots: ReadProducerSnapshot) -> None:
        self._lookup, self._snapshots = lookup, snapshots
        self._firsts: ByteLru[tuple[RemoteLogSegmentId, Offset], Offset] = ByteLru(_SEGMENTS_KEPT)
        self._at_ends: ByteLru[RemoteLogSegmentId, frozenset[tuple[int, int]]] = ByteLru(_SEGMENTS_KEPT)

    async def first(self, located: Located) -> Offset:
        """Below it (exclusive) no transaction is open at ``located.stop_offset``: that offset itself if none is there.

        Raises:
            StoreError: a snapshot could not be read.
            CorruptDataError: one that fails its checks, also when fetched anew.
        """
        key = (located.metadata.remote_log_segment_id, located.stop_offset)
        first = self._firsts.get(key)
        if first is None:
            first = await self._first(located)
            self._firsts.put(key, first, 1)
        return first

    async def at_end(self, located: Located) -> frozenset[tuple[int, int]]:
        """Producer ids and first offsets of those that are open at the segment's own end."""
        segment_id = located.metadata.remote_log_segment_id
        found = self._at_ends.get(segment_id)
        if found is None:
            states = open_states(await self._snapshots.read_producer_snapshot(located.metadata))
            found = frozenset((one.producer_id, one.current_transaction_first_offset) for one in states)
            self._at_ends.put(segment_id, found, 1 + len(found))
        return found

    async def _first(self, located: Located) -> Offset:
        bound, whole = located.stop_offset, located
        while is_cut(whole):
            if not await self._snapshots.read_producer_snapshot(whole.metadata):
                return bound  # nobody has written with a producer id, let alone a transaction
            bound = min(bound, whole.metadata.start_offset)
            before = await self._lookup.locate(whole.metadata.topic_id_partition, bound - 1) if bound else None
            if before is None:
                return bound
            whole = before
        return Offset(min([bound, *(first for _, first in await self.at_end(whole))]))


def is_cut(located: Located) -> bool:
    """Whether the segment goes on past the end of its history."""
    return located.stop_offset < located.metadata.next_offset
