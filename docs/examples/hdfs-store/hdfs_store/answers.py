"""What WebHDFS answers, and the errors of the store port that it means."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiersidecar.domain.errors import ObjectExistsError, ObjectNotFoundError, StoreError

_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
_AGAIN_AFTER = frozenset(
    {"RetriableException", "SafeModeException", "StandbyException", "ObserverRetryOnActiveException"}
)
"""What a name node says that is not active yet, or not any more."""
_DENIED = frozenset({"AccessControlException", "SecurityException", "AuthorizationException", "InvalidToken"})
_MOST_SAID = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``exception`` and ``message`` are the server's, empty where it is content, or another server's than Hadoop's."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    exception: str = ""
    message: str = ""

    @property
    def is_good(self) -> bool:
        return self.status // 100 == 2

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed a little later, or at another name node."""
        return self.exception in _AGAIN_AFTER or (self.status in _AGAIN and not self.exception)


def answer_of(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    """Return the answer with what its error document says, if it is one."""
    if status < 400:
        return Answer(status=status, headers=headers, body=body)
    try:
        said = json.loads(body)["RemoteException"]
        exception, message = str(said["exception"]), str(said["message"])
    except (ValueError, KeyError, TypeError):
        exception, message = "", ""
    first_line = message.strip().partition("\n")[0][:_MOST_SAID]
    return Answer(status=status, headers=headers, body=body, exception=exception, message=first_line)


def hdfs_error(verb: str, key: str, answer: Answer) -> StoreError:
    """Return what an answer that is no good one means."""
    if answer.status == 404 and answer.exception == "FileNotFoundException":
        return ObjectNotFoundError(verb=verb, key=key, reason="no such object")
    if answer.exception == "FileAlreadyExistsException":
        return ObjectExistsError(verb=verb, key=key, reason="it exists already")
    return StoreError(verb=verb, key=key, reason=_reason(answer), is_away=answer.may_pass)


def _reason(answer: Answer) -> str:
    if answer.exception == "StandbyException":
        return "no name node is active: does the option namenodes name all of them?"
    if answer.exception == "SafeModeException":
        return "the name node is in safe mode: wait, or see why with `hdfs dfsadmin -safemode get`"
    said = f"{answer.status} {answer.exception}: {answer.message}"
    if answer.exception in _DENIED:
        return f"{said} (has the option user, or the owner of delegation.token, all rights to the directory?)"
    if answer.exception:
        return said
    if answer.status == 401:
        return "401: the server wants a login: set delegation.token (Kerberos itself is not spoken)"
    return f"{answer.status}, and not from WebHDFS: is the option namenodes right, and no proxy in the way?"


def document_in(verb: str, key: str, answer: Answer, name: str) -> dict[str, Any]:
    """Return the JSON object ``name`` of a good answer.

    Raises:
        StoreError: there is none, so that something else than WebHDFS has answered.
    """
    found = _member(answer, name)
    if not isinstance(found, dict):
        raise _not_of_webhdfs(verb, key)
    return found


def boolean_in(verb: str, key: str, answer: Answer) -> bool:
    """Return what a good answer says was done.

    Raises:
        StoreError: it says nothing, so that something else than WebHDFS has answered.
    """
    found = _member(answer, "boolean")
    if not isinstance(found, bool):
        raise _not_of_webhdfs(verb, key)
    return found


def _member(answer: Answer, name: str) -> object:
    try:
        return json.loads(answer.body)[name]
    except (ValueError, KeyError, TypeError):
        return None


def _not_of_webhdfs(verb: str, key: str) -> StoreError:
    reason = "the answer is not WebHDFS's: is the option namenodes right, and no proxy's login page in the way?"
    return StoreError(verb=verb, key=key, reason=reason)
