"""An alarm for local data that something else deleted: the log start is no evidence of a delete."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.expiry import segments
from tests.support.expiry_world import Sidecar, StoppedClock, World, run
from tests.support.manual_clock import ManualClock
from tests.support.pins import local_partition
from tests.support.segments import TOPIC_ID_PARTITION, local_segments
from tests.unit.tasks.test_expire import Gauges
from tiersidecar.decide.topics import PartitionRole
from tiersidecar.domain.errors import BrokerUnreachableError
from tiersidecar.domain.offsets import NO_OFFSET, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.policy import RetentionMode, TopicPolicy
from tiersidecar.ports.log_dirs import LogDirsView
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.tasks.log_start_watch import LogStartWatch


class Shell:
    def __init__(self, policy: TopicPolicy | None = None) -> None:
        self.world, self.gauges = World(), Gauges()
        for segment in segments(3):
            self.world.add(segment)
        self.sidecar = Sidecar(
            self.world, policy=policy or TopicPolicy(), lineage=Lineage.of([(0, 0)]), clock=StoppedClock()
        )
        self.sidecar.table.record(TOPIC_ID_PARTITION).copied_offset = 299
        self.watch = LogStartWatch(
            table=self.sidecar.table,
            broker=self.sidecar.broker,
            state=self.world.state,
            clock=self.sidecar.clock,
            telemetry=self.gauges,
        )

    def look(self, log_start: int, *, times: int = 2) -> list[Any]:
        """The alarms when the broker's log starts there, at the second look if need be."""
        self.sidecar.broker.log_starts[TOPIC_ID_PARTITION] = log_start
        with capture_logs() as logs:
            for _ in range(times):
                run(self.watch.look())
        return [entry for entry in logs if entry["event"] == "log_start.unexplained"]

    def say(self, **fields: int) -> None:
        offsets = {name: Offset(offset) for name, offset in fields.items()}
        epochs = {name.replace("offset", "epoch"): LeaderEpoch(0) for name in fields}
        run(self.world.state.publish_partition_state(TOPIC_ID_PARTITION, PartitionState(**offsets, **epochs)))  # type: ignore[arg-type]

    @property
    def alarm(self) -> float:
        return self.gauges.values["tiersidecar_log_start_unexplained"][-1]


def test_a_move_that_nobody_meant_raises_the_alarm_once_and_nothing_remote_goes() -> None:
    shell = Shell()
    shell.say(trim_offset=100)
    assert shell.look(100) == []
    (alarm,) = shell.look(250)
    assert (alarm["log_start_offset"], alarm["trim_offset"], alarm["lost_offsets"]) == (250, 100, 0)
    assert shell.look(250) == []
    assert shell.alarm == 1
    run(shell.sidecar.round())
    assert (shell.world.start, len(shell.world.readable())) == (0, 3)


def test_a_users_delete_that_is_said_by_the_next_look_is_no_alarm() -> None:
    """The broker's part comes first, and some of the gateway's deletes were reported as somebody else's."""
    shell = Shell()
    shell.say(trim_offset=100)
    assert shell.look(250, times=1) == []
    shell.say(remote_log_start_offset=250)
    assert shell.look(250, times=1) == []
    assert shell.look(260, times=1) == [], "another one, which is new"
    assert len(shell.look(260, times=1)) == 1


def test_what_was_not_remote_is_counted_as_lost() -> None:
    shell = Shell()
    shell.say(trim_offset=100)
    (alarm,) = shell.look(420)
    assert alarm["lost_offsets"] == 120


@pytest.mark.parametrize("said", [{"trim_offset": 250}, {"trim_offset": 100, "remote_log_start_offset": 250}])
def test_what_a_sidecar_meant_is_no_alarm(said: dict[str, int]) -> None:
    """A trim of ours, also one that another sidecar meant before a failover; a user's delete."""
    shell = Shell()
    shell.say(**said)
    assert shell.look(250) == []
    assert shell.alarm == 0


