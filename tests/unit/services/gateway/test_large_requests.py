"""Requests of megabytes: what a client may have read before the broker has let it in, and where they are read."""

from __future__ import annotations

import struct
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from tests.support.gateway_world import (
    Ask,
    fetch_request,
    fetch_response,
    key_of,
    open_world,
    out_of_range,
    read_rows,
)
from tests.support.inline_blocking import InlineBlocking
from tests.support.local_batches import batches_between
from tests.support.remote_runs import load_run
from tests.support.scripted_kafka import gateway_between, request, response
from tests.unit.services.gateway.test_fetch_passing import world_between
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.formats.wire.fetch import read_fetch_request
from tiersidecar.services.gateway.fetch_in_hand import FetchSessions

T = TypeVar("T")

VERSION, LOCAL_START, END = 15, 200, 245
MIB = 1024 * 1024
LARGE, MANY = 2 * MIB, 5000


def beginning(size_bytes: int) -> bytes:
    """Of a Fetch: from its size alone it is judged."""
    return struct.pack(">ihhi", size_bytes, ApiKey.FETCH, VERSION, 9) + bytes(100)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param((), id="nothing"),
        pytest.param((ApiKey.API_VERSIONS,), id="ApiVersions, which a broker answers to anybody"),
        pytest.param((ApiKey.SASL_HANDSHAKE,), id="SASL, of which a handshake is the beginning"),
    ],
)
async def test_before_a_login_nothing_large_is_collected(before: tuple[ApiKey, ...]) -> None:
    async with world_between() as (ends, _):
        client, broker = await ends.pair()
        for number, api_key in enumerate(before):
            client.send(request(api_key, 1, number, bytes(2)))
            await broker.frame()
            broker.send(response(number, bytes(6)))
            await client.frame()
        client.send(beginning(LARGE))
        assert await client.ends() == b""


async def test_who_has_been_answered_may_send_more() -> None:
    async with world_between() as (ends, _):
        client, broker = await ends.pair()
        client.send(request(ApiKey.FIND_COORDINATOR + 1, 0, 1))  # JoinGroup: it passes unread
        await broker.frame()
        broker.send(response(1))
        await client.frame()
        whole = beginning(LARGE)[:12] + struct.pack(">hb", 0, 0) + bytes(LARGE - 11)
        client.send(whole)
        assert await broker.frame() == whole


async def test_what_nobody_reads_passes_whatever_its_size() -> None:
    async with gateway_between() as ends:
        client, broker = await ends.pair()
        client.send(request(ApiKey.PRODUCE, 9, 1, struct.pack(">bbh", 0, 0, 1) + bytes(LARGE)))
        assert len(await broker.frame()) > LARGE


class Apart(InlineBlocking):
    """Notes what was to be run off the event loop."""

    def __init__(self) -> None:
        self.ran: list[Callable[..., object]] = []

    async def run(self, function: Callable[..., T], *args: object) -> T:
        self.ran.append(function)
        return await super().run(function, *args)


def many(partition: TopicIdPartition) -> dict[TopicIdPartition, Ask]:
    """``partition``, and thousands of others."""
    others = TopicIdPartition(topic_id=Uuid(b"another-topic-id"), topic="other", partition=0)
    return {partition: Ask(offset=0)} | {replace(others, partition=n): Ask(offset=7) for n in range(MANY)}


async def test_a_large_fetch_is_read_off_the_loop_and_not_before_the_broker_has_answered_it() -> None:
    """One of 8 MiB held up the loop, and all connections, for a second: whoever sent it."""
    run = await load_run("plain")
    partition, apart = run.partition("plain-0"), Apart()
    async with open_world(run, partition, local=(LOCAL_START, END + 1), blocking=apart) as world:
        exchange = world.exchange(ApiKey.FETCH, VERSION, fetch_request(VERSION, many(partition), session=(0, 0)))
        assert world.fetch.prepare(exchange) is None
        world.fetch.forwarded(exchange)
        assert (exchange.connection.fetch_in_hand, apart.ran) == (None, [])
        assert world.fetch.passing(exchange, MIB) is None
        answer: Any = fetch_response(VERSION, {partition: out_of_range()}, session_id=5)
        rewritten = world.fetch.rewrite(exchange, memoryview(answer))
        assert isinstance(rewritten, Coroutine)
        pieces = await rewritten
        assert pieces is not None
        assert apart.ran == [read_fetch_request]
        row = read_rows(VERSION, pieces)[key_of(VERSION, partition)]
        assert row.records == batches_between("plain-0", 0, END)
        session: Any = exchange.connection.fetch_sessions[5]
        assert len(session.partitions) == MANY + 1


@pytest.mark.parametrize(("room", "is_refused"), [(2 * MANY, False), (MANY // 2, True)])
async def test_whether_its_session_can_be_remembered_is_told_by_its_size(room: int, is_refused: bool) -> None:
    run = await load_run("plain")
    partition, apart = run.partition("plain-0"), Apart()
    sessions = FetchSessions(max_partitions=room)
    async with open_world(run, partition, local=(LOCAL_START, END + 1), blocking=apart, sessions=sessions) as world:
        exchange = world.exchange(ApiKey.FETCH, VERSION, fetch_request(VERSION, many(partition), session=(0, 0)))
        prepared = world.fetch.prepare(exchange)
        assert (exchange.connection.fetch_in_hand, apart.ran) == (None, [])
        if not is_refused:
            assert prepared is None
            return
        assert prepared is not None
        assert read_fetch_request(memoryview(b"".join(prepared)), VERSION).session_epoch == -1
