"""How far a start can be set back, and what comes back (issue 16: undelete)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.expiry import segment, segments
from tests.unit.decide.test_trash import OUTSIDE, entry
from tiersidecar.decide.undelete import UndeleteView, Undeletion, decide_undelete
from tiersidecar.domain.epochs import Lineage
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.domain.trash import TrashEntry, TrashKind

NOW_MINUS_HOURS = 3_600_000


def undone(*entries: TrashEntry, start: int = 300, local: int = 400, **fields: Any) -> Undeletion:
    """Five segments of 100 offsets, a start at 300, and a broker's log that begins at 400."""
    return decide_undelete(
        UndeleteView(
            **{
                "entries": entries,
                "generation": 0,
                "start_offset": start,
                "segments": segments(5),
                "lineage": Lineage.of([(0, 0)]),
                "log_start_offset": local,
                **fields,
            }
        )
    )


def back(found: Undeletion) -> list[int]:
    return [one.start_offset for one in found.segments]


@pytest.mark.parametrize(
    ("fields", "offset", "segments_back", "holes"),
    [
        pytest.param({}, 0, [0, 100, 200], (), id="all that is still there"),
        pytest.param({"segments": segments(3, first=200)}, 200, [200], (), id="what is deleted already stays away"),
        pytest.param({"to_offset": 150}, 150, [100, 200], (), id="from an offset on, within a segment too"),
        pytest.param(
            {"segments": (segment(0, 99), segment(200, 299))},
            0,
            [0, 200],
            ((100, 200),),
            id="what is missing in between is named",
        ),
        pytest.param(
            {"segments": segments(2), "start": 350, "local": 350},
            0,
            [0, 100],
            ((200, 350),),
            id="what only the broker had, and a user's delete took there, is named",
        ),
        pytest.param(
            {"segments": segments(2), "start": 350, "local": 150},
            0,
            [0, 100],
            (),
            id="what the broker still has is no hole",
        ),
        pytest.param({"segments": (), "start": 50, "local": 20}, 20, [], (), id="what is only local comes back too"),
        pytest.param(
            {"segments": (*segments(3), *OUTSIDE)}, 0, [0, 100, 200], (), id="what is of another history does not count"
        ),
        pytest.param(
            {"segments": segments(3, state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED)},
            300,
            [],
            (),
            id="a deletion that was begun is not undone",
        ),
    ],
)
def test_what_comes_back(
    fields: dict[str, Any], offset: int, segments_back: list[int], holes: tuple[tuple[int, int], ...]
) -> None:
    found = undone(**fields)
    assert not found.refusal
    assert (found.offset, back(found), found.holes) == (offset, segments_back, holes)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param({"segments": segments(3, first=200), "to_offset": 100}, "nothing below offset 200", id="gone"),
        pytest.param({"to_offset": 301}, "starts at 300 already", id="not deleted at all"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], reason: str) -> None:
    found = undone(**fields)
    assert reason in found.refusal
    assert not found.is_needed


def test_decisions_before_a_time_stand() -> None:
    old, new = entry(100, decided_h=5), entry(300, decided_h=1)
    found = undone(old, new, since_ms=new.decided_ms)
    assert (found.offset, back(found)) == (100, [100, 200])
    (kept, clipped) = found.kept
    assert (kept.id.generation, kept.up_to, kept.due_ms) == (1, 100, old.due_ms)
    assert (clipped.up_to, clipped.due_ms) == (100, new.due_ms)


def test_undone_in_full_nothing_stands() -> None:
    assert undone(entry(300)).kept == ()


def test_a_deletion_of_everything_is_undone_even_where_the_start_did_not_move() -> None:
    assert undone(entry(500, kind=TrashKind.DISABLE), start=0, local=0).is_needed
    assert not undone(start=0, local=0).is_needed
