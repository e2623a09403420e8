"""How far a start can be set back, and what comes back (issue 16: undelete)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.expiry import segment, segments
from tests.support.segments import local_segments
from tests.unit.decide.test_trash import OUTSIDE, entry
from tiersidecar.decide.trash import TrashDelays, replaced
from tiersidecar.decide.undelete import (
    NEARLY_DUE_MS,
    UndeleteView,
    Undeletion,
    decide_undelete,
    may_be_on_its_way,
    pinned_ranges,
    unavailable,
)
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Lineage, Offset
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.domain.trash import FINAL, SaidDelete, TrashEntry, TrashKind

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
        pytest.param({"segments": (), "start": 50, "local": 0}, 0, [], (), id="from offset 0 on as well"),
        pytest.param({"to_offset": 99}, 99, [0, 100, 200], (), id="from the last offset of a segment on"),
        pytest.param({"to_offset": 100}, 100, [100, 200], (), id="from the first offset of a segment on"),
        pytest.param(
            {"segments": segments(1), "start": 150, "local": -1},
            0,
            [0],
            (),
            id="where the broker has not said where its log begins no hole is named",
        ),
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
    assert found.offset == 300, "the start stays where it is"
    assert found.is_needed is False


def test_decisions_before_a_time_stand() -> None:
    old, new = entry(100, decided_h=5), entry(300, decided_h=1)
    found = undone(old, new, since_ms=new.decided_ms)
    assert (found.offset, back(found)) == (100, [100, 200])
    (kept, clipped) = found.kept
    assert (kept.id.generation, kept.up_to, kept.due_ms) == (1, 100, old.due_ms)
    assert (clipped.up_to, clipped.due_ms) == (100, new.due_ms)
    assert kept.segments == clipped.segments == frozenset()


def test_what_stands_are_decisions_on_offsets_of_this_generation() -> None:
    old, new = entry(100, decided_h=5), entry(300, decided_h=1)
    others = (
        entry(200, decided_h=5, generation=1),
        entry(500, kind=TrashKind.DISABLE, decided_h=1),
        entry(kind=TrashKind.OUTSIDE_LINEAGE, names=OUTSIDE, decided_h=5),
        entry(kind=TrashKind.TOPIC, decided_h=5),
    )
    found = undone(old, new, *others, since_ms=new.decided_ms)
    assert (found.offset, [one.up_to for one in found.kept]) == (100, [100, 100])


def test_undone_in_full_nothing_stands() -> None:
    assert undone(entry(300)).kept == ()


def test_a_deletion_of_everything_is_undone_even_where_the_start_did_not_move() -> None:
    assert undone(entry(500, kind=TrashKind.DISABLE), start=0, local=0).is_needed
    assert not undone(start=0, local=0).is_needed
    assert not undone(entry(0), start=0, local=0).is_needed, "retention that took nothing is nothing to undo"
    of_earlier_generation = entry(500, kind=TrashKind.DISABLE, generation=0)
    assert not undone(of_earlier_generation, start=0, local=0, generation=1).is_needed, "that was undone already"


def said(offset: int, opened_ms: int = FINAL, leader_epoch: int = 0) -> SaidDelete:
    return SaidDelete(opened_ms=opened_ms, leader_epoch=LeaderEpoch(leader_epoch), offset=Offset(offset))


def by_user(up_to: int, opened_ms: int = 7, **fields: Any) -> TrashEntry:
    made = entry(up_to, kind=TrashKind.USER)
    return replace(made, id=replace(made.id, opened_ms=opened_ms), **fields)


CUT = Lineage.of([(0, 0), (4, 120)])
"""Epoch 4 began at 120: what was said in epoch 0 holds no further."""


@pytest.mark.parametrize(
    ("entries", "deletes", "fields", "offset"),
    [
        pytest.param([entry(300)], [said(150)], {}, 150, id="retention's, and no further than a user's final delete"),
        pytest.param([], [said(300)], {}, 300, id="an empty trash brings nothing back"),
        pytest.param([by_user(300)], [said(300, 7)], {}, 0, id="a user's delete with its own entry"),
        pytest.param([by_user(300, 8)], [said(300, 7)], {}, 300, id="and with no other's"),
        pytest.param(
            [by_user(300)], [said(120), said(300, 7)], {}, 120, id="down to the one before, which is carried out"
        ),
        pytest.param(
            [by_user(300, purged_ms=1 << 60)], [said(300, 7)], {}, 300, id="what an operator purged is gone for good"
        ),
        pytest.param(
            [replace(by_user(300), id=replace(by_user(300).id, generation=-1))],
            [said(300, 7)],
            {},
            300,
            id="an entry that was undone before stands for nothing",
        ),
        pytest.param([entry(300)], [said(250)], {"lineage": CUT}, 120, id="a delete holds as far as its history"),
    ],
)
def test_what_users_deleted_is_a_floor(
    entries: list[TrashEntry], deletes: list[SaidDelete], fields: dict[str, Any], offset: int
) -> None:
    found = undone(*entries, user_deletes=deletes, **fields)
    assert found.offset == offset


def test_below_a_floor_it_is_refused_with_the_reason() -> None:
    found = undone(entry(300), user_deletes=[said(150)], to_offset=140)
    assert "users have deleted what is below offset 150" in found.refusal


def test_what_is_undone_is_named_and_what_stands_is_said_again() -> None:
    found = undone(by_user(200, 5), by_user(300), user_deletes=[said(50), said(200, 5), said(300, 7)], to_offset=220)
    assert found.undone == (said(200, 5), said(300, 7))
    assert found.user_deletes == (said(50), said(200, 5), said(220, 7))


@pytest.mark.parametrize(
    ("entries", "pins", "offset"),
    [
        pytest.param([by_user(300, from_offset=Offset(20))], True, 20, id="where the log started before"),
        pytest.param(
            [by_user(300, from_offset=Offset(20))], False, 300, id="not where the broker deletes nothing itself"
        ),
        pytest.param([by_user(300)], True, 300, id="not by an entry that does not tell"),
        pytest.param(
            [by_user(300, from_offset=Offset(20)), replace(entry(80), due_ms=0)],
            True,
            80,
            id="pins of what is due are dropped",
        ),
    ],
)
def test_what_only_pins_may_hold_comes_back_as_far_as_they_are_kept(
    entries: list[TrashEntry], pins: bool, offset: int
) -> None:
    found = undone(*entries, user_deletes=[said(300, 7)], segments=(), may_be_pinned=pins, now_ms=1)
    assert found.offset == offset


def test_pins_are_told_in_few_ranges() -> None:
    sealed = local_segments(0, 100, 200, 300, 400)
    pinned = [replace(one, pinned=one.base_offset in (0, 100, 300)) for one in sealed]
    assert pinned_ranges(pinned) == ((0, 200), (300, 400))
    assert unavailable(segments(1, first=200), 0, 450, pinned_ranges(pinned)) == ((400, 450),)


DUE_MS = entry(300).due_ms
A_DAY = TrashDelays(retention_ms=24 * NOW_MINUS_HOURS, user_ms=NOW_MINUS_HOURS)


@pytest.mark.parametrize(
    ("entries", "latest_ms", "delays", "may_be"),
    [
        pytest.param([], DUE_MS, A_DAY, False, id="nothing waits"),
        pytest.param([entry(300)], DUE_MS - NEARLY_DUE_MS - 1, A_DAY, False, id="it is not due for a while"),
        pytest.param([entry(300)], DUE_MS - NEARLY_DUE_MS, A_DAY, True, id="it is nearly due"),
        pytest.param([entry(300, due_in_h=9), entry(300)], DUE_MS, A_DAY, True, id="one of several is due"),
        pytest.param([entry(300, purged=True)], 0, A_DAY, True, id="an operator has purged it"),
        pytest.param([], 0, replace(A_DAY, retention_ms=0), True, id="what retention gives up waits for nothing"),
        pytest.param([], 0, replace(A_DAY, user_ms=0), True, id="what users delete waits for nothing"),
    ],
)
def test_whether_a_deletion_may_have_been_sent(
    entries: list[TrashEntry], latest_ms: int, delays: TrashDelays, may_be: bool
) -> None:
    assert may_be_on_its_way(entries, latest_ms=latest_ms, delays=delays) is may_be


FIRST = segment(0, 99)
ITS_NEW_ONE = replace(FIRST, remote_log_segment_id=replace(FIRST.remote_log_segment_id, uuid=Uuid(b"without-a-record")))
ERASED = replaced([FIRST], LeaderEpoch(0), opened_ms=5, delays=TrashDelays(user_ms=9), now_ms=5, by="erase")


def test_what_an_erasure_replaced_is_refused_where_nothing_else_is_to_be_undone() -> None:
    found = undone(ERASED, start=0, segments=(FIRST, ITS_NEW_ONE, *segments(4, first=100)))
    assert found.refusal == "an erasure replaced 1 segments, which do not come back; nothing else is to be undone"
    assert not found.is_needed


def test_what_an_erasure_replaced_does_not_come_back_with_the_rest() -> None:
    found = undone(ERASED, segments=(FIRST, ITS_NEW_ONE, *segments(4, first=100)))
    assert (found.offset, found.replaced, found.refusal) == (0, 1, "")
    assert [one.remote_log_segment_id for one in found.segments][:1] == [ITS_NEW_ONE.remote_log_segment_id]
    assert FIRST not in found.segments


def test_where_what_replaced_it_is_gone_its_offsets_are_a_hole() -> None:
    found = undone(ERASED, segments=(FIRST, *segments(4, first=100)), local=400)
    assert (found.offset, back(found)) == (100, [100, 200])
    assert undone(ERASED, segments=(FIRST, *segments(4, first=100)), to_offset=50).refusal
