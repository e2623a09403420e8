"""Expiry as it is done: the order of what is published, asked and deleted.

Shown here: S-063, S-066, S-067, T-31, T-32, T-33, T-34, T-35, T-36, T-37.
"""

from __future__ import annotations

import functools
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from tests.support.clean_world import COMPACTED
from tests.support.expiry import HOUR_MS, NOW_MS, segment, segments
from tests.support.expiry_world import FixedLineage, Sidecar, StoppedClock, World, run, run_until
from tests.support.recopy_requests import request_for
from tests.support.segments import TOPIC_ID_PARTITION, local_segments
from tiersidecar.decide.expiry_view import ExpiryLimits
from tiersidecar.decide.trash import TrashDelays, needless
from tiersidecar.domain.errors import BrokerRefusedError, CorruptDataError, LeaseLostError, StoreError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import NO_OFFSET, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import TrashEntry, TrashKind
from tiersidecar.formats.aiven.keys import planned_keys
from tiersidecar.ports.state_log import Hold, PartitionState
from tiersidecar.ports.telemetry import Metric, NoTelemetry
from tiersidecar.tasks.ownership import Unquestioned

FIVE_HOURS = TopicPolicy(retention_ms=5 * HOUR_MS)
FOREVER = TopicPolicy()
TWO_OLD = segments(2, youngest_h=9)


def world_of(*remote: RemoteLogSegmentMetadata) -> World:
    world = World()
    for one in remote:
        world.add(one)
    return world


def sidecar(world: World, policy: TopicPolicy = FIVE_HOURS, **fields: Any) -> Sidecar:
    fields = {"lineage": Lineage.of([(0, 0)]), "clock": StoppedClock(), **fields}
    return Sidecar(world, policy=policy, **fields)


class Gauges(NoTelemetry):
    """Every value of every metric, in order."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}
        self.counts: dict[str, float] = {}

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        self.values.setdefault(metric.name, []).append(value)

    def count(self, metric: Metric, amount: float = 1, **labels: str) -> None:
        self.counts[metric.name] = self.counts.get(metric.name, 0) + amount


def test_the_start_is_durable_before_anything_is_deleted() -> None:
    """S-066: a leader that takes over in between finds the same segments below the start."""
    world = world_of(*TWO_OLD)
    passed = run(sidecar(world).round())
    assert passed.index("state.read_back") < passed.index("delete.started.published")
    assert (world.start, world.segments(), world.store.keys) == (200, [], set())


@pytest.mark.parametrize(
    ("cleanup_policy", "left"),
    [
        pytest.param("compact", 2, id="of a topic that is compacted alone nothing goes for its age"),
        pytest.param("compact,delete", 0, id="compact,delete expires as any other"),
    ],
)
def test_total_retention_of_a_compacted_topic(cleanup_policy: str, left: int) -> None:
    """S-268; and of the first kind a broker refuses DeleteRecords, which is not tried."""
    world = world_of(*TWO_OLD)
    one = sidecar(world, tiers_compacted=True)
    one.broker.settings[TOPIC_ID_PARTITION.topic] = {
        **COMPACTED,
        "cleanup.policy": cleanup_policy,
        "retention.ms": "-1",
        "retention.bytes": "-1",
    }
    run(one.round())
    assert len(world.segments()) == left
    assert bool(one.broker.deleted) is (left == 0)


def test_what_a_user_deleted_of_a_topic_that_is_compacted_alone_goes_remotely() -> None:
    """The broker refuses DeleteRecords: asked again and again, it would hold up the lane."""
    world = world_of(*segments(3))
    run(
        world.state.publish_partition_state(
            TOPIC_ID_PARTITION,
            PartitionState(remote_log_start_offset=Offset(250), remote_log_start_epoch=LeaderEpoch(0)),
        )
    )
    one = sidecar(world, FOREVER, local=local_segments(200, 300, 400), tiers_compacted=True)
    one.broker.settings[TOPIC_ID_PARTITION.topic] = dict(COMPACTED)
    run(one.round())
    assert [left.start_offset for left in world.segments()] == [200]
    assert one.broker.deleted == []


def test_the_start_says_in_which_history_it_counts() -> None:
    """The broker's file forgets where an epoch began once what was written in it is gone."""
    world, lineage = world_of(*TWO_OLD), Lineage.of([(0, 0), (3, 150)])
    run(sidecar(world, lineage=lineage).round())
    assert world.state.partition_state(world.topic_id_partition).leader_epochs == lineage.entries


@pytest.mark.parametrize(
    "said_before",
    [
        pytest.param(None, id="a former release said the start"),
        pytest.param(Lineage.of([(0, 0)]), id="the broker's file was that of before the election"),
    ],
)
def test_epochs_that_were_not_said_with_the_start_are_said_once(said_before: Lineage | None) -> None:
    """Else what an unclean election has cut off passes for the log, once the file has forgotten where the epoch began."""
    world, lineage = world_of(*segments(3)), Lineage.of([(0, 0), (3, 150)])
    if said_before is not None:
        run(sidecar(world, lineage=said_before, leader_epoch=3).round())
    else:
        start = PartitionState(remote_log_start_offset=Offset(0), remote_log_start_epoch=LeaderEpoch(3))
        run(world.state.publish_partition_state(world.topic_id_partition, start))
    assert run(sidecar(world, lineage=lineage, leader_epoch=3).round()).count("state.sent") == 1
    assert world.state.partition_state(world.topic_id_partition).leader_epochs == lineage.entries
    assert run(sidecar(world, lineage=lineage, leader_epoch=3).round()) == []


