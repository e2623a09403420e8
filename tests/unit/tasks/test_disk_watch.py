"""The alarm of a disk is raised once and told everywhere; below the reserve only what the user said goes (issue 6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import nullcontext, suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.manual_clock import ManualClock
from tests.support.pins import pin_of
from tests.support.recopy_requests import request_for
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.tier_shell import TierShell
from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.decide.pin_room import PinLimits
from tiersidecar.decide.pressure_trim import DiskPressurePolicy, PressureTrim
from tiersidecar.decide.topics import TieredPartition
from tiersidecar.decide.trim import Holder, TrimHold, TrimStep
from tiersidecar.domain.errors import (
    DataKeyError,
    KeyRefusedError,
    KeyServiceError,
    NotOwnedError,
    RetriableError,
    StoreError,
    TiersidecarError,
    UnknownPlaceError,
    WrongPlaceError,
)
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.policy import TopicPolicy, TrimHolds
from tiersidecar.domain.segments import LocalPartition
from tiersidecar.ports.metrics.retention import (
    DISK_FREE_BYTES,
    DISK_SECONDS_TO_FULL,
    DISK_SIZE_BYTES,
    DISK_STATE,
    DROPPED_BYTES,
)
from tiersidecar.ports.pins import DiskSpace
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.store import BytesBody
from tiersidecar.reading.remote_objects import recorded_keys
from tiersidecar.tasks.disk_watch import DiskSettings, DiskWatch
from tiersidecar.tasks.partition_table import UnprovenCopy
from tiersidecar.tasks.segment_objects import LayoutSettings
from tiersidecar.tasks.trim import TrimTask
from tiersidecar.tasks.trusted_copies import TrustedCopies

KEEP, TRIM, DROP = DiskPressurePolicy.KEEP, DiskPressurePolicy.TRIM_COPIED, DiskPressurePolicy.DROP_OLDEST
SIZE = 1000 * 2**20
FOREVER = TopicPolicy()
"""Nothing is past any retention."""


class GivenDisks:
    """One file system with one log dir."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir, self.free_bytes = str(log_dir), SIZE // 2

    async def disk_spaces(self) -> Mapping[str, DiskSpace]:
        return {self.log_dir: DiskSpace(device=1, size_bytes=SIZE, free_bytes=self.free_bytes)}


class Pressed:
    """A sidecar and its disk."""

    def __init__(self, shell: TierShell) -> None:
        self.shell, self.disks = shell, GivenDisks(shell.log_dir)
        self.telemetry, self.copies = RecordedTelemetry(), TrustedCopies(shell.metadata, shell.state)
        self.halted: dict[str, str] = {}
        """Why the retain lanes of topics are parked."""

    def watch(self, policy: DiskPressurePolicy = KEEP) -> DiskWatch:
        return DiskWatch(
            settings=DiskSettings(limits=PinLimits(), policy=policy, alarm_s=6 * 3600),
            table=self.shell.table,
            disks=self.disks,
            copies=self.copies,
            why_halted=lambda topic_id_partition: self.halted.get(topic_id_partition.topic, ""),
            guard=self.shell.guard,
            clock=self.shell.clock,
            telemetry=self.telemetry,
        )

    async def pass_time(self, seconds: float) -> None:
        assert isinstance(self.shell.clock, ManualClock)
        await self.shell.clock.advance(seconds)


@pytest.fixture
async def pressed(tmp_path: Path) -> AsyncIterator[Pressed]:
    async with ThreadBlocking(max_threads=2) as blocking:
        clock = ManualClock(now_ms=2_000_000_000_000)
        shell = TierShell(
            tmp_path, blocking, LayoutSettings(), FOREVER, clock=clock, partitions=("plain-0", "compressed-0")
        )
        await shell.look()
        yield Pressed(shell)


async def test_an_alarm_is_told_once_with_the_time_to_full(pressed: Pressed) -> None:
    watch = pressed.watch()
    with capture_logs() as logs:
        for _ in range(20):  # 1 MiB in 30 s: half of 1000 MiB lasts a little over four hours
            await watch.look()
            pressed.disks.free_bytes -= 2**20
            await pressed.pass_time(30)
        pressed.disks.free_bytes = SIZE // 20
        await watch.look()
        await watch.look()
        pressed.disks.free_bytes = SIZE
        await pressed.pass_time(7200)
        await watch.look()
    told = [(log["state"], log["log_level"]) for log in logs if log["event"] == "disk.pressure"]
    assert told == [("filling", "warning"), ("below_reserve", "warning"), ("ok", "info")]
    first = next(log for log in logs if log["event"] == "disk.pressure")
    assert 3.9 * 3600 < first["seconds_to_full"] < 4.2 * 3600
    assert pressed.shell.table.disk_troubles == {}


