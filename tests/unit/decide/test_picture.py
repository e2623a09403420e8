"""What of a compacted partition is pinned together, and when a tombstone may have gone before (issue 23)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.pins import local_partition, pin_of
from tests.support.segments import local_segments
from tiersidecar.decide.picture import (
    PicturePlan,
    PictureView,
    decide_picture,
    is_excused,
    may_lack_tombstones,
    reason_missed,
)
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import DropReason, PictureLook, Pin

NOW_MS, RETENTION_MS = 1_000_000, 10_000


def view(
    *bases: int,
    pins: tuple[Pin, ...] = (),
    remote: tuple[Pin, ...] = (),
    cut_off: tuple[Pin, ...] = (),
    remote_end: int = 0,
    high_watermark: int = 10_000,
    deleted: tuple[int, ...] = (),
    refused: tuple[tuple[int, int], ...] = (),
) -> PictureView:
    renamed = local_segments(*deleted, *bases[:1])[:-1]
    local = replace(
        local_partition(local_segments(*bases)),
        deleted=tuple(replace(one, file_suffix=".deleted") for one in renamed),
    )
    return PictureView(
        local=local,
        pins=pins,
        remote=remote,
        cut_off=cut_off,
        remote_end=Offset(remote_end),
        high_watermark=high_watermark,
        refused=frozenset(refused),
    )


def plan(*bases: int, **fields: Any) -> PicturePlan:
    return decide_picture(view(*bases, **fields))


def taken(found: PicturePlan) -> list[tuple[int, int | None]]:
    return [(one.base_offset, one.next_base_offset) for one in found.take]


P0, P1 = pin_of(0, 50), pin_of(50, 100)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(view(0, 50, 100), [(0, 50), (50, 100)], id="the first picture has all that is sealed"),
        pytest.param(view(0, 50, 100, pins=(P0,)), [(50, 100)], id="what is pinned stays as it was pinned"),
        pytest.param(view(0, 50, 100, remote_end=50), [(50, 100)], id="what is remote is not pinned"),
        pytest.param(view(0, 100, pins=(P0, P1)), [], id="what was pinned and merged since is not pinned again"),
        pytest.param(
            view(0, 150, pins=(P0, P1)), [(0, 150)], id="one that was merged with what was never pinned is pinned too"
        ),
        pytest.param(
            view(0, 50, 100, high_watermark=100), [(0, 50), (50, 100)], id="what ends at the high watermark is below it"
        ),
        pytest.param(
            view(0, 50, 100, high_watermark=70), [(0, 50)], id="what is not below the high watermark may be cut off"
        ),
        pytest.param(view(0, 50, pins=(P1,), cut_off=(P1,)), [(0, 50)], id="a pin that was cut off counts for nothing"),
        pytest.param(
            view(120, deleted=(0, 50, 100), pins=(P0, P1)),
            [(100, 120)],
            id="the active segment of a quiet topic, which retention has rolled and renamed in one step, is pinned",
        ),
        pytest.param(
            view(120, 150, deleted=(50, 100), remote_end=50),
            [(50, 100), (100, 120), (120, 150)],
            id="what retention has renamed is pinned with what is there",
        ),
        pytest.param(view(120, deleted=(50,), high_watermark=110), [], id="so far as it is below the high watermark"),
        pytest.param(
            view(120, 150, deleted=(50,), refused=((50, 120),)),
            [(120, 150)],
            id="what no reader may have is not pinned",
        ),
    ],
)
def test_what_is_pinned(seen: PictureView, expected: list[tuple[int, int]]) -> None:
    assert taken(decide_picture(seen)) == expected


def test_pins_go_once_they_are_remote_or_cut_off() -> None:
    found = plan(0, 50, pins=(P0, P1), remote=(P0,), cut_off=(P1,), remote_end=50)
    assert {(one.pin.base_offset, one.reason) for one in found.drop} == {
        (0, DropReason.REMOTE),
        (50, DropReason.TRUNCATED),
    }


def test_a_renamed_segment_that_cannot_be_linked_takes_what_is_before_it_along() -> None:
    found = plan(120, 150, deleted=(0, 50, 100))
    second, sealed = found.take[1], found.take[3]
    assert found.is_renamed(second.log_path)
    assert not found.is_renamed(sealed.log_path)
    left = found.after(second.log_path)
    assert taken(left) == [(100, 120), (120, 150)]
    assert found.after(sealed.log_path).end == 0, "what is not pinned is not known"


FIRST, NEXT = plan(0, 50, 100), plan(0, 50, 100, remote_end=50)
RECENT, OLD = 7_000, 8_000
"""Around four fifths of the retention."""


def look(age_ms: int, end: int = 50) -> PictureLook:
    return PictureLook(end_offset=Offset(end), at_ms=NOW_MS - age_ms)


@pytest.mark.parametrize(
    ("found", "cleaner_offset", "last", "said"),
    [
        pytest.param(FIRST, 100, None, "", id="the first picture is of one moment, whatever was cleaned"),
        pytest.param(NEXT, -1, None, "", id="the cleaner was never there"),
        pytest.param(
            NEXT, 50, None, "", id="the cleaner has come to where the picture begins, and one round takes none"
        ),
        pytest.param(NEXT, 51, look(RECENT), "", id="all was pinned a short time ago"),
        pytest.param(NEXT, 51, look(OLD), "8000 ms ago", id="the last look was too long ago"),
        pytest.param(
            NEXT, None, look(OLD), "8000 ms ago", id="where the cleaner was is not known, and the look is old"
        ),
        pytest.param(NEXT, 51, None, "since when", id="no look is known"),
        pytest.param(NEXT, 51, look(RECENT, end=80), "since when", id="pins of that look were lost since"),
        pytest.param(NEXT, 51, look(-1), "-1 ms ago", id="the clock has gone back"),
    ],
)
def test_whether_a_tombstone_may_have_gone_before(
    found: PicturePlan, cleaner_offset: int | None, last: PictureLook | None, said: str
) -> None:
    reason = reason_missed(
        found, cleaner_offset=cleaner_offset, last=last, now_ms=NOW_MS, delete_retention_ms=RETENTION_MS
    )
    assert (said in reason) if said else reason == ""
    assert not said or "offsets 50 to 99" in reason


@pytest.mark.parametrize(("then_ms", "now_ms"), [(RETENTION_MS, 2 * RETENTION_MS), (2 * RETENTION_MS, RETENTION_MS)])
def test_the_lesser_setting_of_then_and_now_is_named(then_ms: int, now_ms: int) -> None:
    last = replace(look(OLD), delete_retention_ms=then_ms)
    reason = reason_missed(NEXT, cleaner_offset=51, last=last, now_ms=NOW_MS, delete_retention_ms=now_ms)
    assert reason.endswith("the last look was 8000 ms ago, with delete.retention.ms of 10000")


def test_an_offset_that_another_brokers_cleaner_took_is_named() -> None:
    reason = reason_missed(
        NEXT, hole=70, cleaner_offset=-1, last=look(RECENT), now_ms=NOW_MS, delete_retention_ms=RETENTION_MS
    )
    assert "offsets 70 to 99" in reason
    assert "another broker's cleaner" in reason


@pytest.mark.parametrize(
    ("found", "cleaner_offset", "written_from", "age_ms", "expected"),
    [
        pytest.param(NEXT, -1, 100, OLD, True, id="another broker wrote it, long ago"),
        pytest.param(NEXT, 50, 51, OLD, True, id="at least the first offset of it"),
        pytest.param(NEXT, -1, 100, RECENT, False, id="what was written a short time ago was not cleaned twice"),
        pytest.param(NEXT, -1, 100, -1_000, False, id="a producer's clock is ahead"),
        pytest.param(NEXT, -1, 100, -5_000, True, id="a producer's clock is so far ahead that it says nothing"),
        pytest.param(NEXT, -1, 100, NOW_MS + 1, True, id="what is known has no timestamps"),
        pytest.param(NEXT, -1, 100, 7_999, False, id="it was written just within four fifths of the retention"),
        pytest.param(NEXT, -1, 100, -1_999, False, id="a producer's clock is ahead by less than a fifth of it"),
        pytest.param(NEXT, -1, 100, -2_000, True, id="a producer's clock is ahead by a fifth of it"),
        pytest.param(NEXT, -1, 50, OLD, False, id="this broker has written it itself"),
        pytest.param(NEXT, 51, 100, OLD, False, id="its own cleaner was there, and the looks say the rest"),
        pytest.param(NEXT, None, 100, OLD, False, id="where its own cleaner was is not known"),
        pytest.param(FIRST, -1, 100, OLD, False, id="the first picture is of one moment"),
        pytest.param(plan(0, 50, remote_end=50), -1, 100, OLD, False, id="there is nothing to be pinned"),
    ],
)
def test_whether_missing_offsets_say_that_another_cleaner_was_there(
    found: PicturePlan, cleaner_offset: int | None, written_from: int, age_ms: int, expected: bool
) -> None:
    is_doubtful = may_lack_tombstones(
        found,
        cleaner_offset=cleaner_offset,
        written_from=written_from,
        newest_known_ms=NOW_MS - age_ms,
        now_ms=NOW_MS,
        delete_retention_ms=RETENTION_MS,
    )
    assert is_doubtful is expected


@pytest.mark.parametrize(
    ("last", "retention_ms", "excused"),
    [
        pytest.param(None, RETENTION_MS, False, id="no look is known"),
        pytest.param(look(RECENT), RETENTION_MS, True, id="all was pinned a short time ago"),
        pytest.param(look(7_999), RETENTION_MS, True, id="just within four fifths of what a tombstone stays"),
        pytest.param(look(OLD), RETENTION_MS, False, id="four fifths of it ago"),
        pytest.param(look(0), RETENTION_MS, True, id="this very moment"),
        pytest.param(look(-1), RETENTION_MS, False, id="the clock has gone back"),
        pytest.param(look(RECENT, end=80), RETENTION_MS, False, id="pins of that look were lost since"),
        pytest.param(look(RECENT), RETENTION_MS // 2, False, id="a tombstone stays for less by now"),
        pytest.param(
            replace(look(OLD), delete_retention_ms=RETENTION_MS),
            2 * RETENTION_MS,
            False,
            id="a tombstone stayed for less then",
        ),
    ],
)
def test_what_a_recent_look_excuses(last: PictureLook | None, retention_ms: int, excused: bool) -> None:
    assert is_excused(NEXT, last, now_ms=NOW_MS, delete_retention_ms=retention_ms) is excused
