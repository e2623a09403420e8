"""Where small reads have begun and ended, so that one that goes on there is told from one at a random offset (U4, U19)."""

from __future__ import annotations

from collections import OrderedDict

from tiersidecar.domain.ids import RemoteLogSegmentId

_BLOCK_BYTES = 16 * 1024
_MOST_PLACES = 512
"""Of 256 readers.  The more are remembered, the more reads at random offsets are taken for others that go on."""


class BegunReads:
    """Remembers the places, to 16 KiB, at which the last reads began and ended."""

    def __init__(self) -> None:
        self._places: OrderedDict[tuple[RemoteLogSegmentId, int], None] = OrderedDict()

    def add(self, segment_id: RemoteLogSegmentId, position: int) -> None:
        """A read has begun or ended at byte ``position`` of the .log."""
        place = (segment_id, position // _BLOCK_BYTES)
        self._places[place] = None
        self._places.move_to_end(place)
        if len(self._places) > _MOST_PLACES:
            self._places.popitem(last=False)

    def reads_on(self, segment_id: RemoteLogSegmentId, position: int) -> bool:
        """Whether a read from byte ``position`` on is one that comes back, or goes on where another has ended: it begins at
        the index entry before that."""
        block = position // _BLOCK_BYTES
        return (segment_id, block) in self._places or (segment_id, block + 1) in self._places
