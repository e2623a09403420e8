"""A delete of a topic that no look at the cluster has met: its id and epoch are read from the broker's disk (issue 17).

aiokafka's own test deletes from a topic that is 0.2 s old, and aiokafka does not retry after REQUEST_TIMED_OUT as Java's client
does.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from tests.support.gateway_deletes import Between, nothing, request_of
from tests.support.gateway_world import World
from tests.unit.services.gateway.test_asked_and_answered import (
    ASKED_AT,
    deletes,
    led_in,
    world_before,
)
from tests.unit.services.gateway.test_offset_rewrites import DELETE_RECORDS, LOCAL_START, row_after
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.services.gateway import delete_records_rewrite
from tiersidecar.services.gateway.tiered_partitions import TieredView

VERSION, OFFSET = 2, 50


def make_new(world: World, *, leader_epoch: LeaderEpoch = ASKED_AT, topic_id: Uuid | None = None) -> None:
    """On the broker's disk alone."""
    partition = world.partition if topic_id is None else replace(world.partition, topic_id=topic_id)
    world.tiered.on_disk = TieredView(topic_id_partition=partition, leader_epoch=leader_epoch)
    world.tiered.known = []


async def deleted(
    world: World,
    rewrite: Any,
    between: Between,
    *,
    meanwhile: Between = nothing,
    offset: int = OFFSET,
    error: ErrorCode = ErrorCode.none,
) -> Any:
    """The row that the client gets of a delete that the broker answers with ``error``; ``meanwhile`` happens before it has
    deleted."""
    answered = {"low_watermark": -1 if error else LOCAL_START, "error_code": error}
    asked, wait = {"offset": offset}, timedelta(seconds=1)
    return await row_after(
        world, rewrite, DELETE_RECORDS, VERSION, asked, answered, between, meanwhile=meanwhile, timeout=wait
    )


def becomes_known(world: World) -> None:
    world.tiered.is_ready, world.tiered.known = True, [world.partition]


def becomes_known_later(world: World) -> None:
    world.tiered.is_ready = False
    asyncio.get_running_loop().call_later(0.2, becomes_known, world)


def turns_out_not_tiered(world: World) -> None:
    world.tiered.known, world.tiered.untiered = [], {world.partition.topic: world.partition.topic_id}


def is_elected(world: World) -> None:
    led_in(world, ASKED_AT + 1)
    world.tiered.leader_epoch = LeaderEpoch(ASKED_AT + 1)
    becomes_known(world)


def is_set_back(world: World) -> None:
    world.state.partition_states[world.partition] = PartitionState(start_generation=1)
    becomes_known(world)


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_records_rewrite, "_LEAST_WAIT_S", 1.0)


@pytest.mark.parametrize("between", [becomes_known, becomes_known_later])
async def test_once_the_topic_is_known_the_delete_is_carried_out(between: Between) -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        make_new(world)
        row = await deleted(world, rewrite, between)
        assert (row.error_code, row.low_watermark) == (ErrorCode.none, OFFSET)
        assert [(one.offset, one.leader_epoch) for one in sidecar.proposed] == [(OFFSET, ASKED_AT)]


async def test_its_metadata_is_waited_for_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway in a process of its own reads it only once it knows the topic."""
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        make_new(world)
        bounds, asked = world.path.reader.bounds, list[object]()

        async def read_later(partition: Any) -> Any:
            asked.append(partition)
            if len(asked) < 4:
                raise MetadataNotReadyError(subject=str(partition))
            return await bounds(partition)

        monkeypatch.setattr(world.path.reader, "bounds", read_later)
        row = await deleted(world, rewrite, becomes_known)
        assert (row.error_code, len(sidecar.proposed), len(asked)) == (ErrorCode.none, 1, 5)


@pytest.mark.parametrize("meanwhile", [is_elected, is_set_back])
async def test_without_proof_the_client_asks_again(meanwhile: Between) -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        make_new(world)
        world.tiered.is_ready = False
        row = await deleted(world, rewrite, becomes_known_later, meanwhile=meanwhile)
        assert (row.error_code, row.low_watermark, sidecar.proposed) == (ErrorCode.request_timed_out, -1, [])


async def test_one_that_does_not_become_known_in_time_is_asked_for_again() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        make_new(world)
        world.tiered.is_ready = False
        row = await deleted(world, rewrite, nothing)
        assert (row.error_code, row.low_watermark, sidecar.proposed) == (ErrorCode.request_timed_out, -1, [])


async def test_one_that_is_gone_from_the_disk_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its client's connection waits."""
    monkeypatch.setattr(delete_records_rewrite, "_LEAST_WAIT_S", 600.0)
    monkeypatch.setattr(delete_records_rewrite, "_MOST_WAIT_S", 600.0)

    def goes(world: World) -> None:
        world.tiered.on_disk = None

    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        make_new(world)
        world.tiered.is_ready = False
        async with asyncio.timeout(10):
            row = await deleted(world, rewrite, goes)
        assert (row.error_code, row.low_watermark, sidecar.proposed) == (ErrorCode.request_timed_out, -1, [])


