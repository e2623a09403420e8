"""Whatever becomes of the wall clock and of the process: a delay is never shorter than itself (issue 16, trash: the clock)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.expiry_world import StoppedClock, run
from tiersidecar.decide.seen_time import MOST_UNSEEN_MS
from tiersidecar.decide.trash import TrashDelays, user_delete
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.seen_time import SeenTime
from tiersidecar.tasks.trash_clock import TrashClock

MINUTE_MS = 60_000
DELAY_MS = 6 * 60 * MINUTE_MS
JUMPS_MIN = st.sampled_from([0, 0, 0, 4, -4, 45, -45, 600, -600, 100_000])
Step = tuple[str, int, int]
STEPS = st.one_of(
    st.tuples(st.just("runs"), st.integers(0, 90), st.just(0)),
    st.tuples(st.just("jumps while it runs"), st.integers(0, 90), JUMPS_MIN),
    st.tuples(st.just("is down"), st.integers(0, 300), JUMPS_MIN),
    st.tuples(st.just("loses its state.dir"), st.integers(0, 300), JUMPS_MIN),
)


class Kept:
    """``ports.seen_times.SeenTimes`` in memory."""

    def __init__(self) -> None:
        self.seen: SeenTime | None = None

    async def read(self) -> SeenTime | None:
        return self.seen

    async def write(self, seen: SeenTime) -> None:
        self.seen = seen


@given(st.lists(STEPS, max_size=10), st.lists(STEPS, max_size=15))
def test_nothing_is_due_before_its_delay_by_true_time(before: list[Step], after: list[Step]) -> None:
    """Whenever it was decided; but for five minutes at each start and jump, which nobody can tell from a clock that is kept
    right."""
    clock, kept = StoppedClock(), Kept()
    process = TrashClock(clock=clock, times=kept, known=None)
    slack_ms = 0

    def take(step: Step) -> None:
        nonlocal process, slack_ms
        what, minutes, jump_min = step
        run(process.note())
        clock.true_ms += minutes * MINUTE_MS
        if what == "runs":
            run(process.note())
        clock.skew_ms += jump_min * MINUTE_MS
        if what == "loses its state.dir":
            kept.seen = None
        if what in {"is down", "loses its state.dir"}:
            process = TrashClock(clock=clock, times=kept, known=kept.seen)
        slack_ms += 0 if what == "runs" else MOST_UNSEEN_MS

    for step in before:
        take(step)
    delays = TrashDelays(retention_ms=DELAY_MS, user_ms=DELAY_MS)
    decided_ms, now_ms = clock.true_ms, process.now().decision_ms
    entry = user_delete(Offset(1), LeaderEpoch(0), generation=0, delays=delays, now_ms=now_ms, by="")
    for step in after:
        take(step)
        if process.now().is_due(entry):
            assert clock.true_ms - decided_ms >= DELAY_MS - slack_ms


@given(st.lists(st.integers(0, 600), max_size=6))
def test_a_clock_that_is_right_makes_it_due_once_the_delay_was_seen(pauses_min: list[int]) -> None:
    clock, kept = StoppedClock(), Kept()
    delays = TrashDelays(retention_ms=DELAY_MS, user_ms=DELAY_MS)
    entry = user_delete(Offset(1), LeaderEpoch(0), generation=0, delays=delays, now_ms=clock.now_ms(), by="")
    process = TrashClock(clock=clock, times=kept, known=None)
    for pause_min in pauses_min:
        run(process.note())
        clock.true_ms += pause_min * MINUTE_MS
        process = TrashClock(clock=clock, times=kept, known=kept.seen)
    clock.true_ms += DELAY_MS
    assert process.now().is_due(entry)
