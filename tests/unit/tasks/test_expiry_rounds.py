"""What a round of expiry shows the decision, what it measures and tells, and when the next one is due."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.expiry import HOUR_MS, NOW_MS, SEGMENT_BYTES, segment, segments
from tests.support.expiry_world import Sidecar, StoppedClock, run, run_until
from tests.support.pins import pin_of
from tests.support.recopy_requests import request_for
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.segments import TOPIC_ID_PARTITION, local_segments
from tests.support.trash_clock import trash_clock
from tests.unit.decide.test_trash import entry
from tests.unit.tasks.test_expire import FIVE_HOURS, FOREVER, TWO_OLD, sidecar, world_of
from tiersidecar.decide.expiry_view import ExpiryLimits, ExpiryView
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.offsets import LeaderEpoch, Lineage, Offset
from tiersidecar.domain.policy import GuardStop, RetentionMode, TopicPolicy
from tiersidecar.domain.seen_time import SeenTime, UnseenTime
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import SaidDelete
from tiersidecar.formats.aiven.keys import CustomMetadata, write_custom_metadata
from tiersidecar.ports.metrics import retention as metrics
from tiersidecar.ports.state_log import Hold, PartitionState
from tiersidecar.ports.telemetry import Metric
from tiersidecar.tasks.trash_clock import TrashClock

DAY = TrashDelays(retention_ms=24 * HOUR_MS, user_ms=HOUR_MS)
STOP = GuardStop(
    reason="9 segments are due at once",
    up_to=Offset(200),
    retention_ms=1,
    retention_bytes=-1,
    max_share=0.5,
    max_bytes=-1,
    since_ms=NOW_MS,
)


def shown(one: Sidecar) -> ExpiryView:
    """What the decision is shown once the broker has been asked."""
    views: list[ExpiryView] = []

    async def ask() -> None:
        views.append(await one.expire.look.asked_view(one.partition, await one.lineages.lineage(TOPIC_ID_PARTITION)))

    run(ask())
    return views[0]


def test_the_decision_is_shown_all_that_is_known() -> None:
    remote = (*segments(3), segment(300, 399, state=State.COPY_SEGMENT_STARTED))
    world, clock = world_of(*remote), StoppedClock()
    one = sidecar(
        world,
        lineage=Lineage.of([(0, 0), (7, 300)]),
        leader_epoch=7,
        local=local_segments(200, 300),
        limits=ExpiryLimits(max_share=0.25),
        delays=DAY,
        clock=clock,
    )
    said = PartitionState(
        remote_log_start_offset=Offset(50),
        remote_log_start_epoch=LeaderEpoch(0),
        trim_offset=Offset(150),
        trim_epoch=LeaderEpoch(0),
        accepted_loss_epoch=LeaderEpoch(5),
        guard_stop=STOP,
        user_deletes=(SaidDelete(leader_epoch=LeaderEpoch(0), offset=Offset(20)),),
        hold=Hold(serial=1, is_held=True, until=Offset(100), by="Ann", reason="an undelete"),
    )
    run(world.state.publish_partition_state(TOPIC_ID_PARTITION, said))
    waiting = entry(50)
    run(world.state.put_into_trash(TOPIC_ID_PARTITION, [waiting]))
    run(world.state.request_recopy(request_for(remote[1])))
    one.broker.log_starts[TOPIC_ID_PARTITION], one.broker.last_stable_offsets[TOPIC_ID_PARTITION] = 200, 350
    with one.in_flight.holding(remote[3].remote_log_segment_id):
        view = shown(one)
    assert view == ExpiryView(
        policy=FIVE_HOURS,
        lineage=Lineage.of([(0, 0), (7, 300)]),
        remote_segments=view.remote_segments,
        local_segments=local_segments(200, 300),
        now_ms=NOW_MS,
        remote_log_start_offset=50,
        trim_offset=150,
        held_offset=150,
        accepted_loss_epoch=5,
        log_start_offset=200,
        high_watermark=350,
        in_flight=frozenset({remote[3].remote_log_segment_id}),
        begun=frozenset(each.remote_log_segment_id.uuid for each in remote),
        seen_ms=NOW_MS,
        guard_stop=STOP,
        leader_epoch=7,
        trash=(waiting,),
        user_deletes=said.user_deletes,
        delays=DAY,
        damaged=frozenset({remote[1].remote_log_segment_id.uuid}),
        hold="Ann holds it (an undelete); `tiersidecar release` ends that",
        by="broker 1",
        limits=ExpiryLimits(max_share=0.25),
    )
    assert [each.start_offset for each in view.remote_segments] == [0, 100, 200, 300]
    assert one.table.record(TOPIC_ID_PARTITION).log_start_offset == 200, (
        "and the table the log start, not the high watermark"
    )


def test_a_hold_of_nobody_in_particular_is_an_operators() -> None:
    one = sidecar(world_of(*segments(3)))
    hold = Hold(serial=1, is_held=True, until=Offset(100), reason="an undelete")
    run(one.world.state.publish_partition_state(TOPIC_ID_PARTITION, PartitionState(hold=hold)))
    assert shown(one).hold == "an operator holds it (an undelete); `tiersidecar release` ends that"
    run(
        one.world.state.publish_partition_state(
            TOPIC_ID_PARTITION, PartitionState(hold=replace(hold, serial=2, is_held=False))
        )
    )
    assert shown(one).hold == ""


@pytest.mark.parametrize(
    ("mode", "reason", "expires"),
    [
        pytest.param(RetentionMode.STRICT, "", False, id="not in strict mode"),
        pytest.param(RetentionMode.RACE, "", True, id="in race mode"),
        pytest.param(RetentionMode.STRICT, "retention.ms is 1000", True, id="nor where its settings do not fit"),
    ],
)
def test_whether_the_brokers_own_retention_deletes(mode: RetentionMode, reason: str, expires: bool) -> None:
    one = sidecar(world_of(*segments(3)), TopicPolicy(mode=mode))
    if reason:
        one.table.untrimmable_topics["orders"] = reason
    else:
        one.table.untrimmable_topics["another"] = "retention.ms is 1000"
    assert shown(one).broker_expires is expires


@pytest.mark.parametrize(
    ("mode", "log_start", "pins", "start"),
    [
        pytest.param(RetentionMode.RACE, 200, [(0, 100), (100, 200)], 0, id="what only pins have any more is readable"),
        pytest.param(RetentionMode.RACE, 200, [(100, 200)], 100, id="from the first of those that are pinned"),
        pytest.param(RetentionMode.RACE, 200, [], 200, id="what was not pinned is gone"),
        pytest.param(
            RetentionMode.RACE, 150, [(100, 200)], 150, id="what users deleted of a pinned segment stays deleted"
        ),
        pytest.param(
            RetentionMode.RACE, 200, [(0, 150)], 200, id="a pin of other offsets is of a history that was cut off"
        ),
        pytest.param(
            RetentionMode.STRICT, 200, [(0, 100), (100, 200)], 200, id="in strict mode only users delete there"
        ),
    ],
)
def test_the_first_start_where_the_broker_has_deleted_since_the_log_dir_was_read(
    mode: RetentionMode, log_start: int, pins: list[tuple[int, int]], start: int
) -> None:
    """Files are as of the last look, up to 30 s ago, and the log start is of this moment.  No start was said yet: a former
    release copied without one."""
    world = world_of(segment(200, 299))
    one = sidecar(world, TopicPolicy(mode=mode), local=local_segments(0, 100, 200, 300))
    for base, following in pins:
        one.table.pins.add(pin_of(base, following))
    one.broker.log_starts[TOPIC_ID_PARTITION] = log_start
    run(one.round())
    assert world.start == start


def test_a_doubt_of_the_clock_and_what_nobody_saw_of_the_time_are_shown() -> None:
    one = sidecar(world_of(*segments(3)))
    away = UnseenTime(from_ms=NOW_MS - HOUR_MS, to_ms=NOW_MS)
    clock: TrashClock = trash_clock(one.clock, SeenTime(until_ms=away.from_ms))
    one.expire.look._trash_clock = clock
    one.clock.skew_ms = 100 * HOUR_MS
    view = shown(one)
    assert (view.unseen, view.seen_ms, view.now_ms) == ((away,), NOW_MS, NOW_MS + 100 * HOUR_MS)
    assert "jumped" in view.clock_doubt


@pytest.mark.parametrize("error", ["FENCED_LEADER_EPOCH", "NOT_LEADER_OR_FOLLOWER"])
def test_a_broker_that_refuses_is_named(error: str) -> None:
    one = sidecar(world_of(*TWO_OLD))
    one.broker.error = error
    with pytest.raises(BrokerRefusedError, match=f"ListOffsets.*{error}") as refused:
        run(one.round())
    assert str(TOPIC_ID_PARTITION) in str(refused.value)
    assert len(one.world.readable()) == 2


def measured(telemetry: RecordedTelemetry, *wanted: Metric) -> list[float | None]:
    return [telemetry.value(one, topic="orders", partition="3") for one in wanted]


def test_what_there_is_and_what_waits_is_measured_by_partition() -> None:
    telemetry = RecordedTelemetry()
    remote = (*segments(2, youngest_h=9), segment(200, 299, age_h=-2, copied_h=0), segment(300, 399, age_h=1))
    world = world_of(*remote)
    one = sidecar(world, delays=DAY, telemetry=telemetry)
    run(one.round())
    run(one.round())
    of_all = (metrics.REMOTE_SEGMENTS, metrics.REMOTE_LOG_SIZE, metrics.FUTURE_SEGMENTS, metrics.EXPIRY_STOPPED)
    assert measured(telemetry, *of_all) == [4, 2 * SEGMENT_BYTES, 1, 0]
    assert measured(telemetry, metrics.TRASH_SEGMENTS, metrics.TRASH_BYTES) == [2, 2 * SEGMENT_BYTES]
    assert measured(telemetry, metrics.DELETE_LAG_SEGMENTS, metrics.DELETE_LAG_BYTES) == [0, 0]
    one.clock.true_ms += DAY.retention_ms
    one.world.store.broken = True
    with pytest.raises(Exception, match="it is broken"):
        run(one.round())
    assert measured(telemetry, metrics.DELETE_LAG_SEGMENTS, metrics.DELETE_LAG_BYTES)[0] != 0


def test_what_remote_segments_take_in_the_store_is_measured_by_partition() -> None:
    """S-229.  A round that decides nothing anew leaves it, and the first one after the leadership came back reports it."""
    first, second = segments(2)
    recorded = replace(first, custom_metadata=write_custom_metadata(CustomMetadata(remote_size=700)))
    telemetry = RecordedTelemetry()
    one = sidecar(world_of(recorded, second), policy=FOREVER, telemetry=telemetry)
    run(one.round())
    assert measured(telemetry, metrics.REMOTE_STORED_BYTES) == [700 + SEGMENT_BYTES]
    run(one.round())
    assert measured(telemetry, metrics.REMOTE_STORED_BYTES) == [700 + SEGMENT_BYTES]
    telemetry.forget(metrics.REMOTE_STORED_BYTES, topic="orders", partition="3")
    one.table.forget(TOPIC_ID_PARTITION)
    run(one.round())
    assert measured(telemetry, metrics.REMOTE_STORED_BYTES) == [700 + SEGMENT_BYTES]


def test_a_stop_is_told_once_with_its_partition_and_when_it_ends() -> None:
    telemetry, limits = RecordedTelemetry(), ExpiryLimits(max_share=0.5)
    one = sidecar(world_of(*TWO_OLD), telemetry=telemetry, limits=limits)
    with capture_logs() as told:
        run(one.round())
        run(one.round())
        one.policy = FOREVER
        run(one.round())
        run(one.round())
    events = [dict(each) for each in told if each["event"].startswith("expire.stop")]
    assert [each["event"] for each in events] == ["expire.stopped", "expire.stopped.cleared", "expire.stop.ended"]
    assert {(each["topic"], str(each["partition"])) for each in events} == {("orders", "3")}
    assert "due at once" in events[0]["reason"]
    assert measured(telemetry, metrics.EXPIRY_STOPPED) == [0]


def test_each_change_of_a_stop_is_numbered_in_its_epoch() -> None:
    """Whoever reads it later must know which one counts."""
    world, limits = world_of(*TWO_OLD), ExpiryLimits(max_share=0.5)
    one = sidecar(world, limits=limits, leader_epoch=3, lineage=Lineage.of([(0, 0), (3, 200)]))
    orders = []
    for policy in (FIVE_HOURS, FOREVER, FIVE_HOURS):
        one.policy = policy
        run(one.round())
        stop = world.state.partition_state(TOPIC_ID_PARTITION).guard_stop
        assert stop is not None
        orders.append((stop.order, stop.is_over))
    assert orders == [((3, 0), False), ((3, 1), True), ((3, 2), False)]


def test_what_is_put_into_the_trash_is_told() -> None:
    one = sidecar(world_of(*TWO_OLD, segment(200, 299)), delays=DAY)
    with capture_logs() as told:
        run(one.round())
    (put,) = [dict(each) for each in told if each["event"] == "trash.put"]
    assert (
        put.items()
        >= {
            "topic": "orders",
            "partition": 3,
            "kind": "retention",
            "up_to": 200,
            "segments": 0,
            "due_ms": NOW_MS + DAY.retention_ms,
        }.items()
    )
    (moved,) = [dict(each) for each in told if each["event"] == "remote_log_start.moved"]
    assert (moved["topic"], moved["partition"], moved["remote_log_start_offset"]) == ("orders", 3, 200)


def test_a_start_that_stays_is_not_told_as_moved() -> None:
    world = world_of(*segments(3))
    run(sidecar(world).round())
    with capture_logs() as told:
        run(sidecar(world, leader_epoch=1).round())
    assert "remote_log_start.moved" not in {each["event"] for each in told}


def test_what_the_daemon_that_only_observes_would_delete_is_told() -> None:
    one = sidecar(world_of(*TWO_OLD, segment(200, 299, state=State.DELETE_SEGMENT_STARTED)), observe_only=True)
    with capture_logs() as told:
        run(one.round())
        run(one.round())
    observed = [dict(each) for each in told if each["event"] == "segment.delete.observed"]
    assert {(each["topic"], each["partition"]) for each in observed} == {("orders", 3)}
    assert len({each["segment_id"] for each in observed}) == len(observed) == 3, "each is told once"
    assert len(one.world.segments()) == 3


def test_a_leader_that_is_deposed_while_it_is_asked_decides_nothing() -> None:
    """Its entry would tell an undelete of a decision that nobody carries out."""
    world = world_of(*TWO_OLD, segment(200, 299))
    one = sidecar(world, delays=DAY)
    steps = one.round()
    while steps.send(None) != "broker.asked":
        pass
    one.resign()
    run(steps)
    assert world.state.trash(TOPIC_ID_PARTITION) == []
    assert world.start == -1


@pytest.mark.parametrize(
    ("prepare", "is_looked"),
    [
        pytest.param(lambda one: None, True, id="after a round"),
        pytest.param(lambda one: one.table.refused_topics.update(orders="it is compacted"), True, id="refused"),
        pytest.param(lambda one: setattr(one.broker, "error", "REFUSED"), True, id="after one that failed"),
    ],
)
def test_copying_waits_for_no_more_than_a_look(prepare: Any, is_looked: bool) -> None:
    one = sidecar(world_of(*TWO_OLD))
    prepare(one)
    try:
        run(one.round())
    except BrokerRefusedError:
        assert one.broker.error
    assert one.table.record(TOPIC_ID_PARTITION).expiry_looked is is_looked


def test_a_round_that_failed_is_due_again_at_once() -> None:
    one = sidecar(world_of(*TWO_OLD))
    one.broker.error = "NOT_LEADER_OR_FOLLOWER"
    with pytest.raises(BrokerRefusedError):
        run(one.round())
    assert one.expire.may_have_work(one.partition)


@pytest.mark.parametrize(
    ("observe_only", "has_work"),
    [pytest.param(False, True, id="it is to be answered"), pytest.param(True, False, id="not by one that observes")],
)
def test_an_undelete_is_answered_at_once(observe_only: bool, has_work: bool) -> None:
    world = world_of(*segments(3))
    one = sidecar(world, FOREVER, observe_only=observe_only)
    run(one.round())
    assert not one.expire.may_have_work(one.partition)
    back = PartitionState(remote_log_start_offset=Offset(0), remote_log_start_epoch=LeaderEpoch(0), start_generation=1)
    run(world.state.publish_partition_state(TOPIC_ID_PARTITION, back))
    assert one.expire.may_have_work(one.partition) is has_work
    run(one.round())
    assert world.state.partition_state(TOPIC_ID_PARTITION).awaits_answer is observe_only
    assert not one.expire.may_have_work(one.partition)


def test_the_answer_to_an_undelete_says_who_answers_and_what_only_pins_hold() -> None:
    world = world_of(*segments(3))
    pinned = tuple(replace(each, pinned=each.base_offset == 300) for each in local_segments(300, 400, 500))
    one = sidecar(world, FOREVER, leader_epoch=7, lineage=Lineage.of([(0, 0), (7, 300)]), local=pinned)
    kept = entry(50, generation=1)
    back = PartitionState(
        remote_log_start_offset=Offset(0),
        remote_log_start_epoch=LeaderEpoch(0),
        start_generation=1,
        kept=(kept,),
    )
    run(world.state.publish_partition_state(TOPIC_ID_PARTITION, back))
    places = run(one.round())
    seen = world.state.partition_state(TOPIC_ID_PARTITION).seen
    assert seen is not None
    assert (seen.generation, seen.leader_epoch, seen.pinned) == (1, 7, ((300, 400),))
    assert "state.read_back" in places


@pytest.mark.parametrize("count", [1000, 1001], ids=["on the loop", "in a thread"])
def test_many_segments_are_decided_about_in_a_thread(count: int) -> None:
    one = sidecar(world_of(*segments(3)), FOREVER)
    view = replace(shown(one), remote_segments=segments(count))
    asked = list[object]()

    class Counted:
        async def run(self, function: Any, *arguments: Any) -> Any:
            asked.append(function)
            return function(*arguments)

    one.expire.look._blocking = Counted()

    async def decide() -> None:
        await one.expire.look.decide(view)

    run(decide())
    assert len(asked) == (count > 1000)


def test_an_undone_decision_is_told_and_moves_nothing() -> None:
    world = world_of(*TWO_OLD, segment(200, 299))
    one = sidecar(world, delays=DAY)
    steps = one.round()
    while steps.send(None) != "expire.trash.published":
        pass
    back = PartitionState(remote_log_start_offset=Offset(0), remote_log_start_epoch=LeaderEpoch(0), start_generation=1)
    run(world.state.publish_partition_state(TOPIC_ID_PARTITION, back))
    with capture_logs() as told:
        run(steps)
    assert [(each["event"], each["topic"], each["partition"]) for each in told if each["event"] == "expire.undone"] == [
        ("expire.undone", "orders", 3)
    ]
    assert world.start == 0
    assert len(world.readable()) == 3


def test_a_deposed_leader_says_so() -> None:
    world = world_of(*TWO_OLD, segment(200, 299))
    one = sidecar(world)
    run_until(one.round(), "state.sent")
    later = PartitionState(remote_log_start_offset=Offset(0), remote_log_start_epoch=LeaderEpoch(5))
    run(world.state.publish_partition_state(TOPIC_ID_PARTITION, later))
    with capture_logs() as told:
        run(sidecar(world).round())
    assert [each["event"] for each in told if each["log_level"] == "warning"] == ["expire.deposed"]
    assert len(world.readable()) == 3
