"""Read the properties of an object from S3's responses."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from tiersidecar.ports.store import StoredObject


def stored_object(key: str, size_bytes: int, answer: Mapping[str, Any]) -> StoredObject:
    """Read the response to a put or a head.  A put returns no time of the object, so the response's time is used."""
    modified = answer.get("LastModified") or _date_of(answer)
    crc32c = decode_crc32c(answer.get("ChecksumCRC32C"), answer.get("ChecksumType"))
    return StoredObject(key=key, size_bytes=size_bytes, modified_ms=_milliseconds(modified), crc32c=crc32c)


def listed_object(entry: Mapping[str, Any]) -> StoredObject:
    """Read an entry of a listing, which has no checksum."""
    return StoredObject(key=entry["Key"], size_bytes=entry["Size"], modified_ms=_milliseconds(entry["LastModified"]))


def encode_crc32c(value: int) -> str:
    """As S3's headers have it: base64 of four bytes, big endian."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()


def decode_crc32c(text: str | None, kind: str | None) -> int | None:
    """The full-object CRC32C; None where there is none, or only a sum of the parts' sums (``<base64>-<parts>``)."""
    if text is None or "-" in text or kind == "COMPOSITE":
        return None
    return int.from_bytes(base64.b64decode(text), "big")


def _date_of(answer: Mapping[str, Any]) -> datetime | None:
    text = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return None if text is None else parsedate_to_datetime(text)


def _milliseconds(time: datetime | None) -> int:
    return 0 if time is None else round(time.timestamp() * 1000)
