"""What looks like part of a read-only mount, and is not in the gateway's plan (issue 21)."""

from __future__ import annotations

import asyncio
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
from tests.unit.services.gateway.test_offset_rewrites import listed
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.mounts import MOUNTED_START, MountedTopic
from tiersidecar.services.gateway.mounted_logs import MountedLogs
from tiersidecar.services.gateway.unplanned_logs import UnplannedLogs

ORDERS, OTHER = Uuid(b"orders-topic-id!"), Uuid(b"other-topic-id!!")
PLANNED = TopicIdPartition(topic_id=ORDERS, topic="orders", partition=1)
ADDED = replace(PLANNED, partition=2)
SEEDED = TopicIdPartition(topic_id=OTHER, topic="other", partition=0)
PLAN = {"orders": MountedTopic(topic_id=ORDERS, partitions=2)}
EMPTY = (MOUNTED_START, MOUNTED_START)


def gateway_of(broker: ScriptedBroker, clock: ManualClock, topic_ids: dict[str, Uuid]) -> MountedLogs:
    """A gateway on whose disks all those partitions are that the broker has."""
    reader: Any = None
    return MountedLogs(
        planned={name: topic.topic_id for name, topic in PLAN.items()},
        unplanned=UnplannedLogs(planned=PLAN, seeded=lambda: list(broker.log_starts), clock=clock),
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


@pytest.mark.parametrize("replica_id", [-1, 2], ids=["a client", "who says that it is a replica"])
async def test_no_client_is_told_where_a_seeded_log_begins(replica_id: int) -> None:
    """It would begin there, commit it, and wait for ever: not even before anybody has looked at the logs."""
    run, partition = await plain()
    async with open_world(run, partition, local=EMPTY, is_mounted=True) as world:
        world.tiered.known = ()
        for timestamp in (-1, -2, -4):
            row = await listed(world, timestamp, (int(MOUNTED_START), -1), replica_id=replica_id)
            assert (row.error_code, row.offset) == (ErrorCode.leader_not_available, -1)
        assert (await listed(world, -1, (77, -1), replica_id=replica_id)).offset == 77, "of an ordinary log"


async def test_who_says_that_it_is_a_replica_gets_the_offsets_of_the_remote_log() -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=EMPTY, is_mounted=True) as world:
        assert (await listed(world, -2, (int(MOUNTED_START), -1), replica_id=2)).offset == 0
