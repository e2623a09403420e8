"""Entries of the trash as records of the state topic:
``trash/<topic id>/<partition>/<generation>/<leader epoch>/<kind>/<opened ms>``.

A record per entry, so that two writers never overwrite each other's.  Sidecars of earlier versions leave keys alone that
they do not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tiersidecar.adapters.state_topic.codec import SCHEMA_VERSION
from tiersidecar.adapters.state_topic.entry_codec import entry_fields
from tiersidecar.domain.ids import TopicIdPartition, Uuid, format_uuid, parse_uuid
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.trash import TrashEntry, TrashId, TrashKind


class TrashKey(NamedTuple):
    """What a key says."""

    topic_id: Uuid
    partition: int
    id: TrashId


def trash_key(owner: TopicIdPartition, entry_id: TrashId) -> bytes:
    """Key of an entry; the topic's name has no part in it."""
    named = f"{entry_id.generation}/{entry_id.leader_epoch}/{entry_id.kind}/{entry_id.opened_ms}"
    return f"trash/{format_uuid(owner.topic_id)}/{owner.partition}/{named}".encode()


def read_trash_key(key: bytes) -> TrashKey | None:
    """None for any other key, and for a kind of a later version."""
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
    """The entry's value, over what ``former``, the value before, has besides."""
    document = {
        **former,
        "v": max(SCHEMA_VERSION, former.get("v", SCHEMA_VERSION)),
        "topic": owner.topic,
        **entry_fields(entry),
    }
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
