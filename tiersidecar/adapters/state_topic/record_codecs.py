"""Records of the state topic beside the partitions' own, each under a key of its kind:

* ``trash/<topic id>/<partition>/<generation>/<leader epoch>/<kind>/<opened ms>``: an entry of the trash; a record per entry, so
  that two writers never overwrite each other's;
* ``recopy/<topic id>/<partition>/<start>-<end>/<segment id>``: a request for another copy;
* ``pause/<topic id>/<kind>``, ``pause/all/<kind>`` for all topics: a pause;
* ``loss/<id>``: an accepted loss;
* ``lease/<name>``: a lease;
* ``cleaner/<topic id>/<partition>``: how far leaders have cleaned a compacted partition.

Sidecars of earlier versions leave keys alone that they do not know, and fields: they do not stand still for a pause (their
leases do not have ``obeys_pauses``), and a renewal of theirs has no seen time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any, NamedTuple

from tiersidecar.adapters.state_topic.codec import SCHEMA_VERSION
from tiersidecar.adapters.state_topic.entry_codec import entry_fields, integer
from tiersidecar.domain.cleaner import CleanerClaim
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid, format_uuid, parse_uuid
from tiersidecar.domain.lease import LEASE_FORMAT, Lease
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.policy import ALL_TOPICS, Pause, PausedThing, PauseKind
from tiersidecar.domain.seen_time import SeenTime, UnseenTime
from tiersidecar.domain.trash import TrashEntry, TrashId, TrashKind
from tiersidecar.ports.state_records import RecopyRequest


class TrashKey(NamedTuple):
    """The content of a key."""

    topic_id: Uuid
    partition: int
    id: TrashId


def trash_key(owner: TopicIdPartition, entry_id: TrashId) -> bytes:
    """Return the key of an entry; the topic's name has no part in it."""
    named = f"{entry_id.generation}/{entry_id.leader_epoch}/{entry_id.kind}/{entry_id.opened_ms}"
    return f"trash/{format_uuid(owner.topic_id)}/{owner.partition}/{named}".encode()


def read_trash_key(key: bytes) -> TrashKey | None:
    """Read the key; None for any other key, and for a kind of a later version."""
    parts = key.decode(errors="replace").split("/")
    if len(parts) != 7 or parts[0] != "trash":
        return None
    try:
        entry_id = TrashId(
            generation=int(parts[3]),
            leader_epoch=LeaderEpoch(int(parts[4])),
            kind=TrashKind(parts[5]),
            opened_ms=int(parts[6]),
        )
        return TrashKey(parse_uuid(parts[1]), int(parts[2]), entry_id)
    except ValueError:
        return None


def write_trash_entry(owner: TopicIdPartition, entry: TrashEntry, former: Mapping[str, Any]) -> bytes:
    """Return the entry's value, over what ``former``, the value before, has besides."""
    document = {
        **former,
        "v": max(SCHEMA_VERSION, former.get("v", SCHEMA_VERSION)),
        "topic": owner.topic,
        **entry_fields(entry),
    }
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


_CLEANER = "cleaner"


def cleaner_key(owner: TopicIdPartition) -> bytes:
    """Return the key of how far a partition is cleaned; the topic's name has no part in it."""
    return f"{_CLEANER}/{format_uuid(owner.topic_id)}/{owner.partition}".encode()


def read_cleaner_key(key: bytes) -> tuple[Uuid, int] | None:
    """Read topic id and partition, None for any other key."""
    parts = key.decode(errors="replace").split("/")
    if len(parts) != 3 or parts[0] != _CLEANER or not parts[2].isdecimal():
        return None
    try:
        return parse_uuid(parts[1]), int(parts[2])
    except ValueError:
        return None


