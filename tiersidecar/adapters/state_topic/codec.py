"""Records of the state topic: readable keys, JSON values with a schema version ``v``.

Keys: ``partition/<topic id>/<partition>`` and ``topic/<topic id>``; others are of later versions and left alone.
A later version may add fields: they are ignored when read, and carried along when the value is written again, so that an
older sidecar beside a newer one loses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from functools import lru_cache
from sys import intern
from typing import Any, NamedTuple

from tiersidecar.adapters.state_topic.entry_codec import read_kept, write_kept
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import TopicIdPartition, Uuid, format_uuid, parse_uuid
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.policy import GuardStop
from tiersidecar.domain.trash import SaidDelete, merged_deletes
from tiersidecar.ports.state_log import Hold, PartitionState, SaidStart, SeenGeneration, TopicState

SCHEMA_VERSION = 1
"""Covers the fields that say what counts; the writer of a record (:class:`Writer`) is in the second format only."""

_NESTED_FIELDS = (
    "earlier_starts", "hold", "guard_stop", "user_deletes", "undone", "seen", "kept", "leader_epochs", "places_seen",
)  # fmt: skip
_PARTITION_FIELDS = tuple(field.name for field in fields(PartitionState) if field.name not in _NESTED_FIELDS)
_TOPIC_FIELDS = tuple(field.name for field in fields(TopicState))


@lru_cache(maxsize=65_536)
def partition_key(owner: TopicIdPartition) -> bytes:
    """Return the key of a partition's state; the topic's name has no part in it.  It is cached: each look at thousands of
    partitions needs it three times."""
    return f"partition/{format_uuid(owner.topic_id)}/{owner.partition}".encode()


def topic_key(topic_id: Uuid) -> bytes:
    """Return the key of a topic's state."""
    return f"topic/{format_uuid(topic_id)}".encode()


def read_topic_key(key: bytes) -> Uuid | None:
    """Read the topic id of a topic's key, None for any other key."""
    kind, _, text = key.decode(errors="replace").partition("/")
    if kind != "topic":
        return None
    try:
        return parse_uuid(text)
    except ValueError:
        return None


def read_partition_key(key: bytes) -> tuple[Uuid, int] | None:
    """Read topic id and partition of a partition's key, None for any other key."""
    kind, _, rest = key.decode(errors="replace").partition("/")
    text, _, number = rest.rpartition("/")
    if kind != "partition" or not number.isdecimal():
        return None
    try:
        return parse_uuid(text), int(number)
    except ValueError:
        return None


def read_value(value: bytes, *, where: str) -> dict[str, Any]:
    """Read the JSON object.

    Raises:
        CorruptDataError: it is none, or has no schema version.
    """
    try:
        document = json.loads(value, object_pairs_hook=_shared)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(where=where, position=0, reason=str(error)) from error
    if not isinstance(document, dict) or not isinstance(document.get("v"), int):
        raise CorruptDataError(where=where, position=0, reason="not an object with a schema version v")
    return document


