"""Which of several segments a cleaner goes through, and where its way ends, row by row (S-243, S-263)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.expiry import HOUR_MS, NOW_MS, segment
from tests.unit.decide.test_cleaning_chain import ALL, CLEANED, FIRST, SECOND, THIRD, copy, in_trash, view
from tiersidecar.decide.cleaning_chain import ChainView, decide_chain, horizons_due_by
from tiersidecar.domain.offsets import ByteRange, LeaderEpoch, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.trash import TrashEntry, TrashId, TrashKind

AGAIN = copy(SECOND, hours_ago=2, name=b"the-third-twin--")
OVERLAPS = "the segment from offset {} on overlaps another one"
ASKED = "repair has asked for another copy of offsets from 100 on"


@pytest.mark.parametrize(
    ("seen", "segments", "twins", "stopped"),
    [
        pytest.param(view(ALL), ALL, [], "", id="end to end"),
        pytest.param(view([]), [], [], "", id="nothing is remote"),
        pytest.param(view([*ALL, CLEANED]), [FIRST, CLEANED, THIRD], [SECOND], "", id="of two the one that is read"),
        pytest.param(
            view([*ALL, CLEANED], hidden=[CLEANED]),
            ALL,
            [CLEANED],
            "",
            id="of two the one that events give to readers, though the other is later by its clock",
        ),
        pytest.param(
            view([*ALL, CLEANED], in_trash(CLEANED), hidden=[SECOND]),
            [FIRST, CLEANED, THIRD],
            [SECOND],
            "",
            id="even if the trash names the one that readers are given",
        ),
        pytest.param(
            view([*ALL, AGAIN, CLEANED], in_trash(CLEANED), hidden=[SECOND, AGAIN, CLEANED]),
            [FIRST, AGAIN, THIRD],
            [SECOND],
            "",
            id="where readers are given none of them, the latest that the trash does not name",
        ),
        pytest.param(
            view([*ALL, CLEANED], in_trash(SECOND, CLEANED), hidden=[SECOND, CLEANED]),
            [FIRST, CLEANED, THIRD],
            [],
            "",
            id="and where the trash names all of them, the latest",
        ),
        pytest.param(view(ALL, hidden=ALL), ALL, [], "", id="one that is alone is given, whatever is said of it"),
        pytest.param(
            view([*ALL, CLEANED], in_trash(SECOND, kind=TrashKind.REPAIR)),
            [FIRST, CLEANED, THIRD],
            [],
            "",
            id="what repair has named is no twin: its entry is there",
        ),
        pytest.param(
            view([FIRST, segment(100, 299), segment(299, 399)]),
            [FIRST],
            [],
            OVERLAPS.format(100),
            id="the one before ends in the first offset of the next",
        ),
        pytest.param(
            view([segment(0, 199), segment(50, 99), segment(199, 299)]),
            [],
            [],
            OVERLAPS.format(0),
            id="a short one within a long one",
        ),
        pytest.param(view(ALL, asked=[ByteRange(199, 210)]), [FIRST], [], ASKED, id="its last offset is asked for"),
        pytest.param(view(ALL, asked=[ByteRange(90, 101)]), [], [], "repair has asked for another copy of offsets from 0 on",
                     id="the last ones of one, and the first of the next"),
        pytest.param(view(ALL, asked=[ByteRange(100, 101)]), [FIRST], [], ASKED, id="its first offset alone"),
        pytest.param(view(ALL[1:], asked=[ByteRange(0, 100)]), ALL[1:], [], "", id="what lies before it is asked for"),
        pytest.param(view(ALL[:2], asked=[ByteRange(200, 300)]), ALL[:2], [], "", id="what follows it is asked for"),
        pytest.param(view(ALL, start=99), ALL, [], "", id="the start is the last offset of one"),
        pytest.param(view(ALL, start=100), ALL[1:], [], "", id="the start is the first offset of one"),
    ],
)  # fmt: skip
def test_which_segments_are_gone_through(
    seen: ChainView,
    segments: Sequence[RemoteLogSegmentMetadata],
    twins: Sequence[RemoteLogSegmentMetadata],
    stopped: str,
) -> None:
    found = decide_chain(seen)
    assert (list(found.segments), list(found.twins), found.stopped) == (list(segments), list(twins), stopped)
    assert found.end_offset == (segments[-1].next_offset if segments else 0)


def test_a_segment_of_one_record_at_offset_0_is_in_the_chain() -> None:
    single = segment(0, 0, age_h=9)
    assert decide_chain(view([single, segment(1, 99, age_h=8)])).segments[0] == single


def given_up(below: int, kind: TrashKind = TrashKind.RETENTION) -> TrashEntry:
    entry_id = TrashId(generation=0, leader_epoch=LeaderEpoch(0), kind=kind, opened_ms=NOW_MS - HOUR_MS)
    return TrashEntry(id=entry_id, decided_ms=NOW_MS, due_ms=NOW_MS, up_to=Offset(below))


@pytest.mark.parametrize(
    ("seen", "is_bound"),
    [
        pytest.param(view(ALL, given_up(100), start=99), False, id="the start is its last offset: it is in the chain"),
        pytest.param(view(ALL, given_up(100), start=100), True, id="the start is right behind it: it may come back"),
        pytest.param(view(ALL, given_up(100), in_trash(FIRST), start=100), False, id="a cleaned one has taken its place"),
        pytest.param(
            view(ALL, given_up(100), in_trash(FIRST, kind=TrashKind.REPAIR), start=100),
            True,
            id="repair has named it: an undelete still brings it back",
        ),
    ],
)  # fmt: skip
def test_whether_a_time_bounds_which_horizons_count(seen: ChainView, is_bound: bool) -> None:
    assert (horizons_due_by(seen) is not None) is is_bound
