"""The file that becomes an object: written aside, made durable, then given its name in one step.

All functions here block and run in threads.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_IMODE, S_ISDIR, S_ISGID

from tiersidecar.adapters.short_turns import NativeTurns, short_turns
from tiersidecar.adapters.stores.file_writes import WRITE_BACK_BYTES, FileWrites
from tiersidecar.domain.errors import LogDirError, SegmentChangedError
from tiersidecar.formats import native
from tiersidecar.formats.native import TurnReader
from tiersidecar.ports.store import Buffer, SourceFile

SLICE_BYTES = 16 * 1024 * 1024
"""Most bytes copied in one call: how long a cancellation waits (10 ms on a quiet disk)."""
_CACHED_BYTES = 1024 * 1024
_ASKED_AHEAD_BYTES = 2 * WRITE_BACK_BYTES
_ASKED_AT_ONCE = 256 * 1024
"""Of more, the kernel brings no more than its read-ahead, or the largest request of the disk, and says nothing."""

_NAMING_ATTEMPTS = 64

_MODES_ARE_THE_MOUNTS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
"""Mounts (CIFS, some FUSE) that give every file the same mode and refuse a change."""


@dataclass(frozen=True, slots=True)
class ObjectModes:
    """Access to objects, whatever the process's umask: the mode of their files, and of the directories that hold them."""

    file: int = 0o640
    directory: int = 0o750


PRIVATE = ObjectModes(file=0o600, directory=0o700)
"""Mode of a file that is not an object yet."""


class TemporaryFile:
    """An open file in ``directory`` that no listing shows.

    Ends by one of :meth:`rename_to`, :meth:`link_to` or :meth:`discard`, which is also right when :meth:`open` never
    ran; leftovers of a crash are swept by age.
    """

    def __init__(self, *, directory: Path, name: str, modes: ObjectModes = PRIVATE) -> None:
        self._path, self._modes = directory / name, modes
        self._fileno = -1
        self._writes: FileWrites | None = None
        self._asked_for = 0

    def open(self, size_bytes: int | None = None) -> None:
        """Create the file, which is to have ``size_bytes`` (None: not known); the directory is made when missing, its parent is
        not."""
        with suppress(FileExistsError):
            self._path.parent.mkdir(mode=PRIVATE.directory)
        self._fileno = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE.file)
        _set_mode(self._fileno, self._modes.file)
        self._writes = FileWrites(self._fileno, size_bytes)

    @property
    def written_bytes(self) -> int:
        return self._opened.taken_bytes

    def take_small_steps(self) -> None:
        """Gather less for the disk from now on, and hold a core for less long."""
        self._opened.take_small_steps()

    def write(self, piece: Buffer) -> None:
        """Append the whole of ``piece``."""
        self._opened.write(piece)

    def copy_slice(self, source: SourceFile, size_bytes: int = SLICE_BYTES) -> None:
        """Append at most ``size_bytes`` of ``source``, in pieces that stay in the processor's cache between read and look.

        A copy in the kernel would be no cheaper, because ``source`` must be looked at.

        Raises:
            SegmentChangedError: the source ends before its range does.
        """
        self._copy(source, size_bytes, is_in_hurry=True)

    def copy_with_rests(self, source: SourceFile, size_bytes: int) -> None:
        """Copy like :meth:`copy_slice`, in short turns with rests between them: a broker's thread that wakes up on this core
        waits at most for the end of a turn.  A rest costs a fraction of coming here once more from the event loop."""
        start = source.byte_range.start + self.written_bytes
        stop = min(start + size_bytes, source.byte_range.stop)
        if native.core.walks is not None:
            self._copy_in_native_turns(native.core.walks, source, start, stop)
            return
        for _, count in short_turns(source.fileno, start, stop):
            self._copy(source, count, is_in_hurry=False)

    def _copy(self, source: SourceFile, size_bytes: int, *, is_in_hurry: bool) -> None:
        writes = self._opened
        position = source.byte_range.start + writes.taken_bytes
        stop = min(position + size_bytes, source.byte_range.stop)
        while position < stop:
            count = source.read_into(position, writes.room(min(_CACHED_BYTES, stop - position)))
            _require_some(count, source, position)
            if is_in_hurry and writes.will_wait(count):
                self._read_on(source, position + count)
            writes.took(count)
            position += count

    def _read_on(self, source: SourceFile, position: int) -> None:
        """Have the disk of ``source`` bring what comes next while we wait for that of the copy.  The kernel reads ahead by
        256 KiB as a rule: with two disks of 100 MiB/s a copy had 50 MiB/s, and 80 when pages were written behind it."""
        start, stop = max(position, self._asked_for), min(position + _ASKED_AHEAD_BYTES, source.byte_range.stop)
        if start >= stop:
            return
        self._asked_for = stop
        try:  # to ask for pages that are cached costs half as much as to copy them
            is_cached = bool(os.preadv(source.fileno, [bytearray(1)], stop - 1, os.RWF_NOWAIT))
        except OSError:
            is_cached = False  # or the file system cannot say
        if is_cached:
            return
        with suppress(OSError):
            for part in range(start, stop, _ASKED_AT_ONCE):
                os.posix_fadvise(source.fileno, part, min(_ASKED_AT_ONCE, stop - part), os.POSIX_FADV_WILLNEED)

    def _copy_in_native_turns(self, reader: TurnReader, source: SourceFile, position: int, stop: int) -> None:
        """Read in turns without the interpreter's lock, and look at some of them at once."""
        writes = self._opened
        turns = NativeTurns(reader, source.fileno, position, stop)
        while position < stop:
            room = writes.room(min(turns.at_once_bytes, stop - position))
            try:
                count = turns.read_into(position, room)
            except OSError as error:
                raise LogDirError(path=source.path, reason=str(error.strerror)) from error
            _require_some(count, source, position)
            source.look(position, room[:count])
            writes.took(count)
            position += count

    def make_durable(self) -> os.stat_result:
        """fsync, and let go of the pages: our upload must not push the broker's own out of the page cache (U14), and a
        later read-back comes from the disk, not from memory."""
        self._opened.finish()
        os.fsync(self._fileno)
        os.posix_fadvise(self._fileno, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.fstat(self._fileno)

    def rename_to(self, target: Path, root: Path) -> None:
        """Give the file its name, over what has it already; durable on return."""
        _name_in_new_directory(self._path, target, os.rename, root=root, mode=self._modes.directory)
        self._close()
        sync_directories(target.parent, root=root)

    def link_to(self, target: Path, root: Path) -> None:
        """Link it like :meth:`rename_to`, but only onto a free name.

        Raises:
            FileExistsError: the name is taken.
        """
        _name_in_new_directory(self._path, target, os.link, root=root, mode=self._modes.directory)
        self.discard()
        sync_directories(target.parent, root=root)

    def discard(self) -> None:
        """Remove the file, whatever its state."""
        self._close()
        self._path.unlink(missing_ok=True)

    @property
    def _opened(self) -> FileWrites:
        assert self._writes is not None, "opened before it is written"
        return self._writes

    def _close(self) -> None:
        if self._writes is not None:
            self._writes.close()
        if self._fileno >= 0:
            os.close(self._fileno)
            self._fileno = -1


def _require_some(count: int, source: SourceFile, position: int) -> None:
    if count == 0:
        reason = f"it ends at byte {position} of {source.byte_range.stop}"
        raise SegmentChangedError(path=source.path, reason=reason)


def sync_directories(directory: Path, *, root: Path) -> None:
    """fsync ``directory`` and every one above it up to ``root``: another put may have made one and not synced it yet.

    One that is gone was removed with the last object in it.
    """
    while True:
        with suppress(FileNotFoundError):
            fileno = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fileno)
            finally:
                os.close(fileno)
        if directory == root:
            return
        directory = directory.parent


