"""Which time counts for a delay (issue 16, trash: the clock)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.support.expiry import HOUR_MS, NOW_MS
from tiersidecar.decide.trash import TrashDelays, user_delete
from tiersidecar.decide.trash_time import MOST_UNSEEN_MS, TrashTime, seen_at_start, seen_by_heir, seen_by_next
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.seen_time import SeenTime, UnseenTime

MINUTE_MS = 60_000


def ago(from_min: int, to_min: int) -> UnseenTime:
    return UnseenTime(from_ms=NOW_MS - from_min * MINUTE_MS, to_ms=NOW_MS - to_min * MINUTE_MS)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        pytest.param(None, (UnseenTime(from_ms=0, to_ms=NOW_MS),), id="a new state.dir has seen nothing"),
        pytest.param(SeenTime(until_ms=NOW_MS - MOST_UNSEEN_MS), (), id="a restart"),
        pytest.param(SeenTime(until_ms=NOW_MS - 45 * MINUTE_MS), (ago(45, 0),), id="away, or the clock was set"),
        pytest.param(SeenTime(until_ms=NOW_MS + HOUR_MS), (), id="a clock that was set back"),
        pytest.param(
            SeenTime(until_ms=NOW_MS - 45 * MINUTE_MS, unseen=(ago(90, 80),)),
            (ago(90, 80), ago(45, 0)),
            id="away twice",
        ),
        pytest.param(
            SeenTime(until_ms=NOW_MS - 45 * MINUTE_MS, unseen=(ago(60, 30),)),
            (ago(60, 0),),
            id="set back and ahead again: one time",
        ),
        pytest.param(
            SeenTime(until_ms=NOW_MS - 45 * MINUTE_MS, unseen=(ago(60, 45),)),
            (ago(60, 0),),
            id="away again at once: one time",
        ),
        pytest.param(
            SeenTime(until_ms=NOW_MS - 45 * MINUTE_MS, unseen=(ago(60, 46),)),
            (ago(60, 46), ago(45, 0)),
            id="a minute between them was seen",
        ),
    ],
)
def test_what_a_process_that_starts_has_not_seen(known: SeenTime | None, expected: tuple[UnseenTime, ...]) -> None:
    assert seen_at_start(known, NOW_MS) == SeenTime(until_ms=NOW_MS, unseen=expected)


@pytest.mark.parametrize(
    ("former", "unseen"),
    [
        pytest.param(None, (UnseenTime(from_ms=0, to_ms=NOW_MS),), id="no lease that tells"),
        pytest.param(SeenTime(until_ms=NOW_MS - MINUTE_MS, unseen=(ago(90, 80),)), (ago(90, 80),), id="a restart"),
        pytest.param(
            SeenTime(until_ms=NOW_MS - HOUR_MS), (ago(60, 0),), id="away for an hour, or that clock was behind"
        ),
        pytest.param(SeenTime(until_ms=NOW_MS + 1), (UnseenTime(from_ms=0, to_ms=NOW_MS),), id="this clock is behind"),
    ],
)
def test_what_an_heir_has_seen(former: SeenTime | None, unseen: tuple[UnseenTime, ...]) -> None:
    assert seen_by_heir(former, NOW_MS) == SeenTime(until_ms=NOW_MS, unseen=unseen)


@pytest.mark.parametrize(
    ("former", "unseen"),
    [
        pytest.param(None, (ago(90, 80),), id="no lease that tells"),
        pytest.param(
            SeenTime(until_ms=NOW_MS - MOST_UNSEEN_MS, unseen=(ago(9, 8),)),
            (ago(90, 80), ago(9, 8)),
            id="clocks agree, and the other had not seen a minute",
        ),
        pytest.param(
            SeenTime(until_ms=NOW_MS + HOUR_MS, unseen=(ago(9, -60),)), (ago(90, 80), ago(9, 0)), id="set ahead, unseen"
        ),
        pytest.param(SeenTime(until_ms=NOW_MS - 30 * MINUTE_MS), (ago(90, 80), ago(30, 0)), id="that clock was behind"),
        pytest.param(
            SeenTime(until_ms=NOW_MS + HOUR_MS, unseen=(ago(0, -30),)), (ago(90, 80),), id="unseen from now on alone"
        ),
        pytest.param(SeenTime(until_ms=NOW_MS + HOUR_MS), (ago(90, 80),), id="that clock was ahead"),
    ],
)
def test_what_counts_after_a_holder_with_another_clock(former: SeenTime | None, unseen: tuple[UnseenTime, ...]) -> None:
    own = SeenTime(until_ms=NOW_MS, unseen=(ago(90, 80),))
    assert seen_by_next(own, former) == SeenTime(until_ms=NOW_MS, unseen=unseen)


def test_of_very_many_times_the_oldest_are_one() -> None:
    seen = SeenTime(until_ms=0)
    for day in range(1, 101):
        seen = seen_at_start(seen, day * 24 * HOUR_MS)
        seen = SeenTime(until_ms=seen.until_ms + HOUR_MS, unseen=seen.unseen)
        assert len(seen.unseen) == min(day, 64), "and no more of them than must be"
        assert all(one.to_ms < after.from_ms for one, after in pairwise(seen.unseen)), "apart from each other"
    assert seen.unseen[0] == UnseenTime(from_ms=0, to_ms=37 * 24 * HOUR_MS), "with what lies between them"
    assert seen.unseen[-1].to_ms == 100 * 24 * HOUR_MS


@pytest.mark.parametrize(
    ("unseen", "due_after_min"),
    [
        pytest.param((), 60, id="all was seen"),
        pytest.param((ago(-10, -30),), 80, id="twenty minutes were not"),
        pytest.param((ago(10, -10),), 70, id="what lies before the decision is no matter"),
        pytest.param((ago(-70, -600),), 60, id="nor what lies after it was due"),
        pytest.param((ago(-60, -600),), 60, id="nor what begins at the moment when it was due"),
        pytest.param((ago(-10, -30), ago(-70, -100)), 110, id="twice, the second time before it was due by then"),
    ],
)
def test_a_delay_counts_what_was_seen(unseen: tuple[UnseenTime, ...], due_after_min: int) -> None:
    delays = TrashDelays(retention_ms=HOUR_MS, user_ms=HOUR_MS)
    entry = user_delete(Offset(1), LeaderEpoch(0), generation=0, delays=delays, now_ms=NOW_MS, by="")
    due_ms = NOW_MS + due_after_min * MINUTE_MS
    assert TrashTime(now_ms=due_ms, unseen=unseen).is_due(entry)
    assert not TrashTime(now_ms=due_ms - 1, unseen=unseen).is_due(entry)


@pytest.mark.parametrize(
    ("unseen", "purged", "minutes"),
    [
        pytest.param((), False, 0, id="it is due, and so not overdue"),
        pytest.param((ago(40, 10),), False, 20, id="by the wall clock it was due twenty minutes ago, and is not"),
        pytest.param((ago(40, 10),), True, 0, id="an operator has purged it"),
        pytest.param((ago(40, -30),), False, 20, id="nor after ten minutes more"),
    ],
)
def test_for_how_long_it_has_been_due_by_the_wall_clock_alone(
    unseen: tuple[UnseenTime, ...], purged: bool, minutes: int
) -> None:
    delays = TrashDelays(retention_ms=HOUR_MS, user_ms=HOUR_MS)
    decided_ms = NOW_MS - 80 * MINUTE_MS
    entry = user_delete(Offset(1), LeaderEpoch(0), generation=0, delays=delays, now_ms=decided_ms, by="")
    if purged:
        entry = replace(entry, purged_ms=decided_ms)
    assert TrashTime(now_ms=NOW_MS, unseen=unseen).overdue_ms(entry) == minutes * MINUTE_MS
    assert TrashTime(now_ms=entry.due_ms - 1, unseen=unseen).overdue_ms(entry) == 0, "not even by the wall clock"
