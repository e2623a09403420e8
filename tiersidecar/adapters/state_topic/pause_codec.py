"""Pauses as records of the state topic: ``pause/<topic id>/<kind>``, ``pause/all/<kind>`` for all topics.

Sidecars of earlier versions leave these keys alone, and do not stand still; their leases do not say ``obeys_pauses``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tiersidecar.domain.ids import format_uuid, parse_uuid
from tiersidecar.domain.pauses import ALL_TOPICS, Pause, PausedThing, PauseKind

_PREFIX, _ALL = "pause", "all"


def pause_key(thing: PausedThing) -> bytes:
    """Key of a pause."""
    return f"{_PREFIX}/{_ALL if thing.topic_id is None else format_uuid(thing.topic_id)}/{thing.kind}".encode()


def read_pause_key(key: bytes) -> PausedThing | None:
    """What the pause is about, None for any other key, and for a kind of a later version."""
    prefix, _, rest = key.decode(errors="replace").partition("/")
    name, _, kind = rest.partition("/")
    if prefix != _PREFIX or kind not in set(PauseKind):
        return None
    try:
        return PausedThing(kind=PauseKind(kind), topic_id=None if name == _ALL else parse_uuid(name))
    except ValueError:
        return None


def read_pause(thing: PausedThing, document: Mapping[str, Any]) -> Pause:
    """The pause.  The key alone says what stands still: a field that a later version wrote otherwise must not end it."""
    since_ms = document.get("since_ms")
    return Pause(
        thing=thing,
        topic=_text(document, "topic") or (ALL_TOPICS if thing.topic_id is None else format_uuid(thing.topic_id)),
        since_ms=since_ms if type(since_ms) is int else 0,
        by=_text(document, "by") or "somebody",
        reason=_text(document, "reason"),
    )


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    return value if isinstance(value, str) else ""


def write_pause(pause: Pause) -> bytes:
    """The pause's value."""
    said = {"topic": pause.topic, "since_ms": pause.since_ms, "by": pause.by, "reason": pause.reason}
    return json.dumps({"v": 1, **said}, separators=(",", ":"), sort_keys=True).encode()
