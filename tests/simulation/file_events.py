"""Log dirs as a sidecar sees them: the real scans, and file events that come at once, late or not at all."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from enum import StrEnum

from tests.simulation.chances import Chances
from tiersidecar.adapters.log_dirs_fs.directory_watch import DirectoryWatch
from tiersidecar.adapters.log_dirs_fs.log_dirs import FilesystemLogDirs
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.log_dirs import LogDirsView


class FileEvents(StrEnum):
    """Times at which the file events of partition directories come.  ``AT_ONCE``: every look reads all, and finds what has
    changed.  ``LATE``: most come one to :data:`MOST_LOOKS_LATE` looks later.  ``NEVER``: as where another machine writes the
    files.

    Whatever they do, all is read every 30 s, and twice once another leader is known (docs/design/0021): that is left to the
    product's own reader of log dirs, and is the latest at which a change shows.
    """

    AT_ONCE = "at once"
    LATE = "late"
    NEVER = "never"


MOST_LOOKS_LATE = 6
"""Number of looks from one whole scan to the next."""
_LATE_RATE = 0.8


class SimulatedFileEvents(DirectoryWatch):
    """Directories that events report, look by look; they wake no reader.  Each that is late is a fault.

    A log dir's own events are never late.  What a scan has found without an event is reported at the next look: else the
    product would doubt all events for an hour, and few in a run would be late.
    """

    def __init__(
        self, log_dirs: Sequence[str], *, clock: Clock, events: FileEvents, chances: Chances, process: str
    ) -> None:
        super().__init__(log_dirs, clock=clock, debounce_s=0.0)
        self._events, self._chances, self._place = events, chances, f"{process} late file event"
        self._has_reader = False
        self._changed_ns: dict[str, dict[str, int]] = {}
        self._looks_left: dict[str, int] = {}

    async def changes(self) -> AsyncIterator[None]:
        self._has_reader = True
        try:
            await asyncio.Event().wait()
            yield None
        finally:
            self._has_reader = False

    def take(self, log_dir: str) -> frozenset[str] | None:
        if not self._has_reader or self._events is FileEvents.AT_ONCE:
            return None
        before, now = self._changed_ns.get(log_dir, {}), _changed_ns(log_dir)
        self._changed_ns[log_dir] = now
        if now.keys() != before.keys():
            return None
        if self._events is FileEvents.NEVER:
            return frozenset()
        for directory in now:
            looks = self._looks_left.get(directory, -1)
            if now[directory] != before[directory] and looks != 0:  # what is under way already comes with it
                self._looks_left[directory] = max(self._lateness(), looks)
        reported = frozenset(one for one, looks in self._looks_left.items() if not looks)
        self._looks_left = {one: looks - 1 for one, looks in self._looks_left.items() if looks}
        return reported

    def found(self, directories: Iterable[str]) -> None:
        """Note that a scan has found something else in these."""
        self._looks_left |= {one: 0 for one in directories if one in self._looks_left}

    def _lateness(self) -> int:
        if not self._chances.strikes(self._place, _LATE_RATE):
            return 0
        return int(self._chances.between(f"{self._place} by", 1, MOST_LOOKS_LATE + 1))


def _changed_ns(log_dir: str) -> dict[str, int]:
    """Return when something last came or went in each directory."""
    with os.scandir(log_dir) as entries:
        return {
            entry.path: entry.stat().st_mtime_ns
            for entry in sorted(entries, key=lambda one: one.name)
            if entry.is_dir()
        }


class WatchedLogDirs(FilesystemLogDirs):
    """The real ones, but for inotify; where nothing has changed the view is the same object."""

    def __init__(
        self, log_dirs: Sequence[str], *, blocking: Blocking, clock: Clock, events: SimulatedFileEvents
    ) -> None:
        super().__init__(log_dirs, blocking=blocking, clock=clock)
        self._watch = self._events = events
        self._last_view: LogDirsView | None = None

    async def scan_changed(self) -> LogDirsView:
        view, last = await super().scan_changed(), self._last_view
        if last is not None and view == last:
            return last
        before = {} if last is None else last.partitions
        self._events.found(one.directory for key, one in view.partitions.items() if before.get(key) is not one)
        self._last_view = view
        return view