def make_directories(directory: Path, *, root: Path, mode: int) -> None:
    """Make ``directory`` and those between it and ``root``, which itself must exist; those that are there stay as they are.

    Raises:
        FileNotFoundError: there is no root (an unmounted volume is not replaced by a directory), or a delete of the last
            object took a parent away this moment.
        NotADirectoryError: an object has the name of a directory that is needed.
    """
    if directory == root:
        root.stat()
        return
    try:
        _make_directory(directory, mode)
    except FileNotFoundError:
        make_directories(directory.parent, root=root, mode=mode)
        _make_directory(directory, mode)


def _make_directory(directory: Path, mode: int) -> None:
    """Make one directory.  Raise what :func:`make_directories` does."""
    try:
        directory.mkdir(mode=mode)
    except FileExistsError as error:
        # Checked anew: a delete may have removed it in between, and it is no object of that name.
        if not S_ISDIR(directory.stat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory)) from error
    else:
        # A delete of the last object may have removed it again; then the put that makes it anew sets its mode.
        with suppress(FileNotFoundError):
            _set_mode(directory, mode)


def _set_mode(file: int | Path, mode: int) -> None:
    """Give a file or directory of ours the mode that the umask withheld; a directory keeps its setgid bit."""
    found = S_IMODE(os.stat(file).st_mode)  # noqa: PTH116 - also an open file
    wanted = mode | (found & S_ISGID)
    if found == wanted:
        return
    try:
        os.chmod(file, wanted)  # noqa: PTH101 - as above
    except OSError as error:
        if error.errno not in _MODES_ARE_THE_MOUNTS:
            raise


def _name_in_new_directory(
    path: Path, target: Path, name: Callable[[Path, Path], None], *, root: Path, mode: int
) -> None:
    """Do ``name(path, target)``, making parents; a delete that removes emptied ones may come between, so try again."""
    for _ in range(_NAMING_ATTEMPTS):
        try:
            name(path, target)
            return
        except FileNotFoundError:
            root.stat()
        with suppress(FileNotFoundError):
            make_directories(target.parent, root=root, mode=mode)
    name(path, target)


def remove_empty_directories(directory: Path, *, root: Path) -> None:
    """Remove ``directory`` if it is empty, then those above it, short of ``root``."""
    while directory != root:
        try:
            directory.rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                return
            raise
        directory = directory.parent


def sweep(directory: Path, older_than_ms: int) -> int:
    """Remove files last written before ``older_than_ms``: their process is dead.  Return how many there were.

    Raises:
        OSError: ``directory`` cannot be read, or is a link: its target is not ours to remove from.
    """
    try:
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return 0
    swept = 0
    try:
        with os.scandir(opened) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_mtime_ns // 1_000_000 < older_than_ms:
                        os.unlink(entry.name, dir_fd=opened)
                        swept += 1
    finally:
        os.close(opened)
    return swept
