"""Rounds of expiry that are left out, and what wakes them: all that a round goes by, and the times when something is due."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.expiry import HOUR_MS, NOW_MS, segment, segments
from tests.support.expiry_world import Sidecar, StoppedClock, run
from tests.support.pins import pin_of
from tests.support.recopy_requests import request_for
from tests.support.segments import TOPIC_ID_PARTITION, local_segments
from tests.unit.decide.test_trash import entry
from tests.unit.tasks.test_expire import FOREVER, sidecar, world_of
from tiersidecar.decide.expire import ExpiryPlan, decide_expiry
from tiersidecar.decide.expiry_view import ExpiryView
from tiersidecar.decide.topics import TieredPartition
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.seen_time import SeenTime
from tiersidecar.ports.log_dirs import LogDirsView
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.tasks import expiry_look
from tiersidecar.tasks.partition_table import PartitionRecord
from tiersidecar.tasks.trash_clock import TrashClock

INTERVAL_MS = 30_000
THREE = segments(3)
A_DAY = TopicPolicy(retention_ms=24 * HOUR_MS)
LOCAL = tuple(replace(one, modified_ms=NOW_MS, max_timestamp_ms=NOW_MS) for one in local_segments(300))
_STATE = PartitionState(remote_log_start_offset=Offset(100), remote_log_start_epoch=LeaderEpoch(0))


def resting(policy: TopicPolicy = FOREVER, **fields: Any) -> Sidecar:
    """After a first round, which says the start, and one that found nothing to do; the next one would be due."""
    one = sidecar(world_of(*THREE), policy, clock=StoppedClock(), local=LOCAL, **fields)
    for _ in range(2):
        run(one.round())
        one.clock.true_ms += INTERVAL_MS
    return one


def test_a_round_that_would_end_as_the_last_one_is_left_out() -> None:
    one = resting()
    for _ in range(10):
        assert not one.expire.may_have_work(one.partition)
        one.clock.true_ms += INTERVAL_MS


def test_the_round_after_one_that_did_something_is_not_left_out() -> None:
    one = sidecar(world_of(*THREE), FOREVER, clock=StoppedClock(), local=LOCAL)
    assert "state.sent" in run(one.round())
    one.clock.true_ms += INTERVAL_MS
    assert one.expire.may_have_work(one.partition)


def test_rounds_of_a_partition_with_many_segments_are_left_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its segments are made in a thread: no round rests on a decision during which something may have changed, so that it
    takes one round more."""
    decided: list[int] = []

    def counted(view: ExpiryView) -> ExpiryPlan:
        decided.append(len(view.remote_segments))
        return decide_expiry(view)

    monkeypatch.setattr(expiry_look, "decide_expiry", counted)
    local = tuple(replace(one, modified_ms=NOW_MS, max_timestamp_ms=NOW_MS) for one in local_segments(30_000))
    one = sidecar(world_of(*segments(300)), FOREVER, clock=StoppedClock(), local=local)
    rounds = list[bool]()
    for _ in range(5):
        rounds.append(one.expire.may_have_work(one.partition))
        if rounds[-1]:
            run(one.round())
        one.clock.true_ms += INTERVAL_MS
    assert rounds == [True, True, True, False, False]
    assert decided[-1:] == [300]
    before = len(decided)
    one.world.add(segment(30_000, 30_099))
    assert one.expire.may_have_work(one.partition)
    run(one.round())
    assert decided[before:] == [301]


def _local(one: Sidecar, **changed: Any) -> None:
    local = one.table.local.partitions[TOPIC_ID_PARTITION]
    one.table.local = LogDirsView(partitions={TOPIC_ID_PARTITION: replace(local, **changed)}, faults={})


def _record(**changed: Any) -> Callable[[Sidecar], None]:
    def change(one: Sidecar) -> None:
        for name, value in changed.items():
            setattr(one.table.record(TOPIC_ID_PARTITION), name, value)

    return change


def _told_elsewhere(one: Sidecar) -> None:
    """All that another leadership leaves of the record but what the gauges say."""
    known = one.table.record(TOPIC_ID_PARTITION)
    one.table.records[TOPIC_ID_PARTITION] = PartitionRecord(
        remote_log_start=known.remote_log_start, log_start_offset=known.log_start_offset
    )


WAKES: dict[str, Callable[[Sidecar], None]] = {
    "the topic is refused": lambda one: one.table.refused_topics.update({TOPIC_ID_PARTITION.topic: "it is compacted"}),
    "the broker's retention is on": lambda one: one.table.untrimmable_topics.update({TOPIC_ID_PARTITION.topic: "-1"}),
    "a segment was sealed": lambda one: _local(one, segments=local_segments(300, 400)),
    "the live file has another epoch": lambda one: _local(
        one, leader_epochs=(EpochEntry(LeaderEpoch(0), Offset(0)), EpochEntry(LeaderEpoch(1), Offset(300)))
    ),
    "the directory is away": lambda one: setattr(one.table, "local", LogDirsView(partitions={}, faults={})),
    "a segment was pinned": lambda one: one.table.pins.add(pin_of(0, 100)),
    "the history is another": lambda one: setattr(one.lineages, "known", Lineage.of([(0, 0), (1, 200)])),
    "the state topic lost data": lambda one: setattr(one.world.state, "halted_reason", "it lost data"),
    "a user has deleted": lambda one: one.world.state.partition_states.update({TOPIC_ID_PARTITION: _STATE}),
    "something is in the trash": lambda one: one.world.state.entries.update(
        {(TOPIC_ID_PARTITION, entry().id): entry(names=THREE[:1])}
    ),
    "a segment is damaged": lambda one: one.world.state.requests.append(request_for(THREE[0])),
    "another segment is remote": lambda one: one.world.add(segment(300, 399)),
    "the wall clock has jumped": lambda one: setattr(one.clock, "skew_ms", 10 * 60_000),
    "batches tell of another epoch": _record(batch_epochs=(EpochEntry(LeaderEpoch(0), Offset(0)),)),
    "the copy lane saw a later start": _record(remote_log_start=100),
    "the broker's log start is told": _record(log_start_offset=Offset(100)),
    "a trim waited for the trash": _record(behind_trash="it waits for what is in the trash"),
    "the partition changed hands": lambda one: one.table.forget(TOPIC_ID_PARTITION),
    "its gauges are to be told anew": _told_elsewhere,
}


