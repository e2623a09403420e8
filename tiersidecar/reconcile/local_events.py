"""The events of a whole metadata topic in memory, by segment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tiersidecar.decide.reconcile_findings import Finding, FindingKind
from tiersidecar.domain.ids import Uuid, format_uuid
from tiersidecar.formats.metadata import hot
from tiersidecar.reconcile.event_rows import event_fields
from tiersidecar.reconcile.segment_rows import folded_segment

RawEvent = tuple[int, int, bytes | None]
"""Partition of the metadata topic, offset, value."""

_COLUMNS = (
    "api_key", "uuid", "state", "broker_id", "event_timestamp_ms", "topic", "topic_id", "partition", "start_offset",
    "end_offset", "segment_size_bytes", "epochs", "object_prefix", "remote_size_bytes",
)  # fmt: skip
_API_KEY, _UUID, _STATE, _TOPIC_ID, _PARTITION, _PREFIX = 0, 1, 2, 6, 7, 12


class LocalEvents:
    """Takes events and folds them: about a kilobyte for each segment."""

    def __init__(self) -> None:
        self.count = 0
        self.unreadable: list[Finding] = []
        self._segments: dict[tuple[Uuid, int, Uuid], list[tuple[int, bool, tuple[Any, ...]]]] = {}
        self._deletions: dict[tuple[Uuid, int], list[tuple[int, bool, int]]] = {}

    def add(self, events: Iterable[RawEvent], *, is_late: bool) -> None:
        """Take ``events``, of each partition in the order of their offsets; ``is_late``: they came after the listing began."""
        for log_partition, offset, value in events:
            *fields, fault = event_fields(value or b"", (log_partition, offset))
            self.count += 1
            if fault is not None:
                detail = f"metadata partition {log_partition} offset {offset}: {fault}"
                self.unreadable.append(Finding(kind=FindingKind.UNREADABLE_EVENT, detail=detail))
            owner = fields[_TOPIC_ID], fields[_PARTITION]
            if fields[_API_KEY] in (hot.ADDED, hot.UPDATED):
                self._segments.setdefault((*owner, fields[_UUID]), []).append((offset, is_late, tuple(fields)))
            elif fields[_API_KEY] == hot.PARTITION_DELETE:
                self._deletions.setdefault(owner, []).append((offset, is_late, fields[_STATE]))

    def prefixes(self) -> set[str]:
        """Return the object prefixes that segments were recorded under."""
        return {
            fields[_PREFIX] for rows in self._segments.values() for _, _, fields in rows if fields[_PREFIX] is not None
        }

    def segments(self, key_prefix: str) -> Iterator[dict[str, Any]]:
        """Yield a row for each segment that an event added, in whatever state, as :func:`folded_segment` has them, with
        ``stem``, its objects' key without the suffix, and ids as text in ``topic_id_text`` and ``segment_id``."""
        for (topic_id, partition, uuid), events in self._segments.items():
            rows = [
                {"log_offset": offset, "is_late": is_late, **dict(zip(_COLUMNS, fields, strict=True))}
                for offset, is_late, fields in events
            ]
            row = folded_segment(rows, self._deletions.get((topic_id, partition), ()))
            if row is not None:
                row["topic_id_text"], row["segment_id"] = format_uuid(topic_id), format_uuid(uuid)
                prefix = key_prefix if row["object_prefix"] is None else row["object_prefix"]
                place = f"{row['topic']}-{row['topic_id_text']}/{partition}"
                row["stem"] = f"{prefix}{place}/{row['start_offset']:020d}-{row['segment_id']}"
                yield row
