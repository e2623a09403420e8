"""Both state machines, move by move (S-108, S-109, S-110, S-111, S-112, S-113)."""

from __future__ import annotations

import pytest

from tiersidecar.domain.states import (
    PARTITION_DELETE_TRANSITIONS,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
    is_valid_transition,
)

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
MARKED, DELETE_STARTED, DELETE_FINISHED = RemotePartitionDeleteState

LEGAL = {
    (None, STARTED): "a segment begins as STARTED, and in no other way",
    (STARTED, STARTED): "the same again",
    (STARTED, FINISHED): "the copy is done",
    (STARTED, DELETING): "the copy is given up",
    (FINISHED, FINISHED): "the same again",
    (FINISHED, DELETING): "expired",
    (DELETING, DELETING): "the same again",
    (DELETING, DELETED): "gone",
    (DELETED, DELETED): "the same again",
}


@pytest.mark.parametrize("source", [None, *RemoteLogSegmentState])
@pytest.mark.parametrize("target", RemoteLogSegmentState)
def test_only_these_moves_of_a_segment_are_legal(
    source: RemoteLogSegmentState | None, target: RemoteLogSegmentState
) -> None:
    """Kafka's own, and that a state may be repeated."""
    assert is_valid_transition(source, target) is ((source, target) in LEGAL)


def test_a_partitions_deletion_goes_forward_only() -> None:
    legal = {
        (source, target)
        for source, targets in PARTITION_DELETE_TRANSITIONS.items()
        for target in targets
        if source is not target
    }
    assert legal == {(None, MARKED), (MARKED, DELETE_STARTED), (DELETE_STARTED, DELETE_FINISHED)}


def test_values_are_the_bytes_on_the_wire() -> None:
    assert [int(state) for state in RemoteLogSegmentState] == [0, 1, 2, 3]
    assert [int(state) for state in RemotePartitionDeleteState] == [0, 1, 2]
