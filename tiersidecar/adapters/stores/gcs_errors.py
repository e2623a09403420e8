"""Translate answers of Google Cloud Storage into errors of the store port, which say what to do."""

from __future__ import annotations

import json
import re

from tiersidecar.domain.errors import ObjectExistsError, ObjectNotFoundError, StoreError

_XML_CODE = re.compile(r"<Code>(\w+)</Code>")
_XML_MESSAGE = re.compile(r"<Message>([^<]+)")
_QUERY = re.compile(r"(?<=\S)\?[^\s'\")>,]+")
_NEEDED = {
    "put": "storage.objects.create, and storage.objects.delete to overwrite",
    "fetch": "storage.objects.get",
    "head": "storage.objects.get",
    "list": "storage.objects.list",
    "delete": "storage.objects.delete",
}
_NO_BUCKET = "bucket does not exist"
_CREATE_IT = "create the bucket, or correct gcs.bucket.name"
_VERBS_OF_THE_BUCKET = frozenset({"put", "list"})
"""Verbs to which the bucket itself answers 404: these need no object."""


def gcs_error(verb: str, key: str, status: int, body: bytes, *, is_conditional: bool = False) -> StoreError:
    """Return the error for an answer of ``status``, with the error document ``body``.

    A :class:`~tiersidecar.domain.errors.ObjectNotFoundError` says that the object, not its bucket, is missing; an
    :class:`~tiersidecar.domain.errors.ObjectExistsError` that a conditional put found the key taken.  The service answers
    412 for other reasons too, such as a constraint of the organization.
    """
    said = _message_in(body)
    if status == 404 and (verb in _VERBS_OF_THE_BUCKET or _NO_BUCKET in said):
        return StoreError(verb=verb, key=key, reason=f"404: {said or 'no such bucket'} ({_CREATE_IT})")
    if status == 404 and _is_of_the_service(body, said):
        return ObjectNotFoundError(verb=verb, key=key, reason="no such object")
    if status == 412 and is_conditional and _reason_in(body) in (None, "conditionNotMet"):
        return ObjectExistsError(verb=verb, key=key, reason="it exists already")
    hint = _hint(verb, status, said)
    text = f"{status}: {said}" if said else str(status)
    is_away = status >= 500 or status in {408, 429}
    return StoreError(verb=verb, key=key, reason=f"{text} ({hint})" if hint else text, is_away=is_away)


def without_queries(text: str) -> str:
    """Return ``text`` with its addresses cut before their queries: that of an upload has a secret there."""
    return _QUERY.sub("", text)


def _hint(verb: str, status: int, said: str) -> str | None:
    if status == 403 and "retention" in said.lower():
        return "a retention policy or hold of the bucket forbids it"
    hints = {
        400: "correct gcs.endpoint.url, gcs.bucket.name or gcs.storage.class" if "Invalid" in said else None,
        401: "the credentials were refused: the key was revoked or has expired, or the clock of this machine is wrong",
        403: f"the identity needs {_NEEDED.get(verb, 'more rights')}: the role Storage Object User on the bucket has it",
        404: "it is not the service that says so: is gcs.endpoint.url right, and no proxy in the way?",
        408: "the service took too long",
        416: "the object is shorter than that",
        429: "the bucket or the project is at its limit of requests; it is tried again",
        503: "the service is overloaded; it is tried again",
    }
    return hints.get(status)


def _is_of_the_service(body: bytes, said: str) -> bool:
    """Return whether a 404 is the service's own and not a proxy's page, which does not prove that an object is gone.

    Metadata come with a document, content with only a sentence.
    """
    return _reason_in(body) == "notFound" or said == "Not Found" or said.startswith(("No such object", "NoSuchKey"))


def _reason_in(body: bytes) -> str | None:
    """Return the service's name of the first error of its document, empty if it has none; None without a document."""
    try:
        document = json.loads(body)
    except ValueError:
        return None
    try:
        return str(document["error"]["errors"][0]["reason"])
    except (TypeError, KeyError, IndexError):
        return ""


def _message_in(body: bytes) -> str:
    """Return the service's own sentence, on one line: JSON as a rule, XML or text from what stands before it."""
    text = body[:8192].decode(errors="replace")
    try:
        document = json.loads(text)
        said = document["error"]["message"] if isinstance(document["error"], dict) else document["error"]
    except (ValueError, TypeError, KeyError):
        code, message = _XML_CODE.search(text), _XML_MESSAGE.search(text)
        said = ": ".join(found.group(1) for found in (code, message) if found) or ("" if "<" in text else text)
    return without_queries(" ".join(str(said or "").split()))[:300]
