"""Whatever becomes of wall clocks, processes, state.dirs and leases: a delay is never shorter than itself (issue 16, trash: the
clock)."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.expiry_world import StoppedClock, run
from tiersidecar.decide.trash import TrashDelays, user_delete
from tiersidecar.decide.trash_time import MOST_UNSEEN_MS
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.seen_time import SeenTime
from tiersidecar.domain.trash import TrashEntry
from tiersidecar.tasks.trash_clock import TrashClock

MINUTE_MS = 60_000
DELAY_MS = 6 * 60 * MINUTE_MS
DELAYS = TrashDelays(retention_ms=DELAY_MS, user_ms=DELAY_MS)
MACHINES = 2
JUMPS_MIN = st.sampled_from([0, 0, 0, 4, -4, 45, -45, 600, -600, 100_000])
Step = tuple[str, int, int, int]


def steps(most: int) -> st.SearchStrategy[list[Step]]:
    machine = st.integers(0, MACHINES - 1)
    return st.lists(
        st.one_of(
            st.tuples(st.just("runs"), machine, st.integers(0, 90), st.just(0)),
            st.tuples(st.just("jumps while it runs"), machine, st.integers(0, 90), JUMPS_MIN),
            st.tuples(st.just("is down"), machine, st.integers(0, 300), JUMPS_MIN),
            st.tuples(st.just("loses its state.dir"), machine, st.integers(0, 300), JUMPS_MIN),
            st.tuples(st.just("takes the lease"), machine, st.integers(0, 90), st.just(0)),
        ),
        max_size=most,
    )


class Kept:
    """``ports.seen_times.SeenTimes`` in memory."""

    def __init__(self) -> None:
        self.seen: SeenTime | None = None

    async def read(self) -> SeenTime | None:
        return self.seen

    async def write(self, seen: SeenTime) -> None:
        self.seen = seen


class Machine:
    """A sidecar, its clock and its state.dir."""

    def __init__(self) -> None:
        self.clock, self.kept = StoppedClock(), Kept()
        self.start()

    def start(self) -> None:
        self.process = TrashClock(clock=self.clock, times=self.kept, known=self.kept.seen)


@dataclass
class Broker:
    """Machines beside one broker, and the lease of its tier role."""

    machines: list[Machine] = field(default_factory=lambda: [Machine() for _ in range(MACHINES)])
    holder: int = 0
    lease: SeenTime | None = None
    slack_ms: int = 0

    def __post_init__(self) -> None:
        self.claim(0)

    @property
    def leader(self) -> TrashClock:
        return self.machines[self.holder].process

    @property
    def true_ms(self) -> int:
        return self.machines[0].clock.true_ms

    def claim(self, number: int) -> None:
        self.machines[number].process.succeed(self.lease)
        self.holder, self.lease = number, self.leader.seen

    def note(self) -> None:
        self.lease = self.leader.seen
        for machine in self.machines:
            run(machine.process.note())

    def pass_time(self, minutes: int) -> None:
        for machine in self.machines:
            machine.clock.true_ms += minutes * MINUTE_MS

    def take(self, step: Step) -> None:
        what, number, minutes, jump_min = step
        machine = self.machines[number]
        self.note()
        self.pass_time(minutes)
        if what in {"runs", "takes the lease"} or number != self.holder:
            self.note()
        machine.clock.skew_ms += jump_min * MINUTE_MS
        if what == "loses its state.dir":
            machine.kept.seen = None
        if what in {"is down", "loses its state.dir"}:
            machine.start()
        if what == "takes the lease" or (number == self.holder and what in {"is down", "loses its state.dir"}):
            self.claim(number)
        self.slack_ms += 0 if what == "runs" else MOST_UNSEEN_MS

    def decide(self) -> TrashEntry:
        now_ms = self.leader.now().decision_ms
        return user_delete(Offset(1), LeaderEpoch(0), generation=0, delays=DELAYS, now_ms=now_ms, by="")


BEHIND = [("takes the lease", 1, 0, 0), ("is down", 0, 0, -600), ("takes the lease", 0, 0, 0)]
"""Machine 1 knows of a time of its own, and machine 0, by a clock that is ten hours behind, leads."""

UNKNOWING = [
    *[("jumps while it runs", 0, 0, -600), ("is down", 0, 0, -600), ("takes the lease", 1, 0, 0), ("runs", 0, 54, 0)],
    *[("takes the lease", 0, 90, 0), ("jumps while it runs", 0, 90, 600)],
]
"""Machine 0 leads by a clock that is set right in two jumps; once it starts anew it knows what it has not seen."""


@given(steps(10), steps(15))
@example(BEHIND, [("takes the lease", 1, 1, 0)])
@example([], [("is down", 1, 202, 600), ("takes the lease", 1, 79, 0)])
@example(UNKNOWING, [("is down", 0, 126, 600), ("takes the lease", 1, 0, 0)])
def test_nothing_is_due_before_its_delay_by_true_time(before: list[Step], after: list[Step]) -> None:
    """Whenever it was decided; but for five minutes at each start, jump and claim, which nobody can tell from a clock that is
    kept right."""
    broker = Broker()
    for step in before:
        broker.take(step)
    decided_ms, entry = broker.true_ms, broker.decide()
    for step in after:
        broker.take(step)
        if broker.leader.now().is_due(entry):
            assert broker.true_ms - decided_ms >= DELAY_MS - broker.slack_ms


@given(st.lists(st.tuples(st.sampled_from(["is down", "loses its state.dir"]), st.integers(0, 600)), max_size=6))
def test_a_clock_that_is_right_makes_it_due_once_the_delay_was_seen(pauses: list[tuple[str, int]]) -> None:
    broker = Broker()
    entry = broker.decide()
    for what, minutes in pauses:
        broker.take((what, 0, minutes, 0))
    broker.pass_time(DELAY_MS // MINUTE_MS)
    assert broker.leader.now().is_due(entry)


@given(st.lists(st.integers(30, 350), min_size=12, max_size=30))
def test_a_state_dir_that_is_lost_at_each_start_keeps_nothing_for_ever(lives_min: list[int]) -> None:
    """A pod with an ``emptyDir``, none of whose lives lasts as long as the delay."""
    broker = Broker()
    entry = broker.decide()
    for life_min in lives_min:
        broker.take(("runs", 0, life_min, 0))
        broker.take(("loses its state.dir", 0, 10, 0))
    is_over = sum(lives_min) * MINUTE_MS >= DELAY_MS
    assert broker.leader.now().is_due(entry) is is_over
