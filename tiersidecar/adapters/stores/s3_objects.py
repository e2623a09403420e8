"""Read S3's responses: the properties of an object, and failures, translated into errors of the store port."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, ResponseStreamingError
from botocore.exceptions import ConnectionError as NotConnectedError

from tiersidecar.domain.errors import ObjectExistsError, ObjectNotFoundError, StoreError
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
    """Return it in the form of S3's headers: base64 of four bytes, big endian."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()


def decode_crc32c(text: str | None, kind: str | None) -> int | None:
    """Return the full-object CRC32C; None where there is none, or only a sum of the parts' sums (``<base64>-<parts>``)."""
    if text is None or "-" in text or kind == "COMPOSITE":
        return None
    return int.from_bytes(base64.b64decode(text), "big")


def _date_of(answer: Mapping[str, Any]) -> datetime | None:
    text = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return None if text is None else parsedate_to_datetime(text)


def _milliseconds(time: datetime | None) -> int:
    return 0 if time is None else round(time.timestamp() * 1000)


_NOT_FOUND = frozenset({"NoSuchKey", "404", "NotFound"})
_NO_ANSWER = (NotConnectedError, HTTPClientError, aiohttp.ClientError, OSError)
_HALF_AN_ANSWER = (ResponseStreamingError, aiohttp.ClientPayloadError)
"""The server answered, and broke off within the object: servers do that with one whose parts they have lost."""
_SAYS_AWAY = frozenset({"RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded"})
_EXISTS = frozenset({"PreconditionFailed", "412"})
_HINTS = {
    "NoSuchBucket": "create the bucket, or correct its name",
    "AccessDenied": "the credentials may not do that",
    "403": "the credentials may not do that",
    "InvalidAccessKeyId": "the access key is not known there",
    "XAdminUserNotFound": "the access key is not known there",
    "SignatureDoesNotMatch": "the secret key is wrong, or a proxy changed the request",
    "RequestTimeTooSkewed": "the clock of this machine is wrong",
    "PermanentRedirect": "the bucket is in another region",
    "InvalidObjectState": "the object is archived: its storage class cannot be read directly",
}


@contextmanager
def s3_errors(verb: str, key: str) -> Iterator[None]:
    """Raises:
    ObjectNotFoundError: the object, not the bucket, is missing.
    ObjectExistsError: a conditional request found the key taken.
    StoreError: everything else that the server refuses or the network loses.
    """
    try:
        yield
    except ClientError as error:
        code = code_of(error)
        if code in _NOT_FOUND:
            raise ObjectNotFoundError(verb=verb, key=key, reason="no such object") from error
        if code in _EXISTS:
            raise ObjectExistsError(verb=verb, key=key, reason="it exists already") from error
        raise StoreError(verb=verb, key=key, reason=_explain(error), is_away=_says_away(error)) from error
    except TimeoutError as error:
        raise StoreError(verb=verb, key=key, reason="no progress in time", is_away=True) from error
    except (BotoCoreError, aiohttp.ClientError, OSError) as error:
        is_away = isinstance(error, _NO_ANSWER) and not isinstance(error, _HALF_AN_ANSWER)
        reason = f"{type(error).__name__}: {error}"
        raise StoreError(verb=verb, key=key, reason=reason, is_away=is_away) from error


def code_of(error: ClientError) -> str:
    """Return S3's error code, or the HTTP status where the answer has no body (HEAD)."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _says_away(error: ClientError) -> bool:
    """Decide by the status; S3 answers 400 too where a request took too long."""
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return status >= 500 or status in {408, 429} or code_of(error) in _SAYS_AWAY


def attempts_of(error: ClientError) -> int:
    """Return how often the request was sent before this answer came."""
    return 1 + int(error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0))


def _explain(error: ClientError) -> str:
    code = code_of(error)
    said = error.response.get("Error", {}).get("Message", "")
    attempts = f", tried {attempts_of(error)} times" if attempts_of(error) > 1 else ""
    hint = f" ({_HINTS[code]})" if code in _HINTS else ""
    return f"{code}: {said}{attempts}{hint}"
