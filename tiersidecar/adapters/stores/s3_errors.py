"""Translate failures of S3 and of the network into errors of the store port."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
from botocore.exceptions import BotoCoreError, ClientError

from tiersidecar.domain.errors import ObjectExistsError, ObjectNotFoundError, StoreError

_NOT_FOUND = frozenset({"NoSuchKey", "404", "NotFound"})
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
        raise StoreError(verb=verb, key=key, reason=_explain(error)) from error
    except TimeoutError as error:
        raise StoreError(verb=verb, key=key, reason="no progress in time") from error
    except (BotoCoreError, aiohttp.ClientError, OSError) as error:
        raise StoreError(verb=verb, key=key, reason=f"{type(error).__name__}: {error}") from error


def code_of(error: ClientError) -> str:
    """S3's error code, or the HTTP status where the answer has no body (HEAD)."""
    return str(error.response.get("Error", {}).get("Code", ""))


def attempts_of(error: ClientError) -> int:
    """How often the request was sent before this answer came."""
    return 1 + int(error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0))


def _explain(error: ClientError) -> str:
    code = code_of(error)
    said = error.response.get("Error", {}).get("Message", "")
    attempts = f", tried {attempts_of(error)} times" if attempts_of(error) > 1 else ""
    hint = f" ({_HINTS[code]})" if code in _HINTS else ""
    return f"{code}: {said}{attempts}{hint}"
