"""Expiry by two sidecars, one of them a zombie, with crashes and skewed clocks (issue text "Must show").

The model knows the log: which offsets the true leader's history has, and how old each segment is by a clock that is right.
Nothing inside retention may become unreadable at any step; what is outside ends deleted, and no object is left alone.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.expiry import HOUR_MS, NOW_MS, SEGMENT_BYTES, segment
from tests.support.expiry_world import Sidecar, StoppedClock, World, run
from tests.support.segments import TOPIC_ID_PARTITION
from tiersidecar.domain.offsets import LeaderEpoch, Lineage, Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.ports.state_log import PartitionState

SKEW_MS = HOUR_MS
RETENTION_H = 6
KEPT = 4
"""Segments that retention.bytes has room for."""
OLD, NEW = 0, 1
CUTS = st.integers(min_value=1, max_value=6).map(lambda n: n * 50)


class ExpiryMachine(RuleBasedStateMachine):
    """Sidecar 1 led in epoch 0; sidecar 2 leads in epoch 1 from offset ``cut`` on, and 1 does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.rounds: dict[int, Coroutine[Any, Any, None]] = {}
        self.user_start = 0
        self.copies = 0

    @initialize(
        ages_h=st.lists(st.integers(min_value=0, max_value=12), min_size=1, max_size=5),
        cut=CUTS,
        skews=st.tuples(*[st.integers(min_value=-SKEW_MS, max_value=SKEW_MS)] * 2),
        by_size=st.booleans(),
    )
    def begin(self, ages_h: list[int], cut: int, skews: tuple[int, int], by_size: bool) -> None:
        self.policy = (
            TopicPolicy(retention_bytes=KEPT * SEGMENT_BYTES)
            if by_size
            else TopicPolicy(retention_ms=RETENTION_H * HOUR_MS)
        )
        self.true_clock = StoppedClock()
        self.clocks = [StoppedClock(skew_ms=skew_ms) for skew_ms in skews]
        for number, age_h in enumerate(ages_h):
            self._copy(100 * number, 100 * number + 99, age_h, 0)
        self.old_stop, self.cut = 100 * len(ages_h), min(cut, 100 * len(ages_h))
        self.lineages = [Lineage.of([(0, 0)]), Lineage.of([(0, 0), (1, self.cut)])]
        self.new_stop = self.cut
        self._start_processes()

    def _start_processes(self) -> None:
        self.sidecars = [self._process(OLD), self._process(NEW)]

    def _process(self, which: int) -> Sidecar:
        return Sidecar(
            self.world,
            policy=self.policy,
            lineage=self.lineages[which],
            clock=self.clocks[which],
            broker_id=which + 1,
            leader_epoch=which,
        )

    def _copy(self, start: int, end: int, age_h: float, epoch: int) -> None:
        self.copies += 1
        self.world.add(
            segment(
                start,
                end,
                age_h=age_h,
                epochs=((epoch, start),),
                broker_id=epoch + 1,
                uuid=self.copies.to_bytes(16, "big"),
            )
        )

    # -- what happens

    @rule(which=st.sampled_from([OLD, NEW]), steps=st.integers(min_value=1, max_value=9))
    def go_on(self, which: int, steps: int) -> None:
        """Some steps of a round; a new one begins where none is under way."""
        for _ in range(steps):
            one = self.rounds.get(which) or self.sidecars[which].round()
            self.rounds[which] = one
            try:
                one.send(None)
            except StopIteration:
                del self.rounds[which]
                return

    @rule(which=st.sampled_from([OLD, NEW]))
    def crash(self, which: int) -> None:
        """``kill -9`` and a restart."""
        if which in self.rounds:
            self.rounds.pop(which).close()
        self.sidecars[which] = self._process(which)

    @rule(age_h=st.integers(min_value=0, max_value=8), offsets=st.sampled_from([50, 100]))
    def copy_in_the_new_history(self, age_h: int, offsets: int) -> None:
        self._copy(self.new_stop, self.new_stop + offsets - 1, age_h - self._hours_gone(), 1)
        self.new_stop += offsets

    @precondition(lambda self: self.old_stop <= 900)
    @rule(age_h=st.integers(min_value=0, max_value=3))
    def the_zombie_finishes_a_copy(self, age_h: int) -> None:
        self._copy(self.old_stop, self.old_stop + 99, age_h - self._hours_gone(), 0)
        self.old_stop += 100

    @rule(offset=st.integers(min_value=0, max_value=700))
    def a_user_deletes(self, offset: int) -> None:
        """As ``tiersidecar delete-records``: of what the present leader has, in its epoch."""
        if offset > self.new_stop:
            return
        state = PartitionState(remote_log_start_offset=Offset(offset), remote_log_start_epoch=LeaderEpoch(1))
        run(self.world.state.publish_partition_state(TOPIC_ID_PARTITION, state))
        self.user_start = max(self.user_start, offset)

    @rule(hours=st.integers(min_value=1, max_value=3))
    def time_passes(self, hours: int) -> None:
        for clock in (*self.clocks, self.true_clock):
            clock.true_ms += hours * HOUR_MS

    # -- what must hold

    @invariant()
    def nothing_inside_retention_is_lost(self) -> None:
        if not hasattr(self, "policy"):
            return
        readable = self._readable_offsets()
        for offset in self._offsets_to_keep():
            assert offset in readable, f"offset {offset} is inside retention and cannot be read"

    @invariant()
    def every_object_is_named(self) -> None:
        assert self.world.orphans() == set()

    def teardown(self) -> None:
        """The zombie is gone, the clocks are right: whatever was under way, all outside retention ends deleted."""
        if not hasattr(self, "policy"):
            return
        for one in self.rounds.values():
            one.close()
        for clock in self.clocks:
            clock.skew_ms = 0
        self.nothing_inside_retention_is_lost()
        for _ in range(3):
            run(self._process(NEW).round())
        self.nothing_inside_retention_is_lost()
        assert self.world.orphans() == set()
        left = self.world.segments()
        assert left == self.world.readable()
        assert [one for one in left if self._is_outside(one)] == []
        if self.policy.retention_ms < 0:
            assert len([one for one in left if self._is_wholly_true(one)]) <= KEPT

    # -- the model

    def _hours_gone(self) -> int:
        return (self.true_clock.true_ms - NOW_MS) // HOUR_MS

    def _in_true_history(self, one: RemoteLogSegmentMetadata, offset: int) -> bool:
        epoch = one.segment_leader_epochs[0].epoch
        return epoch == 1 or offset < self.cut

    def _is_wholly_true(self, one: RemoteLogSegmentMetadata) -> bool:
        return self._in_true_history(one, one.start_offset) and self._in_true_history(one, one.end_offset)

    def _readable_offsets(self) -> set[int]:
        state = self.world.state.partition_state(TOPIC_ID_PARTITION)
        start = state.start_in(self.lineages[NEW])
        return {
            offset
            for one in self.world.readable()
            for offset in range(one.start_offset, one.end_offset + 1, 50)
            if offset >= start and self._in_true_history(one, offset)
        }

    def _offsets_to_keep(self) -> set[int]:
        """First offsets of each 50 that a right clock, give or take the skew, and a right count leave inside retention."""
        kept: set[int] = set()
        events = [event for event in self.world.metadata.events if isinstance(event, RemoteLogSegmentMetadata)]
        by_size = self.policy.retention_ms < 0
        inside_ms = self.true_clock.true_ms - (RETENTION_H * HOUR_MS - SKEW_MS)
        for event in events:
            for offset in range(event.start_offset, event.end_offset + 1, 50):
                if self._in_true_history(event, offset) and (by_size or event.max_timestamp_ms > inside_ms):
                    kept.add(offset)
        if by_size:
            # A segment goes only if all of it is too much: what is kept holds at least this many bytes.  The zombie's own
            # copies count for the zombie, never for the present leader: nothing that this one has copied is the zombie's.
            kept = {offset for offset in kept if offset >= self._size_start(events)}
        return {offset for offset in kept if offset >= self.user_start}

    def _size_start(self, events: list[RemoteLogSegmentMetadata]) -> int:
        """Where the newest ``KEPT`` segments of either history begin: what the other leader may have seen as too much."""
        starts: list[int] = []
        for epoch in (OLD, NEW):
            seen = sorted(
                event.start_offset
                for event in events
                if event.segment_leader_epochs[0].epoch == epoch or (epoch == NEW and event.end_offset < self.cut)
            )
            starts += seen[-KEPT:][:1] if len(seen) > KEPT else []
        return max(starts, default=0)

    def _is_outside(self, one: RemoteLogSegmentMetadata) -> bool:
        """Whether no rule keeps it: past retention by itself, and nothing before it stays."""
        if self.policy.retention_ms < 0:
            return one.end_offset < self.user_start and one.segment_leader_epochs[0].epoch == 1
        older = [other for other in self.world.segments() if other.start_offset <= one.start_offset]
        cleanup_until_ms = self.true_clock.true_ms - RETENTION_H * HOUR_MS
        return all(other.max_timestamp_ms <= cleanup_until_ms for other in older)


ExpiryMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
TestExpiry = pytest.mark.slow(ExpiryMachine.TestCase)
