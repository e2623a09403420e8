"""What a user deleted is never readable again, unless that very delete was undone while it was in the trash; what retention
took within the delay comes back whole (issue 16: trash, undelete).

The model knows what users deleted for good, what of theirs waits in the trash, and since when each segment has been given up.
Under it are the leader's sidecar, users' deletes and the operator's command, over topics and a store in memory; each may end
anywhere.
"""

from __future__ import annotations

import tempfile
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.expiry_world import run
from tests.support.segments import TOPIC_ID_PARTITION
from tests.support.undelete_world import DELAYS, LENGTH, UndeleteWorld, command_config
from tiersidecar.domain.errors import TiersidecarError
from tiersidecar.domain.trash import TrashKind

with tempfile.TemporaryDirectory() as _directory:
    CONFIG = command_config(Path(_directory))
WINDOW_MS = DELAYS.user_ms // 24
"""Deletes of one window share an entry: they are due with the last of them, and undone together."""
OFFSETS = st.integers(1, 79)


def ended_after(steps: int, work: Coroutine[Any, Any, None]) -> None:
    """Abandon it there."""
    with suppress(StopIteration, TiersidecarError):
        for _ in range(steps):
            work.send(None)
    work.close()


class UserDeletesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.final = 0
        self.pending: dict[int, int] = {}  # by window
        self.due_ms: dict[int, int] = {}
        self.given_up_ms: dict[int, int] = {}  # by the first offset of a segment

    @initialize()
    def begin(self) -> None:
        self.there = UndeleteWorld(CONFIG)
        run(self.there.sidecar.round())

    @rule(offset=OFFSETS)
    def a_user_deletes(self, offset: int) -> None:
        self.there.delete(offset)
        if offset <= max([self.final, *self.pending.values()]):
            return  # it is said already
        now_ms = self.there.clock.now_ms()
        window = now_ms - now_ms % WINDOW_MS
        self.pending[window] = max(offset, self.pending.get(window, 0))
        self.due_ms[window] = now_ms + DELAYS.user_ms

    @rule(offset=OFFSETS, steps=st.integers(1, 4))
    def a_users_delete_is_not_answered_and_asked_again(self, offset: int, steps: int) -> None:
        ended_after(steps, self.there.delete_steps(offset))
        self.a_user_deletes(offset)

    @rule(minutes=st.sampled_from([1, 10, 50, 60, 600, 1440]))
    def time_passes(self, minutes: int) -> None:
        self.there.pass_time(minutes * 60_000)

    @rule(kept=st.sampled_from([-1, 2, 4, 6]))
    def retention_is_set(self, kept: int) -> None:
        self.there.restart(kept)

    @rule()
    def the_leader_makes_a_round(self) -> None:
        run(self.there.sidecar.round())
        self._learn()

    @rule(steps=st.integers(1, 20))
    def the_leader_ends_in_a_round(self, steps: int) -> None:
        ended_after(steps, self.there.sidecar.round())
        self._learn()

    @rule(to_offset=st.none() | OFFSETS, steps=st.integers(1, 12) | st.just(1000))
    def it_is_undone(self, to_offset: int | None, steps: int) -> None:
        """In full, or the operator's command ends somewhere."""
        self._learn()
        wanted = {} if to_offset is None else {"to_offset": to_offset}
        intent, before = self.there.look(**wanted), self._generation
        if intent.refusal or not intent.steps:
            return
        there = {one.start_offset for one in self.there.world.readable()}
        assert intent.apply is not None
        ended_after(steps, intent.apply())  # type: ignore[arg-type]
        if self._generation == before:
            return
        lowest = max(min([*there, self.there.stop]), self.final)
        assert self.there.start <= (lowest if to_offset is None else to_offset)
        assert {one.start_offset for one in self.there.world.readable() if one.end_offset >= self.there.start} == {
            one for one in there if one + LENGTH > self.there.start
        }
        self.pending = {window: min(known, self.there.start) for window, known in self.pending.items()}
        self._learn(undone=True)

    @rule()
    def a_hold_is_released(self) -> None:
        self.there.release()

    @property
    def _generation(self) -> int:
        return self.there.world.state.partition_state(TOPIC_ID_PARTITION).start_generation

    def _learn(self, *, undone: bool = False) -> None:
        """What is no longer in the trash is final; it is taken out when it is due, and not before."""
        waiting = {
            one.id.opened_ms
            for one in self.there.world.state.trash(TOPIC_ID_PARTITION)
            if one.kind is TrashKind.USER and one.id.generation == self._generation
        }
        for window in self.pending.keys() - waiting:
            offset = self.pending.pop(window)
            assert undone or self.due_ms[window] <= self.there.clock.now_ms()
            self.final = max(self.final, offset)

    @invariant()
    def what_users_deleted_is_not_readable(self) -> None:
        if hasattr(self, "there"):
            deleted = max([self.final, *self.pending.values()])
            assert self.there.start >= deleted, f"[{self.there.start}, {deleted}) is readable again"

    @invariant()
    def nothing_goes_before_it_has_been_given_up_for_as_long_as_its_delay(self) -> None:
        if not hasattr(self, "there"):
            return
        now_ms, start = self.there.clock.now_ms(), self.there.start
        there = {one.start_offset for one in self.there.world.readable()}
        by_users = max([self.final, *self.pending.values()])
        for begin in range(0, self.there.stop, LENGTH):
            if begin + LENGTH > start:
                self.given_up_ms.pop(begin, None)
                continue
            since_ms = self.given_up_ms.setdefault(begin, now_ms)
            delay_ms = DELAYS.user_ms if begin + LENGTH <= by_users else DELAYS.retention_ms
            assert begin in there or now_ms - since_ms >= delay_ms, f"segment {begin} went too soon"
            if begin not in there:
                self.given_up_ms[begin] = -(1 << 60)


UserDeletesMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestUserDeletes = pytest.mark.slow(UserDeletesMachine.TestCase)
