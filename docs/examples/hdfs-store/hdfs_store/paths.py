"""Where objects are in HDFS, and which keys it can hold."""

from __future__ import annotations

from typing import Any

from tiersidecar.domain.errors import ObjectNotFoundError, StoreError
from tiersidecar.ports.store import StoredObject, require_valid_key

MAX_NAME_BYTES = 255
"""HDFS's default, ``dfs.namenode.fs-limits.max-component-length``."""
UPLOADS = ".tiersidecar-uploads"
"""The directory beside the objects in which a put writes, before it renames."""


def path_of(verb: str, directory: str, key: str) -> str:
    """Return the path of the object ``key``.

    Raises:
        StoreError: no store takes the key, or HDFS does not.
    """
    require_valid_key(verb, key)
    if ":" in key:
        raise StoreError(verb=verb, key=key, reason="HDFS takes no ':' in an object key")
    if key.split("/")[0] == UPLOADS:
        raise StoreError(verb=verb, key=key, reason=f"an object key does not begin with {UPLOADS}: uploads are there")
    return f"{directory}/{key}"


def stored_object(key: str, status: dict[str, Any], *, verb: str) -> StoredObject:
    """Return the object that a ``FileStatus`` describes.

    Raises:
        ObjectNotFoundError: it is a directory.
        StoreError: the description lacks what HDFS always says.
    """
    try:
        kind, size_bytes, modified_ms = str(status["type"]), int(status["length"]), int(status["modificationTime"])
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(verb=verb, key=key, reason="HDFS's description of the object is not whole") from error
    if kind != "FILE":
        raise ObjectNotFoundError(verb=verb, key=key, reason="it is a directory")
    return StoredObject(key=key, size_bytes=size_bytes, modified_ms=modified_ms)
