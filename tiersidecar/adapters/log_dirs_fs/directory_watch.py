"""File events: which directories are worth reading again, soon after segments came or went."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress

import structlog
from asyncinotify import Event, Inotify, Mask, Watch

from tiersidecar.formats.kafka.log_dir_files import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA
from tiersidecar.ports.clock import Clock

_log = structlog.get_logger(__name__)

_NAMES = Mask.CREATE | Mask.MOVED_TO | Mask.DELETE
_LOG_DIR = _NAMES | Mask.ONLYDIR
_PARTITION = _NAMES | Mask.MOVE_SELF | Mask.ONLYDIR
"""No MODIFY: every append would be an event.  MOVE_SELF reports that the broker renamed the directory (for deletion, say) and
that its path may soon be another's."""
_ADDED_AT_ONCE = 64
_EVENTS_AT_ONCE = 256
_LIMITS = {
    errno.ENOSPC: "fs.inotify.max_user_watches is used up",
    errno.EMFILE: "fs.inotify.max_user_instances, or the process's descriptors, are used up",
    errno.ENFILE: "the machine has no descriptors left",
}


class DirectoryWatch:
    """Watches log dirs for partitions, and partition directories for segments; one reader of :meth:`changes` at a time.

    Where the kernel's limits allow no (more) watches, that is logged once, and what is not watched is left to scans.
    :meth:`take` returns what there is to read again.
    """

    def __init__(self, log_dirs: Iterable[str], *, clock: Clock, debounce_s: float) -> None:
        self._log_dirs, self._clock, self._debounce_s = frozenset(log_dirs), clock, debounce_s
        self._partitions: frozenset[str] = frozenset()
        self._watches: dict[str, Watch] = {}
        self._is_reading = False
        self._touched: set[str] = set()
        self._unknown = set(self._log_dirs)
        self._doubted = set[str]()
        """Log dirs in which a path that is watched may be another directory's by now, which no event reports."""
        self._stirred = asyncio.Event()
        self._changed = False
        self._has_warned = False

    def want(self, directories: Iterable[str]) -> None:
        """Watch these partition directories from now on, and no others."""
        self._partitions = frozenset(directories)
        self._stirred.set()

    def take(self, log_dir: str) -> frozenset[str] | None:
        """Return the partition directories of ``log_dir`` in which something came or went since the last call, and those that
        are not watched; None where anything may have, so that all of them are to be read."""
        found = {one for one in self._touched | (self._partitions - self._watches.keys()) if _parent(one) == log_dir}
        self._touched -= found
        is_known = self._is_reading and log_dir in self._watches and log_dir not in self._unknown
        self._unknown.discard(log_dir)
        return frozenset(found) if is_known else None

    async def changes(self) -> AsyncIterator[None]:
        """Yield when something came or went, all that happens within the debounce time as one."""
        try:
            inotify = Inotify(cache_size=_EVENTS_AT_ONCE)
        except OSError as error:
            self._warn(error)
            await asyncio.Event().wait()
            return
        self._watches = {}
        self._unknown.update(self._log_dirs)
        self._stirred.set()
        with inotify:
            reading = asyncio.create_task(self._read_events(inotify), name="read file events")
            reading.add_done_callback(lambda _: self._stirred.set())
            self._is_reading = True
            try:
                while True:
                    await self._stirred.wait()
                    self._stirred.clear()
                    if reading.done():
                        reading.result()
                    await self._adjust(inotify)
                    if self._changed:
                        await self._clock.sleep(self._debounce_s)
                        self._changed = False
                        yield
            finally:
                self._is_reading = False
                reading.cancel()
                await asyncio.wait([reading])

    async def _adjust(self, inotify: Inotify) -> None:
        """Add and remove watches.  Something may have come before the first watch of its directory: that is a change."""
        for directory in self._watches.keys() - self._partitions - self._log_dirs:
            self._remove(inotify, self._watches.pop(directory))
        # A log dir may have been mounted over its mount point since: ask for its watch anew each time, which is the same
        # one if the directory is.
        if not await self._add_all(inotify, sorted(self._log_dirs)):
            return
        doubted, self._doubted = self._doubted, set()
        # The same holds for what is watched in a log dir that is another now, or of which events were dropped.
        await self._add_all(inotify, sorted(one for one in self._watches if _parent(one) in doubted))
        await self._add_all(inotify, sorted(self._partitions - self._watches.keys()))

    async def _add_all(self, inotify: Inotify, directories: Iterable[str]) -> bool:
        """Add watches, and return whether a limit stopped none: what is watched already takes no more."""
        for count, directory in enumerate(directories, 1):
            is_new = directory not in self._watches
            try:
                self._add(inotify, directory)
            except OSError as error:
                if error.errno in _LIMITS:
                    self._warn(error)
                    if is_new:
                        return False
                # Gone or unreadable: the scan says what is wrong with it.
            if count % _ADDED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return True

    def _add(self, inotify: Inotify, directory: str) -> None:
        """Add a watch.  What cannot be watched any more is not watched, rather than what had its path before."""
        before = self._watches.pop(directory, None)
        try:
            watch = inotify.add_watch(directory, _LOG_DIR if directory in self._log_dirs else _PARTITION)
        except OSError:
            if before is not None:
                self._remove(inotify, before)
            raise
        self._watches[directory] = watch
        if watch is before:
            return
        self._note(directory)
        self._changed = True
        if directory in self._log_dirs:
            self._doubted.add(directory)
        if before is not None:
            self._remove(inotify, before)

    def _remove(self, inotify: Inotify, watch: Watch) -> None:
        with suppress(OSError):  # the kernel drops it with its directory
            inotify.rm_watch(watch)

    async def _read_events(self, inotify: Inotify) -> None:
        async for event in inotify:
            self._forget_if_gone(inotify, event)
            if event.mask & Mask.Q_OVERFLOW:
                self._unknown.update(self._log_dirs)
                self._doubted.update(self._log_dirs)
            elif not _shows_in_a_scan(event):
                continue
            elif event.watch is not None:
                self._note(str(event.watch.path))
            if not _is_the_end_of_a_deleted_segment(event):
                self._changed = True
                self._stirred.set()

    def _note(self, directory: str) -> None:
        (self._unknown if directory in self._log_dirs else self._touched).add(directory)

    def _forget_if_gone(self, inotify: Inotify, event: Event) -> None:
        watch = event.watch
        if watch is None or not event.mask & (Mask.IGNORED | Mask.MOVE_SELF):
            return
        if self._watches.get(str(watch.path)) is watch:
            del self._watches[str(watch.path)]
            self._stirred.set()
        if event.mask & Mask.MOVE_SELF:
            self._remove(inotify, watch)

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            reason = _LIMITS.get(error.errno or 0, str(error))
            _log.warning("log_dirs.watch.limited", reason=f"{reason}: changes show at the periodic scan only")


def _parent(directory: str) -> str:
    return directory.rpartition("/")[0]


def _shows_in_a_scan(event: Event) -> bool:
    """Return whether a scan could find something else than before."""
    if event.mask & (Mask.IGNORED | Mask.MOVE_SELF) or event.name is None or event.watch is None:
        return False
    if not event.watch.mask & Mask.MOVE_SELF:  # a log dir: the checkpoints in it are rewritten every few seconds
        return bool(event.mask & Mask.ISDIR)
    name = str(event.name)
    return name in (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA) or name.endswith((".log", ".snapshot", ".log.deleted"))


def _is_the_end_of_a_deleted_segment(event: Event) -> bool:
    """Return whether the broker unlinks what it has renamed a minute ago: nothing waits for that."""
    return bool(event.mask & Mask.DELETE) and str(event.name).endswith(".log.deleted")
