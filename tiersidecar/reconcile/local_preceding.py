"""Which live segments come right before each, whose snapshots say what was open there (``--deep``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tiersidecar.domain.states import RemoteLogSegmentState

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
Row = Mapping[str, Any]


def preceding_of(segments: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
    """Return, by stem, the live segments that end where each begins; where there are none, as at few segments, those that go
    on past that, which an election may have cut, each with those ``before`` it."""
    live: dict[tuple[str, int], list[Row]] = defaultdict(list)
    ended: dict[tuple[str, int, int], list[Row]] = defaultdict(list)
    for row in segments:
        if row["before"] == row["after"] == _FINISHED:
            live[row["topic_id_text"], row["partition"]].append(row)
            ended[row["topic_id_text"], row["partition"], row["end_offset"] + 1].append(row)
    found: dict[str, list[dict[str, Any]]] = {}
    for place, rows in live.items():
        for row in rows:
            start = row["start_offset"]
            if before := ended.get((*place, start)):
                found[row["stem"]] = [_told(one, None) for one in before]
            elif start > 0:
                found[row["stem"]] = [
                    _told(one, [_told(two, None) for two in ended.get((*place, one["start_offset"]), ())])
                    for one in rows
                    if one["start_offset"] < start <= one["end_offset"]
                ]
    return found


def _told(row: Row, before: list[dict[str, Any]] | None) -> dict[str, Any]:
    return {**{name: row[name] for name in ("stem", "start_offset", "end_offset", "epochs")}, "before": before}
