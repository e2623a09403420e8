"""Which failures say that the store is away, and which that one object cannot be read (issue 21): readers of other objects wait
only for the first."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
    ResponseStreamingError,
)
from obstore.exceptions import GenericError, InvalidPathError, PermissionDeniedError

from tiersidecar.adapters.clock import SystemIds, ThreadBlocking
from tiersidecar.adapters.stores.azure_errors import azure_errors
from tiersidecar.adapters.stores.filesystem import FilesystemStore
from tiersidecar.adapters.stores.gcs_errors import gcs_error
from tiersidecar.adapters.stores.gcs_requests import ConnectionFailedError
from tiersidecar.adapters.stores.s3_objects import s3_errors
from tiersidecar.domain.errors import StoreError, StoreStalledError


def s3_answer(status: int, code: str) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "GetObject")  # type: ignore[typeddict-item]


def azure_answer(status: str, code: str) -> str:
    return (
        f"Generic MicrosoftAzure error: Error performing GET https://x/y in 22.5ms, after 3 retries - Server returned non-2xx "
        f"status code: {status}: <Error><Code>{code}</Code><Message>so</Message></Error>"
    )


def in_batch(message: str, status: int) -> str:
    return f"Generic MicrosoftAzure error: Bulk delete request failed for key t/a.log: {message} (code: {status})"


def within_an_object(kind: str) -> str:
    source = f'Generic {{\n    store: "MicrosoftAzure",\n    source: HttpError {{\n        kind: {kind},\n    }},\n}}'
    return f"Generic MicrosoftAzure error: HTTP error: request or response body error\n\nDebug source:\n{source}"


URL = "http://s3"


@pytest.mark.parametrize(
    ("error", "is_away"),
    [
        pytest.param(s3_answer(403, "AccessDenied"), False, id="no right"),
        pytest.param(s3_answer(403, "InvalidObjectState"), False, id="archived"),
        pytest.param(s3_answer(404, "NoSuchKey"), False, id="no object"),
        pytest.param(s3_answer(404, "NoSuchBucket"), False, id="no bucket"),
        pytest.param(s3_answer(412, "PreconditionFailed"), False, id="taken"),
        pytest.param(s3_answer(416, "InvalidRange"), False, id="shorter than the range"),
        pytest.param(
            s3_answer(400, "RequestTimeout"), True, id="a request that took too long, which S3 calls a bad one"
        ),
        pytest.param(s3_answer(429, "TooManyRequests"), True, id="too many requests"),
        pytest.param(s3_answer(500, "InternalError"), True, id="an error of the server's"),
        pytest.param(s3_answer(503, "SlowDown"), True, id="overloaded"),
        pytest.param(s3_answer(503, "503"), True, id="overloaded, by HEAD"),
        pytest.param(EndpointConnectionError(endpoint_url=URL), True, id="no connection"),
        pytest.param(ReadTimeoutError(endpoint_url=URL), True, id="no answer in time"),
        pytest.param(TimeoutError(), True, id="no progress in time"),
        pytest.param(ConnectionRefusedError(), True, id="refused"),
        pytest.param(aiohttp.ServerDisconnectedError(), True, id="closed without an answer"),
        pytest.param(aiohttp.ClientPayloadError(), False, id="broken off within the object"),
        pytest.param(ResponseStreamingError(error="x"), False, id="broken off within the object, as botocore says it"),
        pytest.param(ParamValidationError(report="key"), False, id="a key that is none"),
        pytest.param(NoCredentialsError(), False, id="no credentials"),
    ],
)
def test_what_s3_says(error: Exception, is_away: bool) -> None:
    with pytest.raises(StoreError) as raised, s3_errors("fetch", "k"):
        raise error
    assert raised.value.is_away is is_away


@pytest.mark.parametrize(
    ("error", "is_away"),
    [
        pytest.param(FileNotFoundError("Object at location a not found"), False, id="no blob"),
        pytest.param(FileNotFoundError(azure_answer("404 Not Found", "ContainerNotFound")), False, id="no container"),
        pytest.param(
            PermissionDeniedError(azure_answer("403 Forbidden", "AuthorizationFailure")), False, id="no right"
        ),
        pytest.param(PermissionDeniedError("no text"), False, id="no right, and no text"),
        pytest.param(GenericError(azure_answer("409 Conflict", "BlobArchived")), False, id="archived"),
        pytest.param(GenericError(azure_answer("416 Range Not Satisfiable", "InvalidRange")), False, id="too short"),
        pytest.param(InvalidPathError("a//b"), False, id="a key that is none"),
        pytest.param(GenericError(within_an_object("Interrupted")), False, id="broken off within the object"),
        pytest.param(GenericError(within_an_object("Timeout")), True, id="no progress in time within the object"),
        pytest.param(GenericError(in_batch("It is immutable.", 409)), False, id="a blob that may not be deleted"),
        pytest.param(GenericError(in_batch("Busy.", 503)), True, id="a blob that an overloaded service did not delete"),
        pytest.param(GenericError(azure_answer("429 Too Many Requests", "ServerBusy")), True, id="too many requests"),
        pytest.param(GenericError(azure_answer("503 Service Unavailable", "ServerBusy")), True, id="overloaded"),
        pytest.param(
            GenericError(azure_answer("500 Internal Server Error", "InternalError")), True, id="its own error"
        ),
        pytest.param(
            GenericError("Error performing GET https://x/y in 3s - error sending request"), True, id="no answer"
        ),
    ],
)
def test_what_azure_says(error: Exception, is_away: bool) -> None:
    with pytest.raises(StoreError) as raised, azure_errors("fetch", "k"):
        raise error
    assert raised.value.is_away is is_away


@pytest.mark.parametrize(
    ("status", "is_away"),
    [
        *[(status, False) for status in (400, 401, 403, 404, 416)],
        *[(status, True) for status in (408, 429, 500, 502, 503, 504)],
    ],
)
def test_what_google_says(status: int, is_away: bool) -> None:
    assert gcs_error("fetch", "k", status, b"{}").is_away is is_away


@pytest.mark.parametrize("is_away", [True, False])
def test_a_connection_to_google_fails_before_the_answer_or_within_it(is_away: bool) -> None:
    assert ConnectionFailedError("x", is_away=is_away).as_store_error("fetch", "k").is_away is is_away


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[FilesystemStore]:
    async with ThreadBlocking(max_threads=1) as blocking:
        yield FilesystemStore(root=str(tmp_path), blocking=blocking, ids=SystemIds())


@pytest.mark.parametrize(
    ("number", "is_away"),
    [
        pytest.param(errno.EIO, False, id="a bad block"),
        pytest.param(errno.EACCES, False, id="no right"),
        pytest.param(errno.ENOENT, False, id="no file"),
        pytest.param(errno.ENOTCONN, True, id="a FUSE mount whose process has died"),
        pytest.param(errno.ESTALE, True, id="an NFS export that is gone"),
        pytest.param(errno.ETIMEDOUT, True, id="a soft mount whose server does not answer"),
    ],
)
async def test_what_a_file_system_says(
    files: FilesystemStore, monkeypatch: pytest.MonkeyPatch, number: int, is_away: bool
) -> None:
    def fails(path: Path) -> None:
        raise OSError(number, "so", str(path))

    monkeypatch.setattr("tiersidecar.adapters.stores.filesystem.plain_file_status", fails)
    with pytest.raises(StoreError) as raised:
        await files.head_object("k")
    assert raised.value.is_away is is_away


async def test_a_root_that_is_gone_says_that_the_store_is_away(files: FilesystemStore, tmp_path: Path) -> None:
    """Its volume is not mounted: by listing, deleting and reading alike, or reconcile ends where a place is such a store."""
    tmp_path.rmdir()
    for attempt in (
        lambda: files.fetch_object("k", max_bytes=10),
        lambda: files.delete_objects(["k"]),
        lambda: anext(files.list_objects()),
    ):
        with pytest.raises(StoreError, match="No such file or directory") as raised:
            await attempt()
        assert raised.value.is_away


def test_a_request_that_was_given_up_says_that_the_store_is_away() -> None:
    assert StoreStalledError(verb="fetch", key="k", reason="x").is_away
    assert not StoreError(verb="fetch", key="k", reason="x").is_away
