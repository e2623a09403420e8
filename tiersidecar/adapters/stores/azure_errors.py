"""Translate failures of Azure Blob Storage and of the network into errors of the store port."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, PreconditionError

from tiersidecar.domain.errors import ObjectExistsError, ObjectNotFoundError, StoreError

_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<\n]+)")
_STATUS = re.compile(r"status code: (\d{3} [A-Z][A-Za-z ]*)")
_REFUSED_IN_BATCH = re.compile(r"Bulk delete request failed for key .*?: (?P<message>.*) \(code: (?P<status>\d{3})\)")
"""object_store deletes in batches: their answer is a success, and has one for each blob, without the service's error code."""
_CUT_OFF = "Generic MicrosoftAzure error: HTTP error: request or response body error"
_INTERRUPTED = "kind: Interrupted"
"""And not Timeout: then nothing more came."""
_QUERY = re.compile(r"\?[^\s)\"']*")
_NO_CONTAINER = "ContainerNotFound"
_NO_ANSWER = "are the account's name and azure.endpoint.url right, and does the way there let this machine through?"
_HINTS = {
    _NO_CONTAINER: "create the container, or correct azure.container.name",
    "ContainerBeingDeleted": "wait until it is gone, then create it again",
    "ResourceNotFound": "create the container, or correct azure.container.name",
    "AuthenticationFailed": "the account key, SAS token or secret is wrong or has expired, or the clock of this machine is",
    "AuthorizationFailure": "the key or SAS token is wrong, or the account's firewall does not let this machine in",
    "AuthorizationPermissionMismatch": "the identity needs the role Storage Blob Data Contributor, a SAS token the "
    "permissions rwdl",
    "AuthorizationProtocolMismatch": "the SAS token allows https only",
    "AuthorizationServiceMismatch": "the SAS token is for another service than blobs",
    "AuthorizationResourceTypeMismatch": "the SAS token must cover containers and objects",
    "AuthorizationSourceIPMismatch": "the SAS token is for other addresses",
    "InsufficientAccountPermissions": "the credentials may not do that",
    "KeyBasedAuthenticationNotPermitted": "the account takes no account keys: use an identity",
    "NoAuthenticationInformation": "no credentials were found: configure one, or check the machine's managed identity",
    "PublicAccessNotPermitted": "no credentials were found: configure one, or check the machine's managed identity",
    "AccountIsDisabled": "enable the storage account",
    "BlobArchived": "the blob is in the archive tier: it must be rehydrated before a read",
    "BlobImmutableDueToPolicy": "an immutability policy of the container forbids it",
    "LeaseIdMissing": "another client has leased the blob",
    "ServerBusy": "the account is at its limit of requests; it is tried again",
    "401": "the credentials were refused",
    "403": "the credentials may not do that, or the clock of this machine is wrong",
}


@contextmanager
def azure_errors(verb: str, key: str) -> Iterator[None]:
    """Translate errors without the cause: a traceback would show its URL, and the SAS token in that.

    Raises:
        ObjectNotFoundError: the blob, not its container, is missing.
        ObjectExistsError: a conditional request found the key taken.
        StoreError: everything else that the service refuses or the network loses.
    """
    try:
        yield
    except FileNotFoundError as error:
        if _code_of(error) == _NO_CONTAINER:
            raise StoreError(verb=verb, key=key, reason=_explain(error)) from None
        raise ObjectNotFoundError(verb=verb, key=key, reason="no such object") from None
    except (AlreadyExistsError, PreconditionError) as error:
        if _code_of(error) in _HINTS:  # of a request without a condition: object_store goes by the status alone
            raise StoreError(verb=verb, key=key, reason=_explain(error)) from None
        raise ObjectExistsError(verb=verb, key=key, reason="it exists already") from None
    except (BaseError, OSError, ValueError) as error:  # ValueError: a key that object_store has no way to write
        raise StoreError(verb=verb, key=key, reason=_explain(error), is_away=_says_away(error)) from None


def _says_away(error: Exception) -> bool:
    """Decide by the status; where there was no answer there is none.  One that broke off within an object is one."""
    said = str(error)
    if _is_cut_off(said):
        return False
    if found := _REFUSED_IN_BATCH.search(said):
        return says_away(int(found["status"]))
    if found := _STATUS.search(said):
        return says_away(int(found.group(1)[:3]))
    return isinstance(error, GenericError | OSError)


def says_away(status: int) -> bool:
    """Return whether an answer of ``status`` means that the service can serve no caller now."""
    return status >= 500 or status in {408, 429}


def _is_cut_off(said: str) -> bool:
    return said.startswith(_CUT_OFF) and _INTERRUPTED in said


def _code_of(error: Exception) -> str:
    """Return the service's error code, or the HTTP status where the answer has no body (HEAD); empty where there was none."""
    said = str(error)
    found = _CODE.search(said) or _STATUS.search(said)
    return found.group(1) if found else ""


def refused(status: int, code: str) -> str:
    """Return the reason for an answer of ``status`` with the service's error ``code``."""
    hint = _HINTS.get(code) or _HINTS.get(str(status))
    return f"{code or status} ({hint})" if hint else code or str(status)


def _explain(error: Exception) -> str:
    """Return one line without the URL's query, where a SAS token would be."""
    code, said = _code_of(error), str(error)
    if _is_cut_off(said):
        return "the answer broke off within the object"
    if in_batch := _REFUSED_IN_BATCH.search(said):
        hint = _HINTS.get(in_batch["status"])
        return f"{in_batch['status']}: {in_batch['message']}" + (f" ({hint})" if hint else "")
    message = _MESSAGE.search(said)
    if message is not None:
        text = f"{code}: {message.group(1)}"
    else:
        text = " ".join(_QUERY.sub("", said.partition("Debug source:")[0]).split())
    hint = _HINTS.get(code) or _HINTS.get(code[:3]) or (None if code else _NO_ANSWER)
    return f"{text} ({hint})" if hint else text
