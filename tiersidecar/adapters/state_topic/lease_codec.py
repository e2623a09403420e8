"""Leases as records of the state topic: ``lease/<name>``.

Sidecars of earlier versions leave keys alone that they do not know, and fields: a renewal of theirs has no seen time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.lease import LEASE_FORMAT, Lease
from tiersidecar.domain.seen_time import SeenTime, UnseenTime

_PREFIX = "lease/"
_NOT_AS_THEY_ARE = {"name", "seen"}
_TYPES: dict[str, type] = {
    "cluster_id": str,
    "incarnation": str,
    "host": str,
    "version": str,
    "released": bool,
    "status_address": str,
    "renewal": bool,
    "decides_proposals": bool,
    "obeys_pauses": bool,
}


def lease_key(name: str) -> bytes:
    """Key of a lease."""
    return f"{_PREFIX}{name}".encode()


def read_lease_key(key: bytes) -> str | None:
    """The lease's name, None for any other key."""
    kind, slash, name = key.decode(errors="replace").partition("/")
    return name if f"{kind}{slash}" == _PREFIX and name else None


def read_lease(name: str, document: Mapping[str, Any], *, where: str) -> Lease:
    """The lease.

    Raises:
        CorruptDataError: a field is missing or of another type.
    """
    wanted = [field.name for field in fields(Lease) if field.name not in _NOT_AS_THEY_ARE]
    found = {field: document[field] for field in wanted if field in document}
    for field, value in found.items():
        if type(value) is not _TYPES.get(field, int):
            raise CorruptDataError(where=where, position=0, reason=f"{field} is {value!r}")
    try:
        return Lease(name=name, seen=_read_seen(document), **found)
    except TypeError as error:
        raise CorruptDataError(where=where, position=0, reason=str(error)) from error


def write_lease(lease: Lease) -> bytes:
    """The lease's value."""
    document = {field: value for field, value in asdict(lease).items() if field not in _NOT_AS_THEY_ARE}
    if lease.seen is not None:
        document["seen_until_ms"] = lease.seen.until_ms
        document["unseen_ms"] = [[one.from_ms, one.to_ms] for one in lease.seen.unseen]
    return json.dumps({"v": LEASE_FORMAT, **document}, separators=(",", ":"), sort_keys=True).encode()


def _read_seen(document: Mapping[str, Any]) -> SeenTime | None:
    """None also where it cannot be read: who holds the lease does not depend on it, and without it delays only last longer."""
    try:
        unseen = [UnseenTime(from_ms=_integer(begin), to_ms=_integer(end)) for begin, end in document["unseen_ms"]]
        return SeenTime(until_ms=_integer(document["seen_until_ms"]), unseen=tuple(unseen))
    except (KeyError, TypeError, ValueError):
        return None


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no integer")
    return value