async def test_people_are_told_when_and_why(pressed: Pressed) -> None:
    watch = pressed.watch(TRIM)
    for _ in range(20):
        await watch.look()
        pressed.disks.free_bytes -= 2**20
        await pressed.pass_time(30)
    (sentence,) = pressed.shell.table.disk_troubles.values()
    assert sentence == "0.5 of 1.0 GiB are free, full in 4.0 h at this rate"
    assert pressed.telemetry.value(DISK_SECONDS_TO_FULL, log_dir=pressed.disks.log_dir) == pytest.approx(481 * 30)
    assert pressed.telemetry.by_label(DISK_STATE, "state") == {"ok": 0, "filling": 1, "below_reserve": 0}
    pressed.disks.free_bytes = SIZE // 20
    await watch.look()
    (sentence,) = pressed.shell.table.disk_troubles.values()
    assert "less than disk.reserve (10%)" in sentence
    assert "disk.pressure.policy is trim-copied" in sentence


async def below_reserve(pressed: Pressed, policy: DiskPressurePolicy, *, copied: bool = True) -> TieredPartition:
    """Nothing is free; all partitions are as the policy lets them be after one look."""
    shell = pressed.shell
    tiered = shell.tiered(shell.topic_id_partition("plain-0"))
    if copied:
        await shell.copy.run(tiered)
    pressed.disks.free_bytes = 0
    await pressed.watch(policy).look()
    return tiered


async def test_by_default_nothing_goes_for_room(pressed: Pressed) -> None:
    tiered = await below_reserve(pressed, KEEP)
    await pressed.shell.trim.run(tiered)
    assert pressed.shell.table.pressure_trims == {}
    assert pressed.shell.broker.deleted == []


async def test_what_is_remote_goes_though_its_local_retention_is_without_limit(pressed: Pressed) -> None:
    tiered = await below_reserve(pressed, TRIM)
    topic_id_partition = tiered.view.topic_id_partition
    assert set(pressed.shell.table.pressure_trims) == {topic_id_partition}, "of the others nothing is remote"
    assert pressed.shell.trim.may_have_work(tiered)
    await pressed.shell.trim.run(tiered)
    last = pressed.shell.table.local.partitions[topic_id_partition].segments[-1].base_offset
    assert pressed.shell.state.partition_state(topic_id_partition).held_offset == last
    assert pressed.shell.broker.deleted[-1] == (topic_id_partition, last)


async def test_what_is_given_up_and_only_here_goes_first_and_is_told(pressed: Pressed) -> None:
    """It is in the trash: for room on the disk an undelete finds less (docs/operations/retention.md)."""
    shell = pressed.shell
    tiered = shell.tiered(shell.topic_id_partition("plain-0"))
    topic_id_partition = tiered.view.topic_id_partition
    segments = shell.table.local.partitions[topic_id_partition].segments
    start = PartitionState(remote_log_start_offset=segments[2].base_offset, remote_log_start_epoch=LeaderEpoch(0))
    await shell.state.publish_partition_state(topic_id_partition, start)
    await shell.copy.run(tiered)
    assert (
        next(iter(shell.metadata.list_remote_log_segments(topic_id_partition))).start_offset == segments[2].base_offset
    )
    await shell.trim.run(tiered)
    assert shell.broker.deleted == []
    pressed.disks.free_bytes = 0
    await pressed.watch(TRIM).look()
    with capture_logs() as logs:
        await shell.trim.run(tiered)
    assert shell.broker.deleted[-1] == (topic_id_partition, segments[-1].base_offset)
    dropped = [log["base_offset"] for log in logs if log["event"] == "trash.dropped"]
    assert dropped == [0, segments[1].base_offset]
    assert [log for log in logs if log["event"] == "segment.dropped"] == []


async def across_the_start(pressed: Pressed, *, log_start_offset: int) -> tuple[TieredPartition, LocalPartition]:
    """A replica's segments begin elsewhere than the copies: its first one ends with the first copy, and begins below the
    remote log start.  Returns it, and the log as it was."""
    shell = pressed.shell
    tiered = shell.tiered(shell.topic_id_partition("plain-0"))
    topic_id_partition = tiered.view.topic_id_partition
    local = shell.table.local.partitions[topic_id_partition]
    first, second, third = local.segments[:3]
    start = PartitionState(remote_log_start_offset=second.base_offset, remote_log_start_epoch=LeaderEpoch(0))
    await shell.state.publish_partition_state(topic_id_partition, start)
    await shell.copy.run(tiered)
    assert next(iter(shell.metadata.list_remote_log_segments(topic_id_partition))).start_offset == second.base_offset
    path = Path(first.log_path)
    path.write_bytes(path.read_bytes() + Path(second.log_path).read_bytes())
    size_bytes = first.size_bytes + second.size_bytes
    longer = replace(first, next_base_offset=third.base_offset, size_bytes=size_bytes, modified_ms=0)
    merged = replace(local, segments=(longer, *local.segments[2:]))
    shell.table.local = replace(
        shell.table.local, partitions={**shell.table.local.partitions, topic_id_partition: merged}
    )
    shell.table.record(topic_id_partition).log_start_offset = Offset(log_start_offset)
    return tiered, local


