"""Data keys of segments that a key service has wrapped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tiersidecar.domain.ids import RemoteLogSegmentId, format_uuid

KeyContext = Mapping[str, str]
"""The use of a data key: it opens for nothing else.  Not secret, and in the service's audit log."""
NO_CONTEXT: KeyContext = {}

_MOST_REASON = 300


def brief(reason: str) -> str:
    """Return what a service says on one line of at most 300 characters: each request that fails logs it."""
    reason = " ".join(reason.split())
    return reason if len(reason) <= _MOST_REASON else f"{reason[: _MOST_REASON - 1]}…"


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A data key under the key ``key_id`` of a service, as the service returned it.

    ``key_id`` names the same key for ever: never an alias that may point to another one later.  It is not secret.
    """

    key_id: str
    data: bytes


def context_of(segment_id: RemoteLogSegmentId) -> KeyContext:
    """Return the context of a segment's data key.

    The ids that metadata have, never those of the manifest.  Names and clusters are left out: a segment may be mounted in
    another cluster.
    """
    return context_of_ids(format_uuid(segment_id.topic_id_partition.topic_id), format_uuid(segment_id.uuid))


def context_of_ids(topic_id: str, segment_id: str) -> KeyContext:
    """Return :func:`context_of` of ids as Kafka prints them."""
    return {"topic.id": topic_id, "segment.id": segment_id}
