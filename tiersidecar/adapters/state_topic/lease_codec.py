"""Leases as records of the state topic: ``lease/<name>``; sidecars of earlier versions leave these keys alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.lease import LEASE_FORMAT, Lease

_PREFIX = "lease/"
_TYPES: dict[str, type] = {
    "cluster_id": str,
    "incarnation": str,
    "host": str,
    "version": str,
    "released": bool,
    "status_address": str,
    "renewal": bool,
    "decides_proposals": bool,
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
    wanted = [field.name for field in fields(Lease) if field.name != "name"]
    found = {field: document[field] for field in wanted if field in document}
    for field, value in found.items():
        if type(value) is not _TYPES.get(field, int):
            raise CorruptDataError(where=where, position=0, reason=f"{field} is {value!r}")
    try:
        return Lease(name=name, **found)
    except TypeError as error:
        raise CorruptDataError(where=where, position=0, reason=str(error)) from error


def write_lease(lease: Lease) -> bytes:
    """The lease's value."""
    document = {field: value for field, value in asdict(lease).items() if field != "name"}
    return json.dumps({"v": LEASE_FORMAT, **document}, separators=(",", ":"), sort_keys=True).encode()
