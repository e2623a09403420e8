"""What ``tiersidecar delete-records`` finds to do, and says, over a scripted broker and a state topic in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.leaders_sidecar import lease_of
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.scripted import MemoryStateLog, ScriptedBroker
from tests.support.segments import TOPIC_ID_PARTITION, remote_segment
from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.adapters.clock import SystemClock
from tiersidecar.app.commands.delete_records import look_at_deletion
from tiersidecar.app.commands.session import Session
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.offsets import LeaderEpoch, Lineage, Offset
from tiersidecar.domain.seen_time import SeenTime
from tiersidecar.domain.segments import LeaderView
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.domain.trash import TrashKind
from tiersidecar.ports.broker import OffsetAnswer, OffsetSpec
from tiersidecar.ports.state_log import PartitionState

LOCAL_START, HIGH_WATERMARK, LEADER_EPOCH = 200, 300, LeaderEpoch(4)


class Broker(ScriptedBroker):
    async def list_offsets(self, partitions: Any, spec: Any, *, read_committed: bool = False) -> Any:
        offset = self.log_starts[TOPIC_ID_PARTITION] if spec == OffsetSpec.EARLIEST else HIGH_WATERMARK
        return {TOPIC_ID_PARTITION: OffsetAnswer(offset=Offset(offset), timestamp_ms=-1, leader_epoch=LEADER_EPOCH)}


class Metadata(MemoryMetadataLog):
    async def wait_until_ready(self, topic_id_partition: object) -> None:
        return None


class Command:
    """A partition with remote segments [0, 100) and [100, 200), led in epoch 4; deletes are done at once."""

    def __init__(self, directory: Path, delay: str = "0s") -> None:
        self.state, self.broker, self.metadata = MemoryStateLog(), Broker(), Metadata()
        self.broker.log_starts[TOPIC_ID_PARTITION] = LOCAL_START
        self.broker.views = (
            LeaderView(
                topic_id_partition=TOPIC_ID_PARTITION,
                leader_id=BrokerId(1),
                leader_epoch=LEADER_EPOCH,
                replicas=(BrokerId(1),),
                in_sync_replicas=(BrokerId(1),),
            ),
        )
        self.session = Session(
            config=load(
                directory,
                f"{LEAST}topics:\n- name: {TOPIC_ID_PARTITION.topic}\ndelete.delay: {delay}\nuser.delete.delay: {delay}\n",
            ),
            broker=self.broker,  # type: ignore[arg-type]
            state=self.state,
            metadata=self.metadata,
            clock=SystemClock(),
        )

    async def steps(self, offset: int) -> tuple[str, ...]:
        """What it would do."""
        intent = await look_at_deletion(self.session, TOPIC_ID_PARTITION.topic, TOPIC_ID_PARTITION.partition, offset)
        assert not intent.refusal
        return intent.steps

    async def delete(self, offset: int) -> PartitionState:
        """Do it; what is said then."""
        intent = await look_at_deletion(self.session, TOPIC_ID_PARTITION.topic, TOPIC_ID_PARTITION.partition, offset)
        assert intent.apply is not None
        await intent.apply()
        return self.state.partition_state(TOPIC_ID_PARTITION)


@pytest.fixture
async def command(tmp_path: Path) -> Command:
    made = Command(tmp_path)
    await made.metadata.assign([TOPIC_ID_PARTITION])
    for start in (0, 100):
        await made.metadata.publish(remote_segment(start, start + 99, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED))
    return made


def said(offset: int, epoch: int, *, trim: int | None = None) -> PartitionState:
    """By a user, once and for all."""
    trims = {} if trim is None else {"trim_offset": Offset(trim), "trim_epoch": LeaderEpoch(epoch)}
    deleted = PartitionState().with_delete(Offset(offset), LeaderEpoch(epoch))
    return deleted.merged_with(PartitionState(**trims))  # type: ignore[arg-type]


async def test_remote_and_local_records_go_by_one_word(command: Command) -> None:
    assert len(await command.steps(250)) == 2
    assert await command.delete(250) == said(250, 4, trim=250)
    assert command.broker.deleted == [(TOPIC_ID_PARTITION, 250)]
    assert await command.steps(250) == (), "it is so already"


async def test_below_the_local_start_the_broker_is_not_asked(command: Command) -> None:
    assert await command.delete(150) == said(150, 4)
    assert command.broker.deleted == []
    assert await command.steps(150) == await command.steps(80) == ()


async def test_a_start_that_a_former_leader_said_spares_no_delete(command: Command) -> None:
    """After an unclean election it may be of records that are gone, and is forgotten with them."""
    await command.state.publish_partition_state(TOPIC_ID_PARTITION, said(190, 3))
    (step,) = await command.steps(150)
    assert "starts at 150" in step
    known = await command.delete(150)
    assert (known.remote_log_start_offset, known.remote_log_start_epoch) == (150, 4)
    assert await command.steps(150) == ()
    cut_off = Lineage.of([(0, 0), (4, 120)])  # epoch 3 has left nothing
    assert known.start_in(cut_off) == 150
    whole = Lineage.of([(0, 0), (3, 100), (4, 195)])
    assert known.start_in(whole) == 190, "where its history stands, the former start does too"


async def test_a_delete_that_was_said_and_never_reached_the_broker_is_done_in_full(command: Command) -> None:
    """It was said below the broker's start, which fell back after a crash since."""
    await command.state.publish_partition_state(TOPIC_ID_PARTITION, said(150, 4))
    command.broker.log_starts[TOPIC_ID_PARTITION] = 120
    assert await command.delete(150) == said(150, 4, trim=150)
    assert command.broker.deleted == [(TOPIC_ID_PARTITION, 150)]