def test_each_segment_is_deleted_in_three_steps_one_after_the_other() -> None:
    """S-067."""
    world = world_of(*TWO_OLD)
    passed = run(sidecar(world).round())
    places = [place for place in passed if place.startswith("delete.")]
    once = ["delete.begun", "delete.started.published", "delete.objects.deleted", "delete.finished.published"]
    assert places == once * 2
    assert [event.state for event in world.metadata.events[-4:]] == [2, 3, 2, 3]


def test_nothing_is_asked_where_nothing_is_due() -> None:
    """One that led before: the start is published once in each leader epoch, and then nobody is asked."""
    world = world_of(*segments(3))
    assert run(sidecar(world).round()).count("state.sent") == 1
    assert world.start == 0
    assert run(sidecar(world).round()) == []
    assert run(sidecar(world, leader_epoch=1).round()).count("state.sent") == 1


PLACES = [
    "broker.asked",
    "state.sent",
    "state.read_back",
    "expire.start.published",
    "delete.begun",
    "metadata.sent",
    "metadata.read_back",
    "delete.started.published",
    "store.delete",
    "delete.objects.deleted",
    "delete.finished.published",
]


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("place", PLACES)
def test_ended_anywhere_the_next_process_finishes(place: str, nth: int) -> None:
    """T-36, S-063, S-075: twenty-two places; no object is left without metadata, nor the other way round."""
    world = world_of(*TWO_OLD, segment(200, 299, age_h=1))
    if place.startswith(("state.", "expire.")):
        nth = 1  # passed once in a round
    run_until(sidecar(world).round(), place, nth)
    assert world.orphans() == set()
    run(sidecar(world).round())
    assert [one.start_offset for one in world.segments()] == [200]
    assert (world.readable(), world.orphans(), world.start) == (world.segments(), set(), 200)


def test_a_new_leader_finishes_what_the_old_one_began() -> None:
    """T-36: the start is at 200 already, the second segment untouched; the new leader deletes it."""
    world = world_of(*TWO_OLD, segment(200, 299, age_h=1))
    old = sidecar(world)
    run_until(old.round(), "delete.finished.published")
    assert (world.start, [one.start_offset for one in world.segments()]) == (200, [100, 200])
    run(sidecar(world, broker_id=2, leader_epoch=1, lineage=Lineage.of([(0, 0), (1, 300)])).round())
    assert [one.start_offset for one in world.segments()] == [200]


def test_a_store_that_fails_is_tried_again() -> None:
    """T-37: the error surfaces, the start has moved, one request and one error are counted; the next round retries."""
    world, gauges = world_of(*TWO_OLD), Gauges()
    world.store.broken = True
    one = sidecar(world, telemetry=gauges)
    with pytest.raises(StoreError):
        run(one.round())
    assert world.start == 200
    assert gauges.counts["kafka_remote_delete_requests_total"] == 1
    assert gauges.counts["kafka_remote_delete_errors_total"] == 1
    world.store.broken = False
    run(one.round())
    assert world.segments() == []


def test_an_object_that_the_store_keeps_does_not_keep_what_comes_after_it() -> None:
    """A legal hold on the first segment: the next rounds take the others first, and it is tried again at the end of each."""
    world = world_of(*segments(4, youngest_h=9))
    world.add(segment(400, 499, age_h=1, state=State.COPY_SEGMENT_STARTED))
    held = world.segments()[0]
    world.store.held = set(planned_keys(held).in_upload_order)
    one = sidecar(world)
    for _ in range(2):
        with pytest.raises(StoreError):
            run(one.round())
    assert [left.remote_log_segment_id for left in world.segments()] == [held.remote_log_segment_id]
    world.store.held = set()
    run(one.round())
    assert (world.segments(), world.orphans()) == ([], set())


def test_a_copy_that_is_finished_while_it_is_taken_for_dead_stays() -> None:
    """Its COPY_SEGMENT_FINISHED was sent before its lane was cancelled, and comes after the plan: whoever has read it has
    dropped his pin."""
    world = world_of(segment(0, 99, age_h=9), segment(100, 199, age_h=1, state=State.COPY_SEGMENT_STARTED))
    steps = sidecar(world).round()
    while steps.send(None) != "state.read_back":
        pass
    world.finish(world.segments()[1])
    run(steps)
    assert [(left.start_offset, left.state) for left in world.segments()] == [(100, State.COPY_SEGMENT_FINISHED)]


