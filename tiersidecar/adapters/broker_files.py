"""Files of a broker that is stopped, changed for a hand-over: each is backed up, written whole, and can be undone.

The only code of the product that writes a broker's files.  An operator's command runs it, never the daemon, and it holds the
broker's own lock meanwhile: a broker that starts in between refuses, and one that runs refuses us.  It blocks.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tiersidecar.adapters.os_errors import explain_os_error
from tiersidecar.domain.errors import HandoverError

LOCK_FILE = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
_MANIFEST = "backup.json"
_NEW_SUFFIX = ".tiersidecar-new"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A file and what it has to say; ``before`` is what it says now."""

    path: Path
    before: bytes
    after: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    """One file of a backup: its copy's name, and the SHA-256 of what it said before and after."""

    copy: str
    before: str
    after: str


@contextmanager
def locked_log_dirs(log_dirs: Sequence[Path]) -> Iterator[None]:
    """Hold the lock that a broker takes in each of its log dirs (``LogManager.lockLogDirs``: fcntl, the whole file).

    A broker that ends removes the file, and so does this, if it made it.

    Raises:
        HandoverError: a broker holds one, or a file cannot be made.
    """
    with ExitStack() as stack:
        for log_dir in log_dirs:
            stack.enter_context(_locked(log_dir))
        yield


@contextmanager
def _locked(log_dir: Path) -> Iterator[None]:
    path = log_dir / LOCK_FILE
    try:
        is_new = _make_lock_file(path)
        file = path.open("r+b")
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


def _make_lock_file(path: Path) -> bool:
    """Whether there was none; it is the log dir's owner's, should this process be killed before it removes it."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    try:
        owner = path.parent.stat()
        if (owner.st_uid, owner.st_gid) != (os.getuid(), os.getgid()):
            os.chown(descriptor, owner.st_uid, owner.st_gid)
    finally:
        os.close(descriptor)
    return True


class Backup:
    """A directory with the former contents of the files that were changed, and what they were changed to.

    Each file's copy is durable before the file is changed, and the first copy stays: a run that was interrupted goes on, and an
    undo gives back what the broker left.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._saved = self._read()

    @property
    def is_empty(self) -> bool:
        return not self._saved

    def apply(self, changes: Sequence[FileChange]) -> int:
        """Save and write each, and return how many were written; one that says it already is left.

        Raises:
            HandoverError: a file says neither what it said when it was saved nor what it is to say.
        """
        todo = [change for change in changes if change.before != change.after]
        self._require_unchanged(todo)
        try:
            self._save(todo)
            for change in todo:
                write_whole(change.path, change.after)
        except OSError as error:
            raise HandoverError(subject=str(self._directory), reason=explain_os_error(error)) from error
        return len(todo)

    def undo(self) -> int:
        """Give every file its former contents back, and return how many were written.

        Raises:
            HandoverError: a file was changed since, for the broker has run, or a copy is damaged.  Then none is touched.
        """
        try:
            now = {path: _sha(path.read_bytes()) for path in map(Path, self._saved)}
            for name, saved in self._saved.items():
                if now[Path(name)] not in (saved.before, saved.after):
                    raise HandoverError(
                        subject=name, reason="it has changed since, so the former contents may be outdated"
                    )
            back = {
                Path(name): self._former(name) for name, saved in self._saved.items() if now[Path(name)] != saved.before
            }
            for path, data in back.items():
                write_whole(path, data)
        except OSError as error:
            raise HandoverError(subject=str(self._directory), reason=explain_os_error(error)) from error
        return len(back)

    def _former(self, path: str) -> bytes:
        saved = self._saved[path]
        data = (self._directory / saved.copy).read_bytes()
        if _sha(data) != saved.before:
            raise HandoverError(subject=str(self._directory / saved.copy), reason="the copy is damaged")
        return data

    def _require_unchanged(self, changes: Sequence[FileChange]) -> None:
        for change in changes:
            saved = self._saved.get(str(change.path))
            if saved is not None and _sha(change.before) not in (saved.before, saved.after):
                reason = (
                    f"it has changed since it was saved in {self._directory}: move that directory away, and plan again"
                )
                raise HandoverError(subject=str(change.path), reason=reason)

    def _save(self, changes: Sequence[FileChange]) -> None:
        if not changes:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        for change in changes:
            known = self._saved.get(str(change.path))
            copy = f"{len(self._saved):06d}-{change.path.name}" if known is None else known.copy
            if known is None:
                _write_new(self._directory / copy, change.before)
            before = _sha(change.before) if known is None else known.before
            self._saved[str(change.path)] = _Saved(copy=copy, before=before, after=_sha(change.after))
        document = {"version": 1, "files": {path: asdict(saved) for path, saved in self._saved.items()}}
        _write_new(self._directory / _MANIFEST, json.dumps(document, indent=2).encode())
        _sync_directory(self._directory)

    def _read(self) -> dict[str, _Saved]:
        path = self._directory / _MANIFEST
        try:
            document = json.loads(path.read_bytes())
            files: Mapping[str, Mapping[str, str]] = document["files"]
            return {name: _Saved(**saved) for name, saved in files.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise HandoverError(subject=str(path), reason=f"it cannot be read: {error}") from error


def write_whole(path: Path, data: bytes) -> None:
    """Replace the file at once: whatever ends this half-way, it says the one or the other.  Owner and mode stay.

    Raises:
        OSError: it could not be written.
    """
    status = path.stat()
    new = path.with_name(path.name + _NEW_SUFFIX)
    try:
        _write_new(new, data)
        if (new.stat().st_uid, new.stat().st_gid) != (status.st_uid, status.st_gid):
            os.chown(new, status.st_uid, status.st_gid)
        new.chmod(status.st_mode & 0o7777)
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _write_new(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
