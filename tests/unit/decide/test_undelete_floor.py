"""What of users' deletes comes back, what of what pins hold, and what nobody has (issue 16: undelete)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.expiry import NOW_MS, segment, segments
from tests.support.pins import pin_of
from tests.support.segments import local_segments
from tests.unit.decide.test_trash import entry
from tests.unit.decide.test_undelete import undone
from tiersidecar.decide.undelete import final_start, pinned_ranges, unavailable
from tiersidecar.domain.offsets import LeaderEpoch, Lineage, Offset
from tiersidecar.domain.segments import LocalSegment
from tiersidecar.domain.trash import SaidDelete, TrashEntry, TrashKind

USERS = entry(200, kind=TrashKind.USER)
PENDING = SaidDelete(opened_ms=USERS.id.opened_ms, leader_epoch=LeaderEpoch(0), offset=Offset(200))
FINAL = SaidDelete(leader_epoch=LeaderEpoch(0), offset=Offset(150))


@pytest.mark.parametrize(
    ("entries", "fields", "offset", "user_deletes", "undone_deletes"),
    [
        pytest.param([USERS], {"user_deletes": (PENDING,)}, 0, (), (PENDING,), id="within its delay it comes back"),
        pytest.param([], {"user_deletes": (FINAL,)}, 150, (FINAL,), (), id="carried out, it is where undoing ends"),
        pytest.param([], {"user_deletes": (PENDING,)}, 200, (PENDING,), (), id="without its entry it is carried out"),
        pytest.param(
            [entry(200, kind=TrashKind.USER, purged=True)],
            {"user_deletes": (PENDING,)},
            200,
            (PENDING,),
            (),
            id="an operator has purged it",
        ),
        pytest.param(
            [USERS, entry(300)], {"user_deletes": (FINAL, PENDING)}, 150, (FINAL,), (PENDING,), id="one of each"
        ),
        pytest.param(
            [USERS],
            {"user_deletes": (PENDING,), "generation": 1},
            200,
            (PENDING,),
            (),
            id="an entry of another generation is not about it",
        ),
        pytest.param(
            [USERS],
            {"user_deletes": (PENDING,), "to_offset": 120},
            120,
            (SaidDelete(opened_ms=PENDING.opened_ms, leader_epoch=LeaderEpoch(0), offset=Offset(120)),),
            (PENDING,),
            id="undone in part it stands below",
        ),
        pytest.param(
            [], {"user_deletes": (FINAL,), "to_offset": 150}, 150, (FINAL,), (), id="down to it, and not below"
        ),
        pytest.param(
            [],
            {"user_deletes": (SaidDelete(leader_epoch=LeaderEpoch(0), offset=Offset(900)),)},
            300,
            (SaidDelete(leader_epoch=LeaderEpoch(0), offset=Offset(900)),),
            (),
            id="one that reaches beyond the start leaves nothing to be undone",
        ),
    ],
)
def test_what_users_deleted_comes_back_with_its_entry_and_never_after(
    entries: list[TrashEntry],
    fields: dict[str, Any],
    offset: int,
    user_deletes: tuple[SaidDelete, ...],
    undone_deletes: tuple[SaidDelete, ...],
) -> None:
    found = undone(*entries, **fields)
    assert not found.refusal
    assert (found.offset, found.user_deletes, found.undone) == (offset, user_deletes, undone_deletes)


@pytest.mark.parametrize(
    ("entries", "deletes", "lineage", "offset"),
    [
        pytest.param([], (), [(0, 0)], -1, id="nobody has deleted anything"),
        pytest.param([USERS], (PENDING,), [(0, 0)], -1, id="within its delay a delete is not final"),
        pytest.param(
            [USERS], (FINAL, PENDING), [(0, 0)], 150, id="the one that was carried out, and not the one that waits"
        ),
        pytest.param([], (FINAL, PENDING), [(0, 0)], 200, id="the highest of those that were carried out"),
        pytest.param(
            [entry(200, kind=TrashKind.USER, generation=1)],
            (PENDING,),
            [(0, 0)],
            200,
            id="an entry of another generation",
        ),
        pytest.param([], (FINAL,), [(0, 0), (1, 120)], 120, id="as far as the history goes in which it was said"),
    ],
)
def test_below_what_offset_nothing_can_come_back(
    entries: list[TrashEntry], deletes: tuple[SaidDelete, ...], lineage: list[tuple[int, int]], offset: int
) -> None:
    assert final_start(deletes, entries, 0, Lineage.of(lineage)) == offset


def test_what_users_deleted_for_good_is_refused_with_that_reason() -> None:
    found = undone(user_deletes=(FINAL,), to_offset=149)
    assert "users have deleted what is below offset 150" in found.refusal
    assert (found.offset, found.is_needed) == (300, False)
    whole = undone(user_deletes=(FINAL,), to_offset=0)
    assert "users have deleted what is below offset 150" in whole.refusal, "also from the first offset that is there"
    gone = undone(user_deletes=(FINAL,), segments=segments(4, first=100), to_offset=99)
    assert "nothing below offset 150 is there" in gone.refusal, "with or without the users nobody has it"


@pytest.mark.parametrize(
    ("entries", "offset"),
    [
        pytest.param([replace(entry(300), from_offset=Offset(50))], 50, id="as far as what waits reaches down"),
        pytest.param(
            [replace(entry(300), from_offset=Offset(120)), replace(entry(200), from_offset=Offset(60))],
            60,
            id="the lowest",
        ),
        pytest.param(
            [replace(entry(100, due_in_h=0), from_offset=Offset(20)), replace(entry(300), from_offset=Offset(50))],
            100,
            id="but not below what is due: its pins may be gone",
        ),
        pytest.param([replace(entry(300, due_in_h=0), from_offset=Offset(50))], 300, id="nothing waits any more"),
        pytest.param([entry(300)], 300, id="where it was decided from is not known"),
        pytest.param([replace(entry(300), from_offset=Offset(0))], 0, id="from offset 0"),
    ],
)
def test_where_pins_may_hold_what_the_broker_deleted_it_comes_back_as_far_as_they_may(
    entries: list[TrashEntry], offset: int
) -> None:
    nothing_remote: dict[str, Any] = {"segments": (), "now_ms": NOW_MS}
    assert undone(*entries, may_be_pinned=True, **nothing_remote).offset == offset
    assert undone(*entries, **nothing_remote).offset == 300, "where the broker deletes nothing there is no such pin"


def pins(*ranges: tuple[int, int]) -> tuple[LocalSegment, ...]:
    return tuple(pin_of(*range_).segment for range_ in ranges)


@pytest.mark.parametrize(
    ("segments_", "expected"),
    [
        pytest.param((), (), id="none"),
        pytest.param(pins((0, 50), (50, 100)), ((0, 100),), id="side by side they are one range"),
        pytest.param(pins((0, 50), (60, 100)), ((0, 50), (60, 100)), id="a hole between them"),
        pytest.param((*pins((0, 50)), *local_segments(50, 100)), ((0, 50),), id="what the broker has itself is no pin"),
        pytest.param((*local_segments(0, 50)[:1], *pins((50, 100))), ((50, 100),), id="nor does it hide one"),
    ],
)
def test_what_only_pins_hold(segments_: tuple[LocalSegment, ...], expected: tuple[tuple[int, int], ...]) -> None:
    assert pinned_ranges(segments_) == expected


def test_of_too_many_ranges_the_first_are_told() -> None:
    many = pins(*((100 * n, 100 * n + 50) for n in range(60)))
    assert pinned_ranges(many) == tuple((100 * n, 100 * n + 50) for n in range(50))


@pytest.mark.parametrize(
    ("remote", "pinned", "holes"),
    [
        pytest.param([], [], ((10, 100),), id="nobody has any of it"),
        pytest.param([(0, 99)], [], (), id="remote"),
        pytest.param([(0, 19), (50, 59)], [], ((20, 50), (60, 100)), id="before, between and behind"),
        pytest.param([(0, 19), (50, 59)], [(20, 50)], ((60, 100),), id="a pin fills a hole"),
        pytest.param([(30, 39), (0, 99)], [], (), id="one within another"),
        pytest.param([(120, 150)], [], ((10, 100),), id="what lies beyond is not asked about"),
        pytest.param([(0, 10)], [], ((11, 100),), id="one of its offsets"),
    ],
)
def test_what_nobody_has(
    remote: list[tuple[int, int]], pinned: list[tuple[int, int]], holes: tuple[tuple[int, int], ...]
) -> None:
    assert unavailable([segment(*one) for one in remote], 10, 100, pinned) == holes
