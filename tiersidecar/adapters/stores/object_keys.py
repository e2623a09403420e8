"""Valid keys: those that mean the same object in every kind of store."""

from __future__ import annotations

import re

from tiersidecar.domain.errors import StoreError

MAX_KEY_BYTES = 1024
"""S3's limit, the shortest of the stores'."""
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")


def require_valid_key(verb: str, key: str) -> None:
    """Refuse a key that a file system would read as another place, or that S3 would refuse.

    Raises:
        StoreError: absolute, empty or dot segments, control characters, not UTF-8, or over 1024 bytes.
    """
    reason = _fault_of(key)
    if reason is not None:
        raise StoreError(verb=verb, key=key, reason=reason)


def _fault_of(key: str) -> str | None:
    if not key:
        return "an object key cannot be empty"
    segments = key.split("/")
    if "" in segments:
        return "an object key has no empty segments: no slash first, last, or next to another"
    if "." in segments or ".." in segments:
        return "an object key has no '.' or '..' segments"
    if _CONTROL_CHARACTERS.search(key):
        return "an object key has no control characters"
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError:
        return "an object key is UTF-8"
    return (
        f"an object key has at most {MAX_KEY_BYTES} bytes, this one {size_bytes}"
        if size_bytes > MAX_KEY_BYTES
        else None
    )
