"""The remote log of a led compacted partition as its cleaner finds it: the chain of segments, and how far they are clean
(docs/design/0017-remote-compaction.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiersidecar.decide.cleaner_offsets import CleanerOffsets, decide_cleaner_offsets
from tiersidecar.decide.cleaning_chain import ChainView, CleaningChain, clean_up_to, decide_chain, horizons_due_by
from tiersidecar.decide.topics import TieredPartition
from tiersidecar.domain.cleaner import CleanerClaim
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.offsets import ByteRange, Lineage, Offset
from tiersidecar.domain.segments import LeaderView, RemoteLogSegmentMetadata
from tiersidecar.reading.hidden_segments import hidden_segments
from tiersidecar.tasks.edges import Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanLook:
    """The partition as one look found it.  ``known`` are the cleaner offsets that count; ``due_by_ms`` as
    :func:`horizons_due_by` has it; ``start_offset`` is the remote log start, -1 while it is not said."""

    lineage: Lineage
    segments: Sequence[RemoteLogSegmentMetadata]
    chain: CleaningChain
    known: CleanerOffsets
    due_by_ms: int | None
    start_offset: Offset

    @property
    def cleaner_offset(self) -> Offset | None:
        """Return it as far as it holds in this history, and the segments are those that were cleaned."""
        if self.known.cleaner_offset is None:
            return None
        last = self.known.accepted[-1]
        offset = self.lineage.as_of(self.known.cleaner_offset, last.leader_epoch)
        return clean_up_to(self.chain.segments, offset, last.segments)


class CleanLooks:
    """Looks at one partition at a time; the cleaner lane and trims of compacted topics share the rules."""

    def __init__(self, sources: Sources) -> None:
        self._metadata, self._state, self._lineages = sources.metadata, sources.state, sources.lineages

    async def look(self, partition: TieredPartition) -> CleanLook:
        """Look with both topics read to their ends: what a deposed leader finished late counts, too.

        Raises:
            BrokerRefusedError: another leader has copied or claimed something in a later epoch.  After an unclean election a
                former leader that is cut off from the controllers may still believe, and answer, that it leads.
        """
        topic_id_partition = partition.view.topic_id_partition
        await self._metadata.catch_up(topic_id_partition)
        await self._state.catch_up()
        lineage = await self._lineages.lineage(topic_id_partition)
        segments = tuple(self._metadata.list_remote_log_segments(topic_id_partition))
        known = self._state.cleaner_claims(topic_id_partition)
        _require_latest(partition.view, segments, known)
        asked = [ByteRange(one.start_offset, one.end_offset + 1) for one in self._state.recopies(topic_id_partition)]
        view = ChainView(
            segments=segments,
            trash=self._state.trash(topic_id_partition),
            lineage=lineage,
            start_offset=self._state.partition_state(topic_id_partition).start_in(lineage),
            asked=asked,
            hidden=hidden_segments(self._metadata, segments),
        )
        return CleanLook(
            lineage=lineage,
            segments=segments,
            chain=decide_chain(view),
            # An epoch may be none of the lineage because nothing was written in it.  One that was cut off has other segments
            # from there on, and its claim names its own.
            known=decide_cleaner_offsets(known),
            due_by_ms=horizons_due_by(view),
            start_offset=view.start_offset,
        )


def _require_latest(
    view: LeaderView, segments: Sequence[RemoteLogSegmentMetadata], claims: Sequence[CleanerClaim]
) -> None:
    copied = (one.segment_leader_epochs[-1].epoch for one in segments if one.segment_leader_epochs)
    if max([*copied, *(one.leader_epoch for one in claims)], default=view.leader_epoch) > view.leader_epoch:
        raise BrokerRefusedError(
            api="a look at the remote log", subject=str(view.topic_id_partition), error="FENCED_LEADER_EPOCH"
        )
