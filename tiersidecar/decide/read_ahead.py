"""How far a reader reads ahead: as far as the store's latency and the reader's own rate make it worth while (U3).

What is in flight has to cover the time that a fetch takes: latency times rate, as with the window of a connection.  More than
that wins nothing and holds memory that others want.  The usual time at the quietest moment of late counts.  Not the usual one
of all moments: where the bandwidth is used up, more in flight makes each fetch longer and none of them sooner.  Nor the
shortest of all: a cache in front of the store, or luck, answers a few fetches long before the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

_GAIN = 2
"""While the reader waits for the store, twice what its present rate needs is in flight: that is how the rate is found out."""
_CALM = 4
"""A reader that does not wait has up to so many times what its rate needs, if that is no more than unknown readers get: some
fetches take several times as long as others, and one that is late holds up all behind it."""
_KEPT = 0.75
"""A reader that does not wait keeps so much of its window in each round: the window may be what keeps it from waiting."""
_TRUST = 2
"""How many times what it has read a reader may have ahead: if it leaves, so much was fetched for nothing."""
_SHARE = 0.75
"""A reader takes at most so much of what the others leave.  All then have about equal windows, and there is always some room
for one more, even if the holders of windows have stopped reading."""
_PERIOD_S = 10.0
_BATCH = 16
"""So many fetches in a row are looked at together."""
_MOST_PROBE_S = 1.0


class WindowBound(StrEnum):
    """The limit that sets the size of a window."""

    UNKNOWN = "unknown"
    """Nothing has been measured yet."""
    PROOF = "proof"
    """The reader has not read enough to be trusted with more."""
    READER = "reader"
    """The reader takes no more: the store is ahead of it."""
    STORE = "store"
    """The store delivers no more."""
    MAXIMUM = "maximum"
    """The most that one reader may have."""
    MEMORY = "memory"
    """The memory of all readers together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAheadView:
    """One reader after one more chunk.

    ``unit_bytes`` is what a chunk counts as.  ``fetch_s`` is the usual time of a fetch; ``bytes_per_s`` the rate at
    which the reader has read on, and ``has_waited`` whether it waited for the store meanwhile; None: not known.
    ``window_bytes`` is its present window, ``read_bytes`` all that it has read.  ``first_bytes`` is the largest window of a
    reader of which nothing is known, and the least of one that waits; ``most_bytes`` is the largest of any;
    ``left_bytes`` is what the others have left of the memory for all.  While ``is_probing``, less than usual is in flight.
    ``is_round``: as much as a window had was read since the last time.
    """

    unit_bytes: int
    fetch_s: float | None
    bytes_per_s: float | None
    has_waited: bool
    window_bytes: int
    read_bytes: int
    first_bytes: int
    most_bytes: int
    left_bytes: int
    is_probing: bool
    is_round: bool = True


@dataclass(frozen=True, slots=True)
class Window:
    """A window in bytes, whole units, and what bounds it."""

    size_bytes: int
    bound: WindowBound


def decide_window(view: ReadAheadView) -> Window:
    """Return the window that the reader is to have from now on."""
    return min(_bounds(view), key=lambda window: window.size_bytes)