async def test_what_is_known_of_a_topic_that_was_made_anew_is_not_deleted_from() -> None:
    """The disk has another: nor is it waited for."""
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        make_new(world, topic_id=Uuid(b"the former topic"))
        world.tiered.is_ready = False
        async with asyncio.timeout(10):
            row = await deleted(world, rewrite, becomes_known)
        assert (row.error_code, row.low_watermark, sidecar.proposed) == (ErrorCode.request_timed_out, -1, [])


async def test_what_was_not_on_the_disk_either_but_is_known_by_now_is_deleted_from() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        world.tiered.known, world.tiered.may_be = [], True
        row = await deleted(world, rewrite, becomes_known)
        assert (row.error_code, len(sidecar.proposed)) == (ErrorCode.none, 1)


async def test_one_that_was_made_anew_before_it_was_asked_for_is_the_one_on_the_disk() -> None:
    """What is known is the former still."""
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        make_new(world)
        world.tiered.known = [replace(world.partition, topic_id=Uuid(b"the former topic"))]
        row = await deleted(world, rewrite, becomes_known_later)
        assert (row.error_code, row.low_watermark) == (ErrorCode.none, OFFSET)
        assert [one.topic_id_partition for one in sidecar.proposed] == [world.partition]


async def test_one_that_has_another_leader_is_of_the_epoch_on_the_disk() -> None:
    """Java's client would ask again, and up to the high watermark of then: what came between was deleted as well."""
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        later = LeaderEpoch(ASKED_AT + 1)
        sidecar.tiers(led_in(world, later))
        world.tiered.on_disk = TieredView(topic_id_partition=world.partition, leader_epoch=later)
        row = await deleted(world, rewrite, nothing)
        assert (row.error_code, row.low_watermark) == (ErrorCode.none, OFFSET)
        assert [one.leader_epoch for one in sidecar.proposed] == [later]


async def test_before_the_broker_has_answered_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has not said yet whether the client may know of it: a request of 1,000 partitions took 4 ms longer where there were
    any."""
    async with world_before(nothing) as world:
        rewrite, _ = deletes(world)
        looked_at = list[Any]()
        for look in ("find", "find_on_disk"):
            monkeypatch.setattr(world.tiered, look, lambda *asked: looked_at.append(asked))
        body = request_of({(world.partition.topic, number): -1 for number in range(20)}, timedelta(seconds=1))
        assert rewrite.prepare(world.exchange(DELETE_RECORDS, VERSION, body)) is not None
        assert looked_at == []


@pytest.mark.parametrize("error", [ErrorCode.topic_authorization_failed, ErrorCode.unknown_topic_or_partition])
async def test_what_the_broker_refuses_is_refused_at_once(error: ErrorCode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_records_rewrite, "_LEAST_WAIT_S", 600.0)
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        make_new(world)
        world.tiered.is_ready = False
        async with asyncio.timeout(10):
            row = await deleted(world, rewrite, nothing, error=error)
        assert (row.error_code, row.low_watermark, sidecar.proposed) == (error, -1, [])


async def test_a_topic_that_turns_out_not_to_be_tiered_is_the_broker_s_alone() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        make_new(world)
        row = await deleted(world, rewrite, turns_out_not_tiered)
        assert (row.error_code, row.low_watermark) == (ErrorCode.none, LOCAL_START)
        assert sidecar.proposed == []


async def test_the_audit_log_has_it_once() -> None:
    async with world_before(nothing) as world:
        rewrite, _ = deletes(world)
        make_new(world)
        with capture_logs() as logs:
            await deleted(world, rewrite, becomes_known_later)
        told = [entry["outcome"] for entry in logs if entry["event"] == "gateway.audit.delete"]
        assert told == ["none"]
