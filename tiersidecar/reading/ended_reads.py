"""Where bounded reads have ended, so that one that goes on there begins at that very byte: without the index, and without the
batches between an index entry and what is wanted (S-143, U4)."""

from __future__ import annotations

from collections import OrderedDict

from tiersidecar.domain.ids import RemoteLogSegmentId

_MOST_PLACES = 1024


class EndedReads:
    """Remembers the last of them, by the offset that follows what they returned."""

    def __init__(self, most_places: int = _MOST_PLACES) -> None:
        self._most_places = most_places
        self._positions: OrderedDict[tuple[RemoteLogSegmentId, int], int] = OrderedDict()

    def add(self, segment_id: RemoteLogSegmentId, next_offset: int, position: int) -> None:
        """A read has returned all batches below ``next_offset``, and the batch that it did not take begins at byte ``position``
        of the .log."""
        place = (segment_id, next_offset)
        self._positions[place] = position
        self._positions.move_to_end(place)
        if len(self._positions) > self._most_places:
            self._positions.popitem(last=False)

    def position_of(self, segment_id: RemoteLogSegmentId, offset: int) -> int | None:
        """Where the first batch whose last offset is ``offset`` or above begins, if a read has ended there."""
        return self._positions.get((segment_id, offset))

    def forget(self, segment_id: RemoteLogSegmentId) -> None:
        """Something of this segment was found broken."""
        for place in [place for place in self._positions if place[0] == segment_id]:
            del self._positions[place]
