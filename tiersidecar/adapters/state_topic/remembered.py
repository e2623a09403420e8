"""A process's memory of the state topic across restarts: a JSON document in ``state.dir``, written anew each time.

The topic's records are read from its beginning at every start; this shows whether it is the topic that was read before.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from tiersidecar.domain.offsets import Offset
from tiersidecar.ports.clock import Blocking

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRecord:
    """The last record that was read, by what is in it."""

    offset: int
    digest: str

    @classmethod
    def of(cls, offset: int, key: bytes | None, value: bytes | None) -> LastRecord:
        """Return ``offset`` and a digest of the others."""
        parts = (b"\0" if one is None else b"\1%d:%b" % (len(one), one) for one in (key, value))
        return cls(offset=offset, digest=hashlib.sha256(b"".join(parts)).hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedTopic:
    """``position`` is the offset after the last record that was read, exclusive.  ``accepted`` are the acceptances of losses
    that were in the topic: each accepts what was lost before it alone."""

    cluster_id: str
    topic_id: str
    position: Offset
    last: LastRecord | None = None
    accepted: frozenset[str] = frozenset()


class TopicMemory(Protocol):
    async def read(self) -> RememberedTopic | None:
        """Return what was written last; None where nothing was, or it cannot be read."""

    async def write(self, remembered: RememberedTopic) -> None:
        """Keep it in place of what was there."""


class NoMemory:
    """The memory of a command, and of tests."""

    async def read(self) -> RememberedTopic | None:
        return None

    async def write(self, remembered: RememberedTopic) -> None:
        return None


class FileMemory:
    """A :class:`TopicMemory` in a file that is this process's alone."""

    def __init__(self, path: Path, *, blocking: Blocking) -> None:
        self._path, self._blocking = path, blocking

    async def read(self) -> RememberedTopic | None:
        return await self._blocking.run(_read, self._path)

    async def write(self, remembered: RememberedTopic) -> None:
        """Keep ``remembered``.  A full disk stops nothing: the previous document has most of it."""
        try:
            await self._blocking.run(_write, self._path, remembered)
        except OSError as error:
            _log.warning("state.memory.not_written", path=str(self._path), error=str(error))


def _read(path: Path) -> RememberedTopic | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        last = document["last"]
        return RememberedTopic(
            cluster_id=str(document["cluster_id"]),
            topic_id=str(document["topic_id"]),
            position=Offset(int(document["position"])),
            last=None if last is None else LastRecord(offset=int(last["offset"]), digest=str(last["digest"])),
            accepted=frozenset(map(str, document["accepted"])),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("state.memory.not_readable", path=str(path), error=str(error))
        return None


def _write(path: Path, remembered: RememberedTopic) -> None:
    last = remembered.last
    document = {
        "cluster_id": remembered.cluster_id,
        "topic_id": remembered.topic_id,
        "position": remembered.position,
        "last": None if last is None else {"offset": last.offset, "digest": last.digest},
        "accepted": sorted(remembered.accepted),
    }
    scratch = path.with_name(f"{path.name}.new")
    with scratch.open("w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
