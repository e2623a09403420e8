"""Requests for another copy as records of the state topic: ``recopy/<topic id>/<partition>/<start>-<end>/<segment id>``.

Sidecars of earlier versions leave keys alone that they do not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tiersidecar.adapters.state_topic.codec import SCHEMA_VERSION
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid, format_uuid, parse_uuid
from tiersidecar.domain.offsets import Offset
from tiersidecar.ports.recopy import RecopyRequest


class RecopyKey(NamedTuple):
    """What a key says; offsets are inclusive."""

    topic_id: Uuid
    partition: int
    start_offset: Offset
    end_offset: Offset
    segment_uuid: Uuid | None


def recopy_key(request: RecopyRequest) -> bytes:
    """The request's key; the segment's id is empty where the offsets are in none."""
    owner = request.topic_id_partition
    offsets = f"{request.start_offset}-{request.end_offset}"
    segment = "" if request.segment_uuid is None else format_uuid(request.segment_uuid)
    return f"recopy/{format_uuid(owner.topic_id)}/{owner.partition}/{offsets}/{segment}".encode()


def read_recopy_key(key: bytes) -> RecopyKey | None:
    """None for any other key."""
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
    """The request.

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
    """The request's value."""
    document: dict[str, Any] = {
        "v": SCHEMA_VERSION,
        "topic": request.topic_id_partition.topic,
        "requested_ms": request.requested_ms,
        "declined": {str(broker): reason for broker, reason in sorted(request.declined.items())},
    }
    if request.from_store:
        document["from_store"] = True
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
