"""What the copy lane shows its decision, leaves on the partition table, and does where it may not copy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.manual_clock import ManualClock, settle
from tests.support.pins import pin_of
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.scripted import STRICT_SETTINGS
from tests.support.segments import TOPIC_ID_PARTITION
from tests.support.tier_shell import TierShell
from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.decide.copy import CopyView
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.offsets import NO_OFFSET, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.policy import ALL_TOPICS, GuardStop, Pause, PausedThing, PauseKind, RetentionMode, TopicPolicy
from tiersidecar.domain.segments import LocalPartition
from tiersidecar.ports.log_dirs import LogDirsView
from tiersidecar.ports.metrics.copying import COPY_LAG_BYTES, COPY_LAG_SECONDS, COPY_LAG_SEGMENTS
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.tasks.copy_admission import LIVE
from tiersidecar.tasks.partition_table import PartitionRecord, PartitionTable
from tiersidecar.tasks.segment_objects import LayoutSettings
from tiersidecar.tasks.segment_reading import next_base_offset_of

NOW_MS = 2_000_000_000_000
STOP = GuardStop(
    reason="9 segments are due at once",
    up_to=Offset(35),
    retention_ms=1,
    retention_bytes=-1,
    max_share=0.5,
    max_bytes=-1,
    since_ms=0,
)


class Stage:
    """A sidecar that leads one partition of real segments."""

    def __init__(self, shell: TierShell) -> None:
        self.shell, self.topic_id_partition = shell, shell.topic_id_partition("plain-0")
        assert isinstance(shell.telemetry, RecordedTelemetry)
        self.telemetry = shell.telemetry

    @property
    def tiered(self) -> TieredPartition:
        return self.shell.tiered(self.topic_id_partition)

    @property
    def local(self) -> LocalPartition:
        found = self.shell.table.local_partition(self.topic_id_partition)
        assert found is not None
        return found

    async def view(self) -> CopyView:
        lineage = await self.shell.lineages.lineage(self.topic_id_partition)
        return await self.shell.copy.view(self.tiered, self.local, lineage)

    async def start_at(self, offset: int, **fields: Any) -> None:
        said = PartitionState(remote_log_start_offset=Offset(offset), remote_log_start_epoch=LeaderEpoch(0), **fields)
        await self.shell.state.publish_partition_state(self.topic_id_partition, said)

    def gauge(self, metric: Any) -> float | None:
        return self.telemetry.value(metric, topic="plain", partition="0")


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with ThreadBlocking(max_threads=2) as blocking:
        shell = TierShell(
            tmp_path,
            blocking,
            LayoutSettings(),
            TopicPolicy(),
            clock=ManualClock(now_ms=NOW_MS),
            telemetry=RecordedTelemetry(),
            partitions=["plain-0"],
        )
        await shell.look()
        yield Stage(shell)


async def test_the_decision_is_shown_what_broker_directory_and_topics_say(stage: Stage) -> None:
    await stage.start_at(35)
    stage.shell.broker.last_stable_offsets[stage.topic_id_partition] = 71
    stage.shell.broker.log_starts[stage.topic_id_partition] = 20
    lineage = await stage.shell.lineages.lineage(stage.topic_id_partition)
    assert await stage.view() == CopyView(
        policy=stage.shell.policy,
        segments=stage.local.segments,
        copied_offset=-1,
        last_stable_offset=71,
        now_ms=NOW_MS,
        remote_log_start_offset=35,
        may_expire=True,
        first_epoch_offset=lineage.entries[0].start_offset,
        live_start_offset=35,
    )


@pytest.mark.parametrize(
    ("log_start", "start", "live"),
    [
        pytest.param(20, 35, 35, id="the remote log start, where that is higher"),
        pytest.param(50, 35, 50, id="the broker's, where that is"),
        pytest.param(0, 0, 0, id="neither"),
    ],
)
async def test_data_below_the_first_leader_epoch_is_nobodys_from_where_readers_may_begin(
    stage: Stage, log_start: int, start: int, live: int
) -> None:
    await stage.start_at(start)
    stage.shell.broker.log_starts[stage.topic_id_partition] = log_start
    view = await stage.shell.copy.view(stage.tiered, stage.local, Lineage.of([(0, 60)]))
    assert (view.first_epoch_offset, view.live_start_offset) == (60, live)


async def test_a_broker_that_refuses_either_question_is_named(stage: Stage) -> None:
    stage.shell.broker.error = "NOT_LEADER_OR_FOLLOWER"
    with pytest.raises(BrokerRefusedError, match=r"ListOffsets.*NOT_LEADER_OR_FOLLOWER") as refused:
        await stage.shell.copy.run(stage.tiered)
    assert str(stage.topic_id_partition) in str(refused.value)
    with pytest.raises(BrokerRefusedError, match=r"ListOffsets.*NOT_LEADER_OR_FOLLOWER"):
        await stage.shell.copy._live_start(stage.tiered, stage.local.segments, Lineage.of([(0, 60)]), Offset(0))


def nothing(stage: Stage) -> None:
    return None


def race(stage: Stage) -> None:
    stage.shell.policy = TopicPolicy(mode=RetentionMode.RACE)


def looked(stage: Stage) -> None:
    stage.shell.table.record(stage.topic_id_partition).expiry_looked = True


def observes(stage: Stage) -> None:
    stage.shell.copy._observe_only = True


def forbidden(stage: Stage) -> None:
    stage.shell.guard.reason_not_to_delete = "deletes.enabled is false"


def stopped(stage: Stage) -> None:
    stage.shell.state.partition_states[stage.topic_id_partition] = PartitionState(guard_stop=STOP)


def stop_ended(stage: Stage) -> None:
    stage.shell.state.partition_states[stage.topic_id_partition] = PartitionState(
        guard_stop=replace(STOP, is_over=True)
    )


@pytest.mark.parametrize(
    ("change", "waits"),
    [
        pytest.param(nothing, True, id="expiry has not looked yet"),
        pytest.param(looked, False, id="it has: what it left is to be copied"),
        pytest.param(race, False, id="in race mode the broker deletes"),
        pytest.param(observes, False, id="one that observes deletes nothing"),
        pytest.param(forbidden, False, id="nothing may be deleted"),
        pytest.param(stopped, False, id="the guard has stopped expiry"),
        pytest.param(stop_ended, True, id="and has let it go on"),
    ],
)
async def test_whether_what_is_past_retention_waits_for_expiry(
    stage: Stage, change: Callable[[Stage], None], waits: bool
) -> None:
    change(stage)
    assert (await stage.view()).may_expire is waits


def pause_of(topic_id: Uuid | None, kind: PauseKind) -> Pause:
    thing = PausedThing(kind=kind, topic_id=topic_id)
    return Pause(thing=thing, topic=ALL_TOPICS, since_ms=0, by="ann", reason="a move of the store")


async def test_while_copies_are_paused_nothing_is_copied_and_what_waits_is_counted(stage: Stage) -> None:
    paused = pause_of(None, PauseKind.COPIES)
    assert stage.shell.copy.may_act(stage.tiered)
    await stage.shell.state.publish_pause(paused)
    assert not stage.shell.copy.may_act(stage.tiered)
    await stage.shell.copy.run(stage.tiered)
    assert list(stage.shell.metadata.list_remote_log_segments(stage.topic_id_partition)) == []
    assert "a move of the store" in stage.shell.table.record(stage.topic_id_partition).copy_held_back
    assert stage.gauge(COPY_LAG_SEGMENTS) == len(stage.local.sealed_segments)
    await stage.shell.state.forget_pause(paused)
    await stage.shell.copy.run(stage.tiered)
    assert stage.gauge(COPY_LAG_SEGMENTS) == 0
    assert "paused" not in stage.shell.table.record(stage.topic_id_partition).copy_held_back


async def test_a_pause_that_comes_while_a_segment_waits_for_its_turn_is_in_time(stage: Stage) -> None:
    slots = stage.shell.copy.admission._slots
    async with AsyncExitStack() as held:
        for _ in range(slots.size):
            await held.enter_async_context(slots.taking(LIVE))
        copying = asyncio.create_task(stage.shell.copy.run(stage.tiered))
        async with asyncio.timeout(10):
            while not any(slots._queues.values()):
                await settle()
        await stage.shell.state.publish_pause(pause_of(stage.topic_id_partition.topic_id, PauseKind.COPIES))
    async with asyncio.timeout(10):
        await copying
    assert list(stage.shell.metadata.list_remote_log_segments(stage.topic_id_partition)) == []


async def test_a_pause_of_deletes_keeps_no_copy(stage: Stage) -> None:
    await stage.shell.state.publish_pause(pause_of(None, PauseKind.DELETES))
    await stage.shell.copy.run(stage.tiered)
    assert stage.gauge(COPY_LAG_SEGMENTS) == 0


async def test_what_the_lane_found_is_on_the_table(stage: Stage) -> None:
    await stage.start_at(35)
    stage.shell.broker.last_stable_offsets[stage.topic_id_partition] = 71
    await stage.shell.copy.run(stage.tiered)
    table = stage.shell.table
    record = table.record(stage.topic_id_partition)
    assert (record.copied_offset, record.remote_log_start, record.copy_holes) == (69, 35, ())
    assert table.record(stage.topic_id_partition).copy_held_back.startswith("last stable offset 71 is below its end")
    left = [segment for segment in stage.local.sealed_segments if segment.base_offset >= 70]
    assert stage.gauge(COPY_LAG_SEGMENTS) == len(left)
    assert stage.gauge(COPY_LAG_BYTES) == sum(one.size_bytes for one in left)


async def test_what_lies_wholly_below_the_start_is_not_copied(stage: Stage) -> None:
    await stage.start_at(36)
    await stage.shell.copy.run(stage.tiered)
    copied = {
        segment.start_offset for segment in stage.shell.metadata.list_remote_log_segments(stage.topic_id_partition)
    }
    assert min(copied) == 35


def refused(stage: Stage) -> None:
    stage.shell.table.refused_topics["plain"] = "it is compacted"


def gone(stage: Stage) -> None:
    stage.shell.table.local = LogDirsView(partitions={}, faults={})


def followed(stage: Stage) -> None:
    stage.shell.depose(stage.topic_id_partition)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(refused, id="its topic cannot be tiered"),
        pytest.param(gone, id="its directory is gone"),
        pytest.param(followed, id="another broker leads it"),
    ],
)
async def test_nothing_is_asked_or_copied(stage: Stage, change: Callable[[Stage], None]) -> None:
    tiered = stage.tiered
    change(stage)
    stage.shell.broker.error = "nobody is to ask"
    await stage.shell.copy.run(tiered)
    assert stage.shell.metadata.events == []


async def test_one_that_observes_says_what_it_would_copy(stage: Stage) -> None:
    observes(stage)
    with capture_logs() as told:
        await stage.shell.copy.run(stage.tiered)
        await stage.shell.copy.run(stage.tiered)
    sealed = stage.local.sealed_segments
    assert [dict(one) for one in told if one["event"] == "segment.copy.observed"] == [
        {
            "event": "segment.copy.observed",
            "log_level": "info",
            "topic": "plain",
            "partition": 0,
            "segments": [one.base_offset for one in sealed],
            "bytes": sum(one.size_bytes for one in sealed),
        }
    ]
    assert (stage.shell.metadata.events, stage.shell.state.partitions()) == ([], ())


async def test_before_the_lane_could_look_the_lag_counts_from_what_the_metadata_say(stage: Stage) -> None:
    """The store may be away since the start: a lag of everything would be an alarm without a cause."""
    stage.shell.broker.last_stable_offsets[stage.topic_id_partition] = 71
    await stage.shell.copy.run(stage.tiered)
    stage.shell.table.record(stage.topic_id_partition).copied_offset = None
    stage.shell.lag.report(stage.tiered)
    left = [segment for segment in stage.local.sealed_segments if segment.base_offset >= 70]
    assert stage.gauge(COPY_LAG_SEGMENTS) == len(left)
    oldest_ms = min(one.modified_ms for one in left)
    assert stage.gauge(COPY_LAG_SECONDS) == max(NOW_MS - oldest_ms, 0) / 1000
    assert stage.shell.lag.known[stage.topic_id_partition].oldest_ms == oldest_ms


async def test_a_lag_is_never_negative_and_none_where_nothing_waits(stage: Stage) -> None:
    later = tuple(replace(segment, modified_ms=NOW_MS + 5000) for segment in stage.local.segments)
    partition = replace(stage.shell.table.local.partitions[stage.topic_id_partition], segments=later)
    stage.shell.table.local = LogDirsView(partitions={stage.topic_id_partition: partition}, faults={})
    stage.shell.lag.report(stage.tiered)
    assert stage.gauge(COPY_LAG_SECONDS) == 0
    assert stage.gauge(COPY_LAG_SEGMENTS) == len(stage.local.sealed_segments)
    stage.shell.table.record(stage.topic_id_partition).copied_offset = stage.local.segments[-1].base_offset - 1
    stage.shell.lag.report(stage.tiered)
    lags = [stage.gauge(one) for one in (COPY_LAG_SECONDS, COPY_LAG_SEGMENTS, COPY_LAG_BYTES)]
    assert lags == [0, 0, 0]


async def test_a_lag_of_nothing_is_said_once_and_again_when_the_partition_has_changed_hands(stage: Stage) -> None:
    stage.shell.table.record(stage.topic_id_partition).copied_offset = stage.local.segments[-1].base_offset - 1
    telemetry = stage.telemetry
    labels = {"topic": stage.topic_id_partition.topic, "partition": str(stage.topic_id_partition.partition)}
    seen = []
    for changes_hands in (False, False, True):
        telemetry.forget(COPY_LAG_BYTES, **labels)
        if changes_hands:
            stage.shell.table.forget(stage.topic_id_partition)
            stage.shell.table.record(stage.topic_id_partition).copied_offset = stage.local.segments[-1].base_offset - 1
        stage.shell.lag.report(stage.tiered)
        seen.append(telemetry.value(COPY_LAG_BYTES, **labels))
    assert seen == [0, None, 0]


async def test_a_directory_that_cannot_be_read_keeps_what_was_said(stage: Stage) -> None:
    stage.shell.lag.report(stage.tiered)
    said, tiered = stage.gauge(COPY_LAG_SEGMENTS), stage.tiered
    gone(stage)
    stage.shell.lag.report(tiered)
    assert stage.gauge(COPY_LAG_SEGMENTS) == said
    assert stage.topic_id_partition in stage.shell.lag.known
    followed(stage)
    assert stage.topic_id_partition not in stage.shell.lag.known, "its leader tells it"


async def test_what_the_table_says_of_who_leads(stage: Stage) -> None:
    table, tiered = stage.shell.table, stage.tiered
    epoch = tiered.view.leader_epoch
    assert (table.leads(stage.topic_id_partition, epoch), table.holds(tiered)) == (True, True)
    assert not table.leads(stage.topic_id_partition, LeaderEpoch(epoch + 1))
    assert not table.holds(replace(tiered, view=replace(tiered.view, leader_epoch=LeaderEpoch(epoch + 1))))
    assert not table.holds(replace(tiered, role=PartitionRole.FOLLOWER))
    followed(stage)
    assert (table.leads(stage.topic_id_partition, epoch), table.holds(tiered)) == (False, False)
    assert table.holds(replace(tiered, role=PartitionRole.FOLLOWER))
    table.assignment = {}
    assert (table.leads(stage.topic_id_partition, epoch), table.holds(tiered)) == (False, False)


@pytest.mark.parametrize(
    ("seen", "start", "left"),
    [
        pytest.param({}, 50, (NO_OFFSET, 99), id="seen for the first time"),
        pytest.param({"start": 50}, 50, (50, 99), id="where it was"),
        pytest.param({"start": 50}, 70, (50, 99), id="further on: the copy lane sees that itself"),
        pytest.param({"start": 50}, 20, (20, None), id="set back: what lies between is to be copied yet"),
    ],
)
def test_a_start_that_is_seen(seen: dict[str, int], start: int, left: tuple[int, int | None]) -> None:
    table, topic_id_partition = PartitionTable(), TOPIC_ID_PARTITION
    table.record(topic_id_partition).copied_offset = 99
    if seen:
        table.record(topic_id_partition).remote_log_start = seen["start"]
    table.see_start(topic_id_partition, start)
    assert (table.record(topic_id_partition).remote_log_start, table.record(topic_id_partition).copied_offset) == left
    table.record(topic_id_partition).copied_offset = None
    table.see_start(topic_id_partition, start - 1)
    assert table.record(topic_id_partition).copied_offset is None


def test_all_hints_of_a_partition_are_forgotten_and_of_no_other() -> None:
    table, topic_id_partition, other = PartitionTable(), TOPIC_ID_PARTITION, replace(TOPIC_ID_PARTITION, partition=9)
    records = table.record(topic_id_partition), table.record(other)
    table.missing_owners[topic_id_partition.topic_id] = "its owner object is gone"
    table.forget(topic_id_partition)
    assert table.records == {other: records[1]}
    assert table.record(topic_id_partition) == PartitionRecord()
    assert table.missing_owners == {}
    table.forget(topic_id_partition)


async def test_the_first_start_says_in_which_history_it_counts(stage: Stage) -> None:
    """Until a copy of what is there has an epoch blob nothing else does that outlives the broker's file."""
    lineage = await stage.shell.lineages.lineage(stage.topic_id_partition)
    await stage.shell.copy.run(stage.tiered)
    assert stage.shell.state.partition_state(stage.topic_id_partition).leader_epochs == lineage.entries != ()


