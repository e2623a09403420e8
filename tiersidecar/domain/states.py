"""Both state machines of remote log metadata, as tables (RemoteLogSegmentState, RemotePartitionDeleteState; S-108 to S-114)."""

from __future__ import annotations

from enum import IntEnum


class RemoteLogSegmentState(IntEnum):
    """State of a remote segment; the value is its byte on the wire."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


class RemotePartitionDeleteState(IntEnum):
    """State of the deletion of a whole partition; the value is its byte on the wire."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


_S = RemoteLogSegmentState
_P = RemotePartitionDeleteState

SEGMENT_TRANSITIONS: dict[RemoteLogSegmentState | None, frozenset[RemoteLogSegmentState]] = {
    None: frozenset({_S.COPY_SEGMENT_STARTED}),
    _S.COPY_SEGMENT_STARTED: frozenset({_S.COPY_SEGMENT_STARTED, _S.COPY_SEGMENT_FINISHED, _S.DELETE_SEGMENT_STARTED}),
    _S.COPY_SEGMENT_FINISHED: frozenset({_S.COPY_SEGMENT_FINISHED, _S.DELETE_SEGMENT_STARTED}),
    _S.DELETE_SEGMENT_STARTED: frozenset({_S.DELETE_SEGMENT_STARTED, _S.DELETE_SEGMENT_FINISHED}),
    _S.DELETE_SEGMENT_FINISHED: frozenset({_S.DELETE_SEGMENT_FINISHED}),
}

SEGMENT_ADDITIONS: dict[int | None, frozenset[int]] = {
    None: frozenset({int(_S.COPY_SEGMENT_STARTED)}),
    int(_S.COPY_SEGMENT_STARTED): frozenset({int(_S.COPY_SEGMENT_STARTED)}),
    int(_S.COPY_SEGMENT_FINISHED): frozenset(),
    int(_S.DELETE_SEGMENT_STARTED): frozenset(),
}
"""States that a RemoteLogSegmentMetadata may give a segment, by its present state; None: not known, or deleted."""

# Only an added segment is COPY_SEGMENT_STARTED: no update says so, not even of one that is.
SEGMENT_UPDATES: tuple[frozenset[int], ...] = tuple(
    frozenset(map(int, SEGMENT_TRANSITIONS[state])) - {int(_S.COPY_SEGMENT_STARTED)} for state in RemoteLogSegmentState
)
"""States that a RemoteLogSegmentMetadataUpdate may give a segment, by its present state."""

PARTITION_DELETE_TRANSITIONS: dict[RemotePartitionDeleteState | None, frozenset[RemotePartitionDeleteState]] = {
    None: frozenset({_P.DELETE_PARTITION_MARKED}),
    _P.DELETE_PARTITION_MARKED: frozenset({_P.DELETE_PARTITION_MARKED, _P.DELETE_PARTITION_STARTED}),
    _P.DELETE_PARTITION_STARTED: frozenset({_P.DELETE_PARTITION_STARTED, _P.DELETE_PARTITION_FINISHED}),
    _P.DELETE_PARTITION_FINISHED: frozenset({_P.DELETE_PARTITION_FINISHED}),
}


def is_valid_transition(source: RemoteLogSegmentState | None, target: RemoteLogSegmentState) -> bool:
    """Return whether a segment may move from ``source`` (None: not yet known) to ``target``; the same state again may."""
    return target in SEGMENT_TRANSITIONS[source]