def read_cleaner_claims(document: Mapping[str, Any], *, where: str) -> tuple[CleanerClaim, ...]:
    """Return the claim of each leader epoch.

    Raises:
        CorruptDataError: it cannot be read.
    """
    try:
        return tuple(
            CleanerClaim(
                leader_epoch=LeaderEpoch(int(epoch)),
                offsets=_read_offsets(said["offsets"]),
                revision=integer(said["revision"]),
                segments=tuple(str(said["segments"]).split()),
                reach=_offset_in(said, "reach"),
                parted_at=_offset_in(said, "parted_at"),
            )
            for epoch, said in document["claims"].items()
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(where=where, position=0, reason=f"no cleaner offsets: {error!r}") from error


def _offset_in(said: Mapping[str, Any], name: str) -> Offset | None:
    return Offset(integer(said[name])) if name in said else None


def _read_offsets(offsets: Mapping[str, Any]) -> dict[LeaderEpoch, Offset]:
    return {LeaderEpoch(int(epoch)): Offset(integer(offset)) for epoch, offset in offsets.items()}


def write_cleaner_claims(owner: TopicIdPartition, claims: Iterable[CleanerClaim], former: Mapping[str, Any]) -> bytes:
    """Return the claims' value, over what ``former``, the value before, has besides."""
    document = {
        **former,
        "v": max(SCHEMA_VERSION, former.get("v", SCHEMA_VERSION)),
        "topic": owner.topic,
        "claims": {
            str(claim.leader_epoch): {
                "offsets": {str(epoch): offset for epoch, offset in sorted(claim.offsets.items())},
                "revision": claim.revision,
                "segments": " ".join(claim.segments),
                **({} if claim.reach is None else {"reach": claim.reach}),
                **({} if claim.parted_at is None else {"parted_at": claim.parted_at}),
            }
            for claim in claims
        },
    }
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


class RecopyKey(NamedTuple):
    """The content of a key; offsets are inclusive."""

    topic_id: Uuid
    partition: int
    start_offset: Offset
    end_offset: Offset
    segment_uuid: Uuid | None


def recopy_key(request: RecopyRequest) -> bytes:
    """Return the request's key; the segment's id is empty where the offsets are in none."""
    owner = request.topic_id_partition
    offsets = f"{request.start_offset}-{request.end_offset}"
    segment = "" if request.segment_uuid is None else format_uuid(request.segment_uuid)
    return f"recopy/{format_uuid(owner.topic_id)}/{owner.partition}/{offsets}/{segment}".encode()


def read_recopy_key(key: bytes) -> RecopyKey | None:
    """Read the key; None for any other key."""
    parts = key.decode(errors="replace").split("/")
    if len(parts) != 5 or parts[0] != "recopy":
        return None
    start, _, end = parts[3].partition("-")
    try:
        segment = parse_uuid(parts[4]) if parts[4] else None
        return RecopyKey(parse_uuid(parts[1]), int(parts[2]), Offset(int(start)), Offset(int(end)), segment)
    except ValueError:
        return None


def read_recopy(key: RecopyKey, document: Mapping[str, Any], *, where: str) -> RecopyRequest:
    """Read the request.

    Raises:
        CorruptDataError: a field is missing or of another type.
    """
    try:
        return RecopyRequest(
            topic_id_partition=TopicIdPartition(
                topic_id=key.topic_id, topic=str(document["topic"]), partition=key.partition
            ),
            start_offset=key.start_offset,
            end_offset=key.end_offset,
            segment_uuid=key.segment_uuid,
            from_store=bool(document.get("from_store", False)),
            requested_ms=int(document["requested_ms"]),
            declined={BrokerId(int(broker)): str(reason) for broker, reason in document["declined"].items()},
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise CorruptDataError(where=where, position=0, reason=f"no request for a copy: {error!r}") from error


def write_recopy(request: RecopyRequest) -> bytes:
    """Return the request's value."""
    document: dict[str, Any] = {
        "v": SCHEMA_VERSION,
        "topic": request.topic_id_partition.topic,
        "requested_ms": request.requested_ms,
        "declined": {str(broker): reason for broker, reason in sorted(request.declined.items())},
    }
    if request.from_store:
        document["from_store"] = True
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


_PAUSE, _ALL_TOPICS = "pause", "all"


def pause_key(thing: PausedThing) -> bytes:
    """Return the key of a pause."""
    return f"{_PAUSE}/{_ALL_TOPICS if thing.topic_id is None else format_uuid(thing.topic_id)}/{thing.kind}".encode()


def read_pause_key(key: bytes) -> PausedThing | None:
    """Return what the pause is about, None for any other key, and for a kind of a later version."""
    prefix, _, rest = key.decode(errors="replace").partition("/")
    name, _, kind = rest.partition("/")
    if prefix != _PAUSE or kind not in set(PauseKind):
        return None
    try:
        return PausedThing(kind=PauseKind(kind), topic_id=None if name == _ALL_TOPICS else parse_uuid(name))
    except ValueError:
        return None


def read_pause(thing: PausedThing, document: Mapping[str, Any]) -> Pause:
    """Read the pause.  The key alone says what stands still: a field that a later version wrote otherwise must not end it."""
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
    """Return the pause's value."""
    said = {"topic": pause.topic, "since_ms": pause.since_ms, "by": pause.by, "reason": pause.reason}
    return json.dumps({"v": 1, **said}, separators=(",", ":"), sort_keys=True).encode()


_LOSS = "loss/"


def loss_key(loss_id: str) -> bytes:
    """Return the key of an acceptance; each has an id of its own."""
    return f"{_LOSS}{loss_id}".encode()


def read_loss_key(key: bytes) -> str | None:
    """Read the acceptance's id, None for any other key."""
    kind, slash, name = key.decode(errors="replace").partition("/")
    return name if f"{kind}{slash}" == _LOSS and name else None


def read_loss(document: Mapping[str, Any], *, where: str) -> frozenset[str]:
    """Read the ids of the topics whose loss is accepted.

    Raises:
        CorruptDataError: they cannot be read.
    """
    topics = document.get("topics")
    if not isinstance(topics, dict) or not all(isinstance(topic, str) for topic in topics.values()):
        raise CorruptDataError(where=where, position=0, reason=f"topics is {topics!r}")
    return frozenset(topics.values())


def write_loss(topic_ids: Mapping[str, str], *, by: str, now_ms: int) -> bytes:
    """Return the acceptance's value; ``topic_ids`` by name."""
    document = {"v": 1, "topics": dict(topic_ids), "accepted_ms": now_ms, "by": by}
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


_LEASE = "lease/"
_LEASE_OBJECTS = {"name", "seen"}
_LEASE_TYPES: dict[str, type] = {
    "cluster_id": str,
    "incarnation": str,
    "host": str,
    "version": str,
    "released": bool,
    "status_address": str,
    "concerns": str,
    "renewal": bool,
    "decides_proposals": bool,
    "stopping": bool,
    "obeys_pauses": bool,
}


def lease_key(name: str) -> bytes:
    """Return the key of a lease."""
    return f"{_LEASE}{name}".encode()


def read_lease_key(key: bytes) -> str | None:
    """Read the lease's name, None for any other key."""
    kind, slash, name = key.decode(errors="replace").partition("/")
    return name if f"{kind}{slash}" == _LEASE and name else None


def read_lease(name: str, document: Mapping[str, Any], *, where: str) -> Lease:
    """Read the lease.

    Raises:
        CorruptDataError: a field is missing or of another type.
    """
    wanted = [field.name for field in fields(Lease) if field.name not in _LEASE_OBJECTS]
    found = {field: document[field] for field in wanted if field in document}
    for field, value in found.items():
        if type(value) is not _LEASE_TYPES.get(field, int):
            raise CorruptDataError(where=where, position=0, reason=f"{field} is {value!r}")
    try:
        return Lease(name=name, seen=_read_seen(document), **found)
    except TypeError as error:
        raise CorruptDataError(where=where, position=0, reason=str(error)) from error


def write_lease(lease: Lease) -> bytes:
    """Return the lease's value."""
    document = {field: value for field, value in asdict(lease).items() if field not in _LEASE_OBJECTS}
    if lease.seen is not None:
        document["seen_until_ms"] = lease.seen.until_ms
        document["unseen_ms"] = [[one.from_ms, one.to_ms] for one in lease.seen.unseen]
    return json.dumps({"v": LEASE_FORMAT, **document}, separators=(",", ":"), sort_keys=True).encode()


def _read_seen(document: Mapping[str, Any]) -> SeenTime | None:
    """Read it; None also where it is unreadable: the lease does not depend on it, and without it delays only last longer."""
    try:
        unseen = [UnseenTime(from_ms=integer(begin), to_ms=integer(end)) for begin, end in document["unseen_ms"]]
        return SeenTime(until_ms=integer(document["seen_until_ms"]), unseen=tuple(unseen))
    except (KeyError, TypeError, ValueError):
        return None