async def test_where_retention_has_moved_the_start_as_far_a_users_delete_is_said_all_the_same(command: Command) -> None:
    """Or undoing retention's mistake would undo it, too."""
    await command.state.publish_partition_state(
        TOPIC_ID_PARTITION, PartitionState().with_start(Offset(190), LEADER_EPOCH)
    )
    (step,) = await command.steps(150)
    assert "no later undelete" in step
    known = await command.delete(150)
    assert (known.remote_log_start_offset, [one.offset for one in known.user_deletes]) == (190, [150])
    assert await command.steps(150) == ()


async def test_what_a_later_leader_has_said_less_of_is_not_in_force(command: Command) -> None:
    await command.state.publish_partition_state(TOPIC_ID_PARTITION, said(50, 9))
    with pytest.raises(BrokerRefusedError, match="FENCED_LEADER_EPOCH"):
        await command.delete(150)
    assert command.broker.deleted == []


async def test_untiered_topics_and_offsets_past_the_end_are_refused(command: Command) -> None:
    intent = await look_at_deletion(
        command.session, TOPIC_ID_PARTITION.topic, TOPIC_ID_PARTITION.partition, HIGH_WATERMARK + 1
    )
    assert "above the high watermark 300" in intent.refusal


async def test_within_the_delay_all_can_be_undone_the_brokers_part_too(tmp_path: Path) -> None:
    """What goes is in the trash before the start moves; nothing else is done yet (issue 16: trash)."""
    command = Command(tmp_path, delay="1h")
    await command.metadata.assign([TOPIC_ID_PARTITION])
    assert [step.endswith(", once 1h are over") for step in await command.steps(250)] == [True, True]
    known = await command.delete(250)
    assert (known.remote_log_start_offset, known.trim_offset, command.broker.deleted) == (250, -1, [])
    (entry,) = command.state.trash(TOPIC_ID_PARTITION)
    assert (entry.kind, entry.up_to, entry.due_ms - entry.decided_ms) == (TrashKind.USER, 250, 3_600_000)
    assert entry.by.endswith(", delete-records")
    assert [(one.offset, one.opened_ms) for one in known.user_deletes] == [(250, entry.id.opened_ms)]
    assert await command.steps(250) == (), "it is so already"


@pytest.mark.parametrize("behind_ms", [0, 3 * 3_600_000])
async def test_a_machine_whose_clock_is_behind_the_leaders_makes_nothing_due_too_soon(
    tmp_path: Path, behind_ms: int
) -> None:
    """The leader's sidecar carries it out by its own clock, and says in its lease what that has seen."""
    command, leader_ms = Command(tmp_path, delay="1h"), SystemClock().now_ms() + behind_ms
    await command.metadata.assign([TOPIC_ID_PARTITION])
    await command.state.publish_lease(lease_of(1, seen=SeenTime(until_ms=leader_ms)))
    await command.state.publish_lease(lease_of(2, seen=SeenTime(until_ms=leader_ms + 24 * 3_600_000)))
    await command.delete(250)
    (entry,) = command.state.trash(TOPIC_ID_PARTITION)
    assert entry.due_ms >= leader_ms + 3_600_000
    assert entry.due_ms < leader_ms + 2 * 3_600_000, "the clock of a broker that does not lead it is no matter"
