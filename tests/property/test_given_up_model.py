"""Nothing goes from both tiers that no decision gave up (issue 16, finding 1).

The model knows one log of segments in order, and what an operator's settings and a user's deletes gave up of it: a round of
expiry takes the oldest as far as they are due, unless more than half of the log is; then it waits for the settings to be set
right, or for a user who deletes just that.  Which segments happen to be copied is no matter to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.expiry import HOUR_MS, NOW_MS, SEGMENT_BYTES, segment
from tests.support.expiry_world import PausingFailpoints, Sidecar, StoppedClock, World, run
from tests.support.inline_blocking import InlineBlocking
from tests.support.segments import TOPIC_ID_PARTITION, local_segments
from tiersidecar.decide.copy import CopyView, copied_offset_among, decide_copy
from tiersidecar.decide.expiry_view import ExpiryLimits
from tiersidecar.domain.offsets import LeaderEpoch, Lineage, Offset
from tiersidecar.domain.policy import UNLIMITED, RetentionMode, TopicPolicy
from tiersidecar.domain.segments import LocalSegment
from tiersidecar.ports.log_dirs import LogDirsView
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.tasks.copy import FirstStart

LENGTH = 100
LINEAGE = Lineage.of([(0, 0)])
AGES_H = st.integers(min_value=0, max_value=30)
RETENTIONS_H = st.sampled_from([UNLIMITED, 2, 10, 24, 1000])


@dataclass
class Model:
    """``written_ms`` has the time of each sealed segment; ``start`` is the first offset that nobody has given up."""

    written_ms: list[int]
    start: int = 0
    stopped_at: int | None = None
    stopped_by_ms: int = 0
    stopped_since_ms: int = 0

    @property
    def stop(self) -> int:
        return len(self.written_ms) * LENGTH

    def judge(self, retention_ms: int, now_ms: int) -> None:
        """A round of expiry, by a clock that may be wrong."""
        due, count = self.start, 0
        while due < self.stop and retention_ms != UNLIMITED and self.written_ms[due // LENGTH] <= now_ms - retention_ms:
            due, count = (due // LENGTH + 1) * LENGTH, count + 1
        # The active segment counts too.
        share = (due - self.start) / (self.stop - self.start + LENGTH)
        is_too_much = count > 1 and share > 0.5
        if self.stopped_at is not None and self.start < self.stopped_at:
            was_longer = retention_ms != self.stopped_by_ms and (
                retention_ms == UNLIMITED or (self.stopped_by_ms != UNLIMITED and retention_ms > self.stopped_by_ms)
            )
            was_ahead = now_ms < self.stopped_since_ms - 5 * 60_000
            if not is_too_much and not was_longer and not was_ahead:
                return
            if is_too_much and retention_ms == self.stopped_by_ms and not was_ahead:
                return
        self.stopped_at = due if is_too_much else None
        self.stopped_by_ms, self.stopped_since_ms = retention_ms, now_ms
        if not is_too_much:
            self.start = due


class GivenUpMachine(RuleBasedStateMachine):
    """One leader that copies and expires, a broker that keeps what it is told to, and an operator who errs."""

    @initialize(
        ages_h=st.lists(AGES_H, min_size=2, max_size=8).map(lambda ages: sorted(ages, reverse=True)),
        deleted=st.integers(min_value=0, max_value=350),
        retention_h=RETENTIONS_H,
        ahead_h=st.sampled_from([0, 0, 20, 240]),
    )
    def begin(self, ages_h: list[int], deleted: int, retention_h: int, ahead_h: int) -> None:
        """Users have deleted some at the broker before."""
        self.model = Model([NOW_MS - age_h * HOUR_MS for age_h in ages_h])
        self.model.start = min(deleted, self.model.stop)
        self.clock = StoppedClock()
        self.world = World()
        self.log_start = self.model.start
        self.copies = 0
        self._restart(retention_h, ahead_h)

    def _restart(self, retention_h: int, ahead_h: int) -> None:
        self.clock.skew_ms = ahead_h * HOUR_MS
        retention_ms = UNLIMITED if retention_h == UNLIMITED else retention_h * HOUR_MS
        self.policy = TopicPolicy(mode=RetentionMode.STRICT, retention_ms=retention_ms)
        self.sidecar = Sidecar(
            self.world,
            policy=self.policy,
            lineage=LINEAGE,
            clock=self.clock,
            local=self._local(),
            limits=ExpiryLimits(idle_slack_ms=10**12),
        )
        self.sidecar.broker.log_starts[TOPIC_ID_PARTITION] = self.log_start
        self.sidecar.broker.last_stable_offsets[TOPIC_ID_PARTITION] = self.model.stop
        self.first_start = FirstStart(
            table=self.sidecar.table,
            broker=self.sidecar.broker,
            metadata=self.world.metadata,
            state=self.world.state,
            blocking=InlineBlocking(),
            failpoints=PausingFailpoints(),
        )

    def _local(self) -> tuple[LocalSegment, ...]:
        """What the broker's directory has: whole segments."""
        found = local_segments(*range(0, self.model.stop + 1, LENGTH), size_bytes=SEGMENT_BYTES)
        dated = [
            replace(one, modified_ms=written_ms)
            for one, written_ms in zip(found[:-1], self.model.written_ms, strict=True)
        ]
        active = replace(found[-1], modified_ms=self.clock.true_ms)
        return (*(one for one in dated if (one.next_base_offset or 0) > self.log_start), active)

    def _look(self) -> None:
        self.log_start = int(self.sidecar.broker.log_starts[TOPIC_ID_PARTITION])
        self.sidecar.broker.last_stable_offsets[TOPIC_ID_PARTITION] = self.model.stop
        local = replace(self.sidecar.table.local.partitions[TOPIC_ID_PARTITION], segments=self._local())
        self.sidecar.table.local = LogDirsView(partitions={TOPIC_ID_PARTITION: local}, faults={})

    @rule()
    def expire(self) -> None:
        self._look()
        start = self.world.state.partition_state(TOPIC_ID_PARTITION).start_in(LINEAGE)
        if start < 0 and self.log_start > self.model.start:
            self.model.start = self.log_start
        self.model.judge(self.policy.retention_ms, self.clock.now_ms())
        run(self.sidecar.round())
        self._look()

    @rule(count=st.integers(min_value=1, max_value=3), has_looked=st.booleans())
    def copy(self, count: int, has_looked: bool) -> None:
        """As the copy lane: where expiry has looked, or cannot, whatever it has not given up goes up."""
        for _ in range(count):
            self._look()
            local = self.sidecar.table.local.partitions[TOPIC_ID_PARTITION]
            if not self._plan(local.segments, has_looked):
                return
            run(self.first_start.ensure(self.sidecar.partition, local, LINEAGE))
            planned = self._plan(local.segments, has_looked)
            if planned:
                self._upload(planned[0])

    def _plan(self, segments: tuple[LocalSegment, ...], has_looked: bool) -> tuple[LocalSegment, ...]:
        view = CopyView(
            policy=self.policy,
            segments=segments,
            copied_offset=copied_offset_among(self.world.segments(), LINEAGE),
            last_stable_offset=self.model.stop,
            now_ms=self.clock.now_ms(),
            remote_log_start_offset=self.world.state.partition_state(TOPIC_ID_PARTITION).start_in(LINEAGE),
            may_expire=not has_looked,
        )
        return decide_copy(view).segments

    def _upload(self, local: LocalSegment) -> None:
        self.copies += 1
        number = local.base_offset // LENGTH
        age_h = (NOW_MS - self.model.written_ms[number]) / HOUR_MS
        copied_h = (NOW_MS - self.clock.now_ms()) / HOUR_MS
        self.world.add(
            segment(
                local.base_offset,
                local.base_offset + LENGTH - 1,
                age_h=age_h,
                copied_h=copied_h,
                uuid=self.copies.to_bytes(16, "big"),
            )
        )

    @rule(retention_h=RETENTIONS_H, ahead_h=st.sampled_from([0, 0, 20, 240]))
    def restart(self, retention_h: int, ahead_h: int) -> None:
        """With other settings, under another clock."""
        self._look()
        self._restart(retention_h, ahead_h)

    @rule(hours=st.integers(min_value=0, max_value=3))
    def produce(self, hours: int) -> None:
        """The active segment is full."""
        if len(self.model.written_ms) < 30:
            self.clock.true_ms += hours * HOUR_MS
            self.model.written_ms.append(self.clock.true_ms)

    @rule(share=st.floats(min_value=0, max_value=1))
    def a_user_deletes(self, share: float) -> None:
        """Through the gateway."""
        offset = int(self.model.start + share * (self.model.stop - self.model.start))
        said = PartitionState(remote_log_start_offset=Offset(offset), remote_log_start_epoch=LeaderEpoch(0))
        run(self.world.state.publish_partition_state(TOPIC_ID_PARTITION, said))
        self.model.start = max(self.model.start, offset)

    @rule()
    def what_is_remote_is_trimmed(self) -> None:
        """As far as finished segments reach without a hole."""
        self._look()
        stop = self.log_start
        for one in sorted(self.world.readable(), key=lambda one: one.start_offset):
            if one.start_offset <= stop:
                stop = max(stop, one.end_offset + 1)
        if self.world.state.partition_state(TOPIC_ID_PARTITION).start_in(LINEAGE) >= 0:
            self.sidecar.broker.log_starts[TOPIC_ID_PARTITION] = stop
            said = PartitionState(trim_offset=Offset(stop), trim_epoch=LeaderEpoch(0))
            run(self.world.state.publish_partition_state(TOPIC_ID_PARTITION, said))
        self._look()

    @invariant()
    def nothing_goes_that_no_decision_gave_up(self) -> None:
        if not hasattr(self, "model"):
            return
        start = max(self.world.state.partition_state(TOPIC_ID_PARTITION).start_in(LINEAGE), 0)
        assert start <= self.model.start, f"nobody gave up [{self.model.start}, {start})"
        remote = {at for one in self.world.readable() for at in range(one.start_offset, one.end_offset + 1, 50)}
        log_start = int(self.sidecar.broker.log_starts[TOPIC_ID_PARTITION])
        for offset in range(-(-self.model.start // 50) * 50, self.model.stop, 50):
            assert offset >= log_start or offset in remote, f"offset {offset} is in neither tier"

    @invariant()
    def what_was_given_up_is_not_readable_again(self) -> None:
        """Once something is remote a start says so."""
        if hasattr(self, "model") and self.world.readable():
            start = self.world.state.partition_state(TOPIC_ID_PARTITION).start_in(LINEAGE)
            assert start >= 0


GivenUpMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestGivenUp = pytest.mark.slow(GivenUpMachine.TestCase)
