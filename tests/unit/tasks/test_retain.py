"""The retain lane: expiry first, then the trim, and neither where nothing may be deleted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.delete_switch import DeleteSwitch
from tests.support.segments import TOPIC_ID_PARTITION
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.errors import CorruptDataError, StoreError
from tiersidecar.domain.ids import BrokerId, Uuid
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LeaderView
from tiersidecar.tasks.retain import RetainTask

PARTITION = TieredPartition(
    view=LeaderView(
        topic_id_partition=TOPIC_ID_PARTITION,
        leader_id=BrokerId(1),
        leader_epoch=LeaderEpoch(0),
        replicas=(),
        in_sync_replicas=(),
    ),
    role=PartitionRole.LEADER,
    policy=TopicPolicy(),
)
AWAY = StoreError(verb="delete", key="k", reason="away")
CORRUPT = CorruptDataError(where="f", position=7, reason="bad CRC")


class Step:
    """Expiry or trim: notes when it runs, and ends as told."""

    def __init__(self, name: str, done: list[str]) -> None:
        self.name, self.done = name, done
        self.has_work, self.error, self.is_asked = True, None, False

    error: Exception | None

    def owes_an_answer(self, partition: object) -> bool:
        return self.is_asked

    async def answer_undelete(self, partition: object) -> None:
        if self.is_asked:
            self.done.append("answer")

    def may_have_work(self, partition: object) -> bool:
        return self.has_work

    async def run(self, partition: object) -> None:
        assert partition is PARTITION
        self.done.append(self.name)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error


class Stage:
    def __init__(self) -> None:
        self.done: list[str] = []
        self.expire: Any = Step("expire", self.done)
        self.trim: Any = Step("trim", self.done)
        self.guard, self.slots = DeleteSwitch(), asyncio.Semaphore(1)
        self.lane = RetainTask(
            expire=self.expire,  # type: ignore[arg-type]
            trim=self.trim,  # type: ignore[arg-type]
            guard=self.guard,
            slots=self.slots,
        )


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.mark.parametrize(
    ("expire", "trim", "reason", "has_work"),
    [
        pytest.param(True, True, "", True, id="both"),
        pytest.param(True, False, "", True, id="expiry alone"),
        pytest.param(False, True, "", True, id="the trim alone"),
        pytest.param(False, False, "", False, id="neither"),
        pytest.param(True, True, "deletes.enabled is false", False, id="nothing may be deleted"),
    ],
)
def test_whether_there_is_work(stage: Stage, expire: bool, trim: bool, reason: str, has_work: bool) -> None:
    stage.expire.has_work, stage.trim.has_work, stage.guard.reason_not_to_delete = expire, trim, reason
    assert stage.lane.has_work(PARTITION) is has_work
    assert stage.lane.may_act(PARTITION) is not bool(reason)


@pytest.mark.parametrize(
    ("error", "done"),
    [
        pytest.param(None, ["expire", "trim"], id="one after the other"),
        pytest.param(AWAY, ["expire", "trim"], id="a store that refuses lets no disk fill up"),
        pytest.param(CORRUPT, ["expire", "trim"], id="nor does a remote log that is damaged"),
        pytest.param(ValueError("a bug"), ["expire"], id="a bug ends the round"),
    ],
)
async def test_a_round(stage: Stage, error: Exception | None, done: list[str]) -> None:
    stage.expire.error = error
    if error is None:
        await stage.lane.run(PARTITION)
    else:
        with pytest.raises(type(error)):
            await stage.lane.run(PARTITION)
    assert stage.done == done
    assert not stage.slots.locked()


async def test_nothing_runs_where_nothing_may_be_deleted(stage: Stage) -> None:
    stage.guard.reason_not_to_delete = "deletes.enabled is false"
    await stage.lane.run(PARTITION)
    assert stage.done == []


async def test_an_undelete_is_answered_while_deletes_are_paused(stage: Stage) -> None:
    """Who has found a fault pauses first, and brings back then."""
    stage.guard.paused, stage.expire.is_asked = {TOPIC_ID_PARTITION.topic_id: "deletes and trims are paused"}, True
    assert stage.lane.has_work(PARTITION)
    await stage.lane.run(PARTITION)
    assert stage.done == ["answer"]


@pytest.mark.parametrize(
    ("paused", "done"),
    [
        pytest.param(TOPIC_ID_PARTITION.topic_id, [], id="this topic"),
        pytest.param(Uuid(b"another-16-bytes"), ["expire", "trim"], id="another one"),
    ],
)
async def test_a_paused_topic_stands_still_alone(stage: Stage, paused: Uuid, done: list[str]) -> None:
    stage.guard.paused = {paused: "deletes and trims are paused"}
    assert stage.lane.has_work(PARTITION) is bool(done)
    await stage.lane.run(PARTITION)
    assert stage.done == done


async def test_no_more_rounds_at_once_than_there_are_slots(stage: Stage) -> None:
    await asyncio.gather(stage.lane.run(PARTITION), stage.lane.run(PARTITION))
    assert stage.done == ["expire", "trim", "expire", "trim"]