def test_a_switch_or_a_doubt_stops_a_round_between_two_segments() -> None:
    """The metadata topic lost data, say: a round of thousands of segments lasts for hours."""
    world = world_of(*TWO_OLD)
    one = sidecar(world)
    steps = one.round()
    while steps.send(None) != "delete.finished.published":
        pass
    one.guard.reason_not_to_delete = "the topic lost data"
    run(steps)
    assert [left.start_offset for left in world.segments()] == [100]


def test_the_delete_lag_falls_with_each_segment() -> None:
    """T-34, S-226."""
    gauges = Gauges()
    run(sidecar(world_of(*TWO_OLD), telemetry=gauges).round())
    assert gauges.values["kafka_remote_delete_lag_bytes"][-3:] == [2048, 1024, 0]
    assert gauges.values["kafka_remote_delete_lag_segments"][-3:] == [2, 1, 0]


def test_a_deposed_leader_is_refused_by_the_broker() -> None:
    world = world_of(*TWO_OLD)
    one = sidecar(world)
    one.broker.error = "FENCED_LEADER_EPOCH"
    with pytest.raises(BrokerRefusedError):
        run(one.round())
    assert (world.start, len(world.readable())) == (-1, 2)


def test_a_deposed_leader_that_nobody_refuses_deletes_nothing_once_the_new_one_has_spoken() -> None:
    """The state topic keeps what the later epoch said."""
    world = world_of(*TWO_OLD)
    zombie = sidecar(world, TopicPolicy(retention_ms=1))
    new = sidecar(world, FOREVER, broker_id=2, leader_epoch=1)
    steps = zombie.round()
    for _ in range(2):
        steps.send(None)
    run(new.round())
    run(steps)
    assert (world.start, len(world.readable())) == (0, 2)


def test_it_stops_between_two_segments_when_the_watch_says_that_another_leads() -> None:
    """T-36, S-182."""
    world = world_of(*TWO_OLD)
    one = sidecar(world)
    steps = one.round()
    while steps.send(None) != "delete.finished.published":
        pass
    one.resign()
    run(steps)
    assert [left.start_offset for left in world.segments()] == [100]


def test_what_is_copied_right_now_is_not_touched() -> None:
    """T-31; and held in flight itself while it is deleted."""
    world = world_of(segment(0, 99, age_h=9), segment(100, 199, age_h=9, state=State.COPY_SEGMENT_STARTED))
    one = sidecar(world)
    copying = RemoteLogSegmentId(
        topic_id_partition=TOPIC_ID_PARTITION, uuid=world.segments()[1].remote_log_segment_id.uuid
    )
    with one.in_flight.holding(copying):
        run(one.round())
        assert [left.start_offset for left in world.segments()] == [100]
    run(one.round())
    assert (world.segments(), world.store.keys) == ([], set())


def test_observe_only_writes_nothing() -> None:
    world = world_of(*TWO_OLD)
    run(sidecar(world, observe_only=True).round())
    assert (world.start, len(world.readable()), len(world.metadata.events)) == (-1, 2, 4)


def test_a_topic_that_the_broker_tiers_itself_is_left_alone() -> None:
    """Two writers would each delete what the other counts on."""
    world = world_of(*TWO_OLD)
    one = sidecar(world)
    one.table.refused_topics[TOPIC_ID_PARTITION.topic] = "remote.storage.enable is true"
    assert run(one.round()) == []


def test_a_state_topic_that_is_not_to_be_relied_on_stops_all() -> None:
    world = world_of(*TWO_OLD)
    world.state.halted_reason = "unclean.leader.election.enable is true"
    assert run(sidecar(world).round()) == []


def test_a_stop_is_said_once_and_is_not_cleared_by_what_is_copied_meanwhile() -> None:
    """Issue 16, finding 1: nor by another process, nor by another leader; the retention set right ends it."""
    world, gauges = world_of(*TWO_OLD), Gauges()
    limits = ExpiryLimits(max_share=0.5)
    one = sidecar(world, telemetry=gauges, limits=limits)
    run(one.round())
    assert "2 segments are due at once" in one.table.record(TOPIC_ID_PARTITION).expiry_stop
    assert gauges.values["tiersidecar_expiry_stopped"][-1] == 1
    world.add(segment(200, 499, age_h=0, size_bytes=4096))
    assert run(one.round()) == [], "nothing is new"
    for again in (sidecar(world, limits=limits), sidecar(world, limits=limits, leader_epoch=1)):
        run(again.round())
        assert "2 segments are due at once" in again.table.record(TOPIC_ID_PARTITION).expiry_stop
    assert len(world.readable()) == 3
    last = sidecar(world, TopicPolicy(retention_ms=12 * HOUR_MS), telemetry=gauges, limits=limits, leader_epoch=1)
    run(last.round())
    assert last.table.record(TOPIC_ID_PARTITION).expiry_stop == ""
    assert gauges.values["tiersidecar_expiry_stopped"][-1] == 0
    assert len(world.readable()) == 3
    run(sidecar(world, limits=limits, leader_epoch=2).round())
    assert [left.start_offset for left in world.segments()] == [200], "a small share, asked for anew"


