"""How often a read looks again where the tiers meet."""

from __future__ import annotations

BORDER_LOOKS = 3
"""Looks of a read that gets no further: what was local a moment ago may have been trimmed, or the history has changed."""


class BorderMoves:
    """Counts the looks of a stream.  With the records that it has got since the last one the count begins anew: of a compacted
    topic a read goes over where the broker's log begins, and trims overtake a slow one there each time."""

    def __init__(self) -> None:
        self._left, self._offset = 0, -1

    def may_look_again(self, offset: int) -> bool:
        """Return whether the stream, which has come to ``offset``, may."""
        if offset > self._offset:
            self._left, self._offset = BORDER_LOOKS, offset
        self._left -= 1
        return self._left > 0
