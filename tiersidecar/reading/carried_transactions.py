"""Transactions that are open where a segment begins, as the remote segment before it tells (DESIGN.md rule 14)."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from tiersidecar.domain.epochs import Lineage
from tiersidecar.domain.errors import CorruptDataError, ObjectNotFoundError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.kafka.indexes import read_transaction_index
from tiersidecar.formats.kafka.producer_snapshots import ProducerState
from tiersidecar.formats.kafka.transactions import open_before, open_states
from tiersidecar.ports.metadata_log import MetadataView
from tiersidecar.reading.byte_lru import ByteLru
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.open_at_cuts import OpenAtCuts, held_before

log = structlog.get_logger(__name__)

_SEGMENTS_KEPT = 10_000
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
