"""Transactions that are open where the history leaves a remote segment: at its own end, or where an election has cut it.

Transactions that are open where a segment begins, as the remote segment before it tells (DESIGN.md rule 14).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Protocol

import structlog

from tiersidecar.domain.epochs import Lineage
from tiersidecar.domain.errors import CorruptDataError, ObjectNotFoundError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.kafka.indexes import read_transaction_index
from tiersidecar.formats.kafka.producer_snapshots import ProducerState
from tiersidecar.formats.kafka.record_batches import NO_PRODUCER_ID
from tiersidecar.formats.kafka.transactions import open_before, open_states
from tiersidecar.ports.metadata_log import MetadataView
from tiersidecar.reading.byte_lru import ByteLru
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.open_at_cuts import OpenAtCuts, held_before
from tiersidecar.reading.segment_lookup import Located, SegmentLookup
from tiersidecar.reading.single_flight import SingleFlight

log = structlog.get_logger(__name__)

_States = tuple[ProducerState, ...]


class CarriedTransactions:
    """Reads producer snapshots of remote segments, and keeps those that this process has written itself.

    Each snapshot that goes up is completed by what its batches and the one before it tell, so that this one need not trust any
    broker's memory, and nothing but the store has to survive a restart or a change of leaders.
    """

    def __init__(self, *, metadata: MetadataView, blobs: IndexBlobReader, cuts: OpenAtCuts) -> None:
        self._metadata, self._blobs, self._cuts = metadata, blobs, cuts
        self._kept: ByteLru[RemoteLogSegmentId, _States] = ByteLru(_SEGMENTS_KEPT)

    def keep(self, segment: RemoteLogSegmentMetadata, open_at_end: Sequence[ProducerState]) -> None:
        """What was written of ``segment``: the next one need not fetch it."""
        self._kept.put(segment.remote_log_segment_id, tuple(open_at_end), 1)

    async def at(self, topic_id_partition: TopicIdPartition, offset: Offset, lineage: Lineage) -> _States:
        """The producers whose transaction is open at ``offset``; of one that a segment of ``lineage`` which reaches past it has
        committed nothing is told.  None where no remote segment reaches it, or its files are lost.

        An election may have cut such a segment: what it has past the cut, a commit among it, may have another end in the
        history that counts, and its front is walked (simulation, cluster seed 800213).

        Raises:
            StoreError: they could not be read.
        """
        held = held_before(self._metadata, topic_id_partition, offset, lineage)
        # The one that goes on past the offset the least; a whole one before one that an election has cut.
        before = min(held, key=lambda one: (not one.is_within(lineage), one.end_offset), default=None)
        if before is None:
            return ()
        if not before.is_within(lineage):
            try:
                return await self._cuts.at(before, offset, lineage)
            except (ObjectNotFoundError, CorruptDataError) as error:
                _tell_unknown(before, error)
        try:
            return await self._told_by(before, offset)
        except (ObjectNotFoundError, CorruptDataError) as error:
            _tell_unknown(before, error)
            return ()

    async def _told_by(self, before: RemoteLogSegmentMetadata, offset: Offset) -> _States:
        """All that its own files tell."""
        states = self._kept.get(before.remote_log_segment_id)
        if states is None:
            states = open_states(await self._blobs.read_producer_snapshot(before))
            self.keep(before, states)
        if before.next_offset == offset:
            return states
        index = b""
        if not before.txn_index_empty:
            index = (await self._blobs.read_index_files(before)).transaction_index
        where = f"transaction index of {before.remote_log_segment_id}"
        return open_before(offset, read_transaction_index(index, base_offset=before.start_offset, where=where), states)


def _tell_unknown(segment: RemoteLogSegmentMetadata, error: Exception) -> None:
    log.warning("segment.transactions.unknown", segment_id=str(segment.remote_log_segment_id), error=str(error))


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
    return frozenset((state.producer_id, state.current_transaction_first_offset) for state in states)
