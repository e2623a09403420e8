"""Which offsets a recovery names as holes, and what it does about places that it cannot reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from tests.support.metadata_events import DELETING, FINISHED, STARTED, added, segment_id
from tiersidecar.decide.recover import (
    Left,
    RecoveryView,
    SnapshotSegments,
    StoredObjects,
    decide_recovery,
)
from tiersidecar.domain.segments import RemoteLogSegmentMetadata

WHOLE = StoredObjects(start_offset=0, has_log=True, has_indexes=True, has_manifest=True, modified_ms=50)


def live(number: int, start: int, end: int, epochs: Mapping[int, int] | None = None) -> RemoteLogSegmentMetadata:
    return replace(added(number, start, end, epochs), state=FINISHED)


def view_of(
    manifests: Sequence[RemoteLogSegmentMetadata] = (),
    *,
    known: Sequence[RemoteLogSegmentMetadata] = (),
    listed: Sequence[RemoteLogSegmentMetadata] | None = None,
    stored: Sequence[RemoteLogSegmentMetadata] | None = None,
    start_for: Callable[[int], int] = lambda epoch: -1,
    absent: Sequence[RemoteLogSegmentMetadata] = (),
    out_of_reach: Sequence[RemoteLogSegmentMetadata] = (),
) -> RecoveryView:
    """Return the view where all of ``stored``, by default all that is named, is whole in the store."""
    there = [*manifests, *(listed or ())] if stored is None else stored
    snapshot = None
    if listed is not None:
        segments = {one.remote_log_segment_id.uuid: one for one in listed}
        snapshot = SnapshotSegments(written_ms=0, segments=segments, highest_offsets={})
    return RecoveryView(
        known={one.remote_log_segment_id.uuid: one for one in known},
        snapshot=snapshot,
        stored={one.remote_log_segment_id.uuid: WHOLE for one in there},
        manifests={one.remote_log_segment_id.uuid: one for one in manifests},
        start_for=start_for,
        absent=frozenset(one.remote_log_segment_id.uuid for one in absent),
        out_of_reach={one.remote_log_segment_id.uuid: "cold" for one in out_of_reach},
    )


FIRST, SECOND, THIRD = live(1, 0, 9), live(2, 20, 29), live(3, 40, 49)
BEGUN = replace(SECOND, state=STARTED)


@pytest.mark.parametrize(
    ("view", "holes"),
    [
        pytest.param(view_of(), (), id="nothing at all has none"),
        pytest.param(view_of([SECOND]), (), id="what lies before the first segment is none: it has expired"),
        pytest.param(view_of([FIRST, live(2, 10, 19)]), (), id="segments that adjoin"),
        pytest.param(view_of([FIRST, SECOND]), ((10, 19),), id="from behind the one to right before the other"),
        pytest.param(view_of([FIRST, live(2, 11, 19)]), ((10, 10),), id="a single offset"),
        pytest.param(view_of([FIRST, SECOND, THIRD]), ((10, 19), (30, 39)), id="two of them"),
        pytest.param(view_of([live(1, 0, 0), live(2, 2, 9)]), ((1, 1),), id="behind a segment of one record, the first"),
        pytest.param(view_of([live(1, 0, 29), live(2, 5, 34), THIRD]), ((35, 39),), id="behind what reaches farthest"),
        pytest.param(
            view_of([live(1, 0, 29), THIRD], known=[live(2, 5, 9)]), ((30, 39),), id="a short one within a long one"
        ),
        pytest.param(view_of([FIRST, THIRD], known=[SECOND]), ((10, 19), (30, 39)), id="what the topic has closes its part"),
        pytest.param(view_of([FIRST, THIRD], known=[BEGUN]), ((10, 39),), id="what the topic has as begun closes none"),
        pytest.param(
            view_of([FIRST, THIRD], known=[BEGUN], listed=[SECOND], stored=[FIRST, SECOND, THIRD]),
            ((10, 19), (30, 39)),
            id="but for what this recovery finishes",
        ),
        pytest.param(
            view_of([FIRST, THIRD], known=[replace(SECOND, state=DELETING)]), ((10, 39),), id="nor what is being deleted"
        ),
        pytest.param(
            view_of([FIRST, THIRD], known=[SECOND], absent=[SECOND]),
            ((10, 39),),
            id="nor what the topic has and the store has not",
        ),
        pytest.param(view_of(listed=[FIRST, SECOND]), ((10, 19),), id="between what a snapshot has"),
        pytest.param(
            view_of([FIRST, SECOND], start_for=lambda epoch: 4), ((10, 19),), id="above the start of the remote log"
        ),
        pytest.param(
            view_of([SECOND, THIRD], known=[FIRST], start_for=lambda epoch: 15),
            ((15, 19), (30, 39)),
            id="the start lies within one: the rest of it",
        ),
        pytest.param(
            view_of([SECOND, THIRD], known=[FIRST], start_for=lambda epoch: 20), ((30, 39),), id="the start lies at its end"
        ),
        pytest.param(
            view_of(
                known=[FIRST, live(2, 20, 29, {0: 20, 6: 25}), live(3, 40, 49, {6: 40})],
                start_for=lambda epoch: {6: 17}.get(epoch, -1),
            ),
            ((17, 19), (30, 39)),
            id="by the start for the epoch that wrote the end of what follows",
        ),
    ],
)  # fmt: skip
def test_what_no_finished_segment_has(view: RecoveryView, holes: tuple[tuple[int, int], ...]) -> None:
    assert decide_recovery(view).holes == holes


SAID = "it lies in place cold, which the configuration does not name"


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(view_of(listed=[SECOND], stored=[], out_of_reach=[SECOND]), id="a segment that only the snapshot has"),
        pytest.param(
            view_of(listed=[SECOND], known=[BEGUN], stored=[], out_of_reach=[SECOND]), id="one that the topic has as begun"
        ),
        pytest.param(
            view_of(listed=[replace(SECOND, state=DELETING)], known=[SECOND], stored=[], out_of_reach=[SECOND]),
            id="one whose deletion the topic does not know of",
        ),
    ],
)  # fmt: skip
def test_what_lies_in_a_place_that_is_not_configured_is_left_and_the_place_is_named(view: RecoveryView) -> None:
    found = decide_recovery(view)
    (left,) = found.left
    assert (left.uuid, left.start_offset, left.end_offset) == (segment_id(2).uuid, 20, 29)
    assert (left.reason, left.detail) == (Left.UNKNOWN_PLACE, SAID)
    assert (found.segments, found.updates, found.gone, found.equal) == ((), (), 0, 0)


def test_what_the_topic_has_already_is_equal_wherever_it_lies() -> None:
    found = decide_recovery(view_of(listed=[SECOND], known=[SECOND], stored=[], out_of_reach=[SECOND]))
    assert (found.equal, found.left) == (1, ())
