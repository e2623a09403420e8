"""Large Fetch responses pass through the gateway while they arrive; what is remote in them is filled in the next time (U7)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kio.schema.errors import ErrorCode

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
from tests.support.local_batches import batches_between
from tests.support.remote_runs import load_run
from tests.support.scripted_kafka import Ends, Peer, gateway_between, request
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.ports.metrics.gateway import GATEWAY_CONNECTIONS_CLOSED
from tiersidecar.ports.state_log import PartitionState

VERSION, END, LOCAL_START = 15, 245, 200
LOCAL = TopicIdPartition(topic_id=Uuid(b"another-topic-id"), topic="other", partition=3)
RECORDS = bytes(range(256)) * 8192


@asynccontextmanager
async def world_between(memory_bytes: int = 2**26) -> AsyncIterator[tuple[Ends, World]]:
    run = await load_run("plain")
    async with (
        open_world(run, run.partition("plain-0"), local=(LOCAL_START, END + 1)) as world,
        gateway_between(
            more=lambda rewrites: rewrites.update({ApiKey.FETCH: world.fetch}), memory_bytes=memory_bytes
        ) as ends,
    ):
        yield ends, world


def asked(correlation_id: int, world: World, **fields: Any) -> bytes:
    body = fetch_request(VERSION, {LOCAL: Ask(offset=7), world.partition: Ask(offset=0)}, **fields)
    return request(ApiKey.FETCH, VERSION, correlation_id, b"\0" + body)


def answer(correlation_id: int, rows: dict[TopicIdPartition, dict[str, Any]], *, session_id: int = 0) -> bytes:
    body = struct.pack(">ib", correlation_id, 0) + fetch_response(VERSION, rows, session_id=session_id)
    return struct.pack(">i", len(body)) + body


async def rows_of(client: Peer) -> dict[tuple[str | bytes, int], Any]:
    return read_rows(VERSION, [(await client.frame())[9:]])


async def test_a_large_response_reaches_the_client_before_it_has_ended_at_the_broker() -> None:
    async with world_between(memory_bytes=1) as (ends, world):
        client, broker = await ends.pair()
        client.send(asked(1, world))
        await broker.frame()
        sent = answer(1, {LOCAL: {"records": RECORDS}, world.partition: {"records": RECORDS}})
        half = len(sent) // 2
        broker.send(sent[:half])
        async with asyncio.timeout(30):
            assert await client.reader.readexactly(half) == sent[:half]
        assert ends.memory.held_bytes == 0
        broker.send(sent[half:])
        assert await client.reader.readexactly(len(sent) - half) == sent[half:]


async def test_what_is_out_of_range_behind_passing_records_is_empty_once_and_filled_the_next_time() -> None:
    """Never OFFSET_OUT_OF_RANGE, which would send the client past what is remote."""
    async with world_between() as (ends, world):
        client, broker = await ends.pair()
        late = {LOCAL: {"records": RECORDS}, world.partition: out_of_range()}
        client.send(asked(1, world, session=(0, 0)))
        await broker.frame()
        broker.send(answer(1, late, session_id=9))
        rows = await rows_of(client)
        assert rows[key_of(VERSION, LOCAL)].records == RECORDS
        row = rows[key_of(VERSION, world.partition)]
        assert (row.error_code, row.records, row.high_watermark) == (ErrorCode.none, b"", -1)
        # The session has not lost the offset that the client does not repeat.
        client.send(request(ApiKey.FETCH, VERSION, 2, b"\0" + fetch_request(VERSION, {}, session=(9, 1))))
        await broker.frame()
        broker.send(answer(2, late, session_id=9))
        rows = await rows_of(client)
        assert rows[key_of(VERSION, LOCAL)].records == RECORDS
        assert rows[key_of(VERSION, world.partition)].records == batches_between("plain-0", 0, END)
        # A response without it does not make the gateway forget who reads what is remote.
        client.send(asked(3, world))
        await broker.frame()
        broker.send(answer(3, {LOCAL: {"records": RECORDS}}))
        await rows_of(client)
        client.send(asked(4, world))
        await broker.frame()
        broker.send(answer(4, late))
        assert (await rows_of(client))[key_of(VERSION, world.partition)].records == batches_between("plain-0", 0, END)


async def test_what_a_user_has_deleted_does_not_pass_with_the_records_of_others() -> None:
    """After a crash a broker gives it until the leader's sidecar has told it again: the response is looked at whole."""
    async with world_between() as (ends, world):
        await world.state.publish_partition_state(
            LOCAL, PartitionState(remote_log_start_offset=Offset(8), remote_log_start_epoch=LeaderEpoch(0))
        )
        world.tiered.known = [*world.tiered.known, LOCAL]
        client, broker = await ends.pair()
        client.send(asked(1, world))
        await broker.frame()
        records = batches_between("plain-0", 0, END)
        broker.send(answer(1, {LOCAL: {"records": records}, world.partition: {"records": RECORDS}}))
        rows = await rows_of(client)
        assert rows[key_of(VERSION, LOCAL)].error_code is ErrorCode.offset_out_of_range
        assert rows[key_of(VERSION, world.partition)].records == RECORDS