def test_a_stop_is_durable_before_anything_else_of_the_round() -> None:
    """A copy that is finished a moment later must not make it disappear."""
    world, limits = world_of(*TWO_OLD), ExpiryLimits(max_share=0.5)
    run_until(sidecar(world, limits=limits).round(), "expire.stop.published")
    world.add(segment(200, 499, age_h=0, size_bytes=4096))
    run(sidecar(world, limits=limits).round())
    assert len(world.readable()) == 3


def test_a_clock_that_jumps_while_the_process_runs_stops_expiry() -> None:
    world, clock = world_of(*segments(4, youngest_h=1)), StoppedClock()
    one = sidecar(world, clock=clock)
    clock.skew_ms = 10 * 365 * 24 * HOUR_MS
    run(one.round())
    assert "jumped" in one.table.record(TOPIC_ID_PARTITION).expiry_stop
    assert len(world.readable()) == 4


def test_what_a_user_deleted_goes_remotely_and_locally() -> None:
    """Also in the middle of a segment, which stays until its last offset is below the start; the start never falls back."""
    world = world_of(*segments(3))
    published = world.state.publish_partition_state(
        TOPIC_ID_PARTITION, PartitionState(remote_log_start_offset=Offset(250), remote_log_start_epoch=LeaderEpoch(0))
    )
    run(published)
    one = sidecar(world, FOREVER, local=local_segments(200, 300, 400))
    one.broker.log_starts[TOPIC_ID_PARTITION] = 200
    run(one.round())
    assert ([left.start_offset for left in world.segments()], world.start) == ([200], 250)
    assert one.broker.deleted == [(TOPIC_ID_PARTITION, 250)]
    assert world.state.partition_state(TOPIC_ID_PARTITION).trim_offset == 250
    one.broker.log_starts[TOPIC_ID_PARTITION] = 200  # the broker crashed, and its log start fell back
    one.table.record(TOPIC_ID_PARTITION).log_start_offset = NO_OFFSET
    run(one.round())
    assert one.broker.deleted == [(TOPIC_ID_PARTITION, 250)] * 2
    assert world.start == 250


def test_what_was_given_up_proves_no_loss_once_it_is_brought_back() -> None:
    """Local records beyond what is remote were given up, and are gone; an undelete brings the rest back.  That is no sign that
    the metadata topic has lost events, and retention goes on."""
    world = world_of(*segments(1, youngest_h=1))
    start = PartitionState(remote_log_start_offset=Offset(300), remote_log_start_epoch=LeaderEpoch(0))
    run(world.state.publish_partition_state(TOPIC_ID_PARTITION, start))
    before = sidecar(world, FOREVER, local=local_segments(0, 100, 300, 400))
    before.broker.log_starts[TOPIC_ID_PARTITION] = 0
    run_until(before.round(), "expire.records.deleted")
    assert before.broker.deleted == [(TOPIC_ID_PARTITION, 300)]
    back = PartitionState(remote_log_start_offset=Offset(0), remote_log_start_epoch=LeaderEpoch(0), start_generation=1)
    run(world.state.publish_partition_state(TOPIC_ID_PARTITION, back))
    after = sidecar(world, FOREVER, local=local_segments(300, 400))
    after.broker.log_starts[TOPIC_ID_PARTITION] = 300
    run(after.round())
    assert after.table.record(TOPIC_ID_PARTITION).expiry_stop == ""


def test_a_log_start_is_raised_no_further_than_the_high_watermark() -> None:
    world = world_of(*segments(1, youngest_h=9))
    one = sidecar(world, local=local_segments(0, 100, 200, modified_ms=NOW_MS - 9 * HOUR_MS))
    one.broker.last_stable_offsets[TOPIC_ID_PARTITION] = 150
    run(one.round())
    assert (world.start, one.broker.deleted) == (100, [(TOPIC_ID_PARTITION, 100)])


def test_the_trim_is_published_before_the_records_are_deleted() -> None:
    world = world_of(*TWO_OLD)
    one = sidecar(world, local=local_segments(0, 100, 200, 300, modified_ms=NOW_MS))
    passed = run(one.round())
    assert passed.index("expire.trim.published") < passed.index("broker.trimmed")


def test_a_later_history_does_not_take_the_start_of_one_that_an_unclean_election_ended() -> None:
    """The old leader deleted up to 200; of its log the new leader has 50 offsets only."""
    world = world_of(segment(50, 149, epochs=((2, 50),)))
    said = PartitionState(remote_log_start_offset=Offset(200), remote_log_start_epoch=LeaderEpoch(0))
    run(world.state.publish_partition_state(TOPIC_ID_PARTITION, said))
    run(sidecar(world, FOREVER, leader_epoch=2, lineage=Lineage.of([(0, 0), (2, 50)])).round())
    assert (world.start, len(world.readable())) == (50, 1)


def test_a_users_delete_holds_though_the_next_leader_said_a_lower_start_before_it_heard_of_it() -> None:
    """Cluster seed 922 of the simulation: 92 in epoch 1, then 0 in epoch 2 (S-067)."""
    world = world_of(*segments(3))
    for offset, leader_epoch in ((250, 1), (0, 2)):
        said = PartitionState(remote_log_start_offset=Offset(offset), remote_log_start_epoch=LeaderEpoch(leader_epoch))
        run(world.state.publish_partition_state(TOPIC_ID_PARTITION, said))
    run(sidecar(world, FOREVER, leader_epoch=2, lineage=Lineage.of([(0, 0), (1, 100), (2, 300)])).round())
    assert (world.start, [left.start_offset for left in world.segments()]) == (250, [200])


