"""An entry of the trash in records of the state topic: its own, and the partition's, which may have kept some.

Sidecars of earlier versions carry ``deciders`` along as they are: their last decider is in ``by`` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import format_uuid, parse_uuid
from tiersidecar.domain.offsets import NO_OFFSET, LeaderEpoch, Offset
from tiersidecar.domain.trash import Decider, TrashEntry, TrashId, TrashKind, deciders_of


def entry_fields(entry: TrashEntry) -> dict[str, Any]:
    """Return all but its id."""
    return {
        "decided_ms": entry.decided_ms,
        "due_ms": entry.due_ms,
        "up_to": entry.up_to,
        "segments": sorted(map(format_uuid, entry.segments)),
        "purged_ms": entry.purged_ms,
        "reason": entry.reason,
        "by": entry.by,
        "from_offset": entry.from_offset,
        "deciders": [[decider.decided_ms, decider.up_to, decider.by] for decider in entry.deciders],
    }


def read_trash_entry(entry_id: TrashId, document: Mapping[str, Any], *, where: str) -> TrashEntry:
    """Read the entry.

    Raises:
        CorruptDataError: a field is missing or of another type.
    """
    try:
        entry = TrashEntry(
            id=entry_id,
            decided_ms=integer(document["decided_ms"]),
            due_ms=integer(document["due_ms"]),
            up_to=Offset(integer(document["up_to"])),
            segments=frozenset(map(parse_uuid, document["segments"])),
            purged_ms=integer(document["purged_ms"]),
            reason=str(document["reason"]),
            by=str(document["by"]),
            from_offset=Offset(integer(document.get("from_offset", NO_OFFSET))),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(where=where, position=0, reason=f"no entry of the trash: {error!r}") from error
    deciders = _read_deciders(document.get("deciders", []))
    return replace(entry, deciders=deciders_of((*deciders, _last(entry)))) if deciders else entry


def _last(entry: TrashEntry) -> Decider:
    return Decider(by=entry.by, decided_ms=entry.decided_ms)


def _read_deciders(said: object) -> list[Decider]:
    """Read the deciders; none where they are unreadable: they are for people, and the decision counts without them."""
    try:
        return [
            Decider(decided_ms=integer(decided_ms), up_to=Offset(integer(up_to)), by=str(by))
            for decided_ms, up_to, by in said  # type: ignore[attr-defined]
        ]
    except (TypeError, ValueError):
        return []


def write_kept(entry: TrashEntry) -> dict[str, Any]:
    """Return the entry with its id."""
    named = {
        "generation": entry.id.generation,
        "leader_epoch": entry.id.leader_epoch,
        "kind": entry.id.kind.value,
        "opened_ms": entry.id.opened_ms,
    }
    return {**named, **entry_fields(entry)}


def read_kept(document: Mapping[str, Any], *, where: str) -> tuple[TrashEntry, ...]:
    """Read the entries that a partition's record carries.

    Raises:
        CorruptDataError: a field is missing or of another type.
    """
    said = document.get("kept", [])
    if not isinstance(said, list) or not all(isinstance(one, dict) for one in said):
        raise CorruptDataError(where=where, position=0, reason=f"kept is {said!r}")
    return tuple(read_trash_entry(_read_id(one, where=where), one, where=where) for one in said)


def _read_id(document: Mapping[str, Any], *, where: str) -> TrashId:
    try:
        return TrashId(
            generation=integer(document["generation"]),
            leader_epoch=LeaderEpoch(integer(document["leader_epoch"])),
            kind=TrashKind(document["kind"]),
            opened_ms=integer(document["opened_ms"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(where=where, position=0, reason=f"no entry of the trash: {error!r}") from error


def integer(value: object) -> int:
    """Return a whole number of JSON.

    Raises:
        TypeError: it is something else, a bool for one.
    """
    if type(value) is not int:
        raise TypeError(f"{value!r} is no integer")
    return value
