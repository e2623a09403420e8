"""A pause of deletes only takes away: it loses no stop of the guard, and no round after a resume gives up at once what the
guard refuses, however much has come due meanwhile (issue 20).
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.support.expiry import HOUR_MS, SEGMENT_BYTES, segment
from tests.support.expiry_world import Sidecar, StoppedClock, World, run
from tests.support.segments import TOPIC_ID_PARTITION
from tiersidecar.decide.expiry_view import ExpiryLimits
from tiersidecar.decide.trash import NO_DELAYS, TrashDelays
from tiersidecar.domain.offsets import Lineage
from tiersidecar.domain.policy import GuardStop, TopicPolicy

MOST_SEGMENTS = 3
LIMITS = ExpiryLimits(max_share=0.5, max_bytes=MOST_SEGMENTS * SEGMENT_BYTES)
DELAYED = TrashDelays(retention_ms=4 * HOUR_MS, user_ms=HOUR_MS)


class PauseMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world, self.clock = World(), StoppedClock()
        self.stop_offset = 0
        self.paused = False

    @initialize(
        ages_h=st.lists(st.integers(min_value=0, max_value=12), min_size=2, max_size=8),
        delays=st.sampled_from([NO_DELAYS, DELAYED]),
    )
    def begin(self, ages_h: list[int], delays: TrashDelays) -> None:
        self.delays = delays
        for age_h in sorted(ages_h, reverse=True):
            self.a_copy_is_finished(age_h)
        self.sidecar = self._sidecar(self.world)

    def _sidecar(self, world: World) -> Sidecar:
        policy = TopicPolicy(retention_ms=6 * HOUR_MS)
        lineage = Lineage.of([(0, 0)])
        return Sidecar(world, policy=policy, lineage=lineage, clock=self.clock, limits=LIMITS, delays=self.delays)

    # -- what happens

    @rule(age_h=st.integers(min_value=0, max_value=9))
    def a_copy_is_finished(self, age_h: int) -> None:
        start, self.stop_offset = self.stop_offset, self.stop_offset + 100
        self.world.add(segment(start, start + 99, age_h=age_h, uuid=self.stop_offset.to_bytes(16, "big")))

    @rule(hours=st.integers(min_value=1, max_value=5))
    def time_passes(self, hours: int) -> None:
        self.clock.true_ms += hours * HOUR_MS

    @rule(paused=st.booleans())
    def an_operator_pauses_or_resumes(self, paused: bool) -> None:
        self.paused = paused
        self.sidecar.guard.paused = {TOPIC_ID_PARTITION.topic_id: "paused"} if paused else {}

    @rule()
    def the_sidecar_is_started_again(self) -> None:
        self.sidecar = self._sidecar(self.world)
        self.an_operator_pauses_or_resumes(self.paused)

    @rule()
    def a_round(self) -> None:
        before, stop = _remains(self.world), _stop(self.world)
        kept = [one.start_offset for one in self.world.segments() if one.start_offset >= self.world.start]
        run(self.sidecar.round())
        if self.paused:
            assert _remains(self.world) == before
        given_up = sum(one < self.world.start for one in kept)
        assert given_up <= 1 or given_up <= min(LIMITS.max_share * len(kept), MOST_SEGMENTS)
        if stop is not None:  # neither retention, limits nor clock have changed: nothing may end it
            now = _stop(self.world)
            assert (now is not None and now.is_over, self.world.start) == (False, before["start"])


def _remains(world: World) -> dict[str, Any]:
    """All that a reader may have, and what has been decided about it."""
    return {
        "objects": set(world.store.keys),
        "states": {one.remote_log_segment_id: one.state for one in world.segments()},
        "start": world.start,
        "trash": {(one.kind, one.up_to, one.from_offset) for one in world.state.trash(TOPIC_ID_PARTITION)},
    }


def _stop(world: World) -> GuardStop | None:
    return world.state.partition_state(TOPIC_ID_PARTITION).guard_stop


TestPauses = PauseMachine.TestCase
TestPauses.settings = settings(max_examples=50, stateful_step_count=20, deadline=None)