def test_rounds_come_at_the_interval_and_at_once_for_leftovers() -> None:
    world, clock = world_of(*segments(2)), StoppedClock()
    one = sidecar(world, clock=clock)
    assert one.expire.may_have_work(one.partition)
    run(one.round())
    assert not one.expire.may_have_work(one.partition)
    clock.true_ms += 30_000
    assert one.expire.may_have_work(one.partition)
    run(one.round())
    left = segment(200, 299, state=State.DELETE_SEGMENT_STARTED)
    world.add(left)
    assert one.expire.may_have_work(one.partition)
    with one.in_flight.holding(left.remote_log_segment_id):
        assert not one.expire.may_have_work(one.partition)


def test_another_leader_that_was_faster_is_no_error() -> None:
    """Two that both believe to lead delete the same segments: each event twice, each object gone, nobody halts."""
    world = world_of(*TWO_OLD)
    first, second = sidecar(world).round(), sidecar(world, broker_id=2).round()
    _alternate(first, second)
    assert (world.segments(), world.store.keys) == ([], set())


def _alternate(*rounds: Coroutine[Any, Any, None]) -> None:
    waiting = list(rounds)
    while waiting:
        for steps in list(waiting):
            try:
                steps.send(None)
            except StopIteration:
                waiting.remove(steps)


class NoLineage(FixedLineage):
    """An epoch blob that cannot be read, from the first look or from the second on."""

    def __init__(self, error: Exception, *, only_anew: bool) -> None:
        super().__init__(Lineage.of([(0, 0)]))
        self.error, self.only_anew = error, only_anew

    async def lineage(self, topic_id_partition: TopicIdPartition, *, max_age_s: float = 30.0) -> Lineage:
        if not self.only_anew:
            raise self.error
        return self.known

    async def refresh(self, topic_id_partition: TopicIdPartition) -> Lineage:
        raise self.error


@pytest.mark.parametrize("only_anew", [False, True], ids=["at first", "when it is chosen anew"])
@pytest.mark.parametrize(
    "error",
    [
        StoreError(verb="fetch", key="blob", reason="away"),
        CorruptDataError(where="blob", position=0, reason="no epochs"),
    ],
    ids=["its blob cannot be fetched", "its blob is corrupt"],
)
def test_a_lineage_that_cannot_be_read_deletes_nothing_and_says_why(error: Exception, only_anew: bool) -> None:
    """The lane is tried again, or halted, with that very reason on the status page."""
    world = world_of(*TWO_OLD)
    one = sidecar(world)
    one.expire._lineages = NoLineage(error, only_anew=only_anew)
    keys = set(world.store.keys)
    with pytest.raises(type(error), match="blob"):
        run(one.round())
    assert (world.start, world.store.keys, len(world.readable())) == (-1, keys, 2)


def test_a_log_start_that_fell_back_after_a_crash_moves_nothing_remote() -> None:
    """DeleteRecords to 300, kill -9, and the earliest offset is 0 again; nor does one that moved ahead."""
    world = world_of(*segments(3))
    run(
        world.state.publish_partition_state(
            TOPIC_ID_PARTITION, PartitionState(trim_offset=Offset(300), trim_epoch=LeaderEpoch(0))
        )
    )
    one = sidecar(world)
    run(one.round())
    for log_start in (300, 0, 10_000):
        one.broker.log_starts[TOPIC_ID_PARTITION] = log_start
        one.clock.true_ms += 60_000
        run(one.round())
        assert (world.start, len(world.readable())) == (0, 3)
    assert one.broker.deleted == []


def started_by_the_broker(age_h: float) -> tuple[World, RemoteLogSegmentMetadata]:
    """A COPY_SEGMENT_STARTED with our broker id that no journal of ours has."""
    world, copy = World(), segment(0, 99, age_h=age_h, state=State.COPY_SEGMENT_STARTED)
    world.add(copy, native=True)
    return world, copy


def test_a_copy_that_the_broker_itself_has_in_flight_is_left_alone() -> None:
    """S-063: its events carry the broker id that ours carry."""
    world, copy = started_by_the_broker(age_h=1)
    run(sidecar(world).round())
    assert (world.segments(), world.store.deletes) == ([copy], [])


@pytest.mark.parametrize(
    ("settings", "goes"),
    [
        pytest.param({"remote.storage.enable": "true"}, False, id="the broker tiers the topic, so it is the broker's"),
        pytest.param({"remote.storage.enable": "false"}, True, id="nobody is at it any more"),
        pytest.param(None, False, id="the broker does not tell the topic's settings"),
    ],
)
def test_after_the_grace_the_topics_settings_are_asked_right_before(
    settings: dict[str, str] | None, goes: bool
) -> None:
    world, copy = started_by_the_broker(age_h=25)
    ours = sidecar(world)
    if settings is None:
        ours.broker.hides_settings = True
    else:
        ours.broker.settings[TOPIC_ID_PARTITION.topic] = settings
    run(ours.round())
    assert world.segments() == ([] if goes else [copy])