def _shared(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON.  Documents of thousands of partitions are kept, and their names and most texts are the same."""
    return {intern(name): _shared_text(value) if isinstance(value, str) else value for name, value in members}


@lru_cache(maxsize=1024)
def _shared_text(text: str) -> str:
    """Return the same object for each that is equal.  Not interned: names are few, but there are ever new texts, and up to
    CPython 3.12.6 (from 3.12.0 on) what was interned once is kept for good."""
    return text


def read_partition_state(document: Mapping[str, Any], *, where: str) -> PartitionState:
    """Read a partition's state; fields that are absent have their defaults.

    Raises:
        CorruptDataError: a field is no integer.
    """
    found = {name: _integer(document, name, where=where) for name in _PARTITION_FIELDS if name in document}
    state = PartitionState(
        **found,
        earlier_starts=_earlier_starts(document, where=where),
        hold=_hold(document, where=where),
        guard_stop=_guard_stop(document, where=where),
        user_deletes=_deletes(document, "user_deletes", where=where),
        undone=_deletes(document, "undone", where=where),
        seen=_seen(document, where=where),
        kept=read_kept(document, where=where),
        leader_epochs=_leader_epochs(document, where=where),
        places_seen=_places_seen(document, where=where),
    )
    return state if "user_deletes" in document else _of_a_former_release(state)


def _of_a_former_release(state: PartitionState) -> PartitionState:
    """Complete a state of a former release, which did not record what it gave up or a user deleted: nothing is undone."""
    last = SaidStart(leader_epoch=state.remote_log_start_epoch, offset=state.remote_log_start_offset)
    said = [one for one in (*state.earlier_starts, last) if one.offset >= 0]
    floor = merged_deletes(SaidDelete(leader_epoch=one.leader_epoch, offset=one.offset) for one in said)
    return replace(state, user_deletes=floor)


def _deletes(document: Mapping[str, Any], name: str, *, where: str) -> tuple[SaidDelete, ...]:
    said = document.get(name, [])
    if not isinstance(said, list) or not all(isinstance(one, dict) for one in said):
        raise CorruptDataError(where=where, position=0, reason=f"{name} is {said!r}")
    return tuple(
        SaidDelete(**{field.name: _integer(one, field.name, where=where) for field in fields(SaidDelete)})
        for one in said
    )


def _leader_epochs(document: Mapping[str, Any], *, where: str) -> tuple[EpochEntry, ...]:
    said = document.get("leader_epochs", [])
    if not isinstance(said, list) or not all(
        isinstance(one, list) and [type(number) for number in one] == [int, int] for one in said
    ):
        raise CorruptDataError(where=where, position=0, reason=f"leader_epochs is {said!r}")
    try:
        return Lineage(tuple(EpochEntry(LeaderEpoch(epoch), Offset(start)) for epoch, start in said)).entries
    except ValueError as error:
        raise CorruptDataError(where=where, position=0, reason=str(error)) from error


def _places_seen(document: Mapping[str, Any], *, where: str) -> tuple[str, ...]:
    said = document.get("places_seen", [])
    if not isinstance(said, list) or not all(isinstance(one, str) for one in said):
        raise CorruptDataError(where=where, position=0, reason=f"places_seen is {said!r}")
    return tuple(sorted(set(said)))


def _seen(document: Mapping[str, Any], *, where: str) -> SeenGeneration | None:
    said = document.get("seen")
    if said is None:
        return None
    pinned = said.get("pinned") if isinstance(said, dict) else None
    if not isinstance(pinned, list) or not all(
        isinstance(one, list) and [type(bound) for bound in one] == [int, int] for one in pinned
    ):
        raise CorruptDataError(where=where, position=0, reason=f"seen is {said!r}")
    return SeenGeneration(
        generation=_integer(said, "generation", where=where),
        leader_epoch=LeaderEpoch(_integer(said, "leader_epoch", where=where)),
        pinned=tuple((begin, stop) for begin, stop in pinned),
    )


def _hold(document: Mapping[str, Any], *, where: str) -> Hold | None:
    said = document.get("hold")
    if said is None:
        return None
    if not isinstance(said, dict) or type(said.get("is_held")) is not bool:
        raise CorruptDataError(where=where, position=0, reason=f"hold is {said!r}")
    return Hold(
        serial=_integer(said, "serial", where=where),
        is_held=said["is_held"],
        until=Offset(_integer(said, "until", where=where)),
        since_ms=_integer(said, "since_ms", where=where),
        by=str(said.get("by", "")),
        reason=str(said.get("reason", "")),
    )


def _guard_stop(document: Mapping[str, Any], *, where: str) -> GuardStop | None:
    said = document.get("guard_stop")
    if said is None:
        return None
    kinds = {"reason": str, "max_share": float, "is_over": bool}
    known: dict[str, Any] = (
        {field.name: said.get(field.name) for field in fields(GuardStop)} if isinstance(said, dict) else {}
    )
    if not known or any(type(value) is not kinds.get(name, int) for name, value in known.items()):
        raise CorruptDataError(where=where, position=0, reason=f"guard_stop is {said!r}")
    return GuardStop(**known)


def _earlier_starts(document: Mapping[str, Any], *, where: str) -> tuple[SaidStart, ...]:
    said = document.get("earlier_starts", [])
    if not isinstance(said, list) or not all(isinstance(one, dict) for one in said):
        raise CorruptDataError(where=where, position=0, reason=f"earlier_starts is {said!r}")
    return tuple(
        SaidStart(
            leader_epoch=LeaderEpoch(_integer(one, "leader_epoch", where=where)),
            offset=Offset(_integer(one, "offset", where=where)),
        )
        for one in said
    )


def _integer(document: Mapping[str, Any], name: str, *, where: str) -> Any:
    value = document.get(name)
    if type(value) is not int:
        raise CorruptDataError(where=where, position=0, reason=f"{name} is {value!r}")
    return value


def read_topic_state(document: Mapping[str, Any], *, where: str) -> TopicState:
    """Read a topic's state.

    Raises:
        CorruptDataError: a field is missing or of another type.
    """
    found = {name: document[name] for name in _TOPIC_FIELDS if name in document}
    types = {"topic": str, "mode": str, "former_settings": dict}
    for name, value in found.items():
        if type(value) is not types.get(name, int):
            raise CorruptDataError(where=where, position=0, reason=f"{name} is {value!r}")
    try:
        return TopicState(**found)
    except TypeError as error:
        raise CorruptDataError(where=where, position=0, reason=str(error)) from error


class Writer(NamedTuple):
    """Whose records a process writes: ``broker_id`` is -1 for a command, ``incarnation`` one life of a process."""

    cluster_id: str = ""
    broker_id: int = -1
    incarnation: str = ""


def cluster_of(document: Mapping[str, Any]) -> str:
    """Return the cluster whose sidecar wrote the record; empty in those of the first format."""
    cluster_id = document.get("cluster_id", "")
    return cluster_id if isinstance(cluster_id, str) else ""


def stamped(value: bytes, writer: Writer) -> bytes:
    """Return the record with its writer; a field that it has already counts."""
    return json.dumps({**writer._asdict(), **json.loads(value)}, separators=(",", ":"), sort_keys=True).encode()


def without_writer(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rest of the record, to be written anew."""
    return {name: value for name, value in document.items() if name not in Writer._fields}


def write_state(state: PartitionState | TopicState, former: Mapping[str, Any]) -> bytes:
    """Return ``state`` over what ``former``, the value before, has besides."""
    version = max(SCHEMA_VERSION, former.get("v", SCHEMA_VERSION))
    said = asdict(state)
    if isinstance(state, PartitionState):
        said["kept"] = [write_kept(one) for one in state.kept]
    return json.dumps({**former, "v": version, **said}, separators=(",", ":"), sort_keys=True).encode()
