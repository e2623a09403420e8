"""One segment's events to its row, whatever engine groups them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tiersidecar.domain.segment_fold import FoldedSegment, SegmentStep, clearings, fold_segment
from tiersidecar.formats.metadata import hot

SEGMENT = ("topic_id", "partition", "uuid")
ADDED = ("topic", "start_offset", "end_offset", "segment_size_bytes", "epochs")

Event = Mapping[str, Any]
"""Columns as :func:`~tiersidecar.reconcile.event_rows.event_fields` has them, with ``log_offset`` and ``is_late``."""


def folded_segment(rows: Sequence[Event], deletions: Sequence[tuple[int, bool, int]]) -> dict[str, Any] | None:
    """Return the segment of ``rows``, which are its events in the order of their offsets; None where none of them added it.

    ``deletions`` are offset, lateness and state of the events of its whole partition's deletion, in their order.

    The row has the columns of :data:`SEGMENT` and :data:`ADDED`, ``object_prefix``, ``remote_size_bytes``, ``broker_id`` of the
    broker that copied it, ``since_ms``, the time of the last event that counts, its states ``before`` and ``after`` the cut
    (``before`` is None where it was added late), ``started_at`` and ``finished_at``.
    """
    after = fold_segment(_steps(rows), clearings((offset, state) for offset, _, state in deletions))
    if after is None:
        return None
    early = clearings((offset, state) for offset, is_late, state in deletions if not is_late)
    return _row(after, fold_segment(_steps(row for row in rows if not row["is_late"]), early), rows)


def _steps(rows: Iterable[Event]) -> Iterable[SegmentStep[Event]]:
    for row in rows:
        yield SegmentStep(
            offset=row["log_offset"], is_addition=row["api_key"] == hot.ADDED, state=row["state"], row=row
        )


def _row(after: FoldedSegment[Event], before: FoldedSegment[Event] | None, rows: Sequence[Event]) -> dict[str, Any]:
    copied = after.finished or after.added

    def told(name: str) -> Any:
        """The last that any event said: where objects were, they are, whoever left it out later."""
        return next((row[name] for row in reversed(rows) if row[name] is not None), None)

    return {
        **{name: after.added.row[name] for name in (*SEGMENT, *ADDED)},
        "object_prefix": told("object_prefix"),
        "remote_size_bytes": told("remote_size_bytes"),
        "broker_id": copied.row["broker_id"],
        "since_ms": after.last.row["event_timestamp_ms"],
        "after": int(after.state),
        "before": None if before is None else int(before.state),
        "started_at": after.started_at,
        "finished_at": after.finished_at,
    }
