"""``state.dir``: the sidecar's own files, and the lock that makes the tier role the only one beside its broker."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG

from tiersidecar.app.config.config import Config
from tiersidecar.app.config.top_level import Role
from tiersidecar.domain.errors import AlreadyRunningError, ConfigError
from tiersidecar.domain.ids import Uuid, format_uuid

_ONLY_OURS = 0o077
"""The umask of the daemon: only its own user reads what it writes.  Objects of a filesystem store, which a native broker
or a Spark job may read, have modes of their own (``store.objects.readable.by``)."""

_OWN_FILES = ("tier.lock", "instance", "copies-in-flight*", "remote-log-metadata.*", "state-topic.*")


def keep_files_private() -> None:
    """Make every file and directory of this process from now on its own user's alone, whatever umask it was started with."""
    os.umask(_ONLY_OURS)


@contextmanager
def state_dir_of(config: Config, roles: frozenset[Role]) -> Iterator[Path]:
    """Make the directory, and hold its lock while the process has the role ``tier``.

    A copy of our own broker that this process has not in flight is taken for dead and deleted; that holds only while no
    second process copies beside the same broker.  The lock ends with the process, however it ends.

    Raises:
        ConfigError: the directory cannot be made or written.
        AlreadyRunningError: another process has the role.
    """
    directory = Path(config.state_dir)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(directory / "tier.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(source="state.dir", faults=(f"{directory} cannot be used: {error.strerror}",)) from error
    _take_from_others(directory)
    try:
        if Role.TIER in roles:
            _take(lock, directory)
        yield directory
    finally:
        os.close(lock)


def instance_of(directory: Path, new_id: Callable[[], Uuid]) -> str:
    """Return the name of this state.dir, made at its first use; a copy of the directory has another one.

    One that cannot be kept is this process's alone: the next one waits for its lease then.
    """
    path = directory / "instance"
    try:
        name, _, inode = path.read_text(encoding="ascii").strip().partition(" ")
        if name and inode == str(path.stat().st_ino):
            return name
    except (OSError, UnicodeDecodeError):
        pass
    name = format_uuid(new_id())
    with suppress(OSError), path.open("w", encoding="ascii") as file:
        file.write(f"{name} {os.fstat(file.fileno()).st_ino}\n")
        file.flush()
        os.fsync(file.fileno())
    return name


def _take_from_others(directory: Path) -> None:
    """Restrict files that a former release let group or others read; the directory is the operator's and stays."""
    for path in (path for pattern in _OWN_FILES for path in directory.glob(pattern)):
        with suppress(OSError):  # another user's, or gone this moment
            status = path.lstat()
            if S_ISREG(status.st_mode) and status.st_mode & _ONLY_OURS:
                path.chmod(0o600)


def _take(lock: int, directory: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise AlreadyRunningError(directory=str(directory), pid=holder) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode("ascii"), 0)
