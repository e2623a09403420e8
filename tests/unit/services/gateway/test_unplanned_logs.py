"""What looks like part of a read-only mount, and is not in the gateway's plan (issue 21)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from tests.support.gateway_world import open_world
from tests.support.manual_clock import ManualClock, settle
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.scripted import ScriptedBroker
from tests.unit.services.gateway.test_fetch_rewrite import plain
from tests.unit.services.gateway.test_offset_rewrites import (
    LEADER_EPOCH,
    FixedLineage,
    leader_epochs,
    listed,
    row_after,
)
from tiersidecar.domain.errors import BrokerUnreachableError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.mounts import MOUNTED_START, MountedTopic
from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.broker import OffsetAnswer, OffsetSpec
from tiersidecar.services.gateway.mounted_logs import MountedLogs
from tiersidecar.services.gateway.unplanned_logs import UnplannedLogs

ORDERS, OTHER = Uuid(b"orders-topic-id!"), Uuid(b"other-topic-id!!")
PLANNED = TopicIdPartition(topic_id=ORDERS, topic="orders", partition=1)
ADDED = replace(PLANNED, partition=2)
SEEDED = TopicIdPartition(topic_id=OTHER, topic="other", partition=0)
PLAN = {"orders": MountedTopic(topic_id=ORDERS, partitions=2)}
OWN = TopicIdPartition(topic_id=Uuid(b"own-topic-id-..."), topic="own", partition=0)
LATER = TopicIdPartition(topic_id=Uuid(b"later-topic-id.."), topic="later", partition=0)
GROUPS = TopicIdPartition(topic_id=Uuid(b"groups-topic-id."), topic="__consumer_offsets", partition=0)
EMPTY = (MOUNTED_START, MOUNTED_START)
END = 245
"""Of the run `plain`."""


class Cluster(ScriptedBroker):
    """Whose topics are the partitions that have a log start; ``asked`` notes of which it was asked where they begin."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = list[TopicIdPartition]()

    async def describe_partitions(self, topics: Sequence[str] | None = None) -> tuple[LeaderView, ...]:
        here = (BrokerId(2),)
        return tuple(
            LeaderView(
                topic_id_partition=one, leader_id=here[0], leader_epoch=NO_EPOCH, replicas=here, in_sync_replicas=here
            )
            for one in self.log_starts
        )

    async def list_offsets(
        self, partitions: Mapping[TopicIdPartition, LeaderEpoch], spec: OffsetSpec | int, **flags: Any
    ) -> dict[TopicIdPartition, OffsetAnswer]:
        self.asked += partitions
        return await super().list_offsets(partitions, spec, **flags)


def gateway_of(
    broker: ScriptedBroker, clock: ManualClock, topic_ids: dict[str, Uuid], *, has_disk: bool = True
) -> MountedLogs:
    """A gateway on whose disks all those partitions are that the broker has, or none."""
    reader: Any = None
    return MountedLogs(
        planned={name: topic.topic_id for name, topic in PLAN.items()},
        unplanned=UnplannedLogs(
            planned=PLAN,
            seeded=lambda: list(broker.log_starts) if has_disk else (),
            topics=lambda: topic_ids,
            clock=clock,
        ),
        topic_id=topic_ids.get,
        led=lambda: list(broker.log_starts),
        reader=reader,
        clock=clock,
        telemetry=RecordedTelemetry(),
    )


async def test_a_partition_that_was_added_to_a_mounted_topic_is_no_part_of_the_mount() -> None:
    """The source may have one of this number, whose history has nothing to do with it.  The gateway stays ready for all others:
    whoever may alter the topic would else take it out of service."""
    mounts = gateway_of(ScriptedBroker(), ManualClock(), {})
    assert mounts.is_mounted(PLANNED)
    assert not mounts.halted(PLANNED)
    assert not mounts.is_mounted(ADDED)
    assert "source.mount.plan has 2 partitions" in mounts.halted(ADDED)
    assert mounts.reason_not_ready() == mounts.unplanned.reason_not_ready() == ""
    assert not mounts.halted(SEEDED), "of which nothing is known"


