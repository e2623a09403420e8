"""Offsets below the copied one that only the broker still holds: nobody has given them up, so they are copied too.

A former release passed over segments that were past their retention at the time, and a typing error may have made them so.
"""

from __future__ import annotations

from functools import partial

from tiersidecar.decide.pin import is_remote
from tiersidecar.domain.epochs import Lineage
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import ByteRange, Offset
from tiersidecar.domain.segments import LocalSegment
from tiersidecar.ports.metadata_log import MetadataView
from tiersidecar.reading.segment_lookup import agreed_stop


class LocalHoles:
    """Remembers what was found until anything changes that it depends on: a plan is made for each copy."""

    def __init__(self, metadata: MetadataView) -> None:
        self._metadata = metadata
        self._known: dict[TopicIdPartition, tuple[object, tuple[ByteRange, ...]]] = {}
        self._filled: dict[TopicIdPartition, set[Offset]] = {}

    def find(
        self,
        tip: TopicIdPartition,
        segments: tuple[LocalSegment, ...],
        lineage: Lineage,
        copied_offset: int,
        start_offset: int,
    ) -> tuple[ByteRange, ...]:
        """Of sealed segments at or above ``start_offset`` and not above ``copied_offset``; pins have their own rule."""
        asked = [
            one
            for one in segments
            if not one.pinned
            and one.next_base_offset is not None
            and start_offset < one.next_base_offset <= copied_offset + 1
        ]
        if not asked or not lineage:
            return ()
        depends = (self._metadata.segment_count(tip), lineage, start_offset, asked[0].base_offset, len(asked))
        known = self._known.get(tip)
        if known is None or known[0] != depends:
            known = (depends, self._look(tip, asked, lineage, start_offset))
            self._known[tip] = known
        return known[1]

    def fill(self, tip: TopicIdPartition, segment: LocalSegment) -> None:
        """``segment`` is remote now: what is still not found of it another copy would not bring either."""
        self._filled.setdefault(tip, set()).add(segment.base_offset)

    def readable_stop(self, tip: TopicIdPartition, lineage: Lineage, copied_offset: int) -> int:
        """Up to where readers go on from ``copied_offset`` in segments of another history, whose front is of this one too."""
        offset = copied_offset + 1
        while True:
            epoch = lineage.epoch_for_offset(offset)
            found = None if epoch is None else self._metadata.remote_log_segment_metadata(tip, epoch, offset)
            if found is None:
                return offset
            offset = max(agreed_stop(found, lineage, offset), offset + 1)

    def _look(
        self, tip: TopicIdPartition, asked: list[LocalSegment], lineage: Lineage, start_offset: int
    ) -> tuple[ByteRange, ...]:
        segments_at, filled = partial(self._metadata.finished_segments_at, tip), self._filled.get(tip, set())
        first_known = lineage.entries[0].start_offset
        return tuple(
            ByteRange(one.base_offset, one.next_base_offset)
            for one in asked
            if one.next_base_offset is not None
            and one.next_base_offset > first_known
            and one.base_offset not in filled
            and not is_remote(lineage, segments_at, one, from_offset=start_offset)
        )