def _bounds(view: ReadAheadView) -> Iterator[Window]:
    """Yield each bound in whole units; of equal ones the first counts."""
    unit = view.unit_bytes
    yield _wanted(view)
    proved_bytes = max(_TRUST * view.read_bytes, view.first_bytes)
    yield Window(min(max(2 * view.window_bytes, unit), proved_bytes) // unit * unit, WindowBound.PROOF)
    yield Window(view.most_bytes // unit * unit, WindowBound.MAXIMUM)
    share_bytes = max(int(view.left_bytes * _SHARE), min(unit, view.left_bytes))
    yield Window(share_bytes // unit * unit, WindowBound.MEMORY)


def _wanted(view: ReadAheadView) -> Window:
    """Return ceil(latency x rate / unit) + 1 units; with the gain, and no less than the unknown get, while the reader waits for
    the store."""
    unit = view.unit_bytes
    if view.fetch_s is None or view.bytes_per_s is None:
        return Window(view.first_bytes // unit * unit, WindowBound.UNKNOWN)
    needed_bytes = view.fetch_s * view.bytes_per_s
    if not view.has_waited:
        calm_bytes = min(_CALM * needed_bytes, view.first_bytes - unit)
        needed_bytes = (ceil(max(needed_bytes, calm_bytes) / unit) + 1) * unit
        kept_bytes = int(view.window_bytes * (_KEPT if view.is_round else 1))
        return Window(max(needed_bytes, kept_bytes // unit * unit), WindowBound.READER)
    wanted_bytes = (ceil(_GAIN * needed_bytes / unit) + 1) * unit
    least_bytes = view.first_bytes
    if view.is_probing and wanted_bytes > least_bytes:
        # Less than fills the link, so that what waits in queues drains; the small windows of old queue nothing worth it.
        wanted_bytes, least_bytes = int(needed_bytes / 2), view.first_bytes // 2
    return Window(max(wanted_bytes, least_bytes, unit) // unit * unit, WindowBound.STORE)


class UsualTimes:
    """The usual time of a fetch at the quietest moment lately, by size.

    "Lately" is this period of ten seconds and the one before; of any sixteen fetches in a row the median counts, and of those
    the least.  Fetches that wait for each other are all too long; so each period begins with a moment in which every reader
    keeps less in flight than usual, until sixteen fetches that were begun in it have ended.
    """

    def __init__(self) -> None:
        self._period = 0
        self._last: dict[int, deque[float]] = {}
        self._now: dict[int, float] = {}
        self._before: dict[int, float] = {}
        self._probed = 0

    def add(self, size_bytes: int, elapsed_s: float, now_s: float) -> None:
        """Take a fetch of ``size_bytes`` that ended ``now_s`` into account."""
        self._turn(now_s)
        size = _class_of(size_bytes)
        last = self._last.setdefault(size, deque(maxlen=_BATCH))
        last.append(elapsed_s)
        usual_s = sorted(last)[(len(last) - 1) // 2]
        self._now[size] = usual_s if len(last) < _BATCH else min(usual_s, self._now.get(size, usual_s))
        if now_s - elapsed_s >= self._period * _PERIOD_S + 2 * (self.usual_s(size_bytes, now_s) or 0.0):
            self._probed += 1

    def usual_s(self, size_bytes: int, now_s: float) -> float | None:
        """Return the usual time of a fetch of about that size, or of the next larger one known, else of the largest."""
        self._turn(now_s)
        known = sorted(self._now.keys() | self._before.keys())
        if not known:
            return None
        size = next((one for one in known if one >= _class_of(size_bytes)), known[-1])
        return min(times[size] for times in (self._now, self._before) if size in times)

    def is_probing(self, size_bytes: int, now_s: float) -> bool:
        """Return whether this is the moment to keep less in flight."""
        self._turn(now_s)
        return (
            self._probed < _BATCH and now_s % _PERIOD_S < _MOST_PROBE_S and self.usual_s(size_bytes, now_s) is not None
        )

    def _turn(self, now_s: float) -> None:
        period = int(now_s // _PERIOD_S)
        if period == self._period:
            return
        self._before = self._now if period == self._period + 1 else {}
        self._now, self._probed = {}, 0
        self._last.clear()
        self._period = period


def _class_of(size_bytes: int) -> int:
    """Return a number that sizes within a factor of four share."""
    return size_bytes.bit_length() // 2


class ReadRate:
    """The rate at which one reader has read on, over its last round: as much as its window had."""

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._bytes = 0
        self._waited_s = 0.0
        self.bytes_per_s: float | None = None
        self.has_waited = False

    def add(self, size_bytes: int, *, waited_s: float, round_bytes: int, now_s: float) -> bool:
        """Count a chunk for which the reader has waited so long; return whether a round of ``round_bytes`` is complete."""
        self._bytes += size_bytes
        self._waited_s += waited_s
        elapsed_s = now_s - self._began_s
        if self._bytes < round_bytes or elapsed_s <= 0:
            return False
        self.bytes_per_s = self._bytes / elapsed_s
        self.has_waited = self._waited_s >= _WAITED * elapsed_s
        self._began_s, self._bytes, self._waited_s = now_s, 0, 0.0
        return True


_WAITED = 0.05
"""Share of its time that a reader waits for the store before that counts as waiting."""
