"""The rules of the trash, looked at in what becomes durable: nothing goes before it is due, and no start moves unannounced.

Read plainly from the records' JSON: this shares no code with what writes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from tiersidecar.domain.ids import TopicIdPartition, format_uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata

DELETE_DELAY_MS, USER_DELETE_DELAY_MS = 20_000, 10_000
"""Delays that the sidecars here are configured with."""
_MOST_ON_ITS_WAY_MS = 20_000
"""Longest time for which a publish waits for its read-back: an older decision is none of this record's."""


@dataclass(frozen=True, slots=True)
class Said:
    """Decision that all below ``up_to``, or ``segments``, goes; taken at ``at_ms``: the delay counts from the decision, and its
    record may take a while to become durable."""

    up_to: int
    segments: frozenset[str]
    kind: str
    at_ms: int


class TrashRules:
    """``delays_ms`` by kind of decision; ``complain`` takes each breach as a sentence."""

    def __init__(self, complain: Callable[[str], None], delay_ms: int, user_delay_ms: int) -> None:
        self._complain, self._delay_ms, self._user_delay_ms = complain, delay_ms, user_delay_ms
        self._said: dict[str, list[Said]] = {}
        self._starts: dict[str, int] = {}

    def record(self, key: bytes | None, value: bytes | None, now_ms: int) -> None:
        """Note that a record of the state topic became durable."""
        if key is None or value is None:
            return
        name, document = key.decode(), json.loads(value)
        kind, _, rest = name.partition("/")
        partition = "/".join(rest.split("/")[:2])
        if kind == "trash":
            at_ms = max(min(document["decided_ms"], now_ms), now_ms - _MOST_ON_ITS_WAY_MS)
            said = Said(document["up_to"], frozenset(document["segments"]), rest.split("/")[4], at_ms)
            self._said.setdefault(partition, []).append(said)
        elif kind == "partition":
            self._start_moves(partition, document["remote_log_start_offset"])

    def _start_moves(self, partition: str, start: int) -> None:
        """Check that a start is announced.  The first one is found out, not decided; one that was said before may be said
        again."""
        before = self._starts.get(partition, -1)
        self._starts[partition] = max(start, before)
        if before >= 0 and start > before and not any(one.up_to >= start for one in self._said.get(partition, ())):
            self._complain(
                f"the start of {partition} moves from {before} to {start}, and no entry of the trash says so"
            )

    def delete_started(self, metadata: RemoteLogSegmentMetadata, now_ms: int) -> None:
        """Note that DELETE_SEGMENT_STARTED of a finished segment became durable."""
        uuid = format_uuid(metadata.remote_log_segment_id.uuid)
        about = [
            one
            for one in self._said.get(_name(metadata.topic_id_partition), ())
            if one.up_to > metadata.end_offset or uuid in one.segments
        ]
        if any(now_ms - one.at_ms >= self._delay_of(one) for one in about):
            return
        self._complain(f"{metadata.remote_log_segment_id} is deleted before it is due: {about or 'nothing decided it'}")

    def _delay_of(self, said: Said) -> int:
        return self._user_delay_ms if said.kind == "user" else self._delay_ms


def _name(partition: TopicIdPartition) -> str:
    return f"{format_uuid(partition.topic_id)}/{partition.partition}"
