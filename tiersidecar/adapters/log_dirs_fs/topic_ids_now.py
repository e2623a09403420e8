"""Which topic a partition's directory is of at this very moment: a name may be given to another topic at any time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import Uuid
from tiersidecar.formats.kafka.checkpoints import PARTITION_METADATA, read_partition_metadata

_MOST_KNOWN = 100_000
_Identity = tuple[int, int, int]
"""Device, inode and time of change: the broker writes the file once, and under another name first."""


class TopicIdsNow:
    """Looks at the inode each time, and reads a file only when it is another: some microseconds."""

    def __init__(self, log_dirs: Sequence[str]) -> None:
        self._log_dirs = log_dirs
        self._known: dict[str, tuple[str, _Identity, Uuid]] = {}

    def find(self, topic: str, partition: int) -> Uuid | None:
        """None: there is no such directory, or the broker has not written down yet which topic it is of."""
        directory = f"{topic}-{partition}"
        known = self._known.get(directory)
        if known is not None and _identity(known[0]) == known[1]:
            return known[2]
        for log_dir in self._log_dirs:
            path = os.path.join(log_dir, directory, PARTITION_METADATA)  # noqa: PTH118 - of a path that is made each time
            identity = _identity(path)
            topic_id = None if identity is None else _read(path)
            if identity is not None and topic_id is not None:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[directory] = (path, identity, topic_id)
                return topic_id
        self._known.pop(directory, None)
        return None


def _identity(path: str) -> _Identity | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - it takes a third of what a Path takes
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _read(path: str) -> Uuid | None:
    try:
        return read_partition_metadata(Path(path).read_bytes(), where=path)
    except (OSError, CorruptDataError):
        return None
