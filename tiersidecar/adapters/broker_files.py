"""Files of a broker that is stopped, for a hand-over: its lock is held, and each is written whole.

An operator's command runs this, never the daemon, and it holds the broker's own lock meanwhile: a broker that starts in between
refuses, and one that runs refuses us.  It blocks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tiersidecar.adapters.os_errors import explain_os_error
from tiersidecar.domain.errors import HandoverError
from tiersidecar.formats.kafka.log_dir_files import META_PROPERTIES

LOCK_FILE = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
_NEW_SUFFIX = ".tiersidecar-new"


@contextmanager
def locked_log_dirs(log_dirs: Sequence[Path]) -> Iterator[None]:
    """Hold the lock that a broker takes in each of its log dirs (``LogManager.lockLogDirs``: fcntl, the whole file).

    A broker that ends removes the file, and so does this, if it made it.

    Raises:
        HandoverError: a broker holds one, another user has it, or a file cannot be made.
    """
    with ExitStack() as stack:
        for log_dir in log_dirs:
            stack.enter_context(_locked(log_dir))
        yield


@contextmanager
def _locked(log_dir: Path) -> Iterator[None]:
    path = log_dir / LOCK_FILE
    try:
        require_broker_user(log_dir)
        is_new = _make_lock_file(path)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_NOFOLLOW), "r+b")
    except OSError as error:
        raise HandoverError(subject=str(path), reason=explain_os_error(error)) from error
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            reason = "the broker runs (it holds .lock): stop it first, by a controlled shutdown"
            raise HandoverError(subject=str(log_dir), reason=reason) from None
        try:
            yield
        finally:
            if is_new:
                path.unlink(missing_ok=True)


def require_broker_user(log_dir: Path) -> None:
    """Refuse every other user: what root writes to a directory of the broker's user may be turned elsewhere by that one.

    The broker makes its meta.properties itself; the directory may be a volume of root's.

    Raises:
        HandoverError: this is another user.
        OSError: the directory cannot be looked at.
    """
    formatted = log_dir / META_PROPERTIES
    owner = (formatted if formatted.exists() else log_dir).stat().st_uid
    if owner != os.geteuid():
        reason = f"its files belong to user {owner}, and this is user {os.geteuid()}: run it as the broker's user"
        raise HandoverError(subject=str(log_dir), reason=reason)


def _make_lock_file(path: Path) -> bool:
    """Create the file unless it is there; return whether it was created."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    return True


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file at once: whatever ends this half-way, it says the one or the other.  Owner and mode stay.

    Raises:
        OSError: it could not be written, or is no regular file.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "It is not a regular file", str(path))
    _replace(path, data, status)


def write_durably(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write or replace a file of our own at once; the umask takes from ``mode``.

    Raises:
        OSError: it could not be written.
    """
    _replace(path, data, None, mode=mode)


def _replace(path: Path, data: bytes, like: os.stat_result | None, *, mode: int = 0o600) -> None:
    """Write beside ``path``, then rename.  Whatever has the name beside it, be it a link, is removed and never written to."""
    new = path.with_name(path.name + _NEW_SUFFIX)
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if like is not None:
                _make_alike(file.fileno(), like)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def _make_alike(descriptor: int, like: os.stat_result) -> None:
    now = os.fstat(descriptor)
    if (now.st_uid, now.st_gid) != (like.st_uid, like.st_gid):
        os.fchown(descriptor, like.st_uid, like.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(like.st_mode))


def sync_directory(directory: Path) -> None:
    """Make durable which names a directory has.

    Raises:
        OSError: it could not be.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
