"""Objects in the JSON API: their descriptions, and the addresses of requests."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from tiersidecar.domain.errors import StoreError
from tiersidecar.ports.store import StoredObject

FIELDS = "name,size,updated,crc32c,generation,metadata"


class GcsUrls:
    """Addresses of one bucket: quoted, and complete but for the query."""

    def __init__(self, endpoint_url: str, bucket: str) -> None:
        endpoint, bucket_path = endpoint_url.rstrip("/"), f"storage/v1/b/{quote(bucket, safe='')}/o"
        self._objects = f"{endpoint}/{bucket_path}"
        self._uploads = f"{endpoint}/upload/{bucket_path}"

    def object(self, key: str, **asked: str) -> str:
        """Return the address of the object ``key``."""
        return _with_query(f"{self._objects}/{quote(key, safe='')}", asked)

    def listing(self, **asked: str) -> str:
        """Return the address of the bucket's objects."""
        return _with_query(self._objects, asked)

    def upload(self, **asked: str) -> str:
        """Return the address of a new object."""
        return _with_query(self._uploads, asked)


def _with_query(url: str, asked: dict[str, str]) -> str:
    return f"{url}?{urlencode(asked, quote_via=quote)}" if asked else url


def encode_crc32c(crc: int) -> str:
    """Return it in the service's form: the base64 of four bytes, big-endian."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def decode_crc32c(text: str) -> int:
    """Undo :func:`encode_crc32c`."""
    return int.from_bytes(base64.b64decode(text), "big")


def read_document(verb: str, key: str, body: bytes, *, kind: str | None = None) -> dict[str, Any]:
    """Return the JSON object of an answer, of ``kind`` if one is given.

    Raises:
        StoreError: it is none, so that another server than the service has answered.
    """
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict) or (kind is not None and document.get("kind") != kind):
        reason = "the answer is not the service's: is gcs.endpoint.url right, and no proxy's login page in the way?"
        raise StoreError(verb=verb, key=key, reason=reason)
    return document


def stored_object(verb: str, key: str, document: dict[str, Any]) -> StoredObject:
    """Return the object that ``document`` describes.

    Raises:
        StoreError: the description lacks fields that the service always sends.
    """
    try:
        crc = document.get("crc32c")
        return StoredObject(
            key=str(document["name"]),
            size_bytes=int(document["size"]),
            modified_ms=round(datetime.fromisoformat(document["updated"]).timestamp() * 1000),
            crc32c=None if crc is None else decode_crc32c(crc),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(verb=verb, key=key, reason="the service's description of the object is not whole") from error


def crc32c_in(hashes: str) -> int | None:
    """Return the CRC32C in a header ``x-goog-hash``; None without one."""
    for one in hashes.split(","):
        kind, _, value = one.strip().partition("=")
        if kind == "crc32c":
            return decode_crc32c(value)
    return None
