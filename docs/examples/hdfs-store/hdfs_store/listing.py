"""Keys in the order of their bytes, out of directories.

HDFS sorts the names in a directory as signed bytes and knows no order over whole paths, so each directory is read whole and
sorted here: ``a-b`` is before ``a/b``, which is before ``a0``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from hdfs_store.files import HdfsFiles
from hdfs_store.paths import UPLOADS, stored_object
from tiersidecar.ports.store import StoredObject


async def walk(files: HdfsFiles, directory: str, prefix: str, start_after: str) -> AsyncIterator[StoredObject]:
    """Yield the objects whose key begins with ``prefix`` and sorts after ``start_after``, ascending by key bytes."""
    below = prefix[: prefix.rfind("/") + 1]
    if {"", ".", ".."} & set(below.split("/")[:-1]):
        return  # no key has such parts, and a path with them is another place
    async for stored in _below(files, directory, below, prefix, start_after.encode()):
        yield stored


async def _below(
    files: HdfsFiles, directory: str, below: str, prefix: str, bound: bytes
) -> AsyncIterator[StoredObject]:
    """Those of one directory, whose keys begin with ``below``: empty, or with a slash at its end."""
    path = f"{directory}/{below}".rstrip("/")
    found = [(_key(below, entry), entry) async for entry in files.children("list", prefix, path)]
    for key, entry in sorted(found, key=lambda one: one[0].encode()):
        if key == f"{UPLOADS}/" or not (key.startswith(prefix) or prefix.startswith(key)):
            continue
        if not key.endswith("/"):
            if key.startswith(prefix) and key.encode() > bound:
                yield stored_object(key, entry, verb="list")
        # All below sorts as the directory does, but where the bound lies in it.
        elif key.encode() > bound or bound.startswith(key.encode()):
            async for stored in _below(files, directory, key, prefix, bound):
                yield stored


def _key(below: str, entry: dict[str, Any]) -> str:
    """With a slash at its end where it is a directory: it sorts as what it holds."""
    return f"{below}{entry['pathSuffix']}{'/' if entry.get('type') == 'DIRECTORY' else ''}"
