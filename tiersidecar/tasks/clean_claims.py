"""What a cleaner of a partition claims: up to where it is clean, and by which segments (docs/design/0017)."""

from __future__ import annotations

from collections.abc import Iterable

from tiersidecar.decide.cleaner_offsets import CleanerOffsets
from tiersidecar.domain.cleaner import MOST_CLAIMS, CleanerClaim, short_name
from tiersidecar.domain.offsets import NO_OFFSET, Offset
from tiersidecar.domain.segments import LeaderView, RemoteLogSegmentMetadata
from tiersidecar.ports.state_records import RequestingStateLog


class Claims:
    """Claims of a chunk as to how far the partition is clean.  ``given`` are the segments of the chain as they are now, by
    start offset; ``reach`` is the end of the map, ``parted_at`` is as in :class:`~tiersidecar.domain.cleaner.CleanerClaim`.

    Segments that one map has gone over are clean as far as they follow each other from the beginning of the chain: each value
    in them that a later record of the map replaces is gone, and each tombstone has its horizon.  So that far may be claimed
    before the chunk is done, and the next round's map begins there."""

    def __init__(
        self,
        state: RequestingStateLog,
        view: LeaderView,
        known: CleanerOffsets,
        chain: Iterable[RemoteLogSegmentMetadata],
        *,
        reach: Offset = NO_OFFSET,
        parted_at: Offset | None = None,
    ) -> None:
        self._state, self._view, self._known = state, view, known
        self._parted_at = parted_at
        self._chain = tuple(chain)
        self.given = {one.start_offset: one for one in self._chain}
        self._done, self._ended = set[Offset](), 0
        epoch = view.leader_epoch
        own = [one for one in known.accepted if one.leader_epoch == epoch]
        self._revision = max((one.revision for one in own), default=0)
        self._reach = max([reach, *(one.reach for one in own if one.reach is not None)])

    def note_done(self, old: RemoteLogSegmentMetadata, new: RemoteLogSegmentMetadata | None) -> None:
        """Note that the chunk's map has gone over ``old``, in whatever order, and that ``new``, where there is one, is in its
        place."""
        if new is not None:
            self.given[old.start_offset] = new
        self._pass(old)

    def note_given_up(self, old: RemoteLogSegmentMetadata) -> None:
        """Note that ``old`` is below the remote log start by now."""
        self.given.pop(old.start_offset, None)
        self._pass(old)

    def _pass(self, old: RemoteLogSegmentMetadata) -> None:
        self._done.add(old.start_offset)
        while self._ended < len(self._chain) and self._chain[self._ended].start_offset in self._done:
            self._ended += 1

    def done_to(self, map_end: Offset) -> Offset:
        """Return up to where the segments are done without a gap, and the map reaches; -1 where not even the first one is."""
        return min(self._chain[self._ended - 1].next_offset, map_end) if self._ended else NO_OFFSET

    async def publish(self, cleaner_offset: Offset) -> None:
        """Publish the claim, with the names of the segments below; durable when this returns."""
        self._revision += 1
        found = {**self._known.offsets, self._view.leader_epoch: cleaner_offset}
        below = [self.given[start] for start in sorted(self.given) if start < cleaner_offset]
        claim = CleanerClaim(
            leader_epoch=self._view.leader_epoch,
            offsets={epoch: found[epoch] for epoch in sorted(found)[-MOST_CLAIMS:]},
            revision=self._revision,
            segments=tuple(short_name(one.remote_log_segment_id.uuid) for one in below),
            reach=self._reach if self._reach > cleaner_offset else None,
            parted_at=self._parted_at,
        )
        await self._state.publish_cleaner_claim(self._view.topic_id_partition, claim)