async def test_what_was_seeded_by_another_plan_is_neither_read_nor_written() -> None:
    broker, clock = ScriptedBroker(), ManualClock()
    mounts = gateway_of(broker, clock, {"orders": ORDERS, "other": OTHER})
    for partition in (PLANNED, SEEDED):
        broker.log_starts[partition] = MOUNTED_START
    assert not mounts.is_mounted_topic("other")
    with capture_logs() as logs:
        await mounts.unplanned.look(broker)
        await mounts.unplanned.look(broker)
    assert [one["event"] for one in logs] == ["gateway.mount.halted"], "once"
    assert mounts.halted(SEEDED) == mounts.unplanned.reason_not_ready()
    assert "by which the cluster was seeded" in mounts.halted(SEEDED)
    assert mounts.is_mounted_topic("other")
    assert mounts.is_mounted_topic(OTHER)
    assert not mounts.is_mounted(SEEDED), "nothing of a source is shown for it"
    assert not mounts.halted(PLANNED)
    assert mounts.reason_not_ready() == "", "of what is planned"


async def test_a_planned_name_under_another_id_is_not_written_either() -> None:
    """Two plans of the same source, which was formatted anew between them."""
    broker, seeded = ScriptedBroker(), replace(PLANNED, topic_id=OTHER)
    mounts = gateway_of(broker, ManualClock(), {"orders": OTHER})
    assert not mounts.is_mounted_topic("orders"), "an ordinary topic, as far as anybody knows"
    broker.log_starts[seeded] = MOUNTED_START
    await mounts.unplanned.look(broker)
    assert mounts.is_mounted_topic("orders")
    assert mounts.halted(seeded)


@pytest.mark.parametrize("error", [None, "NOT_LEADER_OR_FOLLOWER"])
async def test_the_leader_has_the_last_word(error: str | None) -> None:
    """A directory may be left of an earlier disk."""
    broker = ScriptedBroker()
    mounts = gateway_of(broker, ManualClock(), {})
    broker.log_starts[SEEDED], broker.error = (5, None) if error is None else (int(MOUNTED_START), error)
    await mounts.unplanned.look(broker)
    assert not mounts.halted(SEEDED)
    assert mounts.is_mounted_topic("other") is (error is not None), "nothing is written before it has spoken"


