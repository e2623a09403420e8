"""Which offsets a recovery names as holes, and what it does about places that it cannot reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from tests.support.metadata_events import DELETING, FINISHED, STARTED, added, segment_id
from tiersidecar.decide.recover import (
    Left,
    Recovery,
    RecoveryView,
    SnapshotSegments,
    StoredObjects,
    decide_recovery,
)
from tiersidecar.domain.segments import RemoteLogSegmentMetadata

WHOLE = StoredObjects(start_offset=0, has_log=True, has_indexes=True, has_manifest=True, modified_ms=50)


def live(number: int, start: int, end: int, epochs: Mapping[int, int] | None = None) -> RemoteLogSegmentMetadata:
    return replace(added(number, start, end, epochs), state=FINISHED)


def found_by(
    manifests: Sequence[RemoteLogSegmentMetadata] = (),
    *,
    known: Sequence[RemoteLogSegmentMetadata] = (),
    listed: Sequence[RemoteLogSegmentMetadata] | None = None,
    stored: Sequence[RemoteLogSegmentMetadata] | None = None,
    start_for: Callable[[int], int] = lambda epoch: -1,
    absent: Sequence[RemoteLogSegmentMetadata] = (),
    out_of_reach: Sequence[RemoteLogSegmentMetadata] = (),
) -> Recovery:
    """Return the recovery where all of ``stored``, by default all that is named, is whole in the store."""
    there = [*manifests, *(listed or ())] if stored is None else stored
    snapshot = None
    if listed is not None:
        segments = {one.remote_log_segment_id.uuid: one for one in listed}
        snapshot = SnapshotSegments(written_ms=0, segments=segments, highest_offsets={})
    return decide_recovery(
        RecoveryView(
            known={one.remote_log_segment_id.uuid: one for one in known},
            snapshot=snapshot,
            stored={one.remote_log_segment_id.uuid: WHOLE for one in there},
            manifests={one.remote_log_segment_id.uuid: one for one in manifests},
            start_for=start_for,
            absent=frozenset(one.remote_log_segment_id.uuid for one in absent),
            out_of_reach={one.remote_log_segment_id.uuid: "cold" for one in out_of_reach},
        )
    )


FIRST, SECOND, THIRD = live(1, 0, 9), live(2, 20, 29), live(3, 40, 49)
BEGUN = replace(SECOND, state=STARTED)


@pytest.mark.parametrize(
    ("found", "holes"),
    [
        pytest.param(found_by(), (), id="nothing at all has none"),
        pytest.param(found_by([SECOND]), (), id="what lies before the first segment is none: it has expired"),
        pytest.param(found_by([FIRST, live(2, 10, 19)]), (), id="segments that adjoin"),
        pytest.param(found_by([FIRST, SECOND]), ((10, 19),), id="from behind the one to right before the other"),
        pytest.param(found_by([FIRST, live(2, 11, 19)]), ((10, 10),), id="a single offset"),
        pytest.param(found_by([FIRST, SECOND, THIRD]), ((10, 19), (30, 39)), id="two of them"),
        pytest.param(found_by([live(1, 0, 0), live(2, 2, 9)]), ((1, 1),), id="behind a segment of one record, the first"),
        pytest.param(found_by([live(1, 0, 29), live(2, 5, 34), THIRD]), ((35, 39),), id="behind what reaches farthest"),
        pytest.param(
            found_by([live(1, 0, 29), THIRD], known=[live(2, 5, 9)]), ((30, 39),), id="a short one within a long one"
        ),
        pytest.param(found_by([FIRST, THIRD], known=[SECOND]), ((10, 19), (30, 39)), id="what the topic has closes its part"),
        pytest.param(found_by([FIRST, THIRD], known=[BEGUN]), ((10, 39),), id="what the topic has as begun closes none"),
        pytest.param(
            found_by([FIRST, THIRD], known=[BEGUN], listed=[SECOND], stored=[FIRST, SECOND, THIRD]),
            ((10, 19), (30, 39)),
            id="but for what this recovery finishes",
        ),
        pytest.param(
            found_by([FIRST, THIRD], known=[replace(SECOND, state=DELETING)]), ((10, 39),), id="nor what is being deleted"
        ),
        pytest.param(
            found_by([FIRST, THIRD], known=[SECOND], absent=[SECOND]),
            ((10, 39),),
            id="nor what the topic has and the store has not",
        ),
        pytest.param(found_by(listed=[FIRST, SECOND]), ((10, 19),), id="between what a snapshot has"),
        pytest.param(
            found_by([FIRST, SECOND], start_for=lambda epoch: 4), ((10, 19),), id="above the start of the remote log"
        ),
        pytest.param(
            found_by([SECOND, THIRD], known=[FIRST], start_for=lambda epoch: 15),
            ((15, 19), (30, 39)),
            id="the start lies within one: the rest of it",
        ),
        pytest.param(
            found_by([SECOND, THIRD], known=[FIRST], start_for=lambda epoch: 20), ((30, 39),), id="the start lies at its end"
        ),
        pytest.param(
            found_by(
                known=[FIRST, live(2, 20, 29, {0: 20, 6: 25}), live(3, 40, 49, {6: 40})],
                start_for=lambda epoch: {6: 17}.get(epoch, -1),
            ),
            ((17, 19), (30, 39)),
            id="by the start for the epoch that wrote the end of what follows",
        ),
    ],
)  # fmt: skip
def test_what_no_finished_segment_has(found: Recovery, holes: tuple[tuple[int, int], ...]) -> None:
    assert found.holes == holes


SAID = "it lies in place cold, which the configuration does not name"


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(found_by(listed=[SECOND], stored=[], out_of_reach=[SECOND]), id="a segment that only the snapshot has"),
        pytest.param(
            found_by(listed=[SECOND], known=[BEGUN], stored=[], out_of_reach=[SECOND]), id="one that the topic has as begun"
        ),
        pytest.param(
            found_by(listed=[replace(SECOND, state=DELETING)], known=[SECOND], stored=[], out_of_reach=[SECOND]),
            id="one whose deletion the topic does not know of",
        ),
    ],
)  # fmt: skip
def test_what_lies_in_a_place_that_is_not_configured_is_left_and_the_place_is_named(found: Recovery) -> None:
    (left,) = found.left
    assert (left.uuid, left.start_offset, left.end_offset) == (segment_id(2).uuid, 20, 29)
    assert (left.reason, left.detail) == (Left.UNKNOWN_PLACE, SAID)
    assert (found.segments, found.updates, found.gone, found.equal) == ((), (), 0, 0)


def test_what_the_topic_has_already_is_equal_wherever_it_lies() -> None:
    found = found_by(listed=[SECOND], known=[SECOND], stored=[], out_of_reach=[SECOND])
    assert (found.equal, found.left) == (1, ())
