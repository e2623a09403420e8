"""Transactions that are open where the history leaves a remote segment: at its own end, or where an election has cut it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Protocol

from tiersidecar.domain.errors import CorruptDataError, ObjectNotFoundError
from tiersidecar.domain.ids import RemoteLogSegmentId
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.kafka.producer_snapshots import ProducerState
from tiersidecar.formats.kafka.record_batches import NO_PRODUCER_ID
from tiersidecar.formats.kafka.transactions import open_states
from tiersidecar.reading.byte_lru import ByteLru
from tiersidecar.reading.open_at_cuts import OpenAtCuts
from tiersidecar.reading.segment_lookup import Located, SegmentLookup
from tiersidecar.reading.single_flight import SingleFlight

_SEGMENTS_KEPT = 10_000
_Open = frozenset[tuple[int, int]]
"""Producer ids and first offsets."""


class ReadProducerSnapshot(Protocol):
    async def read_producer_snapshot(self, metadata: RemoteLogSegmentMetadata) -> Sequence[ProducerState]:
        """The producers' state at the segment's next base offset."""


class OpenTransactions:
    """Reads producer snapshots, and keeps what follows from them.

    A deposed leader's segment may go on past the end of its history, and its snapshot is of its own end: what it tells to be
    ended may have ended in what is no history, and be open, or have another end, in the one that counts (simulation, cluster
    seed 925).  The batches up to there tell: they are walked once, for all who ask.
    """

    def __init__(self, *, lookup: SegmentLookup, snapshots: ReadProducerSnapshot, cuts: OpenAtCuts) -> None:
        self._lookup, self._snapshots, self._cuts = lookup, snapshots, cuts
        self._at_ends: ByteLru[RemoteLogSegmentId, _Open] = ByteLru(_SEGMENTS_KEPT)
        self._walks: SingleFlight[tuple[RemoteLogSegmentId, Offset], _Open] = SingleFlight("walks up to a cut")

    async def first(self, located: Located) -> Offset:
        """Below it (exclusive) no transaction is open at ``located.stop_offset``: that offset itself if none is there.

        Raises:
            StoreError: a snapshot or a segment could not be read.
            CorruptDataError: a snapshot that fails its checks, also when fetched anew.
        """
        return Offset(min([located.stop_offset, *(first for _, first in await self.bounded(located))]))

    async def bounded(self, located: Located) -> _Open:
        """As :meth:`at`; of a cut segment whose batches or files are lost, that any producer (id -1) may have one open from the
        start of the segment on, or from where one is open there."""
        try:
            return await self.at(located)
        except (CorruptDataError, ObjectNotFoundError):
            if not is_cut(located):
                raise
        first = await self._least_first(located)
        return frozenset({(NO_PRODUCER_ID, first)} if first < located.stop_offset else ())

    async def at(self, located: Located) -> _Open:
        """Producer ids and first offsets of those that are open at ``located.stop_offset``.

        Raises:
            As :meth:`first`, and CorruptDataError for batches, too.
            HistoryChangedError: an election has cut the segment again meanwhile.
        """
        if not is_cut(located):
            return await self.at_end(located)
        key = (located.metadata.remote_log_segment_id, located.stop_offset)
        return await self._walks.run(key, partial(self._at_cut, located))

    async def at_end(self, located: Located) -> _Open:
        """Those that are open at the segment's own end."""
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
    """Whether the segment goes on past the end of its history."""
    return located.stop_offset < located.metadata.next_offset


def _named(states: Iterable[ProducerState]) -> _Open:
    return frozenset((one.producer_id, one.current_transaction_first_offset) for one in states)
