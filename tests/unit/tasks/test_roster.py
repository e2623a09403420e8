"""What the roster tells of partitions that come and go (S-132), and in which order it looks."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.golden import GOLDEN
from tests.support.inline_blocking import InlineBlocking
from tests.support.lane_parts import edges_of
from tests.support.manual_clock import ManualClock
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.scripted import ScriptedBroker
from tiersidecar.adapters.log_dirs_fs.log_dirs import FilesystemLogDirs
from tiersidecar.domain.errors import BrokerUnreachableError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.broker import DescribePartitions
from tiersidecar.ports.log_dirs import LogDirs
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.roster import Roster

US = BrokerId(1)


def view(partition: TopicIdPartition, leader: int = 1) -> LeaderView:
    broker = BrokerId(leader)
    return LeaderView(
        topic_id_partition=partition,
        leader_id=broker,
        leader_epoch=LeaderEpoch(0),
        replicas=(broker,),
        in_sync_replicas=(broker,),
    )


def roster_of(
    table: PartitionTable,
    log_dirs: LogDirs,
    broker: DescribePartitions,
    forget: Callable[[TopicIdPartition], None] = lambda partition: None,
) -> Roster:
    return Roster(
        table=table,
        log_dirs=log_dirs,
        broker=broker,
        assignment=MemoryMetadataLog(),
        policy_for=lambda topic: TopicPolicy(),
        broker_id=US,
        edges=edges_of(ManualClock(), telemetry=RecordedTelemetry()),
        forget=forget,
    )


async def test_what_is_no_longer_kept_is_forgotten_once_and_a_deleted_topic_only_when_its_remote_data_is_gone() -> None:
    log_dirs = FilesystemLogDirs([str(GOLDEN / "log-dirs" / "clean")], blocking=InlineBlocking(), clock=ManualClock())
    found = {str(partition): partition for partition in (await log_dirs.scan()).partitions}
    plain, epochs = found["plain-0"], found["epochs-0"]
    table, broker, forgotten = PartitionTable(), ScriptedBroker(), list[TopicIdPartition]()
    roster = roster_of(table, log_dirs, broker, forgotten.append)
    broker.views = (view(plain), view(epochs))
    await roster.look()
    assert forgotten == []
    table.departing.add(epochs)
    broker.views = (view(plain, leader=2),)
    await roster.look()
    await roster.look()
    assert forgotten == [plain], "moved away; the other one is still being cleaned up"
    table.departing.clear()
    await roster.look()
    assert forgotten == [plain, epochs]


class ElectedMeanwhile(ScriptedBroker):
    """The answer tells of a leader epoch that the files have from then on, and not before."""

    def __init__(self, log_dir: Path, partition: TopicIdPartition) -> None:
        super().__init__()
        self.checkpoint = log_dir / f"{partition.topic}-{partition.partition}" / "leader-epoch-checkpoint"
        self.is_away = False

    async def describe_partitions(self, topics: Sequence[str] | None = None) -> tuple[LeaderView, ...]:
        self.checkpoint.write_text("0\n2\n0 0\n9 40\n")
        if self.is_away:
            raise BrokerUnreachableError(address="broker", reason="away")
        return await super().describe_partitions(topics)


@pytest.mark.parametrize("is_away", [False, True], ids=["the broker answers", "the broker is away"])
async def test_files_are_looked_at_after_the_broker_said_who_leads(tmp_path: Path, is_away: bool) -> None:
    """Else a new leader would decide by a history that lacks the epochs of others since its last look."""
    log_dir = shutil.copytree(GOLDEN / "log-dirs" / "clean", tmp_path / "log-dir")
    log_dirs = FilesystemLogDirs([str(log_dir)], blocking=InlineBlocking(), clock=ManualClock())
    plain = next(partition for partition in (await log_dirs.scan()).partitions if partition.topic == "plain")
    table, broker = PartitionTable(), ElectedMeanwhile(log_dir, plain)
    broker.views, broker.is_away = (view(plain),), is_away
    with pytest.raises(BrokerUnreachableError) if is_away else nullcontext():
        await roster_of(table, log_dirs, broker).look()
    assert table.leader_epochs(plain)[-1] == (9, 40)


async def test_what_is_the_same_is_the_same_object_and_what_is_another_is_not() -> None:
    """A look takes up each of thousands of partitions a hundred times: by identity in no time."""
    log_dirs = FilesystemLogDirs([str(GOLDEN / "log-dirs" / "clean")], blocking=InlineBlocking(), clock=ManualClock())
    plain = next(partition for partition in (await log_dirs.scan()).partitions if partition.topic == "plain")
    table, broker = PartitionTable(), ScriptedBroker()
    roster = roster_of(table, log_dirs, broker)
    broker.views = (view(replace(plain)),)
    assert await roster.look() == ()
    first = table.assignment[plain]
    assert first.view.topic_id_partition is next(one for one in table.local.partitions if one == plain)
    broker.views = (view(replace(plain)),)
    assert await roster.look() == ()
    assert table.assignment[plain] is first
    grown = replace(view(replace(plain)), in_sync_replicas=(US, BrokerId(2)))
    broker.views = (grown,)
    assert await roster.look() == (), "its lanes go on"
    assert table.assignment[plain].view == grown
    broker.views = (replace(grown, leader_epoch=LeaderEpoch(1)),)
    (let_go,) = await roster.look()
    assert let_go.view.leader_epoch == 0
    assert table.assignment[plain].view.leader_epoch == 1
