"""The file system of a broker's log dir: full when a scenario says so, or when its bytes are used up."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from tiersidecar.ports.pins import DiskSpace

_PLENTY_BYTES = 10**9
_RESERVE_PERCENT = 10
"""``disk.reserve``'s default."""
_LOOKED_AT_S = 180.0
"""How long a decision that was made while the disk was short of room may take to arrive."""


class Disk:
    """``size_bytes`` is of the file system that holds ``directory`` alone; None: so large that nothing comes near its end.
    ``is_full`` refuses new links whatever is free."""

    def __init__(self, directory: Path, *, size_bytes: int | None = None) -> None:
        self._directory, self._size_bytes = directory, size_bytes
        self.is_full = False
        self._pressed_at_s = float("-inf")
        self._free_bytes: int | None = None

    def changed(self) -> None:
        """Note that a file below the directory was written, linked or removed, or may have been."""
        self._free_bytes = None

    @property
    def is_small(self) -> bool:
        """Return whether it can fill at all."""
        return self._size_bytes is not None

    def link(self, source: str, target: str) -> None:
        """Link as os.link does."""
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)
        os.link(source, target)

    def space(self, now_s: float) -> DiskSpace:
        """Return the space as statvfs says it: what is linked twice counts once, what is renamed counts until it is removed."""
        if self._size_bytes is None:
            return DiskSpace(device=1, size_bytes=_PLENTY_BYTES, free_bytes=_PLENTY_BYTES * 9 // 10)
        if self._free_bytes is None:
            sizes = {entry.inode(): entry.stat().st_size for entry in _files(str(self._directory))}
            self._free_bytes = max(self._size_bytes - sum(sizes.values()), 0)
        space = DiskSpace(device=1, size_bytes=self._size_bytes, free_bytes=self._free_bytes)
        if _lacks_reserve(space):
            self._pressed_at_s = now_s
        return space

    def takes_no_more(self, now_s: float) -> bool:
        """Return whether a broker finds no room for another batch."""
        return self._size_bytes is not None and self.space(now_s).free_bytes == 0

    def lacks_reserve(self, now_s: float) -> bool:
        """Return whether less is free than ``disk.reserve``."""
        return _lacks_reserve(self.space(now_s))

    def has_renamed(self) -> bool:
        """Return whether files of the broker's wait to be removed: some room will come by itself."""
        return any(entry.name.endswith(".deleted") for entry in _files(str(self._directory)))

    def was_pressed(self, now_s: float) -> bool:
        """Return whether it was below its reserve, a moment ago at most."""
        self.space(now_s)
        return now_s - self._pressed_at_s <= _LOOKED_AT_S


def _lacks_reserve(space: DiskSpace) -> bool:
    return space.free_bytes < space.size_bytes * _RESERVE_PERCENT // 100


def _files(directory: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            else:
                yield entry