async def test_what_is_deleted_while_a_session_goes_on_becomes_zeros_and_an_error_to_try_again() -> None:
    """The request has left out its offset, and the response is on its way before anybody looks at it."""
    async with world_between() as (ends, world):
        world.tiered.known = [*world.tiered.known, LOCAL]
        client, broker = await ends.pair()
        records = batches_between("plain-0", 0, END) * 8
        client.send(asked(1, world, session=(0, 0)))
        await broker.frame()
        broker.send(answer(1, {LOCAL: {}, world.partition: {}}, session_id=9))
        await rows_of(client)
        await world.state.publish_partition_state(
            LOCAL, PartitionState(remote_log_start_offset=Offset(8), remote_log_start_epoch=LeaderEpoch(0))
        )
        for number, withheld in ((2, ErrorCode.not_leader_or_follower), (3, ErrorCode.offset_out_of_range)):
            request_again = fetch_request(VERSION, {}, session=(9, number - 1))
            client.send(request(ApiKey.FETCH, VERSION, number, b"\0" + request_again))
            await broker.frame()
            sent = answer(number, {world.partition: {"records": RECORDS}, LOCAL: {"records": records}}, session_id=9)
            half = len(sent) - len(records) // 2
            broker.send(sent[:half])
            broker.send(sent[half:])
            rows = await rows_of(client)
            assert rows[key_of(VERSION, world.partition)].records == RECORDS
            row = rows[key_of(VERSION, LOCAL)]
            assert row.error_code is withheld
            assert not any(row.records)


async def test_the_next_request_goes_to_the_broker_once_a_response_has_passed() -> None:
    async with world_between() as (ends, world):
        client, broker = await ends.pair()
        client.send(asked(1, world) + asked(2, world))
        await broker.frame()
        for number in (1, 2):
            broker.send(answer(number, {LOCAL: {"records": RECORDS}}))
            assert (await rows_of(client))[key_of(VERSION, LOCAL)].records == RECORDS
            if number == 1:
                assert struct.unpack_from(">i", await broker.frame(), 8) == (2,)


async def test_a_response_that_passes_and_is_none_ends_its_connection() -> None:
    async with world_between() as (ends, world):
        client, broker = await ends.pair()
        client.send(asked(1, world))
        await broker.frame()
        broker.send(struct.pack(">ii", 2**20, 1) + bytes([0]) + b"\x7f" * (2**20 - 5))
        await client.ends()
        assert await broker.ends() == b""
    closed = ends.telemetry.by_label(GATEWAY_CONNECTIONS_CLOSED, "reason")
    assert closed == {"broker_malformed": 1}
