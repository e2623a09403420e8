"""Files of a node that is stopped, made and replaced as the user to whom its log dirs belong.

That user's processes may put what they like into the log dirs, links to files of others too.  A command that root runs must
not follow them, so it gives up root's rights before it touches a file there.  It blocks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tiersidecar.domain.errors import MountRefusedError

_LOCK = ".lock"
_FRESH = ".new"
_MODE = 0o644
_SECRET = 0o600
_ROOT = 0
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@contextmanager
def acting_as_owner(directories: Sequence[Path]) -> Iterator[None]:
    """Have the process act as the owner of ``directories`` if it is root's, with that user's and its group's rights alone.

    It is the whole process that does, so nothing else may run in it.

    Raises:
        MountRefusedError: they are of different owners, or root's and open to others.
        OSError: one cannot be looked at.
    """
    if os.geteuid() != _ROOT:
        yield
        return
    owners = {path: _owner(path) for path in directories}
    if len(set(owners.values())) > 1:
        named = ", ".join(f"{path} ({uid}:{gid})" for path, (uid, gid) in owners.items())
        raise MountRefusedError(reason=f"directories of one node belong to different users: {named}. Give them to one")
    (uid, gid) = next(iter(owners.values()))
    if uid == _ROOT:
        yield
        return
    groups, group = os.getgroups(), os.getegid()
    try:
        _become(uid, gid)
        yield
    finally:
        os.seteuid(_ROOT)
        os.setegid(group)
        with suppress(PermissionError):  # then they were not changed either
            os.setgroups(groups)


def _become(uid: int, gid: int) -> None:
    try:
        os.setgroups(_groups(uid, gid))
        os.setegid(gid)
        os.seteuid(uid)
    except PermissionError as error:
        raise MountRefusedError(
            reason=f"this process may not act as user {uid}, to whom the log dirs belong: run it as that user"
        ) from error


def _groups(uid: int, gid: int) -> list[int]:
    """Return the groups that the node has, which may give it the way to its log dirs."""
    try:
        return os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:  # a user of a container, say
        return [gid]


def _owner(directory: Path) -> tuple[int, int]:
    status = directory.stat()
    if status.st_uid == _ROOT and status.st_mode & _WRITABLE_BY_OTHERS:
        raise MountRefusedError(
            reason=f"{directory} is root's, and others may write in it: run this as the user that the node runs as"
        )
    return status.st_uid, status.st_gid


def require_no_link(path: Path) -> None:
    """Refuse a symbolic link, which no node makes.

    Raises:
        MountRefusedError: it is one.
    """
    if path.is_symlink():
        raise MountRefusedError(reason=f"{path} is a symbolic link, to {path.readlink()}: no node made it. Remove it")


@contextmanager
def locked_log_dir(log_dir: Path) -> Iterator[None]:
    """Hold the file that Kafka locks, in the way it does (``FileLock``).

    Raises:
        MountRefusedError: the node runs, or the file is a link.
        OSError: it cannot be made.
    """
    path = log_dir / _LOCK
    descriptor = _open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise MountRefusedError(reason=f"{log_dir} is in use: stop the node first") from error
    try:
        yield
    finally:
        os.close(descriptor)


def put_file(path: Path, data: bytes, *, like: Path | None = None) -> None:
    """Make or replace the file, whole or not at all, and durably; it may be read and written by the same as ``like``.

    Raises:
        OSError: it cannot be written.
    """
    fresh = fresh_name(path)
    fresh.unlink(missing_ok=True)  # what was left of an earlier run, or a link
    with os.fdopen(_open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _SECRET if like else _MODE), "wb") as file:
        if like is not None:
            os.fchmod(file.fileno(), stat.S_IMODE(like.lstat().st_mode))
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    sync_directory(path.parent)


def fresh_name(path: Path) -> Path:
    """Return where the file is while it is written."""
    return path.with_name(f"{path.name}{_FRESH}")


def sync_directory(directory: Path) -> None:
    """Make what was made or renamed in it durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open(path: Path, flags: int, mode: int = _MODE) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            require_no_link(path)
        raise
