"""A lane of a partition that one of the sidecars' own topics has forgotten does nothing, and says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.expiry_world import FixedLineage
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.scripted import MemoryStateLog
from tests.support.segments import TOPIC_ID_PARTITION, remote_segment
from tests.unit.tasks.test_catch_up import Story, led
from tiersidecar.domain.errors import TopicLossError
from tiersidecar.domain.ids import BrokerId, Uuid
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.tasks.log_start_watch import LostLogs
from tiersidecar.tasks.partition_table import PartitionTable

TRIMMED = PartitionState(trim_offset=Offset(100), trim_epoch=LeaderEpoch(0), owner_seen_ms=7)


LINEAGE = FixedLineage(Lineage((EpochEntry(LeaderEpoch(0), Offset(0)),)))


class Stage:
    def __init__(self) -> None:
        self.table, self.metadata, self.state, self.story = (
            PartitionTable(),
            MemoryMetadataLog(),
            MemoryStateLog(),
            Story(),
        )
        self.is_claimed = True
        lost = LostLogs(table=self.table, metadata=self.metadata, state=self.state, claims=self, lineages=LINEAGE)
        self.work = lost.before(self.story.work)

    async def has_claimed(self, topic_id: Uuid) -> bool:
        return self.is_claimed

    async def start_copy(self) -> None:
        segment = remote_segment(0, 9)
        await self.metadata.publish(replace(segment, state=State.COPY_SEGMENT_STARTED))

    async def copy(self) -> None:
        await self.start_copy()
        await self.metadata.publish(
            RemoteLogSegmentMetadataUpdate(
                remote_log_segment_id=remote_segment(0, 9).remote_log_segment_id,
                broker_id=BrokerId(1),
                event_timestamp_ms=0,
                state=State.COPY_SEGMENT_FINISHED,
                custom_metadata=None,
            )
        )

    async def run(self) -> str:
        """What stopped the lane; empty where it worked."""
        worked = len(self.story.lines)
        try:
            await self.work(led(0, TOPIC_ID_PARTITION))
        except TopicLossError as error:
            reason = str(error)
        else:
            reason = ""
        assert len(self.story.lines) == worked + (not reason)
        assert self.table.record(TOPIC_ID_PARTITION).lost_log == reason
        return reason


@pytest.fixture
async def stage() -> Stage:
    made = Stage()
    await made.metadata.assign([TOPIC_ID_PARTITION])
    return made


async def test_a_partition_that_nobody_knows_is_begun(stage: Stage) -> None:
    assert await stage.run() == ""
    await stage.start_copy()
    assert await stage.run() == "", "a copy that is not finished proves nothing"


async def test_remote_segments_without_a_record_halt_until_that_is_accepted(stage: Stage) -> None:
    await stage.copy()
    assert "no record of it" in await stage.run()
    await stage.state.accept_losses({"state": stage.state.topic_id}, by="test")
    assert await stage.run() == ""


async def test_what_native_tiering_left_is_taken_over(stage: Stage) -> None:
    """Nobody of ours has claimed the topic id in the store, so no state of ours is lost."""
    await stage.copy()
    stage.is_claimed = False
    assert await stage.run() == ""


async def test_a_record_that_says_nothing_is_one(stage: Stage) -> None:
    """As a release before this one left it."""
    await stage.copy()
    await stage.state.publish_partition_state(TOPIC_ID_PARTITION, PartitionState())
    assert await stage.run() == ""


async def test_a_trim_without_remote_segments_halts_until_they_are_back_or_that_is_accepted(stage: Stage) -> None:
    await stage.state.publish_partition_state(TOPIC_ID_PARTITION, TRIMMED)
    assert "the topic lost its events" in await stage.run()
    await stage.start_copy()
    assert "the topic lost its events" in await stage.run()
    await stage.state.accept_losses({"metadata": stage.metadata.topic_id}, by="test")
    assert await stage.run() == ""


async def test_a_topic_that_is_refused_is_no_affair_of_ours(stage: Stage) -> None:
    """Its segments are the broker's own."""
    await stage.copy()
    stage.table.refused_topics = {TOPIC_ID_PARTITION.topic: "native tiering is on"}
    assert await stage.run() == ""
