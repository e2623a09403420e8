"""Files of a cache on disk: written whole or not at all, gone only when nobody can be reading them any more.

``<name>.tmp`` becomes ``<name>`` by a rename; what is dropped becomes ``<name>.deleted`` and is removed a while later
(Kafka's RemoteIndexCache; S-127, S-129, S-130).  A reader that has a file open keeps it whatever becomes of its name.
All methods block: call them off the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"
DELETED_SUFFIX = ".deleted"


class CacheDirectory:
    """One directory of our own.  Nothing in it is worth an fsync: what a crash tears is told by its checks and dropped."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def open(self) -> dict[str, int]:
        """Make the directory, remove what an earlier process left unfinished, and list the files with their sizes, the
        least recently used first."""
        # Caches hold records in the clear, also of encrypted segments.
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found: list[tuple[int, str, int]] = []
        for path in self._path.iterdir():
            if path.suffix in {TEMPORARY_SUFFIX, DELETED_SUFFIX}:
                path.unlink(missing_ok=True)
            elif path.is_file():
                stat = path.stat()
                found.append((stat.st_mtime_ns, path.name, stat.st_size))
        return {name: size for _, name, size in sorted(found)}

    def read(self, names: Iterable[str]) -> dict[str, bytes] | None:
        """All of these files, or None if one is missing."""
        try:
            return {name: (self._path / name).read_bytes() for name in names}
        except FileNotFoundError:
            return None

    def write(self, files: Mapping[str, bytes]) -> None:
        """Put files in place, one after the other, each whole.

        Raises:
            OSError: the disk is full, say; what is half written is removed.
        """
        for name, data in files.items():
            temporary = self._path / f"{name}{TEMPORARY_SUFFIX}"
            try:
                temporary.write_bytes(data)
                temporary.replace(self._path / name)
            except OSError:
                with suppress(OSError):
                    temporary.unlink()
                raise

    def mark_deleted(self, names: Iterable[str]) -> None:
        """Take files out of the cache; :meth:`remove_marked` removes them."""
        for name in names:
            with suppress(FileNotFoundError):
                (self._path / name).rename(self._path / f"{name}{DELETED_SUFFIX}")

    def remove_marked(self, names: Iterable[str]) -> None:
        """Remove what :meth:`mark_deleted` has marked."""
        for name in names:
            (self._path / f"{name}{DELETED_SUFFIX}").unlink(missing_ok=True)
