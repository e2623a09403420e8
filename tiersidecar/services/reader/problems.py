"""Turn errors into ``application/problem+json`` (RFC 9457)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from aiohttp import web

from tiersidecar.domain.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    DataKeyError,
    KeyRefusedError,
    MetadataNotReadyError,
    OffsetBetweenTiersError,
    OffsetInHoleError,
    OffsetOutOfRangeError,
    PartitionHaltedError,
    QuotaExceededError,
    RetriableError,
    StoreError,
    TooLargeToOpenError,
    UndecidedTransactionError,
    UnknownPlaceError,
)
from tiersidecar.domain.ids import place_of
from tiersidecar.ports.broker import CallerNotAuthenticatedError
from tiersidecar.services.client_limits import REFUSAL

PROBLEM_TYPE = "application/problem+json"
CHALLENGE = 'Basic realm="kafka", charset="UTF-8", Bearer realm="kafka"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem document.  ``name`` becomes its type URI; ``detail`` is for the caller and names no keys, hosts or other
    callers; ``members`` are the extension members."""

    status: HTTPStatus
    name: str
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[str, int | str] = field(default_factory=dict)

    def response(self) -> web.Response:
        """Return the response that carries it."""
        document = {
            "type": f"urn:tiersidecar:problem:{self.name}",
            "title": self.status.phrase,
            "status": self.status.value,
            "detail": self.detail,
            **self.members,
        }
        return web.Response(
            status=self.status, body=json.dumps(document).encode(), content_type=PROBLEM_TYPE, headers=self.headers
        )


class ProblemError(Exception):
    """Ends a request with ``problem``."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem


def bad_request(detail: str) -> ProblemError:
    """Return a problem for a parameter that cannot be used."""
    return ProblemError(Problem(status=HTTPStatus.BAD_REQUEST, name="bad-request", detail=detail))


def not_found(detail: str) -> ProblemError:
    """Return a problem for an unknown topic, partition or path."""
    return ProblemError(Problem(status=HTTPStatus.NOT_FOUND, name="not-found", detail=detail))


def range_not_satisfiable(size_bytes: int) -> ProblemError:
    """Return a problem for a range that begins past the end of a file of ``size_bytes``."""
    return ProblemError(
        Problem(
            status=HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
            name="range-not-satisfiable",
            detail=f"the file has {size_bytes} bytes",
            headers={"Content-Range": f"bytes */{size_bytes}"},
        )
    )


def misdirected() -> ProblemError:
    """Return a problem for a request that is meant for another site."""
    return ProblemError(Problem(status=HTTPStatus.MISDIRECTED_REQUEST, name="misdirected", detail=REFUSAL))


def forbidden(topic: str) -> ProblemError:
    """Return a problem if the broker does not let this caller READ the topic; it does not say whether the topic exists."""
    detail = f"reading topic {topic} is not authorized"
    return ProblemError(Problem(status=HTTPStatus.FORBIDDEN, name="not-authorized", detail=detail))


def unauthenticated() -> ProblemError:
    """Return a problem for credentials that are missing, malformed, or were refused by the broker."""
    return ProblemError(
        Problem(
            status=HTTPStatus.UNAUTHORIZED,
            name="not-authenticated",
            detail="the broker asks for credentials that it accepts",
            headers={"WWW-Authenticate": CHALLENGE},
        )
    )


def problem_of(error: Exception) -> Problem:
    """Return the problem for ``error``."""
    match error:
        case ProblemError():
            return error.problem
        case web.HTTPException():
            return _from_http(error)
        case CallerNotAuthenticatedError():
            return unauthenticated().problem
        case OffsetInHoleError():
            # Not "out of range": a client would skip to what comes behind, which no operator has allowed.
            lost = f"offsets {error.hole_start} to {error.hole_stop - 1}"
            return _unavailable(
                "offset-in-hole", f"{lost} are in neither tier: the service's log has the remedy", retry_after_s=5
            )
        case OffsetOutOfRangeError():
            return Problem(
                status=HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
                name="offset-out-of-range",
                detail=str(error),
                members={"start_offset": error.start, "end_offset": error.stop},
            )
        case QuotaExceededError():
            retry_after_s = -(-error.retry_after_ms // 1000)
            return Problem(
                status=HTTPStatus.TOO_MANY_REQUESTS,
                name="overloaded",
                detail=f"{error.what} is exhausted",
                headers={"Retry-After": str(max(retry_after_s, 1))},
            )
        case TooLargeToOpenError():
            return Problem(status=HTTPStatus.INSUFFICIENT_STORAGE, name="too-large-to-open", detail=str(error))
        case MetadataNotReadyError():
            return _unavailable("metadata-not-ready", "remote log metadata is still being replayed", retry_after_s=1)
        case OffsetBetweenTiersError():
            detail = "the broker has dropped this offset, and the remote tier does not have it yet"
            return _unavailable("offset-between-tiers", detail, retry_after_s=5)
        case UndecidedTransactionError():
            return _unavailable("transaction-undecided", str(error), retry_after_s=5)
        case UnknownPlaceError():
            detail = f"this is in the place {error.place}, which the service's configuration does not name"
            return _unavailable("place-unknown", detail, retry_after_s=5)
        case StoreError():
            return _unavailable("store-unavailable", _store_detail(error), retry_after_s=5)
        case BrokerUnreachableError() | BrokerRefusedError():
            return _unavailable("broker-unavailable", "the broker could not be asked", retry_after_s=5)
        case KeyRefusedError():
            return _unavailable(
                "key-refused", "the key service refuses: the service's log says what to do", retry_after_s=60
            )
        case DataKeyError():
            detail = "no key that the service has opens the data key of this segment: the service's log says why"
            return _unavailable("data-key", detail, retry_after_s=60)
        case RetriableError() | TimeoutError():
            return _unavailable("unavailable", "a required service is temporarily unavailable", retry_after_s=5)
        case PartitionHaltedError():
            detail = "what is stored of this partition does not pass its checks"
            return Problem(status=HTTPStatus.INTERNAL_SERVER_ERROR, name="corrupt-data", detail=detail)
        case _:
            detail = "an unexpected error, see the service's log"
            return Problem(status=HTTPStatus.INTERNAL_SERVER_ERROR, name="internal", detail=detail)


def _store_detail(error: StoreError) -> str:
    """Return what is wrong with the store; a place's name is the operator's word for it, and no host."""
    place = place_of(error.key)
    store = f"the object store of the place {place}" if place else "the object store"
    return f"{store} is away" if error.is_away and place else f"{store} did not deliver"


def _unavailable(name: str, detail: str, *, retry_after_s: int) -> Problem:
    return Problem(
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        name=name,
        detail=detail,
        headers={"Retry-After": str(retry_after_s)},
    )


def _from_http(error: web.HTTPException) -> Problem:
    """Return the problem for an error of aiohttp: no such path, another method, a request that is too large."""
    allow = error.headers.get("Allow")
    return Problem(
        status=HTTPStatus(error.status),
        name=HTTPStatus(error.status).name.lower().replace("_", "-"),
        detail=HTTPStatus(error.status).phrase,
        headers={"Allow": allow} if allow else {},
    )
