"""Until when a round of expiry that found nothing need not be decided again.

``tests/property/test_expiry_quiet.py`` says of any view that the same would have been decided.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.expiry import HOUR_MS, NOW_MS, SEGMENT_BYTES, segment, view
from tests.support.segments import local_segments
from tiersidecar.decide.cleanup import Removal
from tiersidecar.decide.expire import ExpiryPlan, QuietRound, decide_expiry, quiet_round
from tiersidecar.decide.expiry_view import ExpiryLimits, ExpiryView
from tiersidecar.decide.trash import TrashPlan
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.policy import GuardStop, TopicPolicy
from tiersidecar.domain.segments import LocalSegment
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import TrashEntry, TrashId, TrashKind

MOST_MS = 30 * 60_000
LIMITS = ExpiryLimits(idle_slack_ms=1000 * HOUR_MS)
MINUTE_H = 1 / 60


def calm(
    age_h: float = 1, *, copied_h: float | None = None, retention_h: float | None = 10, **fields: Any
) -> ExpiryView:
    """A remote segment, and one that is local and active: nothing is due."""
    remote = fields.pop("remote", (segment(0, 99, age_h=age_h, copied_h=copied_h),))
    fields = {"local": (100,), "start": 0, "limits": LIMITS, **fields}
    return view(remote, retention_h=retention_h, **fields)


def local(modified_h: float, newest_h: float | None = None) -> tuple[LocalSegment, ...]:
    """The active segment, written ``modified_h`` hours ago, its newest record of ``newest_h`` hours ago."""
    (one,) = local_segments(100, size_bytes=SEGMENT_BYTES, modified_ms=_ago(modified_h))
    return (replace(one, max_timestamp_ms=-1 if newest_h is None else _ago(newest_h)),)


def _ago(hours: float) -> int:
    return int(NOW_MS - hours * HOUR_MS)


def quiet_of(looked: ExpiryView, plan: ExpiryPlan | None = None) -> QuietRound | None:
    return quiet_round(looked, 7, plan or decide_expiry(looked))


UNTIL = {
    "without a limit by time, half an hour": (calm(retention_h=None), MOST_MS),
    "long before the first is due, half an hour": (calm(), MOST_MS),
    "until the oldest segment is due": (calm(10 - MINUTE_H), 60_000),
    "until the first of several is due": (
        calm(remote=(segment(0, 99, age_h=10 - MINUTE_H), segment(100, 199, age_h=1)), local=(200,)),
        60_000,
    ),
    "a minute before the oldest is due by the time of its copy, which is the older": (
        calm(1, copied_h=10 - MINUTE_H),
        60_000,
    ),
    "until an active segment is as old as the retention by its newest record": (
        replace(calm(), local_segments=local(1, 10 - MINUTE_H)),
        60_000,
    ),
    "until the last write of an active segment is as old as the retention": (
        replace(calm(), local_segments=local(10 - MINUTE_H)),
        60_000,
    ),
    "until that last write, though its newest record is younger": (
        replace(calm(), local_segments=local(10 - MINUTE_H, 1)),
        60_000,
    ),
    "a record of this very millisecond is no record of the future": (calm(0), MOST_MS),
    "a retention of a minute ends in a minute": (calm(0, retention_h=MINUTE_H), 60_000),
}


@pytest.mark.parametrize("sentence", UNTIL)
def test_until_when_it_is_quiet(sentence: str) -> None:
    looked, length_ms = UNTIL[sentence]
    quiet = quiet_of(looked)
    assert quiet is not None
    assert (quiet.from_ms, quiet.until_ms - NOW_MS) == (NOW_MS, length_ms)


REMOVAL = Removal(metadata=segment(0, 99), reason="it is due")
STOP = GuardStop(
    reason="too much", up_to=Offset(100), retention_ms=1, retention_bytes=1, max_share=0.5, max_bytes=-1, since_ms=1
)
ENTRY = TrashEntry(
    id=TrashId(generation=0, leader_epoch=LeaderEpoch(0), kind=TrashKind.RETENTION, opened_ms=1), decided_ms=1, due_ms=2
)
FOUND: dict[str, dict[str, Any]] = {
    "a segment goes": {"expired": (REMOVAL,)},
    "what a crash left goes": {"leftovers": (REMOVAL,)},
    "something is held back, and that is to be said": {"stop": "an operator holds it"},
    "the guard's stop has ended": {"guard_stop": STOP},
    "something goes into the trash": {"trash": TrashPlan(put=(ENTRY,))},
    "something comes out of the trash": {"trash": TrashPlan(take_out=(ENTRY,))},
    "something in the trash is due": {"trash": TrashPlan(removals=(REMOVAL,))},
    "something in the trash is not due yet": {"trash": TrashPlan(waiting=(REMOVAL,))},
}


@pytest.mark.parametrize("sentence", FOUND)
def test_it_is_not_quiet_when_something_was_found(sentence: str) -> None:
    looked = calm()
    plan = decide_expiry(looked)
    assert quiet_of(looked, plan) is not None
    assert quiet_of(looked, replace(plan, **FOUND[sentence])) is None


POLICY = calm().policy
SEEN: dict[str, dict[str, Any]] = {
    "there is trash, whose time comes": {"trash": (ENTRY,)},
    "the guard has stopped": {"guard_stop": STOP},
    "the clock is doubted": {"clock_doubt": "it is ahead"},
    "an operator holds it": {"hold": "an operator holds it"},
    "tiering was switched off with deletion": {
        "policy": TopicPolicy(retention_ms=POLICY.retention_ms, delete_remote=True)
    },
    "a copy may be taken for dead at any time": {
        "remote_segments": (segment(0, 99, age_h=1), segment(100, 199, state=State.COPY_SEGMENT_STARTED))
    },
    "a deletion is to be finished": {
        "remote_segments": (segment(0, 99, age_h=1, state=State.DELETE_SEGMENT_STARTED), segment(100, 199))
    },
    "a record is of the future": {"remote_segments": (segment(0, 99, age_h=-1, copied_h=1),)},
    "a copy was made in the future": {"remote_segments": (segment(0, 99, age_h=1, copied_h=-1),)},
    "a local record is of the future": {"local_segments": local(1, -1)},
    "a local segment was written in the future": {"local_segments": local(-1, 1)},
    "one is due this very moment": {"remote_segments": (segment(0, 99, age_h=10),)},
}


@pytest.mark.parametrize("sentence", SEEN)
def test_it_is_not_quiet_when_something_may_change(sentence: str) -> None:
    looked = calm()
    nothing = decide_expiry(looked)
    assert quiet_of(replace(looked, **SEEN[sentence]), nothing) is None


HOLDS: dict[str, tuple[dict[str, Any], int, bool]] = {
    "at once": ({}, 7, True),
    "a moment before it ends": ({"now_ms": NOW_MS + MOST_MS - 1}, 7, True),
    "no longer when it has ended": ({"now_ms": NOW_MS + MOST_MS}, 7, False),
    "not by a clock that was set back": ({"now_ms": NOW_MS - 1}, 7, False),
    "not of other segments": ({}, 8, False),
    "not of another retention": ({"policy": TopicPolicy(retention_ms=HOUR_MS)}, 7, False),
    "not when an operator holds it since": ({"hold": "an operator holds it"}, 7, False),
    "not when local segments have come or gone": ({"local_segments": ()}, 7, False),
    "not once the log start has moved": ({"log_start_offset": 50}, 7, False),
    "whatever is being copied now": ({"in_flight": {segment(0, 99).remote_log_segment_id}}, 7, True),
    "whatever the journal has since": ({"begun": {b"of another copy."}}, 7, True),
    "whatever of the time was seen": ({"seen_ms": NOW_MS}, 7, True),
}


@pytest.mark.parametrize("sentence", HOLDS)
def test_what_it_holds_for(sentence: str) -> None:
    changed, mark, holds = HOLDS[sentence]
    looked = calm()
    quiet = quiet_of(looked)
    assert quiet is not None
    assert quiet.holds_for(replace(looked, remote_segments=(), **changed), mark) is holds


def test_it_keeps_what_was_decided_and_no_remote_segments() -> None:
    looked = calm()
    plan = decide_expiry(looked)
    quiet = quiet_of(looked, plan)
    assert quiet is not None
    assert quiet.plan is plan
    assert quiet.view.remote_segments == ()