def test_nothing_of_a_topic_that_the_broker_has_begun_to_tier_is_deleted() -> None:
    """Settings are asked at the beginning of a round that acts, not only at the watch's next look."""
    world = world_of(*TWO_OLD)
    ours = sidecar(world)
    ours.broker.settings[TOPIC_ID_PARTITION.topic] = {"remote.storage.enable": "true"}
    run(ours.round())
    assert (world.start, world.segments()) == (-1, list(TWO_OLD))
    assert "remote.storage.enable" in ours.table.refused_topics[TOPIC_ID_PARTITION.topic]


DELAYED = TrashDelays(retention_ms=24 * HOUR_MS, user_ms=HOUR_MS)
OLD_AND_NEW = (*TWO_OLD, segment(200, 299, age_h=1))


def test_the_entry_is_durable_before_the_start_moves_and_nothing_goes() -> None:
    """Issue 16, trash: decided first and done later; until then segments stay COPY_SEGMENT_FINISHED."""
    world = world_of(*OLD_AND_NEW)
    passed = run(sidecar(world, delays=DELAYED).round())
    assert passed.index("expire.trash.published") < passed.index("expire.start.published")
    assert (world.start, len(world.readable())) == (200, 3)
    (entry,) = world.state.trash(TOPIC_ID_PARTITION)
    assert (entry.kind, entry.up_to, entry.due_ms - NOW_MS) == (TrashKind.RETENTION, 200, 24 * HOUR_MS)


def test_a_round_that_waits_asks_nobody() -> None:
    world = world_of(*OLD_AND_NEW)
    one = sidecar(world, delays=DELAYED)
    run(one.round())
    assert run(one.round()) == []


@pytest.mark.parametrize(
    "place", ["expire.trash.published", "expire.start.published", "state.sent", "state.read_back", "broker.asked"]
)
def test_ended_while_it_decides_the_next_process_keeps_the_delay(place: str) -> None:
    world = world_of(*OLD_AND_NEW)
    run_until(sidecar(world, delays=DELAYED).round(), place)
    clock = StoppedClock(NOW_MS + HOUR_MS)
    one = sidecar(world, delays=DELAYED, clock=clock)
    run(one.round())
    assert (world.start, len(world.readable())) == (200, 3)
    is_decided = place in {"expire.start.published", "state.read_back"}
    decided_ms = NOW_MS if is_decided else clock.true_ms
    clock.true_ms = decided_ms + 24 * HOUR_MS - 1
    run(one.round())
    assert len(world.readable()) == 3, "a decision whose start never came does not count"
    clock.true_ms = NOW_MS + 25 * HOUR_MS
    run(one.round())
    assert world.start >= 200
    assert not any(one.end_offset < 200 for one in world.segments())
    assert world.orphans() == set()


@pytest.mark.parametrize("place", PLACES[4:])
def test_ended_when_it_is_due_the_next_process_finishes_and_takes_the_entry_out(place: str) -> None:
    world, policy = world_of(*TWO_OLD, segment(200, 299, age_h=-24)), FIVE_HOURS
    run(sidecar(world, policy, delays=DELAYED).round())
    due = StoppedClock(NOW_MS + 24 * HOUR_MS)
    run_until(sidecar(world, policy, delays=DELAYED, clock=due).round(), place)
    last = sidecar(world, policy, delays=DELAYED, clock=due)
    run(last.round())
    run(last.round())
    assert ([one.start_offset for one in world.segments()], world.orphans()) == ([200], set())
    assert world.state.trash(TOPIC_ID_PARTITION) == []


def test_a_clock_that_jumped_makes_nothing_due() -> None:
    world = world_of(*OLD_AND_NEW)
    one = sidecar(world, delays=DELAYED)
    run(one.round())
    one.clock.skew_ms = 30 * HOUR_MS
    run(one.round())
    assert len(world.readable()) == 3


def test_what_a_former_release_left_below_its_start_is_decided_now() -> None:
    world = world_of(*OLD_AND_NEW)
    said = PartitionState(remote_log_start_offset=Offset(200), remote_log_start_epoch=LeaderEpoch(0))
    run(world.state.publish_partition_state(TOPIC_ID_PARTITION, said))
    run(sidecar(world, delays=DELAYED).round())
    assert len(world.readable()) == 3
    assert [one.up_to for one in world.state.trash(TOPIC_ID_PARTITION)] == [200]