async def test_what_the_broker_has_deleted_since_the_last_scan_counts_where_a_pin_has_it(stage: Stage) -> None:
    """In race mode it says at once where its log starts: of files that are gone the next scan tells, of pins the table."""
    first = stage.local.segments[0]
    following = next_base_offset_of(first)
    stage.shell.table.pins.add(pin_of(first.base_offset, following, topic_id_partition=stage.topic_id_partition))
    stage.shell.broker.log_starts[stage.topic_id_partition] = following
    lineage = await stage.shell.lineages.lineage(stage.topic_id_partition)
    race = replace(stage.tiered, policy=TopicPolicy(mode=RetentionMode.RACE))
    await stage.shell.copy._first_start.ensure(race, stage.local, lineage)
    state = stage.shell.state.partition_state(stage.topic_id_partition)
    assert state.remote_log_start_offset == first.base_offset < following


async def test_what_users_deleted_within_a_segment_stays_deleted_though_a_pin_has_it(stage: Stage) -> None:
    first = stage.local.segments[0]
    following = next_base_offset_of(first)
    stage.shell.table.pins.add(pin_of(first.base_offset, following, topic_id_partition=stage.topic_id_partition))
    stage.shell.broker.log_starts[stage.topic_id_partition] = following - 1
    lineage = await stage.shell.lineages.lineage(stage.topic_id_partition)
    race = replace(stage.tiered, policy=TopicPolicy(mode=RetentionMode.RACE))
    await stage.shell.copy._first_start.ensure(race, stage.local, lineage)
    assert stage.shell.state.partition_state(stage.topic_id_partition).remote_log_start_offset == following - 1


@pytest.mark.parametrize(
    ("retention_ms", "is_kept"),
    [
        pytest.param(
            "45000", True, id="the broker's own retention took it, since its settings were changed a moment ago"
        ),
        pytest.param("-1", False, id="a user did, for the broker's retention takes nothing in strict mode"),
    ],
)
async def test_whose_deletes_come_before_the_first_start_the_settings_of_this_moment_say(
    stage: Stage, retention_ms: str, is_kept: bool
) -> None:
    """The last check of the topic, up to 30 s ago, found the settings of strict mode."""
    first = stage.local.segments[0]
    following = next_base_offset_of(first)
    stage.shell.table.pins.add(pin_of(first.base_offset, following, topic_id_partition=stage.topic_id_partition))
    stage.shell.broker.log_starts[stage.topic_id_partition] = following
    stage.shell.broker.settings[stage.topic_id_partition.topic] = {**STRICT_SETTINGS, "retention.ms": retention_ms}
    lineage = await stage.shell.lineages.lineage(stage.topic_id_partition)
    await stage.shell.copy._first_start.ensure(stage.tiered, stage.local, lineage)
    start = stage.shell.state.partition_state(stage.topic_id_partition).remote_log_start_offset
    assert start == (first.base_offset if is_kept else following)