async def test_a_first_segment_that_begins_below_the_log_start_goes_with_the_rest(pressed: Pressed) -> None:
    """Below both starts nothing is remote, and the whole log was taken for not copied (simulation, cluster seed 800571)."""
    shell = pressed.shell
    first_base = shell.table.local.partitions[shell.topic_id_partition("plain-0")].segments[1].base_offset
    tiered, local = await across_the_start(pressed, log_start_offset=first_base)
    topic_id_partition = tiered.view.topic_id_partition
    pressed.disks.free_bytes = 0
    await pressed.watch(TRIM).look()
    assert shell.table.pressure_trims[topic_id_partition].offset == local.segments[-1].base_offset


@pytest.mark.parametrize("policy", [TRIM, DROP])
async def test_a_first_segment_that_begins_in_the_trash_goes_once_the_rest_of_it_is_proven(
    pressed: Pressed, policy: DiskPressurePolicy
) -> None:
    """The broker still has what an undelete would bring back.  Its segments were counted on, could not be trimmed, and nothing
    else was asked; or went unread, as a loss."""
    shell = pressed.shell
    tiered, local = await across_the_start(pressed, log_start_offset=0)
    topic_id_partition = tiered.view.topic_id_partition
    pressed.disks.free_bytes = SIZE // 10 - 1
    await pressed.watch(policy).look()
    with capture_logs() as logs:
        await shell.trim.run(tiered)
    assert shell.broker.deleted == [(topic_id_partition, local.segments[2].base_offset)]
    told = [(log["base_offset"], log["next_base_offset"]) for log in logs if log["event"] == "trash.dropped"]
    assert told == [(0, local.segments[1].base_offset)]
    assert [log for log in logs if log["event"] == "segment.dropped"] == []


@pytest.mark.parametrize("policy", [TRIM, DROP])
async def test_and_stays_where_the_rest_of_it_is_damaged(pressed: Pressed, policy: DiskPressurePolicy) -> None:
    shell = pressed.shell
    tiered, _ = await across_the_start(pressed, log_start_offset=0)
    other = shell.tiered(shell.topic_id_partition("compressed-0"))
    await shell.copy.run(other)
    topic_id_partition = tiered.view.topic_id_partition
    key = recorded_keys(
        next(iter(shell.metadata.list_remote_log_segments(topic_id_partition))), shell.settings.key_prefix
    ).log
    spoiled = bytearray(await shell.store.fetch_object(key, max_bytes=2**30))
    spoiled[200] ^= 1
    await shell.store.put_object(key, BytesBody(bytes(spoiled)))
    pressed.disks.free_bytes = SIZE // 10 - 1
    for _ in range(2):
        await pressed.watch(policy).look()
        await shell.trim.run(tiered)
        await shell.trim.run(other)
    assert {one.topic for one, _ in shell.broker.deleted} == {"compressed"}


async def test_what_is_to_be_copied_again_is_not_taken_for_remote(pressed: Pressed) -> None:
    """Rule 1: its object is lost (`tiersidecar repair`).  With drop-oldest it would be the first to go, as a loss, though other
    segments are whole in the store."""
    shell = pressed.shell
    tiered = shell.tiered(shell.topic_id_partition("plain-0"))
    topic_id_partition = tiered.view.topic_id_partition
    await shell.copy.run(tiered)
    lost = list(shell.metadata.list_remote_log_segments(topic_id_partition))[1]
    await shell.state.request_recopy(request_for(lost))
    pressed.disks.free_bytes = 0
    await pressed.watch(TRIM).look()
    assert shell.table.pressure_trims[topic_id_partition].offset == lost.start_offset


@pytest.mark.parametrize("stuck", ["settings", "read-back", "group", "pause"])
async def test_what_cannot_be_trimmed_does_not_stand_in_for_what_can(pressed: Pressed, stuck: str) -> None:
    """Else a disk fills up behind one partition whose retention somebody put back, whose oldest remote copy is damaged, that
    a group holds, or whose deletes an operator has paused, though others have enough to give."""
    shell = pressed.shell
    first, other = (
        shell.tiered(shell.topic_id_partition("plain-0")),
        shell.tiered(shell.topic_id_partition("compressed-0")),
    )
    for tiered in (first, other):
        await shell.copy.run(tiered)
    topic_id_partition, local = (
        first.view.topic_id_partition,
        shell.table.local.partitions[first.view.topic_id_partition],
    )
    old = tuple(replace(segment, modified_ms=0) for segment in local.segments)
    shell.table.local = replace(
        shell.table.local, partitions={**shell.table.local.partitions, topic_id_partition: replace(local, segments=old)}
    )
    pressed.disks.free_bytes = SIZE // 10 - 1
    await pressed.watch(TRIM).look()
    assert set(shell.table.pressure_trims) == {topic_id_partition}, "a byte is missing, and its segments are the oldest"
    if stuck == "settings":
        shell.table.untrimmable_topics[topic_id_partition.topic] = "retention.ms is 1000, must be -1"
    elif stuck == "read-back":
        shell.table.record(topic_id_partition).unproven = UnprovenCopy(
            base_offset=0, failures=1, until_s=shell.clock.monotonic_s() + 5, reason="its remote copy is missing"
        )
    elif stuck == "pause":
        shell.guard.paused[topic_id_partition.topic_id] = "deletes and trims are paused"
    else:
        holder = Holder(group="billing", offset=Offset(0), reason="it has read up to 0")
        shell.table.record(topic_id_partition).trim_hold = TrimHold(allowed=(), held_bytes=1, holders=((holder, 1),))
    await pressed.watch(TRIM).look()
    assert set(shell.table.pressure_trims) == {other.view.topic_id_partition}