def test_a_start_that_was_set_back_is_not_moved_again_while_it_is_held() -> None:
    world = world_of(*OLD_AND_NEW)
    clock = StoppedClock()
    one = sidecar(world, delays=DELAYED, clock=clock)
    run(one.round())
    hold = Hold(serial=1, is_held=True, until=Offset(200), by="ops", reason="undelete")
    back = PartitionState(
        remote_log_start_offset=Offset(0), remote_log_start_epoch=LeaderEpoch(0), start_generation=1, hold=hold
    )
    run(world.state.publish_partition_state(TOPIC_ID_PARTITION, back))
    clock.true_ms += 48 * HOUR_MS
    run(one.round())
    assert (world.start, len(world.readable()), world.state.trash(TOPIC_ID_PARTITION)) == (0, 3, [])
    assert "tiersidecar release" in one.table.record(TOPIC_ID_PARTITION).expiry_stop
    run(
        world.state.publish_partition_state(
            TOPIC_ID_PARTITION, PartitionState(hold=replace(hold, serial=2, is_held=False))
        )
    )
    run(one.round())
    assert (world.start >= 200, len(world.readable())) == (True, 3)
    assert [one.id.generation for one in world.state.trash(TOPIC_ID_PARTITION)] == [1]


@pytest.mark.parametrize("place", ["expire.trash.published", "state.sent", "delete.finished.published"])
def test_undone_while_a_round_is_at_it(place: str) -> None:
    """What was decided before the start was set back neither moves it nor deletes anything more."""
    world = world_of(*OLD_AND_NEW)
    one = sidecar(world, delays=DELAYED)
    if place == "delete.finished.published":
        run(one.round())
        one.clock.true_ms += 24 * HOUR_MS
    steps = one.round()
    while steps.send(None) != place:
        pass
    back = PartitionState(remote_log_start_offset=Offset(0), remote_log_start_epoch=LeaderEpoch(0), start_generation=1)
    gone = 3 - len(world.readable())
    world.state.partition_states[TOPIC_ID_PARTITION] = world.state.partition_state(TOPIC_ID_PARTITION).merged_with(back)
    run(steps)
    assert world.start == 0
    assert len(world.readable()) == 3 - gone


@pytest.mark.parametrize("place", ["expire.trim.published", "delete.begun"])
def test_undone_right_before_what_cannot_be_undone(place: str) -> None:
    """Read anew: the undelete may be durable, and not have come here yet."""
    old = local_segments(0, 100, 200, modified_ms=NOW_MS - 9 * HOUR_MS)
    is_local = place == "expire.trim.published"
    world = world_of(*(() if is_local else OLD_AND_NEW))
    one = sidecar(world, delays=DELAYED, local=old if is_local else ())
    run(one.round())
    run(one.round())
    one.clock.true_ms += 24 * HOUR_MS
    steps = one.round()
    while steps.send(None) != place:
        pass
    before = (list(one.broker.deleted), len(world.readable()))
    back = PartitionState(remote_log_start_offset=Offset(0), remote_log_start_epoch=LeaderEpoch(0), start_generation=1)
    world.state.publish_elsewhere(TOPIC_ID_PARTITION, back)
    run(steps)
    assert (one.broker.deleted, len(world.readable())) == before


def test_what_only_the_broker_has_is_deleted_there_when_it_is_due() -> None:
    world = world_of()
    one = sidecar(
        world,
        TopicPolicy(retention_ms=5 * HOUR_MS),
        delays=DELAYED,
        local=local_segments(0, 100, 200, modified_ms=NOW_MS - 9 * HOUR_MS),
    )
    run(one.round())
    assert (world.start, one.broker.deleted) == (200, [])
    run(one.round())
    one.clock.true_ms += 24 * HOUR_MS
    run(one.round())
    assert one.broker.deleted == [(TOPIC_ID_PARTITION, 200)]
    run(one.round())
    assert world.state.trash(TOPIC_ID_PARTITION) == []


def test_while_a_broker_has_a_sidecar_of_a_former_release_nothing_is_decided() -> None:
    """It knows no trash: leading next, it would delete at once what lies below a start of ours."""
    world = world_of(*OLD_AND_NEW)
    one = sidecar(world, delays=DELAYED)
    one.guard.remote_delete_blocker = "brokers 2 have no sidecar of this version"
    run(one.round())
    assert (world.start, world.state.trash(TOPIC_ID_PARTITION), len(world.readable())) == (-1, [], 3)
    one.guard.remote_delete_blocker = ""
    run(one.round())
    assert world.start == 200


DELAY = TrashDelays(retention_ms=24 * HOUR_MS, user_ms=HOUR_MS)


def needless_entry(*names: RemoteLogSegmentMetadata, ago_h: float = 25, generation: int = 0) -> TrashEntry:
    """What repair decided ``ago_h`` hours ago, with a delay of a day."""
    decided_ms = int(NOW_MS - ago_h * HOUR_MS)
    entries = [
        needless(
            name, LeaderEpoch(0), generation=generation, delays=DELAY, now_ms=decided_ms, reason="twins", by="repair"
        )
        for name in names
    ]
    return functools.reduce(TrashEntry.merged_with, entries)


def twins() -> tuple[RemoteLogSegmentMetadata, RemoteLogSegmentMetadata]:
    kept = segment(0, 99, age_h=1)
    again = RemoteLogSegmentId(topic_id_partition=TOPIC_ID_PARTITION, uuid=Uuid(b"the-other-twin--"))
    return kept, replace(kept, remote_log_segment_id=again)


