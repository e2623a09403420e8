"""When a trim begins, what stops it on its way, and what is told of it afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.manual_clock import ManualClock
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.tier_shell import TierShell
from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.decide.pressure_trim import PressureTrim
from tiersidecar.decide.topics import TieredPartition
from tiersidecar.decide.trash import NO_DELAYS, replaced
from tiersidecar.domain.errors import BrokerRefusedError, LeaseLostError, OwnerMissingError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_OFFSET, LeaderEpoch, Offset
from tiersidecar.domain.policy import RetentionMode, TopicPolicy
from tiersidecar.domain.segments import LocalSegment
from tiersidecar.ports.broker import TrimAnswer
from tiersidecar.ports.log_dirs import LogDirsView
from tiersidecar.ports.metrics.retention import DROPPED_BYTES, TRIM_REFUSALS, TRIMMED_BYTES
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.store import BytesBody
from tiersidecar.reading.remote_objects import recorded_keys
from tiersidecar.tasks.ownership import Unquestioned
from tiersidecar.tasks.segment_objects import LayoutSettings

NOTHING_KEPT = TopicPolicy(local_retention_bytes=0)


class Stage:
    """A sidecar beside one partition; ``copy`` makes all that is sealed remote."""

    def __init__(self, shell: TierShell) -> None:
        self.shell, self.topic_id_partition = shell, shell.topic_id_partition("plain-0")
        assert isinstance(shell.telemetry, RecordedTelemetry)
        assert isinstance(shell.clock, ManualClock)
        self.telemetry, self.clock = shell.telemetry, shell.clock

    @property
    def tiered(self) -> TieredPartition:
        return self.shell.tiered(self.topic_id_partition)

    @property
    def segments(self) -> tuple[LocalSegment, ...]:
        return self.shell.table.local.partitions[self.topic_id_partition].segments

    async def copy(self, policy: TopicPolicy = NOTHING_KEPT) -> None:
        self.shell.policy = policy
        await self.shell.look()
        await self.shell.copy.run(self.tiered)

    async def trim(self) -> list[dict[str, Any]]:
        """What was told meanwhile."""
        with capture_logs() as told:
            await self.shell.trim.run(self.tiered)
        return [dict(one) for one in told]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with ThreadBlocking(max_threads=2) as blocking:
        shell = TierShell(
            tmp_path,
            blocking,
            LayoutSettings(),
            NOTHING_KEPT,
            clock=ManualClock(now_ms=2_000_000_000_000),
            telemetry=RecordedTelemetry(),
            partitions=["plain-0"],
        )
        await shell.look()
        yield Stage(shell)


def nothing(stage: Stage) -> None:
    return None


def unknown_copies(stage: Stage) -> None:
    stage.shell.table.record(stage.topic_id_partition).copied_offset = None


def trimmed_already(stage: Stage) -> None:
    stage.shell.table.record(stage.topic_id_partition).log_start_offset = stage.segments[-1].base_offset


def all_but_one_trimmed(stage: Stage) -> None:
    stage.shell.table.record(stage.topic_id_partition).log_start_offset = stage.segments[-1].base_offset - 1


def no_directory(stage: Stage) -> None:
    stage.shell.table.local = LogDirsView(partitions={}, faults={})


def one_copied(stage: Stage) -> None:
    stage.shell.table.record(stage.topic_id_partition).copied_offset = stage.segments[1].base_offset - 1


def half_of_one_copied(stage: Stage) -> None:
    stage.shell.table.record(stage.topic_id_partition).copied_offset = stage.segments[1].base_offset - 2


def pressed(stage: Stage) -> None:
    stage.shell.table.pressure_trims = {stage.topic_id_partition: PressureTrim(offset=Offset(35), drops=False)}
    stage.shell.table.record(stage.topic_id_partition).log_start_offset = 34


def no_more_pressed(stage: Stage) -> None:
    pressed(stage)
    stage.shell.table.record(stage.topic_id_partition).log_start_offset = 35


def pressed_at_first(stage: Stage) -> None:
    pressed(stage)
    stage.shell.table.record(stage.topic_id_partition).log_start_offset = NO_OFFSET


UNLIMITED, RACE = TopicPolicy(), TopicPolicy(mode=RetentionMode.RACE, local_retention_ms=1)


@pytest.mark.parametrize(
    ("policy", "change", "has_work"),
    [
        pytest.param(NOTHING_KEPT, nothing, True, id="remote, and local retention has a limit by size"),
        pytest.param(TopicPolicy(local_retention_ms=1), nothing, True, id="or by time"),
        pytest.param(TopicPolicy(retention_ms=10**13), nothing, True, id="or the total retention has, which bounds it"),
        pytest.param(UNLIMITED, nothing, False, id="local retention is without limit"),
        pytest.param(RACE, nothing, False, id="in race mode the broker deletes"),
        pytest.param(NOTHING_KEPT, unknown_copies, False, id="nothing is known to be remote"),
        pytest.param(NOTHING_KEPT, one_copied, True, id="one segment is remote"),
        pytest.param(NOTHING_KEPT, half_of_one_copied, False, id="but for its last offset"),
        pytest.param(NOTHING_KEPT, trimmed_already, False, id="what is remote is trimmed"),
        pytest.param(NOTHING_KEPT, all_but_one_trimmed, True, id="but for an offset"),
        pytest.param(NOTHING_KEPT, no_directory, False, id="its log dir cannot be read"),
        pytest.param(UNLIMITED, pressed, True, id="the disk is short of room"),
        pytest.param(UNLIMITED, pressed_at_first, True, id="also where the log start has not been asked for"),
        pytest.param(UNLIMITED, no_more_pressed, False, id="what it was short of is trimmed"),
        pytest.param(RACE, pressed, False, id="for room nothing goes in race mode either"),
    ],
)
async def test_whether_a_look_is_worth_it(
    stage: Stage, policy: TopicPolicy, change: Callable[[Stage], None], has_work: bool
) -> None:
    await stage.copy(policy)
    tiered = stage.tiered
    change(stage)
    assert stage.shell.trim.may_have_work(tiered) is has_work


async def test_what_was_trimmed_is_told_and_measured(stage: Stage) -> None:
    await stage.copy()
    told = await stage.trim()
    sealed, active = stage.segments[:-1], stage.segments[-1]
    (event,) = [one for one in told if one["event"] == "log.trimmed"]
    assert (
        event.items()
        >= {
            "topic": "plain",
            "partition": 0,
            "leader_epoch": stage.tiered.view.leader_epoch,
            "log_start_offset": active.base_offset,
            "segments": len(sealed),
            "bytes": sum(one.size_bytes for one in sealed),
            "reason": "local.retention.bytes",
        }.items()
    )
    assert stage.telemetry.value(TRIMMED_BYTES, topic="plain") == event["bytes"]
    assert stage.telemetry.value(DROPPED_BYTES, topic="plain") is None
    assert stage.shell.table.record(stage.topic_id_partition).log_start_offset == active.base_offset
    state = stage.shell.state.partition_state(stage.topic_id_partition)
    assert (state.trim_offset, state.trim_epoch) == (active.base_offset, stage.tiered.view.leader_epoch)
    assert not stage.shell.trim.may_have_work(stage.tiered)


async def test_the_daemon_that_only_observes_says_what_it_would_trim(stage: Stage) -> None:
    await stage.copy()
    stage.shell.trim._observe_only = True
    told = await stage.trim()
    assert [(one["event"], one["offset"]) for one in told] == [("trim.observed", stage.segments[-1].base_offset)]
    assert await stage.trim() == [], "a decision is told once"
    assert (stage.shell.broker.deleted, stage.shell.state.partition_state(stage.topic_id_partition).trim_offset) == (
        [],
        -1,
    )


def wrong_settings(stage: Stage) -> None:
    stage.shell.table.untrimmable_topics["plain"] = "retention.ms is 1000, must be -1"


def lost_state(stage: Stage) -> None:
    stage.shell.state.halted_reason = "the state topic was made anew"


def forbidden(stage: Stage) -> None:
    stage.shell.guard.reason_not_to_delete = "deletes.enabled is false"


def paused(stage: Stage) -> None:
    stage.shell.guard.paused = {stage.topic_id_partition.topic_id: "deletes and trims are paused"}


def remote_forbidden(stage: Stage) -> None:
    stage.shell.guard.remote_delete_blocker = "brokers 2 have no sidecar of this version yet"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(wrong_settings, "retention.ms is 1000, must be -1", id="the topic's settings do not fit"),
        pytest.param(lost_state, "the state topic was made anew", id="the state topic is not to be believed"),
        pytest.param(forbidden, "deletes.enabled is false", id="nothing may be deleted"),
        pytest.param(paused, "deletes and trims are paused", id="an operator has paused the topic"),
    ],
)
async def test_what_forbids_a_trim_is_told_before_anything_is_published(
    stage: Stage, change: Callable[[Stage], None], reason: str
) -> None:
    await stage.copy()
    change(stage)
    told = await stage.trim()
    assert [(one["event"], one["reason"]) for one in told] == [("trim.refused", reason)]
    assert stage.telemetry.value(TRIM_REFUSALS, topic="plain", reason="settings") == 1
    assert (stage.shell.broker.deleted, stage.shell.state.partition_state(stage.topic_id_partition).trim_offset) == (
        [],
        -1,
    )


async def test_what_forbids_remote_deletes_forbids_no_trim(stage: Stage) -> None:
    """A trimmed segment is remote: nobody loses it."""
    await stage.copy()
    remote_forbidden(stage)
    await stage.trim()
    assert len(stage.shell.broker.deleted) == 1


@pytest.mark.parametrize(
    "place", ["trim.verified", "trim.intended.published"], ids=["after the read-back", "after the intent"]
)
async def test_a_deposed_leader_deletes_nothing(stage: Stage, place: str) -> None:
    await stage.copy()

    async def depose() -> None:
        stage.shell.depose(stage.topic_id_partition)

    stage.shell.failpoints.actions[place] = depose
    await stage.trim()
    assert stage.shell.broker.deleted == []


async def test_a_process_whose_lease_is_over_deletes_nothing(stage: Stage) -> None:
    await stage.copy()

    class Lost(Unquestioned):
        def require_role(self) -> None:
            raise LeaseLostError(reason="standing by")

    stage.shell.trim._ownership = Lost()
    with pytest.raises(LeaseLostError):
        await stage.trim()
    assert stage.shell.broker.deleted == []


async def test_a_store_that_is_not_the_one_it_was_stops_the_trim(stage: Stage) -> None:
    """Asked anew: an answer of some seconds ago may be another store's."""
    await stage.copy()
    asked: list[bool] = []

    class NotTheStore(Unquestioned):
        async def confirm(
            self, topic_id_partition: TopicIdPartition, *, anew: bool = False, place: str | None = None
        ) -> None:
            asked.append(anew)
            raise OwnerMissingError(topic=topic_id_partition.topic, topic_id="id", key="owners/id.json")

    stage.shell.trim._ownership = NotTheStore()
    with pytest.raises(OwnerMissingError):
        await stage.trim()
    assert (stage.shell.broker.deleted, asked) == ([], [True])