async def test_what_is_halted_does_not_stand_in_for_what_can_be_trimmed(pressed: Pressed) -> None:
    """Another cluster's data, a topic that has lost its events: its lane trims nothing until somebody mends it."""
    first, other = await older_and_other(pressed)
    topic_id_partition, other_topic_id_partition = first.view.topic_id_partition, other.view.topic_id_partition
    pressed.disks.free_bytes = SIZE // 10 - 1
    halted = {topic_id_partition.topic: "it is another cluster's"}
    for policy in (TRIM, DROP):
        for pressed.halted, asked in (({}, topic_id_partition), (halted, other_topic_id_partition)):
            await pressed.watch(policy).look()
            assert set(pressed.shell.table.pressure_trims) == {asked}
    pressed.disks.free_bytes = 0
    await pressed.watch(TRIM).look()
    assert topic_id_partition not in pressed.shell.table.pressure_trims
    await pressed.watch(DROP).look()
    assert pressed.shell.table.pressure_trims[topic_id_partition].last_resort > 0, (
        "once nothing else is left, for the broker is to live"
    )


async def test_one_object_that_the_store_refuses_does_not_stand_in_for_others(
    pressed: Pressed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was archived, or is forbidden: no error that says so."""
    shell = pressed.shell
    first, other = await older_and_other(pressed)
    fetch = shell.store.fetch_object

    async def archived(key: str, **options: Any) -> bytes:
        if key.startswith("plain"):
            raise StoreError(verb="fetch", key=key, reason="InvalidObjectState")
        return await fetch(key, **options)

    monkeypatch.setattr(shell.store, "fetch_object", archived)
    pressed.disks.free_bytes = SIZE // 10 - 1
    await pressed.watch(TRIM).look()
    with pytest.raises(StoreError):
        await shell.trim.run(first)
    await pressed.watch(TRIM).look()
    assert set(shell.table.pressure_trims) == {other.view.topic_id_partition}
    await shell.trim.run(other)
    assert {topic_id_partition.topic for topic_id_partition, _ in shell.broker.deleted} == {"compressed"}


class NotOurs:
    """An ``Ownership`` that says ``error``."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def require_role(self) -> None:
        return None

    async def confirm(
        self, topic_id_partition: TopicIdPartition, *, anew: bool = False, place: str | None = None
    ) -> None:
        raise self.error


ANOTHERS = NotOwnedError(topic="plain", key="owners/plain.json", reason="names another cluster")
EXCHANGED = WrongPlaceError(topic="plain", topic_id="id", key="owners/plain.json", here="place cold", said="place warm")
AWAY = StoreError(verb="fetch", key="owners/plain.json", reason="away")


async def test_of_what_another_cluster_owns_nothing_counts_as_remote(pressed: Pressed) -> None:
    """Rule 11.  What was in the trash before it lifted the question for all that came after it."""
    shell = pressed.shell
    tiered, local = await across_the_start(pressed, log_start_offset=0)
    topic_id_partition = tiered.view.topic_id_partition
    start = PartitionState(remote_log_start_offset=local.segments[2].base_offset, remote_log_start_epoch=LeaderEpoch(0))
    await shell.state.publish_partition_state(topic_id_partition, start)
    pressed.disks.free_bytes = 0
    await pressed.watch(TRIM).look()
    trim = replaced_ownership(shell.trim, NotOurs(ANOTHERS))
    with pytest.raises(NotOwnedError):
        await trim.run(tiered)
    assert shell.broker.deleted == [(topic_id_partition, local.segments[2].base_offset)], (
        "what nobody may read, and no more"
    )
    assert shell.state.partition_state(topic_id_partition).held_offset == 0


@pytest.mark.parametrize(
    ("error", "is_last_resort", "goes"),
    [
        pytest.param(ANOTHERS, False, False, id="another's, and others have something to give"),
        pytest.param(ANOTHERS, True, True, id="another's, and nothing else is left"),
        pytest.param(EXCHANGED, False, False, id="places are exchanged, and others have something to give"),
        pytest.param(EXCHANGED, True, True, id="places are exchanged, and nothing else is left"),
        pytest.param(AWAY, False, True, id="the store is away: a broker waits for none"),
    ],
)
async def test_with_drop_oldest_what_may_be_anothers_is_a_loss_and_told(
    pressed: Pressed, error: Exception, is_last_resort: bool, goes: bool
) -> None:
    shell = pressed.shell
    first, _ = await older_and_other(pressed)
    topic_id_partition = first.view.topic_id_partition
    last = shell.table.local.partitions[topic_id_partition].segments[-1].base_offset
    resort = last if is_last_resort else Offset(-1)
    shell.table.pressure_trims = {topic_id_partition: PressureTrim(offset=last, drops=True, last_resort=resort)}
    trim = replaced_ownership(shell.trim, NotOurs(error))
    with capture_logs() as logs, nullcontext() if goes else pytest.raises(type(error)):
        await trim.run(first)
    assert [offset for _, offset in shell.broker.deleted] == ([last] if goes else [])
    lost = [log for log in logs if log["event"] == "segment.dropped"]
    assert len(lost) == (len(shell.table.local.partitions[topic_id_partition].sealed_segments) if goes else 0)


async def test_what_is_undone_right_before_it_goes_stays(pressed: Pressed, monkeypatch: pytest.MonkeyPatch) -> None:
    """An undelete that came while the process stood still: it has said that all is back."""
    shell = pressed.shell
    tiered, _ = await across_the_start(pressed, log_start_offset=0)
    topic_id_partition = tiered.view.topic_id_partition
    pressed.disks.free_bytes = SIZE // 10 - 1
    await pressed.watch(TRIM).look()
    catch_up = shell.state.catch_up

    async def with_an_undelete() -> None:
        back = PartitionState(
            remote_log_start_offset=Offset(0), remote_log_start_epoch=LeaderEpoch(0), start_generation=1
        )
        await shell.state.publish_partition_state(topic_id_partition, back)
        await catch_up()

    monkeypatch.setattr(shell.state, "catch_up", with_an_undelete)
    await shell.trim.run(tiered)
    assert shell.broker.deleted == []


async def test_a_follower_that_is_late_hides_no_loss(pressed: Pressed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader has moved its log start, and answers that not all have: nobody was told of what went."""
    tiered = await below_reserve(pressed, DROP, copied=False)
    shell, topic_id_partition = pressed.shell, tiered.view.topic_id_partition
    last = shell.table.local.partitions[topic_id_partition].segments[-1].base_offset
    shell.broker.last_stable_offsets[topic_id_partition] = last + 1
    delete = shell.broker.delete_records

    async def late(*args: Any, **options: Any) -> Any:
        answers = await delete(*args, **options)
        return {one: replace(answer, error="REQUEST_TIMED_OUT") for one, answer in answers.items()}

    monkeypatch.setattr(shell.broker, "delete_records", late)
    with capture_logs() as logs:
        await shell.trim.run(tiered)
    told = [log["base_offset"] for log in logs if log["event"] == "segment.dropped"]
    assert told == [segment.base_offset for segment in shell.table.local.partitions[topic_id_partition].sealed_segments]


def replaced_ownership(trim: TrimTask, ownership: NotOurs) -> TrimTask:
    """``trim``, which asks ``ownership``."""
    other = copy(trim)
    other._ownership = ownership
    return other


async def test_one_wrong_byte_read_once_does_not_fill_the_disk(
    pressed: Pressed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the lack of room asks for this segment: it was never looked at again (simulation, cluster seed 608)."""
    tiered = await below_reserve(pressed, TRIM)
    shell, topic_id_partition = pressed.shell, tiered.view.topic_id_partition
    fetch = shell.store.fetch_object

    async def damaged(key: str, *, max_bytes: int) -> bytes:
        return b"?" + bytes(await fetch(key, max_bytes=max_bytes))[1:]

    with monkeypatch.context() as once:
        once.setattr(shell.store, "fetch_object", damaged)
        await shell.trim.run(tiered)
    assert shell.broker.deleted == []
    await pressed.watch(TRIM).look()
    assert shell.table.pressure_trims == {}
    await pressed.pass_time(10)
    await pressed.watch(TRIM).look()
    await shell.trim.run(tiered)
    assert shell.broker.deleted == [
        (topic_id_partition, shell.table.local.partitions[topic_id_partition].segments[-1].base_offset)
    ]


async def test_what_is_trimmed_and_not_deleted_yet_counts_as_free(pressed: Pressed) -> None:
    """A broker takes minutes: until then nothing more goes."""
    tiered = await below_reserve(pressed, DROP)
    local = pressed.shell.table.local.partitions[tiered.view.topic_id_partition]
    going = sum(segment.size_bytes for segment in local.sealed_segments)
    pressed.shell.table.record(tiered.view.topic_id_partition).log_start_offset = local.segments[-1].base_offset
    pressed.disks.free_bytes = SIZE // 10 - going
    await pressed.watch(DROP).look()
    assert pressed.shell.table.pressure_trims == {}


async def test_what_is_not_remote_goes_only_below_the_high_watermark_and_is_told(pressed: Pressed) -> None:
    tiered = await below_reserve(pressed, DROP, copied=False)
    shell, topic_id_partition = pressed.shell, tiered.view.topic_id_partition
    segments = shell.table.local.partitions[topic_id_partition].segments
    shell.broker.last_stable_offsets[topic_id_partition] = segments[2].base_offset + 1
    with capture_logs() as logs:
        await shell.trim.run(tiered)
    state = shell.state.partition_state(topic_id_partition)
    assert (state.trim_offset, state.held_offset) == (segments[2].base_offset, 0)
    assert shell.broker.deleted == [(topic_id_partition, segments[2].base_offset)]
    assert shell.state.partition_state(topic_id_partition).trim_offset == segments[2].base_offset
    lost = [log for log in logs if log["event"] == "segment.dropped"]
    assert [one["base_offset"] for one in lost] == [0, segments[1].base_offset]
    assert {(one["log_level"], one["data_lost"]) for one in lost} == {("error", True)}


async def test_with_the_store_away_drop_oldest_does_not_wait_for_it(
    pressed: Pressed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the disk would fill up behind a read-back that never comes; and it waits for no group."""
    tiered = await below_reserve(pressed, DROP)
    shell, asked = pressed.shell, list[str]()

    async def away(key: str, *args: object, **kwargs: object) -> None:
        asked.append(key)
        raise StoreError(verb="fetch", key=key, reason="away")

    monkeypatch.setattr(shell.store, "fetch_object", away)
    shell.broker.last_stable_offsets[tiered.view.topic_id_partition] = 10**9
    shell.policy = TopicPolicy(holds=TrimHolds(groups=("billing",)))
    await shell.trim.run(shell.tiered(tiered.view.topic_id_partition))
    assert shell.broker.deleted
    assert len(asked) == 1, "tried once, and not again for every segment"


NO_DATA_KEY = [
    pytest.param(KeyServiceError(service="KMS", verb="unwrap", reason="no answer"), True, id="the key service is away"),
    pytest.param(KeyRefusedError(verb="unwrap", key_id="k", reason="disabled"), False, id="it refuses: maybe one key"),
    pytest.param(DataKeyError(key_id="k", reason="not of mine"), False, id="one does not open"),
]


@pytest.mark.parametrize(("error", "once"), NO_DATA_KEY[:2])
async def test_drop_oldest_waits_for_no_data_key(
    pressed: Pressed, monkeypatch: pytest.MonkeyPatch, error: TiersidecarError, *, once: bool
) -> None:
    """The disk filled up while the read-back waited for a key service."""
    tiered = await below_reserve(pressed, DROP)
    shell, steps = pressed.shell, list[int]()

    async def sealed(step: TrimStep) -> None:
        steps.append(step.local.base_offset)
        raise error

    monkeypatch.setattr(shell.trim._verifier, "verify", sealed)
    shell.broker.last_stable_offsets[tiered.view.topic_id_partition] = 10**9
    await shell.trim.run(shell.tiered(tiered.view.topic_id_partition))
    assert shell.broker.deleted
    assert (len(steps) == 1) == once, "another step may have a key that opens"


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(DataKeyError(key_id="k", reason="not of mine"), id="a key pair that the configuration lacks"),
        pytest.param(UnknownPlaceError(verb="fetch", key="@gone/a", place="gone"), id="a place that it lacks"),
    ],
)
@pytest.mark.parametrize("is_last_resort", [False, True])
async def test_drop_oldest_drops_what_the_configuration_does_not_open_as_a_last_resort(
    pressed: Pressed, monkeypatch: pytest.MonkeyPatch, error: TiersidecarError, *, is_last_resort: bool
) -> None:
    """Or a manifest that somebody spoiled: the local copy is the only one."""
    shell = pressed.shell
    first, _ = await older_and_other(pressed)
    topic_id_partition = first.view.topic_id_partition
    last = shell.table.local.partitions[topic_id_partition].segments[-1].base_offset
    resort = last if is_last_resort else Offset(-1)
    shell.table.pressure_trims = {topic_id_partition: PressureTrim(offset=last, drops=True, last_resort=resort)}

    async def sealed(step: TrimStep) -> None:
        raise error

    monkeypatch.setattr(shell.trim._verifier, "verify", sealed)
    await shell.trim.run(first)
    assert [offset for _, offset in shell.broker.deleted] == ([last] if is_last_resort else [])


@pytest.mark.parametrize(("error", "once"), NO_DATA_KEY)
async def test_a_data_key_that_does_not_open_halts_no_partition_that_a_full_disk_needs(
    pressed: Pressed, monkeypatch: pytest.MonkeyPatch, error: TiersidecarError, *, once: bool
) -> None:
    tiered = await below_reserve(pressed, TRIM)
    shell = pressed.shell
    topic_id_partition = tiered.view.topic_id_partition

    async def sealed(step: TrimStep) -> None:
        raise error

    monkeypatch.setattr(shell.trim._verifier, "verify", sealed)
    with suppress(RetriableError):
        await shell.trim.run(shell.tiered(topic_id_partition))
    assert shell.broker.deleted == []
    found = shell.table.record(topic_id_partition).unproven
    assert found is not None
    assert f"is unreadable: {error}" in found.reason


async def older_and_other(pressed: Pressed) -> tuple[TieredPartition, TieredPartition]:
    """Two partitions that are remote; of the first the segments are older."""
    shell = pressed.shell
    first, other = (
        shell.tiered(shell.topic_id_partition("plain-0")),
        shell.tiered(shell.topic_id_partition("compressed-0")),
    )
    for tiered in (first, other):
        await shell.copy.run(tiered)
        shell.broker.last_stable_offsets[tiered.view.topic_id_partition] = 10**9
    topic_id_partition = first.view.topic_id_partition
    local = shell.table.local.partitions[topic_id_partition]
    old = replace(local, segments=tuple(replace(segment, modified_ms=0) for segment in local.segments))
    shell.table.local = replace(shell.table.local, partitions={**shell.table.local.partitions, topic_id_partition: old})
    return first, other


@pytest.mark.parametrize("damage", ["missing", "corrupt"])
async def test_what_the_store_has_damaged_goes_last_with_drop_oldest(pressed: Pressed, damage: str) -> None:
    """Rule 1: the broker's copy is the only good one.  It was dropped as soon as the read-back found the damage, though another
    partition had enough to give that is whole in the store; and all after it were told as lost, which they were not."""
    shell = pressed.shell
    first, other = await older_and_other(pressed)
    topic_id_partition = first.view.topic_id_partition
    damaged = list(shell.metadata.list_remote_log_segments(topic_id_partition))[1]
    key = recorded_keys(damaged, shell.settings.key_prefix).log
    if damage == "missing":
        await shell.store.delete_objects([key])
    else:
        data = bytearray(await shell.store.fetch_object(key, max_bytes=2**30))
        data[200] ^= 1
        await shell.store.put_object(key, BytesBody(bytes(data)))
    missing = sum(segment.size_bytes for segment in shell.table.local.partitions[topic_id_partition].segments[:3])
    pressed.disks.free_bytes = SIZE // 10 - missing
    await pressed.watch(DROP).look()
    assert set(shell.table.pressure_trims) == {topic_id_partition}
    await shell.trim.run(first)
    assert shell.broker.deleted == [(topic_id_partition, damaged.start_offset)], "up to the damaged one"
    await pressed.watch(DROP).look()
    assert set(shell.table.pressure_trims) == {other.view.topic_id_partition}, (
        "it is known now, and the other has enough"
    )
    pressed.disks.free_bytes = 0
    await pressed.watch(DROP).look()
    with capture_logs() as logs:
        await shell.trim.run(first)
    assert shell.broker.deleted[-1] == (
        topic_id_partition,
        shell.table.local.partitions[topic_id_partition].segments[-1].base_offset,
    )
    assert [one["base_offset"] for one in logs if one["event"] == "segment.dropped"] == [damaged.start_offset]
    assert shell.table.record(topic_id_partition).unproven is None, "what is gone waits for nothing"


async def test_with_the_store_away_since_the_start_drop_oldest_does_not_wait_for_it_either(
    pressed: Pressed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is known of the epochs before those of the disk, which only a blob in the store has."""
    tiered = await below_reserve(pressed, DROP)
    shell, topic_id_partition = pressed.shell, tiered.view.topic_id_partition
    last = shell.table.local.partitions[topic_id_partition].segments[-1].base_offset
    shell.broker.last_stable_offsets[topic_id_partition] = 10**9
    shell.lineages.forget(topic_id_partition)

    async def away(key: str, *args: object, **kwargs: object) -> None:
        raise StoreError(verb="fetch", key=key, reason="away", is_away=True)

    monkeypatch.setattr(shell.store, "fetch_object", away)
    monkeypatch.setattr(shell.store, "fetch_range", away)
    pressures, shell.table.pressure_trims = shell.table.pressure_trims, {}
    shell.policy = TopicPolicy(local_retention_bytes=0)
    with pytest.raises(StoreError):
        await shell.trim.run(shell.tiered(topic_id_partition))
    assert shell.broker.deleted == [], "no full disk forces it"
    shell.table.pressure_trims = pressures
    await shell.trim.run(shell.tiered(topic_id_partition))
    assert shell.broker.deleted == [(topic_id_partition, last)]


async def test_while_the_lineage_is_not_known_only_what_is_forced_goes(
    pressed: Pressed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the epochs of the disk alone it is not known what retention may take."""
    tiered = await below_reserve(pressed, DROP)
    shell, topic_id_partition = pressed.shell, tiered.view.topic_id_partition
    second = shell.table.local.partitions[topic_id_partition].segments[1].base_offset
    shell.table.pressure_trims = {topic_id_partition: PressureTrim(offset=second, drops=True, last_resort=second)}
    shell.broker.last_stable_offsets[topic_id_partition] = 10**9
    shell.policy = TopicPolicy(local_retention_bytes=0)

    async def unreadable(asked: TopicIdPartition, **options: Any) -> None:
        raise StoreError(verb="fetch", key=str(asked), reason="archived")

    monkeypatch.setattr(shell.lineages, "lineage", unreadable)
    with pytest.raises(StoreError, match="archived"):
        await shell.trim.run(shell.tiered(topic_id_partition))
    assert shell.broker.deleted == [(topic_id_partition, second)]


async def test_while_the_lineage_is_not_known_trim_copied_takes_nothing_for_trash(
    pressed: Pressed, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = pressed.shell
    tiered, local = await across_the_start(pressed, log_start_offset=0)
    topic_id_partition = tiered.view.topic_id_partition
    start = PartitionState(remote_log_start_offset=local.segments[2].base_offset, remote_log_start_epoch=LeaderEpoch(0))
    await shell.state.publish_partition_state(topic_id_partition, start)
    pressed.disks.free_bytes = 0
    await pressed.watch(TRIM).look()

    async def unreadable(asked: TopicIdPartition, **options: Any) -> None:
        raise StoreError(verb="fetch", key=str(asked), reason="archived")

    monkeypatch.setattr(shell.lineages, "lineage", unreadable)
    with pytest.raises(StoreError, match="archived"):
        await shell.trim.run(tiered)
    assert shell.broker.deleted == []


async def test_trim_copied_never_passes_a_store_that_is_away(pressed: Pressed, monkeypatch: pytest.MonkeyPatch) -> None:
    tiered = await below_reserve(pressed, TRIM)

    async def away(key: str, *args: object, **kwargs: object) -> None:
        raise StoreError(verb="fetch", key=key, reason="away")

    monkeypatch.setattr(pressed.shell.store, "fetch_object", away)
    with pytest.raises(StoreError):
        await pressed.shell.trim.run(tiered)
    assert pressed.shell.broker.deleted == []
    assert pressed.telemetry.value(DROPPED_BYTES, topic="plain") is None


async def test_what_is_known_of_each_disk_is_on_the_table_and_measured(pressed: Pressed) -> None:
    watch = pressed.watch(TRIM)
    await watch.look()
    (note,) = pressed.shell.table.disks
    assert (note.log_dirs, note.size_bytes, note.free_bytes) == ((pressed.disks.log_dir,), SIZE, SIZE // 2)
    assert note.state.value == "ok"
    assert pressed.telemetry.value(DISK_FREE_BYTES, log_dir=pressed.disks.log_dir) == SIZE // 2
    assert pressed.telemetry.value(DISK_SIZE_BYTES, log_dir=pressed.disks.log_dir) == SIZE
    pressed.disks.free_bytes = 0
    with capture_logs() as logs:
        await watch.look()
    (note,) = pressed.shell.table.disks
    assert (note.free_bytes, note.state.value) == (0, "below_reserve")
    log_dir = pressed.disks.log_dir
    for state in ("ok", "filling", "below_reserve"):
        assert pressed.telemetry.value(DISK_STATE, log_dir=log_dir, state=state) == (state == "below_reserve")
    (told,) = [log for log in logs if log["event"] == "disk.pressure"]
    assert (
        told.items()
        >= {
            "log_dirs": [log_dir],
            "state": "below_reserve",
            "free_bytes": 0,
            "size_bytes": SIZE,
            "seconds_to_full": None,
            "policy": "trim-copied",
        }.items()
    )


async def test_an_alarm_does_not_end_and_begin_with_each_look(pressed: Pressed) -> None:
    """It ends well above where it began: else it would be told at each file that comes and goes."""
    watch = pressed.watch()
    with capture_logs() as logs:
        for free_bytes in (SIZE // 10 - 1, SIZE // 10, SIZE // 10 - 1, SIZE // 10):
            pressed.disks.free_bytes = free_bytes
            await watch.look()
    assert [log["state"] for log in logs if log["event"] == "disk.pressure"] == ["below_reserve"]


async def test_it_looks_every_five_seconds(pressed: Pressed) -> None:
    looking = asyncio.create_task(pressed.watch().run())
    await pressed.pass_time(4.9)
    pressed.disks.free_bytes = 0
    assert pressed.telemetry.value(DISK_FREE_BYTES, log_dir=pressed.disks.log_dir) == SIZE // 2
    await pressed.pass_time(0.1)
    assert pressed.telemetry.value(DISK_FREE_BYTES, log_dir=pressed.disks.log_dir) == 0
    looking.cancel()
    with suppress(asyncio.CancelledError):
        await looking


async def test_a_disk_that_is_gone_is_judged_anew_when_it_is_back(
    pressed: Pressed, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = pressed.watch()
    pressed.disks.free_bytes = 0
    await watch.look()
    with monkeypatch.context() as unplugged:

        async def none() -> Mapping[str, DiskSpace]:
            return {}

        unplugged.setattr(pressed.disks, "disk_spaces", none)
        await watch.look()
    assert (pressed.shell.table.disks, pressed.shell.table.disk_troubles) == ([], {})
    with capture_logs() as logs:
        await watch.look()
    assert [log["state"] for log in logs if log["event"] == "disk.pressure"] == ["below_reserve"]


async def test_pins_that_go_first_count_as_free(pressed: Pressed) -> None:
    """Only the pins on this disk: what another gives is no room here."""
    await below_reserve(pressed, TRIM)
    shell, missing = pressed.shell, 1000
    pressed.disks.free_bytes = SIZE // 10 - missing
    await pressed.watch(TRIM).look()
    assert shell.table.pressure_trims
    shell.table.pins.add(pin_of(0, 50, size_bytes=missing, log_dir="/another"))
    await pressed.watch(TRIM).look()
    assert shell.table.pressure_trims
    shell.table.pins.add(pin_of(50, 99, size_bytes=missing, log_dir=pressed.disks.log_dir))
    await pressed.watch(TRIM).look()
    assert shell.table.pressure_trims == {}
