"""Listing a directory tree in the order of its objects' keys.

A file system sorts nothing, and sorting each directory by name is not the order of whole keys: ``a-b`` sorts before ``a/b``,
since ``-`` is below ``/``.  A directory therefore sorts as its name with a slash behind it, as git sorts its trees.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tiersidecar.adapters.stores.plain_files import require_directory
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.store import StoredObject


@dataclass(frozen=True, slots=True)
class KeyInterval:
    """Keys that begin with ``prefix`` and sort after ``start_after``, as UTF-8 bytes."""

    prefix: bytes
    start_after: bytes

    def contains(self, key: bytes) -> bool:
        return key.startswith(self.prefix) and key > self.start_after

    def may_contain_below(self, directory: bytes) -> bool:
        """Return whether a key that begins with ``directory``, which ends in a slash, can be among them; the directory is one
        below :func:`_first_directory`."""
        return directory.startswith(self.prefix) and (
            directory > self.start_after or self.start_after.startswith(directory)
        )


async def list_directory(
    root: Path, interval: KeyInterval, *, hidden: str, blocking: Blocking
) -> AsyncIterator[StoredObject]:
    """Yield regular files below ``root`` as objects, ascending by key; symbolic links, names that are not UTF-8 and the
    directory ``hidden`` in the root are none.  Each directory is read when its turn comes, in a thread.

    Raises:
        RootIsAwayError: the root is not there, or not to the end: what was yielded is not all that there is.
        OSError: a directory cannot be read; one that is gone holds nothing, while the root is there.
    """
    begun = await blocking.run(require_directory, root)
    waiting: list[bytes | StoredObject] = [_first_directory(interval.prefix)]
    while waiting:
        match waiting.pop():
            case bytes(directory):
                found = await blocking.run(_read_directory, root, directory, interval, begun)
                waiting.extend(entry for key, entry in reversed(found) if key != f"{hidden}/".encode())
            case StoredObject() as stored:
                yield stored
    await blocking.run(partial(require_directory, root, before=begun))


def _first_directory(prefix: bytes) -> bytes:
    """Return the deepest directory that holds all keys with ``prefix``, as a key prefix: empty or ending in a slash."""
    return prefix[: prefix.rfind(b"/") + 1]


def _read_directory(
    root: Path, directory: bytes, interval: KeyInterval, begun: os.stat_result
) -> list[tuple[bytes, bytes | StoredObject]]:
    """Return entries of one directory with their sort keys: directories as key prefixes, files as objects.  ``begun`` is the
    status of the root that the listing began with."""
    found: list[tuple[bytes, bytes | StoredObject]] = []
    try:
        with os.scandir(os.fsencode(root) + b"/" + directory) as entries:
            for entry in entries:
                key = directory + entry.name
                if entry.is_dir(follow_symlinks=False):
                    if interval.may_contain_below(key + b"/"):
                        found.append((key + b"/", key + b"/"))
                elif interval.contains(key) and (stored := _stored_object(entry, key)) is not None:
                    found.append((key, stored))
    except (FileNotFoundError, NotADirectoryError):
        require_directory(
            root, before=begun
        )  # now: a volume that is mounted again by the end was not there for this one
        return []
    return sorted(found, key=lambda item: item[0])


def _stored_object(entry: os.DirEntry[bytes], key: bytes) -> StoredObject | None:
    """Return the object, or None if the file is gone by now or is not one that a store writes."""
    try:
        text = key.decode()
        status = entry.stat(follow_symlinks=False)
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    if not entry.is_file(follow_symlinks=False):
        return None
    return StoredObject(key=text, size_bytes=status.st_size, modified_ms=status.st_mtime_ns // 1_000_000)
