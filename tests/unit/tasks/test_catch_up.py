"""A new leader decides nothing before metadata and state are as of its leadership (S-180)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.metadata_events import ORDERS
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LeaderView
from tiersidecar.tasks.catch_up import CatchUp


def led(leader_epoch: int, topic_id_partition: TopicIdPartition = ORDERS) -> TieredPartition:
    us = BrokerId(1)
    view = LeaderView(
        topic_id_partition=topic_id_partition,
        leader_id=us,
        leader_epoch=LeaderEpoch(leader_epoch),
        replicas=(us,),
        in_sync_replicas=(us,),
    )
    return TieredPartition(view=view, role=PartitionRole.LEADER, policy=TopicPolicy())


class Story:
    """What happened, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.is_behind = False

    async def catch_up(self, topic_id_partition: TopicIdPartition) -> None:
        self.lines.append(f"caught up {topic_id_partition.partition}")
        if self.is_behind:
            raise MetadataNotReadyError(subject=str(topic_id_partition))

    async def work(self, partition: TieredPartition) -> None:
        self.lines.append(f"worked {partition.view.topic_id_partition.partition}@{partition.view.leader_epoch}")


class State:
    """What all partitions have in one."""

    def __init__(self, story: Story) -> None:
        self.story, self.is_behind = story, False

    async def catch_up(self) -> None:
        self.story.lines.append("caught up state")
        if self.is_behind:
            raise MetadataNotReadyError(subject="state")


def caught_up_with(story: Story) -> CatchUp:
    return CatchUp(story, State(story))


async def test_work_waits_for_the_metadata_once_in_each_leader_epoch() -> None:
    story = Story()
    work = caught_up_with(story).before(story.work)
    for leader_epoch in (3, 3, 5):
        await work(led(leader_epoch))
    assert story.lines == [
        *("caught up 0", "caught up state", "worked 0@3", "worked 0@3"),
        *("caught up 0", "caught up state", "worked 0@5"),
    ]


async def test_both_lanes_of_a_partition_share_what_one_has_waited_for_and_partitions_do_not() -> None:
    story = Story()
    caught_up = caught_up_with(story)
    copy, retain = caught_up.before(story.work), caught_up.before(story.work)
    await copy(led(3))
    await retain(led(3))
    await retain(led(3, replace(ORDERS, partition=1)))
    assert story.lines == [
        *("caught up 0", "caught up state", "worked 0@3", "worked 0@3"),
        *("caught up 1", "caught up state", "worked 1@3"),
    ]


async def test_nothing_is_done_while_the_metadata_is_behind() -> None:
    story = Story()
    story.is_behind = True
    work = caught_up_with(story).before(story.work)
    for _ in range(2):
        with pytest.raises(MetadataNotReadyError):
            await work(led(3))
    story.is_behind = False
    await work(led(3))
    assert story.lines == ["caught up 0"] * 3 + ["caught up state", "worked 0@3"]


async def test_nothing_is_done_while_the_state_is_behind() -> None:
    """Else a user's delete of the former epoch would be undone (simulation, cluster seed 922; S-067)."""
    story = Story()
    state = State(story)
    state.is_behind = True
    work = CatchUp(story, state).before(story.work)
    for _ in range(2):
        with pytest.raises(MetadataNotReadyError):
            await work(led(3))
    state.is_behind = False
    await work(led(3))
    assert story.lines == ["caught up 0", "caught up state"] * 3 + ["worked 0@3"]
