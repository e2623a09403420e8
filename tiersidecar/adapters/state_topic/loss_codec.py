"""Accepted losses as records of the state topic: ``loss/<id>``; sidecars of earlier versions leave these keys alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tiersidecar.domain.errors import CorruptDataError

_PREFIX = "loss/"


def loss_key(loss_id: str) -> bytes:
    """Key of an acceptance; each has an id of its own."""
    return f"{_PREFIX}{loss_id}".encode()


def read_loss_key(key: bytes) -> str | None:
    """The acceptance's id, None for any other key."""
    kind, slash, name = key.decode(errors="replace").partition("/")
    return name if f"{kind}{slash}" == _PREFIX and name else None


def read_loss(document: Mapping[str, Any], *, where: str) -> frozenset[str]:
    """The ids of the topics whose loss is accepted.

    Raises:
        CorruptDataError: they cannot be read.
    """
    topics = document.get("topics")
    if not isinstance(topics, dict) or not all(isinstance(topic, str) for topic in topics.values()):
        raise CorruptDataError(where=where, position=0, reason=f"topics is {topics!r}")
    return frozenset(topics.values())


def write_loss(topic_ids: Mapping[str, str], *, by: str, now_ms: int) -> bytes:
    """The acceptance's value; ``topic_ids`` by name."""
    document = {"v": 1, "topics": dict(topic_ids), "accepted_ms": now_ms, "by": by}
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
