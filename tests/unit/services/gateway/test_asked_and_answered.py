"""What the broker was asked about, and what is known when it has answered: nothing is made of an answer about something else
(issue 17)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.support.gateway_deletes import Between, nothing
from tests.support.gateway_exchange import rewritten
from tests.support.gateway_world import (
    Ask,
    World,
    fetch_request,
    fetch_response,
    key_of,
    open_world,
    out_of_range,
    read_rows,
)
from tests.support.inline_blocking import InlineBlocking
from tests.support.leaders_sidecar import CLUSTER, LeadersSidecar
from tests.support.local_batches import batches_between
from tests.support.manual_clock import settle
from tests.support.remote_runs import load_run
from tests.unit.services.gateway.test_fetch_rewrite import END
from tests.unit.services.gateway.test_offset_rewrites import (
    DELETE_RECORDS,
    HIGH_WATERMARK,
    HISTORY,
    LEADER_EPOCH,
    LIST_OFFSETS,
    LOCAL_START,
    RECORDS,
    FixedLineage,
    leader_epochs,
    list_offsets,
    row_after,
)
from tiersidecar.adapters.clock import SystemClock
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.ids import BrokerId, Uuid
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.services.gateway.delete_records_rewrite import DeleteRecordsRewrite, SecondSteps
from tiersidecar.services.gateway.remote_deletes import Proposer

BY_NAME, BY_ID = 12, 17
ASKED_AT = LeaderEpoch(4)


def is_made_anew(world: World) -> None:
    """What is there now, and was not when the request was sent."""
    world.tiered.known = [world.partition]


def has_another_leader(world: World) -> None:
    world.tiered.leader_epoch = LeaderEpoch(ASKED_AT + 1)


CHANGES = pytest.mark.parametrize("between", [is_made_anew, has_another_leader])


@asynccontextmanager
async def world_before(between: Between) -> AsyncIterator[World]:
    run = await load_run("plain")
    async with open_world(run, run.partition("plain-0"), local=(LOCAL_START, HIGH_WATERMARK)) as world:
        world.tiered.leader_epoch = ASKED_AT
        if between is is_made_anew:
            world.tiered.known = [replace(world.partition, topic_id=Uuid(b"the former topic"))]
        yield world


async def fetched_after(world: World, between: Between, *, version: int = BY_NAME, waits_s: float = 0) -> Any:
    asked = {world.partition: Ask(offset=0)}
    exchange = world.exchange(1, version, fetch_request(version, asked))
    assert world.fetch.prepare(exchange) is None
    world.fetch.forwarded(exchange)
    between(world)
    await world.clock.advance(waits_s)
    response = memoryview(fetch_response(version, {world.partition: out_of_range()}))
    rewriting = asyncio.create_task(rewritten(world.fetch.rewrite(exchange, response)), name="rewriting")
    for _ in range(20):
        await settle(50)
        if rewriting.done():
            break
        await world.clock.advance(0.1)  # a client that would get nothing is held for as long as it waits
    pieces = await rewriting
    assert pieces is not None
    return read_rows(version, pieces)[key_of(version, world.partition)]


@CHANGES
async def test_a_fetch_is_not_filled_from_what_it_did_not_ask_about(between: Between) -> None:
    async with world_before(between) as world:
        row = await fetched_after(world, between)
        assert (row.error_code, row.records) == (ErrorCode.not_leader_or_follower, b"")
        row = await fetched_after(world, nothing)
        assert row.records == batches_between("plain-0", 0, END), "the next one asks about what is there"


@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
@pytest.mark.parametrize(("waits_s", "is_late"), [(9.0, False), (10.4, False), (10.6, True), (3600.0, True)])
async def test_a_broker_s_answer_that_is_read_late_is_not_filled(version: int, waits_s: float, is_late: bool) -> None:
    """The client waits half a second: what the broker said ten seconds later than that says nothing of what holds now.  Not
    out of range either, which would send the client past what is remote."""
    async with world_before(nothing) as world:
        row = await fetched_after(world, nothing, version=version, waits_s=waits_s)
        if is_late:
            assert (row.error_code, row.records) == (ErrorCode.not_leader_or_follower, b"")
        else:
            assert row.records == batches_between("plain-0", 0, END)


@CHANGES
async def test_offsets_and_epochs_are_told_of_what_was_asked_about(between: Between) -> None:
    async with world_before(between) as world:
        asked: dict[str, Any] = {"timestamp": -2, "current_leader_epoch": -1}
        answered = {
            "error_code": ErrorCode.none,
            "offset": LOCAL_START,
            "timestamp": -1,
            "leader_epoch": LeaderEpoch(0),
        }
        row = await row_after(world, list_offsets(world), LIST_OFFSETS, 7, asked, answered, between)
        assert (row.error_code, row.offset) == (ErrorCode.leader_not_available, -1)
        assert (await row_after(world, list_offsets(world), LIST_OFFSETS, 7, asked, answered)).offset == 0
    async with world_before(between) as world:
        rewrite = leader_epochs(world, FixedLineage(*HISTORY))
        asked = {"leader_epoch": 2, "current_leader_epoch": -1}
        answered = {"error_code": ErrorCode.none, "leader_epoch": 2, "end_offset": LOCAL_START}
        row = await row_after(world, rewrite, LEADER_EPOCH, 4, asked, answered, between)
        assert (row.error_code, row.end_offset) == (ErrorCode.not_leader_or_follower, -1)
        assert (await row_after(world, rewrite, LEADER_EPOCH, 4, asked, answered)).end_offset == 100


@pytest.mark.parametrize(
    ("version", "waits_s", "is_late"),
    [(9, 9.9, False), (9, 10.1, True), (11, 39.0, False), (11, 41.0, True), (11, 3600.0, True)],
)
@pytest.mark.parametrize("timestamp", [-2, -5, RECORDS[10].timestamp_ms])
async def test_offsets_that_are_read_late_are_not_filled(
    timestamp: int, version: int, waits_s: float, is_late: bool
) -> None:
    """From version 10 on a request says how long the broker may take (30 s here); before, it answers at once."""
    async with world_before(nothing) as world:
        asked = {"timestamp": timestamp, "current_leader_epoch": -1}
        answered = {
            "error_code": ErrorCode.none,
            "offset": LOCAL_START,
            "timestamp": -1,
            "leader_epoch": LeaderEpoch(0),
        }
        row = await row_after(world, list_offsets(world), LIST_OFFSETS, version, asked, answered, waits_s=waits_s)
        if is_late:
            assert (row.error_code, row.offset, row.timestamp) == (ErrorCode.leader_not_available, -1, -1)
        else:
            assert (row.error_code, row.offset != LOCAL_START) == (ErrorCode.none, True)


@pytest.mark.parametrize(("waits_s", "is_late"), [(9.9, False), (10.1, True)])
async def test_ends_of_epochs_that_are_read_late_are_not_filled(waits_s: float, is_late: bool) -> None:
    async with world_before(nothing) as world:
        rewrite = leader_epochs(world, FixedLineage(*HISTORY))
        asked = {"leader_epoch": 2, "current_leader_epoch": -1}
        answered = {"error_code": ErrorCode.none, "leader_epoch": 2, "end_offset": LOCAL_START}
        row = await row_after(world, rewrite, LEADER_EPOCH, 4, asked, answered, waits_s=waits_s)
        expected = (ErrorCode.not_leader_or_follower, -1) if is_late else (ErrorCode.none, 100)
        assert (row.error_code, row.end_offset) == expected


@pytest.mark.parametrize("waits_s", [0.0, 3600.0])
async def test_what_is_not_tiered_passes_however_late(waits_s: float) -> None:
    async with world_before(nothing) as world:
        world.tiered.known = []
        asked = {"timestamp": -2, "current_leader_epoch": -1}
        answered = {"error_code": ErrorCode.none, "offset": 7, "timestamp": -1, "leader_epoch": LeaderEpoch(0)}
        row = await row_after(world, list_offsets(world), LIST_OFFSETS, 9, asked, answered, waits_s=waits_s)
        assert (row.error_code, row.offset) == (ErrorCode.none, 7)


def led_in(world: World, leader_epoch: int) -> LeaderView:
    """The broker tells this epoch, whatever the table knows."""
    view = LeaderView(
        topic_id_partition=world.partition,
        leader_id=BrokerId(1),
        leader_epoch=LeaderEpoch(leader_epoch),
        replicas=(BrokerId(1),),
        in_sync_replicas=(BrokerId(1),),
    )
    world.broker.views = (view,)
    return view


def deletes(world: World) -> tuple[DeleteRecordsRewrite, LeadersSidecar]:
    delays = TrashDelays(retention_ms=2_000, user_ms=1_000)
    sidecar = LeadersSidecar(broker=world.broker, state=world.state, clock=SystemClock(), delays=delays)
    sidecar.tiers(led_in(world, ASKED_AT))
    rewrite = DeleteRecordsRewrite(
        second_steps=SecondSteps(),
        tiers=world.tiers,
        state=world.state,
        proposer=Proposer(cluster_id=CLUSTER, broker_id=BrokerId(1), proposals=sidecar),
        broker=world.broker,
        blocking=InlineBlocking(),
        clock=SystemClock(),
    )
    return rewrite, sidecar


async def deleted_after(world: World, rewrite: DeleteRecordsRewrite, meanwhile: Between) -> Any:
    """``meanwhile`` happens while the broker deletes."""
    answered = {"low_watermark": LOCAL_START, "error_code": ErrorCode.none}
    return await row_after(world, rewrite, DELETE_RECORDS, 2, {"offset": 50}, answered, meanwhile=meanwhile)


def is_set_back(world: World) -> None:
    """By ``tiersidecar undelete``: a delete that was asked for before it would take away what it has brought back."""
    world.state.partition_states[world.partition] = PartitionState(start_generation=1)


def is_elected_unseen(world: World) -> None:
    led_in(world, ASKED_AT + 1)


def is_made_anew_meanwhile(world: World) -> None:
    former = world.broker.views[0]
    later = replace(former.topic_id_partition, topic_id=Uuid(b"the later topic."))
    world.broker.views, world.tiered.known = (replace(former, topic_id_partition=later),), [later]


@pytest.mark.parametrize("meanwhile", [is_made_anew_meanwhile, is_set_back, is_elected_unseen])
async def test_a_delete_that_was_accepted_of_something_else_is_not_proposed(meanwhile: Between) -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        row = await deleted_after(world, rewrite, meanwhile)
        assert (row.error_code, row.low_watermark) == (ErrorCode.request_timed_out, -1)
        assert not sidecar.proposed


async def test_after_an_election_that_the_table_has_not_seen_the_client_s_next_delete_is_carried_out() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        await deleted_after(world, rewrite, is_elected_unseen)
        sidecar.tiers(led_in(world, ASKED_AT + 1))
        row = await deleted_after(world, rewrite, nothing)
        assert (row.error_code, row.low_watermark) == (ErrorCode.none, 50)
        assert [one.leader_epoch for one in sidecar.proposed] == [ASKED_AT + 1]
