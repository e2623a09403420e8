"""Transactions that are open where a segment begins, as the remote segment before it tells (DESIGN.md rule 14)."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from tiersidecar.domain.epochs import Lineage
from tiersidecar.domain.errors import CorruptDataError, ObjectNotFoundError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import NO_LOG_END, RemoteLogSegmentMetadata
from tiersidecar.formats.kafka.indexes import read_transaction_index
from tiersidecar.formats.kafka.producer_snapshots import ProducerState
from tiersidecar.formats.kafka.transactions import open_states
from tiersidecar.ports.metadata_log import MetadataView
from tiersidecar.reading.byte_lru import ByteLru
from tiersidecar.reading.index_blobs import IndexBlobReader

log = structlog.get_logger(__name__)

_SEGMENTS_KEPT = 10_000
_States = tuple[ProducerState, ...]


class CarriedTransactions:
    """Reads producer snapshots of remote segments, and keeps those that this process has written itself.

    Each snapshot that goes up is completed by what its batches and the one before it tell, so that this one need not trust any
    broker's memory, and nothing but the store has to survive a restart or a change of leaders.
    """

    def __init__(self, *, metadata: MetadataView, blobs: IndexBlobReader) -> None:
        self._metadata, self._blobs = metadata, blobs
        self._kept: ByteLru[RemoteLogSegmentId, _States] = ByteLru(_SEGMENTS_KEPT)

    def keep(self, segment: RemoteLogSegmentMetadata, open_at_end: Sequence[ProducerState]) -> None:
        """What was written of ``segment``: the next one need not fetch it."""
        self._kept.put(segment.remote_log_segment_id, tuple(open_at_end), 1)

    async def at(self, topic_id_partition: TopicIdPartition, offset: Offset, lineage: Lineage) -> _States:
        """The producers whose transaction is open at ``offset``; of one that has ended by commit in a segment that reaches past
        it nothing is told.  None where no remote segment of ``lineage`` reaches it, or its files are lost.

        An election may have cut such a segment at ``offset``: what it has open at its end, or aborts behind the cut, was open
        there, and may have another end in the history that counts (simulation, cluster seed 800213).

        Raises:
            StoreError: they could not be read.
        """
        before = self._before(topic_id_partition, offset, lineage)
        if before is None:
            return ()
        try:
            return await self._states(before, offset)
        except (ObjectNotFoundError, CorruptDataError) as error:
            log.warning("segment.transactions.unknown", segment_id=str(before.remote_log_segment_id), error=str(error))
            return ()

    def _before(
        self, topic_id_partition: TopicIdPartition, offset: Offset, lineage: Lineage
    ) -> RemoteLogSegmentMetadata | None:
        """The segment that holds what comes right before ``offset``, and goes on past it the least; a whole one of ``lineage``
        before one that an election has cut."""
        epoch = lineage.epoch_for_offset(offset - 1) if offset else None
        if epoch is None:
            return None
        held = self._metadata.finished_segments_at(topic_id_partition, epoch, offset - 1)
        ours = [one for one in held if _is_ours_below(one, offset, lineage)]
        return min(ours, key=lambda one: (not one.is_within(lineage), one.end_offset), default=None)

    async def _states(self, before: RemoteLogSegmentMetadata, offset: Offset) -> _States:
        states = self._kept.get(before.remote_log_segment_id)
        if states is None:
            states = open_states(await self._blobs.read_producer_snapshot(before))
            self.keep(before, states)
        if before.next_offset == offset:
            return states
        return (*await self._ended_in_overlap(before, offset), *open_states(states, below=offset))

    async def _ended_in_overlap(self, before: RemoteLogSegmentMetadata, offset: Offset) -> _States:
        """Those that were open at ``offset`` and that ``before`` has aborted past it."""
        if before.txn_index_empty:
            return ()
        index = (await self._blobs.read_index_files(before)).transaction_index
        where = f"transaction index of {before.remote_log_segment_id}"
        return tuple(
            ProducerState(producer_id=one.producer_id, current_transaction_first_offset=one.first_offset)
            for one in read_transaction_index(index, base_offset=before.start_offset, where=where)
            if one.first_offset < offset <= one.last_offset
        )


def _is_ours_below(segment: RemoteLogSegmentMetadata, offset: Offset, lineage: Lineage) -> bool:
    """Whether what the segment has below ``offset``, which it reaches, is of that history."""
    epochs = tuple(one for one in segment.segment_leader_epochs if one.start_offset < offset)
    return lineage.contains_segment(epochs, offset - 1, NO_LOG_END)