def repair_put(world: World, entry: TrashEntry) -> None:
    run(world.state.put_into_trash(TOPIC_ID_PARTITION, [entry]))


def left(world: World) -> list[RemoteLogSegmentId]:
    return [one.remote_log_segment_id for one in world.segments() if one.state is State.COPY_SEGMENT_FINISHED]


@pytest.mark.parametrize(
    ("ago_h", "purged", "goes"),
    [
        pytest.param(25, False, True, id="due"),
        pytest.param(23, False, False, id="not due yet"),
        pytest.param(1, True, True, id="not due and purged by an operator"),
    ],
)
def test_what_repair_found_needless_goes_when_it_is_due(ago_h: float, purged: bool, goes: bool) -> None:
    """Issue 16: deletions by repair go through the trash; the entry goes once it is carried out."""
    kept, again = twins()
    world = world_of(kept, again)
    entry = needless_entry(again, ago_h=ago_h)
    repair_put(world, replace(entry, purged_ms=entry.decided_ms) if purged else entry)
    one = sidecar(world, FOREVER, delays=DELAY)
    for _ in range(3):
        run(one.round())
    expected = {kept.remote_log_segment_id} if goes else {kept.remote_log_segment_id, again.remote_log_segment_id}
    assert set(left(world)) == expected
    assert any(entry.kind is TrashKind.REPAIR for entry in world.state.trash(TOPIC_ID_PARTITION)) is not goes
    assert world.orphans() == set()


@pytest.mark.parametrize("how", ["retired", "in the trash too", "damaged", "has lost an object", "undone"])
def test_what_was_needless_when_repair_decided_stays_once_nothing_covers_it(how: str) -> None:
    """Coverage is decided anew when the entry is due, and again right before DELETE_SEGMENT_STARTED."""
    kept, again = twins()
    world = world_of(kept, again)
    repair_put(world, needless_entry(again))
    match how:
        case "retired":
            world.update(kept, State.DELETE_SEGMENT_STARTED)
        case "in the trash too":
            repair_put(world, needless_entry(kept, ago_h=30))
        case "damaged":
            run(world.state.request_recopy(request_for(kept)))
        case "has lost an object":
            world.store.keys.discard(planned_keys(kept).log)
        case _:
            world.state.partition_states[TOPIC_ID_PARTITION] = replace(PartitionState(), start_generation=1)
    one = sidecar(world, FOREVER, delays=DELAY)
    for _ in range(3):
        run(one.round())
    assert again.remote_log_segment_id in left(world)
    assert world.store.keys.issuperset(planned_keys(again).in_upload_order)


def test_what_covered_it_is_looked_at_right_before_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another sidecar retires the twin after the plan: its event comes while the leader asks for the end of the topic."""
    kept, again = twins()
    world = world_of(kept, again)
    repair_put(world, needless_entry(again))
    one = sidecar(world, FOREVER, delays=DELAY)
    caught_up = world.metadata.catch_up

    async def catch_up(topic_id_partition: TopicIdPartition) -> None:
        monkeypatch.setattr(world.metadata, "catch_up", caught_up)
        world.update(kept, State.DELETE_SEGMENT_STARTED)

    monkeypatch.setattr(world.metadata, "catch_up", catch_up)
    run(one.round())
    assert left(world) == [again.remote_log_segment_id]


def test_what_comes_back_is_for_the_copy_lane_to_look_at() -> None:
    """It may be only here: until the next segment rolls nobody would copy it, and no trim passes it (issue 16, trash)."""
    world = world_of(*OLD_AND_NEW)
    one = sidecar(world, delays=DELAYED)
    run(one.round())
    one.table.record(TOPIC_ID_PARTITION).remote_log_start, one.table.record(TOPIC_ID_PARTITION).copied_offset = 200, 299
    run(one.round())
    assert one.table.record(TOPIC_ID_PARTITION).copied_offset == 299
    back = PartitionState(remote_log_start_offset=Offset(0), remote_log_start_epoch=LeaderEpoch(0), start_generation=1)
    world.state.partition_states[TOPIC_ID_PARTITION] = world.state.partition_state(TOPIC_ID_PARTITION).merged_with(back)
    one.clock.true_ms += HOUR_MS
    run(one.round())
    assert one.table.record(TOPIC_ID_PARTITION).copied_offset is None


class LostRole(Unquestioned):
    def require_role(self) -> None:
        raise LeaseLostError(reason="it has run out")


def test_without_the_role_no_undelete_is_answered() -> None:
    """A process that thaws may have been replaced: that one deletes by what it knows, and this answer would not be its."""
    world = world_of(*TWO_OLD)
    back = PartitionState(remote_log_start_offset=Offset(0), remote_log_start_epoch=LeaderEpoch(0), start_generation=1)
    run(world.state.publish_partition_state(TOPIC_ID_PARTITION, back))
    with pytest.raises(LeaseLostError):
        run(sidecar(world, ownership=LostRole()).round())
    assert world.state.partition_state(TOPIC_ID_PARTITION) == back
    run(sidecar(world).round())
    assert not world.state.partition_state(TOPIC_ID_PARTITION).awaits_answer