async def test_while_no_leader_can_be_asked_the_disk_s_word_refuses_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the first record is taken."""
    broker = ScriptedBroker()
    mounts = gateway_of(broker, ManualClock(), {})
    broker.log_starts[SEEDED] = int(MOUNTED_START)

    async def away(*_: Any) -> Any:
        raise BrokerUnreachableError(address="broker:1", reason="it is starting")

    monkeypatch.setattr(broker, "list_offsets", away)
    await mounts.unplanned.look(broker)
    assert mounts.is_mounted_topic("other")
    assert not mounts.halted(SEEDED)


async def test_the_watch_finds_what_comes_later() -> None:
    broker, clock = ScriptedBroker(), ManualClock()
    mounts = gateway_of(broker, clock, {})
    watching = asyncio.create_task(mounts.unplanned.watch(broker, 5.0))
    await settle()
    broker.log_starts[SEEDED] = MOUNTED_START
    await clock.advance(5.0)
    await settle()
    assert mounts.halted(SEEDED)
    watching.cancel()


async def test_a_coordinator_s_gateway_knows_of_what_other_brokers_have() -> None:
    """Of a topic that it let into a transaction, the brokers would write the marker themselves."""
    broker, topic_ids = Cluster(), dict[str, Uuid]()
    mounts = gateway_of(broker, ManualClock(), topic_ids, has_disk=False)
    broker.log_starts = {PLANNED: int(MOUNTED_START), SEEDED: int(MOUNTED_START), OWN: 7, GROUPS: 0}
    await mounts.unplanned.look(broker)
    assert mounts.is_mounted_topic("other")
    assert mounts.halted(SEEDED) == mounts.unplanned.reason_not_ready()
    assert not mounts.is_mounted_topic("own")
    assert sorted(broker.asked) == sorted([SEEDED, OWN]), "not of its plan, nor of the brokers' own topics"
    topic_ids |= {one.topic: one.topic_id for one in broker.log_starts}
    await mounts.unplanned.look(broker)
    assert len(broker.asked) == 2, "no topic becomes a seeded one later"
    broker.log_starts[LATER] = 0
    topic_ids[LATER.topic] = LATER.topic_id
    await mounts.unplanned.look(broker)
    assert broker.asked[2:] == [LATER]


async def test_a_leader_that_does_not_answer_is_asked_again() -> None:
    broker = Cluster()
    mounts = gateway_of(broker, ManualClock(), {"other": OTHER}, has_disk=False)
    broker.log_starts[SEEDED], broker.error = int(MOUNTED_START), "LEADER_NOT_AVAILABLE"
    await mounts.unplanned.look(broker)
    assert not mounts.is_mounted_topic("other")
    broker.error = None
    await mounts.unplanned.look(broker)
    assert mounts.is_mounted_topic("other")


REPLICA_IDS = pytest.mark.parametrize(
    "replica_id", [-1, -2, 2], ids=["a client", "who looks for faults", "who says that it is a replica"]
)


@REPLICA_IDS
async def test_no_client_is_told_where_a_seeded_log_begins(replica_id: int) -> None:
    """It would begin there, commit it, and wait for ever: not even before anybody has looked at the logs."""
    run, partition = await plain()
    async with open_world(run, partition, local=EMPTY, is_mounted=True) as world:
        world.tiered.known = ()
        for timestamp in (-1, -2, -4):
            row = await listed(world, timestamp, (int(MOUNTED_START), -1), replica_id=replica_id)
            assert (row.error_code, row.offset) == (ErrorCode.leader_not_available, -1)
        assert (await listed(world, -1, (77, -1), replica_id=replica_id)).offset == 77, "of an ordinary log"


@REPLICA_IDS
async def test_whoever_asks_gets_the_offsets_of_the_remote_log(replica_id: int) -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=EMPTY, is_mounted=True) as world:
        for timestamp, expected in ((-2, 0), (-1, END), (-4, END)):
            row = await listed(world, timestamp, (int(MOUNTED_START), -1), replica_id=replica_id)
            assert (row.error_code, row.offset) == (ErrorCode.none, expected)
        asked = {"leader_epoch": 0, "current_leader_epoch": -1}
        told = {"error_code": ErrorCode.none, "leader_epoch": 0, "end_offset": int(MOUNTED_START)}
        rewrite = leader_epochs(world, FixedLineage((0, 0)))
        ended = await row_after(world, rewrite, LEADER_EPOCH, 4, asked, told, replica_id=replica_id)
        assert (ended.error_code, ended.end_offset) == (ErrorCode.none, END)


@pytest.mark.parametrize("is_tiered", [True, False])
@pytest.mark.parametrize("timestamp", [-1, -2, -4, 5])
async def test_a_gateway_that_knows_of_no_mount_tells_nobody_where_a_seeded_log_begins(
    timestamp: int, is_tiered: bool
) -> None:
    """Its section ``source`` was forgotten: clients wait, and commit nothing."""
    run, partition = await plain()
    async with open_world(run, partition, local=EMPTY) as world:
        world.tiered.known = (partition,) if is_tiered else ()
        row = await listed(world, timestamp, (int(MOUNTED_START), -1))
        if is_tiered and timestamp not in (-1, -4):
            assert 0 <= row.offset < END, "of what is remote"
        else:
            assert (row.error_code, row.offset) == (ErrorCode.leader_not_available, -1)
