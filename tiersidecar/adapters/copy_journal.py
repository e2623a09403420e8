"""The journal of copies in flight: a text file in ``state.dir``, a line for each beginning (``+``) and end (``-``) of a copy.

Each line is synced before COPY_SEGMENT_STARTED is published; one that a crash cut off was never acted on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from tiersidecar.domain.errors import StateDirError
from tiersidecar.domain.ids import Uuid, format_uuid, parse_uuid
from tiersidecar.ports.clock import Blocking

NAME = "copies-in-flight"
_MOST_LINES = 10_000
"""Beyond the entries that count; then the file is written anew."""

_log = structlog.get_logger(__name__)


class FileCopyJournal:
    """A :class:`~tiersidecar.ports.copy_journal.CopyJournal`; made by :func:`open_copy_journal`."""

    def __init__(self, path: Path, *, blocking: Blocking) -> None:
        self._path, self._blocking = path, blocking
        self._begun: dict[Uuid, None] = {}
        self._lines = 0
        self._fileno: int | None = None
        self._turn = asyncio.Lock()

    @property
    def begun(self) -> Set[Uuid]:
        return self._begun.keys()

    async def open(self) -> None:
        """Read what former processes noted, and write it anew without what is over; a disk that does not let us is tried
        again at the next copy."""
        self._begun = await self._blocking.run(_read, self._path)
        try:
            await self._rewrite()
        except StateDirError as error:
            _log.warning("copy_journal.not_writable", error=str(error))

    async def begin(self, segment: Uuid) -> None:
        async with self._turn:
            if self._fileno is None or self._lines > _MOST_LINES + len(self._begun):
                await self._rewrite()
            await self._append(f"+ {format_uuid(segment)}\n")
            self._begun[segment] = None

    async def settle(self, segment: Uuid) -> None:
        async with self._turn:
            if segment not in self._begun:
                return
            if self._fileno is not None:
                await self._append(f"- {format_uuid(segment)}\n")
            del self._begun[segment]

    async def close(self) -> None:
        """Close the file."""
        if self._fileno is not None:
            os.close(self._fileno)
            self._fileno = None

    async def _append(self, line: str) -> None:
        fileno = self._fileno
        assert fileno is not None, "it is rewritten first"
        try:
            await self._blocking.run(_write_line, fileno, line)
        except OSError as error:
            await self.close()  # what is there of the line must not be the beginning of the next
            raise StateDirError(path=str(self._path), reason=str(error.strerror)) from error
        self._lines += 1

    async def _rewrite(self) -> None:
        await self.close()
        try:
            self._fileno = await self._blocking.run(_write_anew, self._path, tuple(self._begun))
        except OSError as error:
            raise StateDirError(path=str(self._path), reason=str(error.strerror)) from error
        self._lines = len(self._begun)


@asynccontextmanager
async def open_copy_journal(state_dir: Path, *, blocking: Blocking) -> AsyncIterator[FileCopyJournal]:
    """Open the journal of ``state_dir``, which must be this process's alone."""
    journal = FileCopyJournal(state_dir / NAME, blocking=blocking)
    await journal.open()
    try:
        yield journal
    finally:
        await journal.close()


def _read(path: Path) -> dict[Uuid, None]:
    """Return what was begun and not ended; a line that cannot be read counts for nothing, and so does a file."""
    begun: dict[Uuid, None] = {}
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except FileNotFoundError:
        return begun
    except OSError as error:
        _log.warning("copy_journal.not_readable", path=str(path), error=str(error.strerror))
        return begun
    for line in lines:
        sign, _, text = line.partition(" ")
        try:
            segment = parse_uuid(text)
        except ValueError:
            continue
        if sign == "+":
            begun[segment] = None
        elif sign == "-":
            begun.pop(segment, None)
    return begun


def _write_line(fileno: int, line: str) -> None:
    data = line.encode("ascii")
    if os.write(fileno, data) != len(data):
        raise OSError(28, "the line was cut off")
    os.fsync(fileno)


def _write_anew(path: Path, begun: tuple[Uuid, ...]) -> int:
    """Write the file with just these entries, whole or not at all; return it open for appending."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.new")
    fileno = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        _write_line(fileno, "".join(f"+ {format_uuid(segment)}\n" for segment in begun))
        temporary.replace(path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError:
        os.close(fileno)
        raise
    return fileno
