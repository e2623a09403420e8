"""The time that was seen: a JSON document in ``state.dir``, written anew each time."""

from __future__ import annotations

import json
import os
from pathlib import Path

import structlog

from tiersidecar.domain.errors import StateDirError
from tiersidecar.domain.seen_time import SeenTime, UnseenTime
from tiersidecar.ports.clock import Blocking

NAME = "time-seen.json"

_log = structlog.get_logger(__name__)


class FileSeenTimes:
    """A :class:`~tiersidecar.ports.seen_times.SeenTimes` in ``state_dir``, which must be this process's alone."""

    def __init__(self, state_dir: Path, *, blocking: Blocking) -> None:
        self._path, self._blocking = state_dir / NAME, blocking

    async def read(self) -> SeenTime | None:
        return await self._blocking.run(_read, self._path)

    async def write(self, seen: SeenTime) -> None:
        try:
            await self._blocking.run(_write, self._path, seen)
        except OSError as error:
            raise StateDirError(path=str(self._path), reason=str(error.strerror)) from error


def _read(path: Path) -> SeenTime | None:
    try:
        document = json.loads(path.read_text(encoding="ascii"))
        unseen = tuple(UnseenTime(from_ms=int(start), to_ms=int(stop)) for start, stop in document["unseen_ms"])
        return SeenTime(until_ms=int(document["until_ms"]), unseen=unseen)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("seen_time.not_readable", path=str(path), error=str(error))
        return None


def _write(path: Path, seen: SeenTime) -> None:
    document = {"until_ms": seen.until_ms, "unseen_ms": [[one.from_ms, one.to_ms] for one in seen.unseen]}
    scratch = path.with_name(f"{path.name}.new")
    with scratch.open("w", encoding="ascii") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