@pytest.mark.parametrize("sentence", WAKES)
def test_what_wakes_it(sentence: str) -> None:
    one = resting()
    assert not one.expire.may_have_work(one.partition)
    one.clock.true_ms += INTERVAL_MS
    WAKES[sentence](one)
    assert one.expire.may_have_work(one.partition)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"policy": TopicPolicy(retention_ms=48 * HOUR_MS)}, id="another retention"),
        pytest.param({"leader_epoch": LeaderEpoch(1)}, id="it leads in another epoch"),
    ],
)
def test_another_policy_or_epoch_wakes_it(changed: dict[str, Any]) -> None:
    one = resting()
    epoch, policy = changed.get("leader_epoch", one.leader_epoch), changed.get("policy", one.policy)
    view = replace(one.partition.view, leader_epoch=epoch)
    assert one.expire.may_have_work(TieredPartition(view=view, role=one.partition.role, policy=policy))


def test_time_that_nobody_saw_wakes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, now = StoppedClock(), TrashClock.now
    unseen = TrashClock(clock=clock, times=None, known=SeenTime(until_ms=clock.now_ms() - HOUR_MS)).now().unseen  # type: ignore[arg-type]
    one = resting()
    assert not one.expire.may_have_work(one.partition)
    one.clock.true_ms += INTERVAL_MS
    monkeypatch.setattr(TrashClock, "now", lambda self: replace(now(self), unseen=unseen))
    assert one.expire.may_have_work(one.partition)


def test_a_segment_that_comes_to_its_time_wakes_it() -> None:
    """``segments`` are of whole hours, the oldest of the three three hours ago."""
    one = resting(A_DAY)
    while one.clock.now_ms() - THREE[0].max_timestamp_ms < 24 * HOUR_MS - INTERVAL_MS:
        one.clock.true_ms += INTERVAL_MS
        if one.expire.may_have_work(one.partition):  # each half an hour it is decided anew, whatever is known
            run(one.round())
    one.clock.true_ms += INTERVAL_MS
    assert one.expire.may_have_work(one.partition)
    run(one.round())
    assert one.world.start == 100


def test_it_is_decided_anew_now_and_then_whatever_is_known() -> None:
    one = resting()
    one.clock.true_ms += 30 * 60_000
    assert one.expire.may_have_work(one.partition)


def test_a_clock_that_was_set_back_wakes_it() -> None:
    one = resting()
    one.clock.true_ms += INTERVAL_MS
    assert not one.expire.may_have_work(one.partition)
    one.clock.true_ms += INTERVAL_MS
    one.clock.skew_ms = -4 * INTERVAL_MS
    assert one.expire.may_have_work(one.partition)


def test_a_state_topic_that_is_read_anew_wakes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The round says so, and is tried again."""
    one = resting()

    def not_ready(owner: object) -> PartitionState:
        raise MetadataNotReadyError(subject="the state topic")

    one.world.state.readiness_reason = "it is being read"
    monkeypatch.setattr(one.world.state, "partition_state", not_ready)
    assert one.expire.may_have_work(one.partition)


def test_a_lane_that_failed_has_its_round() -> None:
    """By one that ends well it is told that all is well again."""
    failed = [False]
    one = resting(has_failed=lambda topic_id_partition: failed[0])
    assert not one.expire.may_have_work(one.partition)
    one.clock.true_ms += INTERVAL_MS
    failed[0] = True
    assert one.expire.may_have_work(one.partition)


def _without_live_file(one: Sidecar) -> None:
    _local(one, leader_epochs=())


NEVER: dict[str, Callable[[Sidecar], None]] = {
    "without a live file its history is chosen anew after a time": _without_live_file,
    "what pins tell is put around it each time": lambda one: one.table.pins.add(pin_of(0, 100)),
}


@pytest.mark.parametrize("sentence", NEVER)
def test_what_never_rests(sentence: str) -> None:
    one = resting()
    NEVER[sentence](one)
    run(one.round())
    one.clock.true_ms += INTERVAL_MS
    assert one.expire.may_have_work(one.partition)


def test_a_partition_without_remote_segments_never_rests() -> None:
    """Whether its topic was lost is asked of more than the partition."""
    one = sidecar(world_of(), FOREVER, clock=StoppedClock(), local=LOCAL)
    run(one.world.state.publish_partition_state(TOPIC_ID_PARTITION, _STATE))
    for _ in range(3):
        run(one.round())
        one.clock.true_ms += INTERVAL_MS
        assert one.expire.may_have_work(one.partition)


@pytest.mark.parametrize("sentence", ["it was not quiet", "another plan was quiet", "nobody has said anything of it"])
def test_what_a_round_ends_the_rest_with(sentence: str) -> None:
    one = resting()
    rests, known = one.expire._resting, one.expire.look.quiet[TOPIC_ID_PARTITION]
    assert rests.holds(one.partition)
    plan = replace(known.plan) if sentence == "another plan was quiet" else known.plan
    if sentence == "nobody has said anything of it":
        one.world.state.partition_states.clear()
    rests.note(one.partition, plan, None if sentence == "it was not quiet" else known)
    assert not rests.holds(one.partition)
