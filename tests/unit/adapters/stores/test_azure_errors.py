"""What Azure says becomes one line that says what to do, without the signature of a SAS token."""

from __future__ import annotations

import traceback

import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PermissionDeniedError, PreconditionError

from tiersidecar.adapters.stores.azure_errors import azure_errors
from tiersidecar.domain.errors import ObjectExistsError, ObjectNotFoundError, StoreError

URL = "https://kafkatier.blob.core.windows.net/kafka-tier/t/0/a.log?sv=2023&sig=c2VjcmV0"


def answer(status: str, code: str, message: str) -> str:
    return (
        f"Generic MicrosoftAzure error: Error performing PUT {URL} in 22.5ms - Server returned non-2xx status code: {status}: "
        f'<?xml version="1.0"?>\n<Error>\n  <Code>{code}</Code>\n  <Message>{message}\nRequestId:1\n</Message>\n</Error>'
        f"\n\nDebug source:\nGeneric {{ uri: {URL} }}"
    )


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (
            FileNotFoundError(answer("404 Not Found", "BlobNotFound", "It is not there.")),
            ObjectNotFoundError,
            "no such",
        ),
        (FileNotFoundError("Object at location a not found: HEAD"), ObjectNotFoundError, "no such object"),
        (
            FileNotFoundError(answer("404 Not Found", "ContainerNotFound", "It is not there.")),
            StoreError,
            "ContainerNotFound: It is not there. (create the container, or correct azure.container.name)",
        ),
        (AlreadyExistsError(answer("409 Conflict", "BlobAlreadyExists", "x")), ObjectExistsError, "it exists already"),
        (PreconditionError(answer("412 Failed", "ConditionNotMet", "x")), ObjectExistsError, "it exists already"),
        (
            PermissionDeniedError(answer("403 Forbidden", "AuthorizationPermissionMismatch", "Not allowed.")),
            StoreError,
            "AuthorizationPermissionMismatch: Not allowed. (the identity needs the role Storage Blob Data Contributor, a SAS "
            "token the permissions rwdl)",
        ),
        (
            AlreadyExistsError(answer("409 Conflict", "BlobArchived", "No reads.")),
            StoreError,
            "BlobArchived: No reads. (the blob is in the archive tier: it must be rehydrated before a read)",
        ),
        (
            PreconditionError(answer("412 Failed", "LeaseIdMissing", "Leased.")),
            StoreError,
            "LeaseIdMissing: Leased. (another client has leased the blob)",
        ),
        (
            GenericError(
                "Generic MicrosoftAzure error: Bulk delete request failed for key t/0/a.log: There is currently a lease on the "
                "blob. (code: 412)\n\nDebug source: x"
            ),
            StoreError,
            "412: There is currently a lease on the blob.",
        ),
        (
            GenericError(
                f"Generic MicrosoftAzure error: Error performing PUT {URL} in 3s - refused\n\nDebug source: x"
            ),
            StoreError,
            f"Generic MicrosoftAzure error: Error performing PUT {URL.partition('?')[0]} in 3s - refused",
        ),
    ],
    ids=[
        "no blob",
        "no blob, by HEAD",
        "no container",
        "taken",
        "changed",
        "no right",
        "archived",
        "leased",
        "leased, in a batch of deletes",
        "no network",
    ],
)
def test_an_error_says_what_to_do(error: Exception, kind: type[StoreError], reason: str) -> None:
    with pytest.raises(StoreError) as raised, azure_errors("put", "t/0/a.log"):
        raise error
    assert type(raised.value) is kind
    assert raised.value.reason.startswith(reason)
    assert "c2VjcmV0" not in "".join(traceback.format_exception(raised.value))
