"""Former contents of a stopped broker's files that a hand-over changes, so that it can be undone.

A backup is handed around with its plan, so nothing in it is trusted: it gives back two kinds of files, in the configured log
dirs alone, to the broker that they are of, and only until that has run again.  It blocks.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tiersidecar.adapters.broker_files import CLEAN_SHUTDOWN, write_durably, write_whole
from tiersidecar.adapters.os_errors import explain_os_error
from tiersidecar.domain.errors import HandoverError
from tiersidecar.formats.kafka.log_dir_files import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    DirectoryKind,
    parse_log_directory,
)

_MANIFEST, _VERSION = "backup.json", 1
_COPY = re.compile(rf"[0-9]{{6}}-({LEADER_EPOCH_CHECKPOINT}|{LOG_START_OFFSET_CHECKPOINT})")
_MOVE_AWAY = "move that directory away, and try again"
_RAN = "the broker has run since, or was killed: its files and its log may no longer be those that were saved in {}"


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


@dataclass(slots=True, kw_only=True)
class _Manifest:
    """``shutdowns`` says how the broker had ended, by log dir: SHA-256 and time of change of its clean-shutdown file, which it
    removes when it starts."""

    shutdowns: dict[str, str] = field(default_factory=dict)
    files: dict[str, _Saved] = field(default_factory=dict)


class Backup:
    """A directory with the former contents of the files that were changed, and what they were changed to.

    Each file's copy is durable before the file is changed, and the first copy stays: a run that was interrupted goes on, and an
    undo gives back what the broker left.  ``made_for`` says of which plan it is, where that matters.
    """

    def __init__(
        self, directory: Path, *, cluster_id: str, node_id: int, log_dirs: Sequence[Path], made_for: str = ""
    ) -> None:
        self._directory, self._cluster_id, self._node_id = directory, cluster_id, node_id
        self._made_for = made_for
        self._log_dirs = tuple(log_dirs)
        self._manifest = self._read()

    @property
    def is_made(self) -> bool:
        """Return whether anything was saved."""
        return bool(self._manifest.files)

    def check(self, changes: Sequence[FileChange]) -> None:
        """Check that :meth:`apply` may go on.

        Raises:
            HandoverError: as there.
        """
        if todo := [change for change in changes if change.before != change.after]:
            self._require_unchanged(todo)
            self._require_stopped(_MOVE_AWAY)

    def require_stopped(self) -> None:
        """Compare how the broker had ended when its files were saved with how it has ended now.

        Raises:
            HandoverError: it has run since.
        """
        self._require_stopped("nothing is given back. Take the way back that the documentation has")

    def save(self, changes: Sequence[FileChange]) -> None:
        """Save each, also one that is not to change, and write none.

        Raises:
            HandoverError: as :meth:`apply`.
        """
        self._require_unchanged(changes)
        try:
            self._require_stopped(_MOVE_AWAY)
            self._save(changes)
        except OSError as error:
            raise HandoverError(subject=str(self._directory), reason=explain_os_error(error)) from error

    def apply(self, changes: Sequence[FileChange]) -> int:
        """Save and write each, and return how many were written; one that says it already is left.

        Raises:
            HandoverError: a file says neither what it said when it was saved nor what it is to say, or the broker has run
                since.
        """
        todo = [change for change in changes if change.before != change.after]
        if not todo:
            return 0
        self._require_unchanged(todo)
        try:
            self._require_stopped(_MOVE_AWAY)
            self._save(todo)
            for change in todo:
                write_whole(change.path, change.after)
        except OSError as error:
            raise HandoverError(subject=str(self._directory), reason=explain_os_error(error)) from error
        return len(todo)

    def undo(self) -> int:
        """Give every file its former contents back, and return how many were written.

        Raises:
            HandoverError: there is no backup; or the broker has run since, a file was changed, or a copy is damaged.  Then none
                is touched.
        """
        saved = self._manifest.files
        if not saved:
            reason = "there is no backup there: name its directory with --backup"
            raise HandoverError(subject=str(self._directory), reason=reason)
        try:
            now = {name: _sha(Path(name).read_bytes()) for name in saved}
            for name, one in saved.items():
                if now[name] not in (one.before, one.after):
                    raise HandoverError(
                        subject=name, reason="it has changed since, so the former contents may be outdated"
                    )
            self.require_stopped()
            back = {Path(name): self._former(one) for name, one in saved.items() if now[name] != one.before}
            for path, data in back.items():
                write_whole(path, data)
        except OSError as error:
            raise HandoverError(subject=str(self._directory), reason=explain_os_error(error)) from error
        return len(back)

    def _former(self, saved: _Saved) -> bytes:
        path = self._directory / saved.copy
        data = path.read_bytes()
        if _sha(data) != saved.before:
            raise HandoverError(subject=str(path), reason="the copy is damaged")
        return data

    def _require_unchanged(self, changes: Sequence[FileChange]) -> None:
        for change in changes:
            saved = self._manifest.files.get(str(change.path))
            if saved is not None and _sha(change.before) not in (saved.before, saved.after):
                reason = (
                    f"it has changed since it was saved in {self._directory}: move that directory away, and plan again"
                )
                raise HandoverError(subject=str(change.path), reason=reason)

    def _require_stopped(self, remedy: str) -> None:
        """Compare how the broker had ended when its files were saved with how it has ended now."""
        if self._manifest.files and self._manifest.shutdowns != self._shutdowns():
            raise HandoverError(subject=f"broker {self._node_id}", reason=f"{_RAN.format(self._directory)}; {remedy}")

    def _shutdowns(self) -> dict[str, str]:
        found = {}
        for log_dir in self._log_dirs:
            path = log_dir / CLEAN_SHUTDOWN
            try:
                found[str(log_dir)] = f"{_sha(path.read_bytes())} {path.stat().st_mtime_ns}"
            except FileNotFoundError:
                found[str(log_dir)] = "none"
        return found

    def _save(self, changes: Sequence[FileChange]) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        before = self._document()
        files = self._manifest.files
        self._manifest.shutdowns = self._shutdowns()
        for change in changes:
            known = files.get(str(change.path))
            copy = f"{len(files):06d}-{change.path.name}" if known is None else known.copy
            if known is None:
                write_durably(self._directory / copy, change.before)
            former = _sha(change.before) if known is None else known.before
            files[str(change.path)] = _Saved(copy=copy, before=former, after=_sha(change.after))
        if self._document() != before:
            write_durably(self._directory / _MANIFEST, json.dumps(self._document(), indent=2).encode())

    def _document(self) -> dict[str, object]:
        return {
            "version": _VERSION,
            "cluster_id": self._cluster_id,
            "node_id": self._node_id,
            **({"made_for": self._made_for} if self._made_for else {}),
            "shutdowns": dict(self._manifest.shutdowns),
            "files": {path: asdict(saved) for path, saved in self._manifest.files.items()},
        }

    def _read(self) -> _Manifest:
        path = self._directory / _MANIFEST
        try:
            status = self._directory.stat()
            document = json.loads(path.read_bytes())
            files: Mapping[str, Mapping[str, str]] = document["files"]
            manifest = _Manifest(
                shutdowns={str(name): str(one) for name, one in document["shutdowns"].items()},
                files={name: _Saved(**saved) for name, saved in files.items()},
            )
            fault = fault_of_owner(status) or self._fault_of(document, manifest)
        except FileNotFoundError:
            return _Manifest()
        except OSError as error:
            raise HandoverError(subject=str(path), reason=explain_os_error(error)) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise HandoverError(subject=str(path), reason=f"it cannot be read: {error!r}") from error
        if fault:
            raise HandoverError(subject=str(path), reason=fault)
        return manifest

    def _fault_of(self, document: Mapping[str, object], manifest: _Manifest) -> str:
        """Return why the backup is none of this broker's; empty if it is."""
        if document["version"] != _VERSION:
            return f"its version is {document['version']}, must be {_VERSION}"
        if document["cluster_id"] != self._cluster_id:
            return f"it is of cluster {document['cluster_id']}, and this broker of cluster {self._cluster_id}"
        if document["node_id"] != self._node_id:
            return f"it is of broker {document['node_id']}, and this is broker {self._node_id}"
        if document.get("made_for", "") != self._made_for:
            return "it is of another plan"
        if set(manifest.shutdowns) != set(map(str, self._log_dirs)):
            return "it is of other log dirs than those that are configured"
        for name, saved in manifest.files.items():
            if not self._is_checkpoint(Path(name)):
                return f"it names {name}, which is no checkpoint in the configured log dirs"
            if _COPY.fullmatch(saved.copy) is None:
                return f"{saved.copy} is not the name of a copy"
        return ""

    def _is_checkpoint(self, path: Path) -> bool:
        """Return whether it is, by its name, one of the files that a hand-over changes."""
        if path.name == LOG_START_OFFSET_CHECKPOINT:
            return path.parent in self._log_dirs
        directory = parse_log_directory(path.parent.name)
        return (
            path.name == LEADER_EPOCH_CHECKPOINT
            and path.parent.parent in self._log_dirs
            and directory is not None
            and directory.kind is DirectoryKind.CURRENT
        )


def fault_of_owner(status: os.stat_result) -> str:
    """Return why a directory with what was saved is not to be trusted; empty if it is."""
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}, and this is user {os.geteuid()}: run it as the user who made it"
    if status.st_mode & stat.S_IWOTH:
        return "every user of this machine may write to it, so its content cannot be trusted"
    return ""


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
