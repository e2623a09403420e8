"""What the roster tells of partitions that come and go (S-132)."""

from __future__ import annotations

from tests.support.golden import GOLDEN
from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.scripted import ScriptedBroker
from tiersidecar.adapters.log_dirs_fs.log_dirs import FilesystemLogDirs
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LeaderView
from tiersidecar.tasks.board import Board
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


async def test_what_is_no_longer_kept_is_forgotten_once_and_a_deleted_topic_only_when_its_remote_data_is_gone() -> None:
    log_dirs = FilesystemLogDirs([str(GOLDEN / "log-dirs" / "clean")], blocking=InlineBlocking(), clock=ManualClock())
    found = {str(one): one for one in (await log_dirs.scan()).partitions}
    plain, epochs = found["plain-0"], found["epochs-0"]
    board, broker, forgotten = Board(), ScriptedBroker(), list[TopicIdPartition]()
    roster = Roster(
        board=board,
        log_dirs=log_dirs,
        broker=broker,
        assignment=MemoryMetadataLog(),
        policy_for=lambda topic: TopicPolicy(),
        broker_id=US,
        clock=ManualClock(),
        telemetry=RecordedTelemetry(),
        forget=forgotten.append,
    )
    broker.views = (view(plain), view(epochs))
    await roster.look()
    assert forgotten == []
    board.departing.add(epochs)
    broker.views = (view(plain, leader=2),)
    await roster.look()
    await roster.look()
    assert forgotten == [plain], "moved away; the other one is still being cleaned up"
    board.departing.clear()
    await roster.look()
    assert forgotten == [plain, epochs]
