"""Segments of one leader epoch, by offset (Kafka's RemoteLogLeaderEpochState).

Referenced are the finished segments whose span in this epoch lies within no other finished one's; so their starts and ends
both ascend, and one bisection finds the segment of an offset.  A finished segment that another one covers is superseded:
listed, not read (S-099, T-68).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from tiersidecar.domain.metadata_cache_rows import EpochImage

Run = tuple[int, int]
"""Offsets that finished segments hold without a hole: start inclusive, stop exclusive."""


class EpochSegments:
    """Row numbers of :class:`~tiersidecar.domain.metadata_cache_rows.SegmentRows`, ordered for one epoch.

    Spans are inclusive at both ends.  Where Kafka is order-dependent (a late, smaller copy of a deposed leader displaces the
    larger one there, and the offsets beyond it are no longer found) the larger span wins here in every order.
    """

    __slots__ = ("_runs", "_superseded", "ends", "highest_offset", "rows", "starts")

    def __init__(self) -> None:
        self.starts = array("q")
        self.ends = array("q")
        self.rows = array("I")
        self.highest_offset: int | None = None
        """Highest offset ever finished: deletion does not lower it (T-67)."""
        self._superseded: set[int] | None = None  # an empty set has the size of three segments
        self._runs: tuple[Run, ...] | None = None  # found at the first call, then updated where that is cheap

    @property
    def superseded(self) -> frozenset[int]:
        """Finished rows that another one covers: listed, not read."""
        return frozenset(self._superseded or ())

    def finish(self, row: int, start: int, end: int) -> None:
        """Let row ``row`` be read from ``start`` to ``end``; of two equal spans the later one counts, as in Kafka."""
        if self.highest_offset is None or end > self.highest_offset:
            self.highest_offset = end
        if end >= start and (not self.starts or (start > self.starts[-1] and end > self.ends[-1])):
            if self._runs is not None:
                self._runs = _extended(self._runs, start, end + 1)
            self.starts.append(start)
            self.ends.append(end)
            self.rows.append(row)
        else:
            self._place(row, start, end)

    def withdraw(self, row: int, start: int) -> bool:
        """Begin the deletion of row ``row``.  Return whether superseded rows may now be read again: see :meth:`restore`."""
        self._uncover(row)
        at = bisect_left(self.starts, start)
        if at == len(self.rows) or self.rows[at] != row:
            return False
        del self.starts[at], self.ends[at], self.rows[at]
        self._runs = _begun_at(self._runs, self.starts[0] if self.starts else None) if at == 0 else None
        return self._superseded is not None

    def restore(self, row: int, start: int, end: int) -> None:
        """Reference a superseded row again, unless another one still covers it: what a finished segment holds stays
        readable until its own deletion starts."""
        self._uncover(row)
        self._place(row, start, end)

    def find(self, offset: int) -> int | None:
        """Return the row whose span holds ``offset``."""
        at = bisect_right(self.starts, offset) - 1
        return self.rows[at] if at >= 0 and offset <= self.ends[at] else None

    def all_at(self, offset: int) -> Iterator[int]:
        """Yield the rows that may be read whose spans hold ``offset``: first the one of :meth:`find`."""
        first, stop = bisect_left(self.ends, offset), bisect_right(self.starts, offset)
        return reversed(self.rows[first:stop])

    def at_or_after(self, offset: int) -> Iterator[int]:
        """Yield rows with anything at or after ``offset``, ascending."""
        return iter(self.rows[bisect_left(self.ends, offset) :])

    def runs(self) -> tuple[Run, ...]:
        """Return the offsets that finished segments hold without a hole: start (inclusive) and stop (exclusive), ascending."""
        if self._runs is None:
            behind_holes = [at + 1 for at, start in enumerate(self.starts[1:]) if start > self.ends[at] + 1]
            firsts = [0, *behind_holes] if self.starts else []
            lasts = [at - 1 for at in (*behind_holes, len(self.starts))]
            self._runs = tuple(
                (self.starts[first], self.ends[last] + 1) for first, last in zip(firsts, lasts, strict=False)
            )
        return self._runs

    def finished_rows(self) -> list[int]:
        """Return every finished row of this epoch, those that may be read first (T-68)."""
        return [*self.rows, *sorted(self.superseded)]

    def renumber(self, new_numbers: dict[int, int]) -> None:
        """Renumber the rows: ``new_numbers`` has the new number of each."""
        self.rows = array("I", [new_numbers[row] for row in self.rows])
        self._superseded = {new_numbers[row] for row in self.superseded} or None

    def image(self, epoch: int) -> EpochImage:
        """Return a copy of all of it."""
        return EpochImage(
            epoch=epoch,
            highest_offset=self.highest_offset,
            starts=self.starts[:],
            ends=self.ends[:],
            rows=self.rows[:],
            superseded=tuple(sorted(self.superseded)),
        )

    @classmethod
    def from_image(cls, image: EpochImage) -> EpochSegments:
        """Return the segments of :meth:`image`.

        Raises:
            ValueError: the columns differ in length.
        """
        if not len(image.starts) == len(image.ends) == len(image.rows):
            raise ValueError(f"{len(image.starts)} starts, {len(image.ends)} ends, {len(image.rows)} rows")
        segments = cls()
        segments.starts, segments.ends, segments.rows = image.starts[:], image.ends[:], image.rows[:]
        segments._superseded = set(image.superseded) or None
        segments.highest_offset = image.highest_offset
        return segments

    def _place(self, row: int, start: int, end: int) -> None:
        """Put the span in its place, superseding those it covers, unless a present one covers it.

        A span that ends before it starts (epochs out of order, by a foreign writer) is listed and never read.
        """
        before = bisect_right(self.starts, start) - 1
        is_equal = before >= 0 and (self.starts[before], self.ends[before]) == (start, end)
        if end < start or (before >= 0 and self.ends[before] >= end and not is_equal):
            self._cover((row,))
            return
        self._runs = None
        first, stop = bisect_left(self.starts, start), bisect_right(self.ends, end)
        if stop > first:
            self._cover(self.rows[first:stop])
            del self.starts[first:stop], self.ends[first:stop], self.rows[first:stop]
        self._uncover(row)
        self.starts.insert(first, start)
        self.ends.insert(first, end)
        self.rows.insert(first, row)

    def _cover(self, rows: Iterable[int]) -> None:
        self._superseded = (self._superseded or set()).union(rows)

    def _uncover(self, row: int) -> None:
        if self._superseded is not None:
            self._superseded.discard(row)
            self._superseded = self._superseded or None


def _extended(runs: tuple[Run, ...], start: int, stop: int) -> tuple[Run, ...]:
    """Return ``runs`` with a span behind all others."""
    if runs and start <= runs[-1][1]:
        return (*runs[:-1], (runs[-1][0], stop))
    return (*runs, (start, stop))


def _begun_at(runs: tuple[Run, ...] | None, start: int | None) -> tuple[Run, ...] | None:
    """Return ``runs`` without the first segment, which retention takes: ``start`` is the next one's, None if there is none."""
    if runs is None or start is None:
        return None if runs is None else ()
    first, *others = runs
    return ((start, first[1]), *others) if start < first[1] else tuple(others)