@pytest.mark.parametrize("said", ["trim_offset", "remote_log_start_offset"])
def test_what_was_meant_in_a_history_that_was_cut_off_explains_nothing(said: str) -> None:
    """An unclean election at 100 ended epoch 0, in which somebody meant to trim to 250: in epoch 1 nobody did."""
    shell = Shell()
    shell.say(**{"trim_offset": 100, said: 250})
    sidecar = shell.sidecar
    local = local_partition(local_segments(0, 400), epochs=((0, 0), (1, 100)))
    sidecar.table.local = LogDirsView(partitions={TOPIC_ID_PARTITION: local}, faults={})
    (alarm,) = shell.look(250)
    assert (alarm["log_start_offset"], alarm["trim_offset"]) == (250, 100)


def test_a_start_that_a_later_leader_had_not_heard_of_is_no_alarm() -> None:
    """It said a lower one in its own epoch; the earlier one holds in the same history (docs/design/0003)."""
    shell = Shell()
    shell.say(trim_offset=100, remote_log_start_offset=250)
    later = PartitionState(remote_log_start_offset=Offset(100), remote_log_start_epoch=LeaderEpoch(1))
    run(shell.world.state.publish_partition_state(TOPIC_ID_PARTITION, later))
    assert shell.look(250) == []


def test_a_log_start_that_fell_back_after_a_crash_is_no_alarm() -> None:
    shell = Shell()
    shell.say(trim_offset=250)
    assert shell.look(0) == []


def test_a_restart_does_not_forget_what_moved_while_the_sidecar_was_away() -> None:
    shell = Shell()
    shell.say(trim_offset=100)
    assert len(shell.look(250)) == 1


def test_before_the_first_trim_only_moves_that_were_seen_count() -> None:
    """A topic may have lost its front to the broker's own retention before it was tiered."""
    shell = Shell()
    assert shell.look(120) == []
    assert len(shell.look(130)) == 1


def test_the_alarm_ends_when_our_own_trim_passes() -> None:
    shell = Shell()
    shell.say(trim_offset=100)
    shell.look(250)
    shell.say(trim_offset=300)
    assert shell.look(300) == []
    assert shell.alarm == 0


def test_in_race_mode_the_log_start_is_the_brokers_business() -> None:
    shell = Shell(TopicPolicy(mode=RetentionMode.RACE))
    shell.say(trim_offset=100)
    assert shell.look(250) == []
    assert "tiersidecar_log_start_unexplained" not in shell.gauges.values


def test_what_is_led_elsewhere_meanwhile_is_judged_anew() -> None:
    """A leader in between may have trimmed with a log start of its own: what was seen before is no measure."""
    shell = Shell()
    assert shell.look(120) == []
    (led,) = shell.sidecar.table.assignment.values()
    shell.sidecar.table.assignment = {TOPIC_ID_PARTITION: replace(led, role=PartitionRole.FOLLOWER)}
    assert shell.look(130) == []
    shell.sidecar.table.assignment = {TOPIC_ID_PARTITION: led}
    assert shell.look(130) == []
    assert len(shell.look(140)) == 1


def test_an_alarm_is_told_again_after_the_partition_came_back() -> None:
    shell = Shell()
    shell.say(trim_offset=100)
    assert len(shell.look(250)) == 1
    known, shell.sidecar.table.assignment = shell.sidecar.table.assignment, {}
    assert shell.look(250) == []
    shell.sidecar.table.assignment = known
    assert len(shell.look(250)) == 1


def test_an_alarm_ended_and_the_next_one_at_the_same_offset_is_told() -> None:
    shell = Shell()
    assert shell.look(120) == []
    assert len(shell.look(130)) == 1
    assert shell.look(120) == []
    assert len(shell.look(130)) == 1


