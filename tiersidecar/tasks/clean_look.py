"""The remote log of a led compacted partition as its cleaner finds it: the chain of segments, and how far they are clean
(docs/design/0017-remote-compaction.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiersidecar.decide.cleaner_offsets import CleanerOffsets, decide_cleaner_offsets
from tiersidecar.decide.cleaning_chain import ChainView, CleaningChain, clean_up_to, decide_chain, horizons_due_by
from tiersidecar.decide.expiry_standing import Standing, standings
from tiersidecar.decide.topics import TieredPartition
from tiersidecar.domain.cleaner import CleanerClaim, short_name
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_OFFSET, ByteRange, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.reading.hidden_segments import hidden_segments
from tiersidecar.tasks.edges import Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanLook:
    """The partition as one look found it.  ``known`` are the cleaner offsets that count; ``due_by_ms`` as
    :func:`horizons_due_by` has it; ``start_offset`` is the remote log start, -1 while it is not said; ``claims`` are all that
    there are."""

    lineage: Lineage
    segments: Sequence[RemoteLogSegmentMetadata]
    chain: CleaningChain
    known: CleanerOffsets
    due_by_ms: int | None
    start_offset: Offset
    claims: Sequence[CleanerClaim] = ()

    @property
    def parted_at(self) -> Offset | None:
        """Return the first offset of this history in whose place a cleaner had other records when it cleaned what is before
        it, and still there; None where there is none.

        What is remote is below the high watermark, so only an unclean election cuts it off.  The new leader's log still has the
        values that those records had replaced, and the remote log does not.  Copied again it has them: so a claim counts only
        for segments that it names.  A later round gives these other names, and so its own claim says it again.
        """
        return min((cut for one in self.claims if (cut := self._cut_at(one)) is not None), default=None)

    def is_parting_noted(self, leader_epoch: LeaderEpoch) -> bool:
        """Return whether a claim of this epoch says it, or there is nothing to say."""
        return self.parted_at is None or any(
            one.leader_epoch == leader_epoch and one.parted_at is not None for one in self.claims
        )

    def _cut_at(self, claim: CleanerClaim) -> Offset | None:
        if claim.offset is None:
            return None
        cuts = [] if claim.parted_at is None else [claim.parted_at]
        reach = max(claim.offset, claim.offset if claim.reach is None else claim.reach)
        if (held := self.lineage.as_of(reach, claim.leader_epoch)) < reach:
            cuts.append(held)
        names = frozenset(claim.segments)
        if claim.leader_epoch not in {entry.epoch for entry in self.lineage.entries}:
            # Nothing was written in it, or a leader of an earlier one has come back: then what it had is of no history.
            had = [one for one in self.segments if _name(one) in names]
            cuts += [_parts_at(one) for one in standings(had, self.lineage) if not one.is_valid]
        cut = min(cuts, default=NO_OFFSET)
        below = (one for one in (*self.chain.segments, *self.chain.twins) if one.start_offset < cut)
        return cut if any(_name(one) in names for one in below) else None

    @property
    def cleaner_offset(self) -> Offset | None:
        """Return it as far as it holds in this history, and the segments are those that were cleaned."""
        if self.known.cleaner_offset is None:
            return None
        last = self.known.accepted[-1]
        offset = self.lineage.as_of(self.known.cleaner_offset, last.leader_epoch)
        return clean_up_to(self.chain.segments, offset, last.segments)


def _name(segment: RemoteLogSegmentMetadata) -> str:
    return short_name(segment.remote_log_segment_id.uuid)


def _parts_at(foreign: Standing) -> Offset:
    """Return its first offset that is of another history."""
    start = foreign.segment.start_offset
    return Offset(next((stop for first, stop in foreign.served[:1] if first == start), start))


@dataclass(frozen=True, slots=True, kw_only=True)
class NearLook:
    """Some offsets as one look found them: ``segments`` hold any of them, and ``chain`` is the part of these that may be
    cleaned; ``start_offset`` is the remote log start, -1 while it is not said."""

    segments: Sequence[RemoteLogSegmentMetadata]
    chain: CleaningChain
    start_offset: Offset


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
        owner, lineage = partition.view.topic_id_partition, await self._caught_up(partition)
        segments, claims = tuple(self._metadata.list_remote_log_segments(owner)), self._state.cleaner_claims(owner)
        view = self._chain_view(owner, segments, lineage)
        return CleanLook(
            lineage=lineage,
            segments=segments,
            chain=decide_chain(view),
            # An epoch may be none of the lineage because nothing was written in it.  One that was cut off has other segments
            # from there on, and its claim names its own.
            known=decide_cleaner_offsets(claims),
            due_by_ms=horizons_due_by(view),
            start_offset=view.start_offset,
            claims=claims,
        )

    async def look_near(self, partition: TieredPartition, offsets: ByteRange) -> NearLook:
        """Look at what holds any of ``offsets``, and at nothing else: a round looks twice for each segment that it swaps.

        What has come to lie before them since the round began is for the next round: a claim names the segments that it rests
        on.

        Raises:
            BrokerRefusedError: as of :meth:`look`.
        """
        owner, lineage = partition.view.topic_id_partition, await self._caught_up(partition)
        segments = self._metadata.segments_with(owner, offsets)
        view = self._chain_view(owner, segments, lineage)
        return NearLook(segments=segments, chain=decide_chain(view), start_offset=view.start_offset)

    async def _caught_up(self, partition: TieredPartition) -> Lineage:
        owner = partition.view.topic_id_partition
        await self._metadata.catch_up(owner)
        await self._state.catch_up()
        lineage = await self._lineages.lineage(owner)
        claimed = (one.leader_epoch for one in self._state.cleaner_claims(owner))
        if max([self._metadata.latest_leader_epoch(owner), *claimed]) > partition.view.leader_epoch:
            raise BrokerRefusedError(api="a look at the remote log", subject=str(owner), error="FENCED_LEADER_EPOCH")
        return lineage

    def _chain_view(
        self, owner: TopicIdPartition, segments: Sequence[RemoteLogSegmentMetadata], lineage: Lineage
    ) -> ChainView:
        return ChainView(
            segments=segments,
            trash=self._state.trash(owner),
            lineage=lineage,
            start_offset=self._state.partition_state(owner).start_in(lineage),
            asked=[ByteRange(one.start_offset, one.end_offset + 1) for one in self._state.recopies(owner)],
            hidden=hidden_segments(self._metadata, segments),
        )
