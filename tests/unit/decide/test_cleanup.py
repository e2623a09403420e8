"""Leftovers of copies and deletes (S-063, S-230, S-231, S-232)."""

from __future__ import annotations

import pytest

from tests.support.segments import remote_segment
from tiersidecar.decide.cleanup import decide_cleanup
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State

STARTED, DELETING, FINISHED = State.COPY_SEGMENT_STARTED, State.DELETE_SEGMENT_STARTED, State.COPY_SEGMENT_FINISHED


@pytest.mark.parametrize(
    ("segment", "in_flight", "removed"),
    [
        pytest.param(
            remote_segment(0, 9, state=STARTED, event_timestamp_ms=950),
            False,
            False,
            id="with our broker id, but not in the journal, young: the broker's own, or a second sidecar's",
        ),
        pytest.param(
            remote_segment(0, 9, state=STARTED, event_timestamp_ms=899),
            False,
            True,
            id="with our broker id, but not in the journal, past grace",
        ),
        pytest.param(
            remote_segment(0, 9, state=STARTED, broker_id=2, event_timestamp_ms=950),
            False,
            False,
            id="another's, young",
        ),
        pytest.param(
            remote_segment(0, 9, state=STARTED, broker_id=2, event_timestamp_ms=899),
            False,
            True,
            id="another's, past grace",
        ),
        pytest.param(
            remote_segment(0, 9, state=STARTED, broker_id=2, event_timestamp_ms=900),
            False,
            False,
            id="another's, exactly as old as the grace",
        ),
        pytest.param(
            remote_segment(0, 9, state=STARTED, broker_id=2, event_timestamp_ms=5000),
            False,
            False,
            id="another's, from the future",
        ),
        pytest.param(
            remote_segment(0, 9, state=DELETING, broker_id=2), False, True, id="a deletion that did not finish"
        ),
        pytest.param(remote_segment(0, 9, state=DELETING), True, False, id="a deletion in flight"),
        pytest.param(remote_segment(0, 9, state=FINISHED), False, False, id="a finished segment is never a leftover"),
    ],
)
def test_leftovers(segment: RemoteLogSegmentMetadata, in_flight: bool, removed: bool) -> None:
    """Of copies that the journal does not know."""
    flying = {segment.remote_log_segment_id} if in_flight else set()
    removals = decide_cleanup([segment], frozenset(), flying, 1000, 100)
    assert [removal.metadata for removal in removals] == ([segment] if removed else [])
    assert all(removal.reason for removal in removals)
    assert all(removal.of_another == (removal.metadata.state is STARTED) for removal in removals)


@pytest.mark.parametrize("broker_id", [1, 2])
@pytest.mark.parametrize(
    ("in_flight", "removed"),
    [
        pytest.param(False, True, id="not in flight: it crashed"),
        pytest.param(True, False, id="in flight"),
    ],
)
def test_a_copy_that_the_journal_knows_is_ours(broker_id: int, in_flight: bool, removed: bool) -> None:
    """However young, and whatever id the broker has by now."""
    segment = remote_segment(0, 9, state=STARTED, broker_id=broker_id, event_timestamp_ms=1000)
    flying = {segment.remote_log_segment_id} if in_flight else set()
    removals = decide_cleanup([segment], {segment.remote_log_segment_id.uuid}, flying, 1000, 100)
    assert [(removal.metadata, removal.of_another) for removal in removals] == ([(segment, False)] if removed else [])
    assert all(removal.reason == "its copy by this sidecar was interrupted" for removal in removals)