def test_a_broker_that_answers_with_an_error_says_nothing_of_its_log_start() -> None:
    shell = Shell()
    shell.say(trim_offset=100)
    shell.sidecar.broker.error = "NOT_LEADER_OR_FOLLOWER"
    assert shell.look(250) == []
    assert shell.sidecar.table.record(TOPIC_ID_PARTITION).log_start_offset == NO_OFFSET
    shell.sidecar.broker.error = None
    assert len(shell.look(250)) == 1
    assert shell.sidecar.table.record(TOPIC_ID_PARTITION).log_start_offset == 250


def test_what_is_lost_counts_from_the_higher_of_what_is_remote_and_what_was_meant() -> None:
    shell = Shell()
    shell.sidecar.table.record(TOPIC_ID_PARTITION).copied_offset = None
    shell.say(trim_offset=100)
    (alarm,) = shell.look(250)
    assert alarm["lost_offsets"] == 150
    shell.sidecar.table.record(TOPIC_ID_PARTITION).copied_offset = 50
    (alarm,) = shell.look(260)
    assert alarm["lost_offsets"] == 160
    shell.sidecar.table.record(TOPIC_ID_PARTITION).copied_offset = 149
    (alarm,) = shell.look(270)
    assert alarm["lost_offsets"] == 120


def test_deletes_that_are_said_one_after_the_other_raise_none_though_one_is_always_under_way() -> None:
    shell = Shell()
    shell.say(trim_offset=100)
    for start in range(100, 200, 10):
        shell.say(remote_log_start_offset=start)
        assert shell.look(start + 10, times=1) == [], "the broker's part of the next one is done"
    (alarm,) = shell.look(200)
    assert alarm["log_start_offset"] == 200


async def test_it_looks_at_each_interval_and_goes_on_when_the_broker_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    shell, clock, looks = Shell(), ManualClock(), list[float]()
    watch = LogStartWatch(
        table=shell.sidecar.table,
        broker=shell.sidecar.broker,
        state=shell.world.state,
        clock=clock,
        telemetry=shell.gauges,
    )

    async def away(*_: object) -> None:
        looks.append(clock.monotonic_s())
        raise BrokerUnreachableError(address="kafka:9092", reason="connection refused")

    monkeypatch.setattr(shell.sidecar.broker, "list_offsets", away)
    begun_s, running = clock.monotonic_s(), asyncio.create_task(watch.run(30))
    await clock.advance(61)
    assert [look - begun_s for look in looks] == [0, 30, 60]
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


def test_the_gauge_is_set_when_it_changes_and_when_its_series_is_gone() -> None:
    shell = Shell()
    shell.say(trim_offset=100)
    name, told = "tiersidecar_log_start_unexplained", shell.gauges.values
    for _ in range(3):
        shell.look(100)
    assert told[name] == [0]
    shell.look(250)
    shell.look(250)
    assert told[name] == [0, 1]
    shell.say(trim_offset=250)
    shell.look(250)
    assert told[name] == [0, 1, 0]
    shell.sidecar.table.forget(TOPIC_ID_PARTITION)  # as its series is, when another leads
    shell.look(250)
    assert told[name] == [0, 1, 0, 0]


def test_what_was_explained_is_so_only_as_long_as_its_history_is() -> None:
    """Issue 20: of what was explained nothing is found anew while state and files are the same."""
    shell = Shell()
    shell.say(trim_offset=250)
    assert shell.look(250) == []
    cut_off = local_partition(local_segments(0, 400), epochs=((0, 0), (1, 100)))
    shell.sidecar.table.local = LogDirsView(partitions={TOPIC_ID_PARTITION: cut_off}, faults={})
    assert len(shell.look(250)) == 1


def test_the_series_of_an_explained_log_start_comes_back_with_its_record() -> None:
    shell = Shell()
    shell.say(trim_offset=250)
    shell.look(250)
    shell.gauges.values.clear()
    shell.sidecar.table.forget(TOPIC_ID_PARTITION)
    shell.look(250)
    assert shell.alarm == 0