@pytest.mark.parametrize(
    ("api", "error"), [("ListOffsets", "NOT_LEADER_OR_FOLLOWER"), ("DeleteRecords", "POLICY_VIOLATION")]
)
async def test_what_the_broker_refuses_is_named(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, api: str, error: str
) -> None:
    await stage.copy()

    async def refuse(offsets: dict[TopicIdPartition, Offset], **_: object) -> dict[TopicIdPartition, TrimAnswer]:
        return {topic_id_partition: TrimAnswer(low_watermark=Offset(-1), error=error) for topic_id_partition in offsets}

    if api == "ListOffsets":
        stage.shell.broker.error = error
    else:
        monkeypatch.setattr(stage.shell.broker, "delete_records", refuse)
    with pytest.raises(BrokerRefusedError, match=f"{api}.*{error}") as refused:
        await stage.trim()
    assert str(stage.topic_id_partition) in str(refused.value)
    assert stage.telemetry.value(TRIMMED_BYTES, topic="plain") is None


async def test_the_log_starts_where_the_broker_says_after_its_deletion(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another DeleteRecords may have gone further."""
    await stage.copy()
    active = stage.segments[-1].base_offset

    async def further(offsets: dict[TopicIdPartition, Offset], **_: object) -> dict[TopicIdPartition, TrimAnswer]:
        stage.shell.broker.log_starts[stage.topic_id_partition] = active + 2
        return {topic_id_partition: TrimAnswer(low_watermark=Offset(active + 2)) for topic_id_partition in offsets}

    monkeypatch.setattr(stage.shell.broker, "delete_records", further)
    told = await stage.trim()
    assert [one["log_start_offset"] for one in told if one["event"] == "log.trimmed"] == [active + 2]
    assert stage.shell.table.record(stage.topic_id_partition).log_start_offset == active + 2


async def give_up_first_two(stage: Stage) -> None:
    """An expiry moved the start before they were remote; the disk is short of room up to the third segment."""
    third = stage.segments[2].base_offset
    start = PartitionState(remote_log_start_offset=third, remote_log_start_epoch=LeaderEpoch(0))
    await stage.shell.state.publish_partition_state(stage.topic_id_partition, start)
    await stage.copy(UNLIMITED)
    stage.shell.table.pressure_trims = {stage.topic_id_partition: PressureTrim(offset=third, drops=False)}
    stage.shell.broker.last_stable_offsets[stage.topic_id_partition] = 10**9


async def test_what_is_only_here_and_given_up_is_told_with_its_figures(stage: Stage) -> None:
    await give_up_first_two(stage)
    told = await stage.trim()
    first, second, third = stage.segments[:3]
    assert stage.shell.broker.deleted == [(stage.topic_id_partition, third.base_offset)]
    dropped = [one for one in told if one["event"] == "trash.dropped"]
    assert [(one["base_offset"], one["next_base_offset"], one["bytes"]) for one in dropped] == [
        (one.base_offset, one.next_base_offset, one.size_bytes) for one in (first, second)
    ]
    assert {(one["topic"], one["partition"], one["reason"]) for one in dropped} == {("plain", 0, "disk.reserve")}


async def test_what_was_undone_while_the_trim_was_on_its_way_stays(stage: Stage) -> None:
    await give_up_first_two(stage)

    async def undelete() -> None:
        state = stage.shell.state.partition_state(stage.topic_id_partition)
        back = replace(state, remote_log_start_offset=Offset(0), start_generation=1)
        await stage.shell.state.publish_partition_state(stage.topic_id_partition, back)
        stage.shell.table.pressure_trims = {}

    stage.shell.failpoints.actions["trim.intended.published"] = undelete
    await stage.trim()
    assert stage.shell.broker.deleted == []


async def test_a_trim_behind_the_trash_says_so_and_no_longer_than_that(stage: Stage) -> None:
    await give_up_first_two(stage)
    stage.shell.table.pressure_trims = {}
    stage.shell.policy = NOTHING_KEPT
    await stage.shell.look()
    await stage.trim()
    assert stage.shell.broker.deleted == []
    assert f"below offset {stage.segments[2].base_offset} is not remote, and in the trash" in (
        stage.shell.table.record(stage.topic_id_partition).behind_trash
    )
    stage.shell.broker.log_starts[stage.topic_id_partition] = stage.segments[2].base_offset
    await stage.trim()
    assert stage.shell.table.record(stage.topic_id_partition).behind_trash == ""
    assert stage.shell.broker.deleted == [(stage.topic_id_partition, stage.segments[-1].base_offset)]


async def test_nothing_is_known_of_the_trash_above_the_high_watermark(stage: Stage) -> None:
    """A broker refuses DeleteRecords beyond it."""
    await give_up_first_two(stage)
    stage.shell.broker.last_stable_offsets[stage.topic_id_partition] = stage.segments[1].base_offset
    await stage.trim()
    assert stage.shell.broker.deleted == [(stage.topic_id_partition, stage.segments[1].base_offset)]


async def lose(stage: Stage, number: int) -> tuple[str, bytes]:
    """The log of one remote segment goes; gives its key and what it was."""
    lost = list(stage.shell.metadata.list_remote_log_segments(stage.topic_id_partition))[number]
    key = recorded_keys(lost, "").log
    whole = bytes(await stage.shell.store.fetch_object(key, max_bytes=2**30))
    await stage.shell.store.delete_objects([key])
    return key, whole


async def test_a_segment_that_cannot_be_proven_rests_longer_each_time_and_is_told_with_its_count(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage.shell.ids, "random", lambda: 0.5)
    await stage.copy()
    await lose(stage, 1)
    waited = []
    for failures in (1, 2, 3):
        told = await stage.trim()
        (event,) = [one for one in told if one["event"] == "trim.read_back.failed"]
        second = stage.segments[1].base_offset
        assert (event["base_offset"], event["failures"], event["reason"]) == (second, failures, "missing")
        assert len(event["segment_ids"]) == 1
        waits = stage.shell.table.record(stage.topic_id_partition).unproven
        assert waits is not None
        assert waits.base_offset == second
        waited.append(round(waits.until_s - stage.clock.monotonic_s(), 3))
        assert event["backoff_ms"] == int(waited[-1] * 1000)
        await stage.clock.advance(waited[-1] - 0.01)
        assert not stage.shell.trim.may_have_work(stage.tiered)
        await stage.clock.advance(0.01)
        assert stage.shell.trim.may_have_work(stage.tiered)
    assert waited == [5, 10, 20]


async def test_a_segment_that_is_mended_is_told_and_another_behind_it_begins_anew(stage: Stage) -> None:
    await stage.copy()
    key, whole = await lose(stage, 1)
    await lose(stage, 3)
    await stage.trim()
    await stage.shell.store.put_object(key, BytesBody(whole))
    await stage.clock.advance(10)
    told = await stage.trim()
    assert [one["base_offset"] for one in told if one["event"] == "trim.read_back.mended"] == [
        stage.segments[1].base_offset
    ]
    (failed,) = [one for one in told if one["event"] == "trim.read_back.failed"]
    assert (failed["base_offset"], failed["failures"]) == (stage.segments[3].base_offset, 1)
    waits = stage.shell.table.record(stage.topic_id_partition).unproven
    assert waits is not None
    assert waits.base_offset == stage.segments[3].base_offset


@pytest.mark.parametrize(
    ("log_start", "waits"),
    [pytest.param(1, True, id="a trim below it"), pytest.param(2, False, id="a delete past it")],
)
async def test_what_lies_below_the_log_start_is_waited_for_no_more(stage: Stage, log_start: int, waits: bool) -> None:
    await stage.copy()
    await lose(stage, 1)
    await stage.trim()
    stage.shell.trim._unproven.gone(stage.topic_id_partition, stage.segments[log_start].base_offset)
    assert (stage.shell.table.record(stage.topic_id_partition).unproven is not None) is waits


async def test_missing_is_no_error_of_the_store(stage: Stage) -> None:
    """The lane goes on, so that expiry does."""
    await stage.copy()
    await lose(stage, 0)
    told = await stage.trim()
    assert [one["log_level"] for one in told if one["event"] == "trim.read_back.failed"] == ["error"]
    assert stage.telemetry.value(TRIM_REFUSALS, topic="plain", reason="missing") == 1


async def test_what_an_erasure_has_replaced_proves_nothing(stage: Stage) -> None:
    await stage.copy()
    first, *_ = stage.shell.metadata.list_remote_log_segments(stage.topic_id_partition)
    entry = replaced([first], LeaderEpoch(0), opened_ms=1, delays=NO_DELAYS, now_ms=1, by="erase")
    await stage.shell.state.put_into_trash(stage.topic_id_partition, [entry])
    await stage.trim()
    assert stage.shell.broker.deleted == []
