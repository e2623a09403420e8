"""Fetch through the gateway: what the broker has dropped is filled in, all else stays.

Shown here: S-136, S-137, S-138, S-139, S-142, S-147, T-52, T-57, U2, U7.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from tests.support.faulty_store import FaultyStore
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
from tests.support.local_batches import as_consumed, batches_between, consumed_records
from tests.support.manual_clock import settle
from tests.support.remote_runs import RemoteRun, behind, load_run
from tests.support.scripted_local import ScriptedLocal
from tests.unit.reading.test_remote_log_reader import first_open_offset, only_until
from tests.unit.reading.test_undecided_transactions import without
from tiersidecar.decide.reader_quotas import ReaderQuotaRule
from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import ByteRange, LeaderEpoch, Offset
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import read_records
from tiersidecar.formats.wire.fetch import FETCH_VERSIONS, read_fetch_request, write_session_error
from tiersidecar.ports.broker import Credentials
from tiersidecar.ports.metrics.gateway import GATEWAY_FILLS, GATEWAY_OUT_OF_RANGE
from tiersidecar.ports.metrics.reading import READS_SHED
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.services.gateway.exchange import ConnectionState, FetchSession
from tiersidecar.services.gateway.fetch_in_hand import FetchSessions
from tiersidecar.services.gateway.frames import MemoryPart, ResponseMemory

END, LOCAL_START, HIGH_WATERMARK, FILL_BYTES = 245, 200, 246, 3000
OTHER = TopicIdPartition(topic_id=Uuid(b"another-topic-id"), topic="other", partition=3)
NEWEST = FETCH_VERSIONS[-1]


async def plain() -> tuple[RemoteRun, TopicIdPartition]:
    run = await load_run("plain")
    return run, run.partition("plain-0")


async def fetched(
    world: World,
    asked: dict[TopicIdPartition, Ask],
    answered: dict[TopicIdPartition, Any] | None = None,
    *,
    version: int = NEWEST,
    session_id: int = 0,
    connection: ConnectionState | None = None,
    **fields: Any,
) -> list[bytes | bytearray | memoryview] | None:
    """The pieces of the gateway's response; by default the broker says that the offset is out of range."""
    exchange = world.exchange(1, version, fetch_request(version, asked, **fields), connection)
    assert world.fetch.prepare(exchange) is None
    world.fetch.forwarded(exchange)
    answered = {world.partition: out_of_range()} if answered is None else answered
    response = memoryview(fetch_response(version, answered, session_id=session_id))
    pieces = await rewritten(world.fetch.rewrite(exchange, response))
    return None if pieces is None else list(pieces)


async def row_of(
    world: World, offset: int, *, version: int = NEWEST, max_bytes: int = 1024 * 1024, **fields: Any
) -> Any:
    """The one partition's row of the gateway's response."""
    pieces = await fetched(world, {world.partition: Ask(offset=offset, max_bytes=max_bytes)}, version=version, **fields)
    if pieces is None:  # the broker's own passes
        pieces = [fetch_response(version, {world.partition: out_of_range()})]
    return read_rows(version, pieces)[key_of(version, world.partition)]


@pytest.mark.parametrize("version", FETCH_VERSIONS)
async def test_an_offset_below_the_local_start_gets_the_batches_from_the_one_that_holds_it(version: int) -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        for offset in (0, 33, LOCAL_START - 1):
            row = await row_of(world, offset, version=version)
            assert row.error_code is ErrorCode.none
            assert row.records == batches_between("plain-0", offset, END)
            assert (row.high_watermark, row.last_stable_offset) == (HIGH_WATERMARK, HIGH_WATERMARK)
            assert version < 5 or row.log_start_offset == 0
            assert row.aborted_transactions is None


@pytest.mark.parametrize(("is_reachable", "again"), [(True, ErrorCode.none), (False, ErrorCode.not_leader_or_follower)])
async def test_nobody_is_sent_away_by_metadata_that_are_behind(is_reachable: bool, again: ErrorCode) -> None:
    """The broker has just come back, answers, and has deleted what was copied meanwhile: our consumer has not heard of it
    (simulation, cluster seed 801519)."""
    run, partition = await plain()
    async with open_world(
        await behind(run, is_reachable=is_reachable), partition, local=(LOCAL_START, HIGH_WATERMARK)
    ) as world:
        asking = asyncio.create_task(row_of(world, 33))
        await world.clock.advance(60)
        assert (await asking).error_code is again


async def test_bytes_of_the_broker_pass_untouched_where_nothing_is_out_of_range() -> None:
    """S-008, S-305: local offsets are the broker's, though the remote tier has them too, and ask nothing of the store."""
    run, partition = await plain()
    store = FaultyStore(run.store)
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK), store=store) as world:
        answer = {partition: {"records": b"anything", "high_watermark": 5}}
        assert await fetched(world, {partition: Ask(offset=LOCAL_START)}, answer) is None
    assert store.fetched == []


async def test_a_follower_that_fetches_is_left_to_the_broker() -> None:
    """T-57."""
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        assert await fetched(world, {partition: Ask(offset=0)}, version=12, replica_id=1) is None


async def test_reading_on_from_batch_to_batch_gives_the_whole_log_once() -> None:
    """S-146, S-147: with a limit that some batches exceed."""
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        offset, found = 0, b""
        while offset < LOCAL_START:
            row = await row_of(world, offset, max_bytes=3000)
            headers = [header for _, header in iter_batch_headers(row.records)]
            assert len(headers) == 1 or len(row.records) <= 3000
            found += row.records
            offset = headers[-1].next_offset
        assert found == batches_between("plain-0", 0, offset)


async def test_beside_local_data_a_batch_that_does_not_fit_is_left_out() -> None:
    """S-147: the first batch is returned however large only if nothing else is."""
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        asked = {OTHER: Ask(offset=7), partition: Ask(offset=0, max_bytes=1)}
        answered = {OTHER: {"records": b"local"}, partition: out_of_range()}
        pieces = await fetched(world, asked, answered)
        assert pieces is not None
        rows = read_rows(NEWEST, pieces)
        assert rows[key_of(NEWEST, OTHER)].records == b"local"
        row = rows[key_of(NEWEST, partition)]
        assert (row.error_code, row.records, row.high_watermark) == (ErrorCode.none, b"", HIGH_WATERMARK)


async def test_what_the_request_allows_in_all_is_shared_with_the_broker() -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        asked = {OTHER: Ask(offset=7), partition: Ask(offset=0)}
        answered = {OTHER: {"records": bytes(5000)}, partition: out_of_range()}
        pieces = await fetched(world, asked, answered, max_bytes=9000)
        assert pieces is not None
        assert 0 < len(read_rows(NEWEST, pieces)[key_of(NEWEST, partition)].records) <= 4000


async def test_below_the_remote_log_start_it_stays_out_of_range_and_is_told_at_once() -> None:
    run, partition = await plain()
    run.log_starts.offsets[partition] = 50
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        row = await row_of(world, 49)
        assert (row.error_code, row.high_watermark) == (ErrorCode.offset_out_of_range, -1)
        assert (await row_of(world, 50)).records == batches_between("plain-0", 50, END)


async def test_below_the_remote_log_start_it_stays_out_of_range_also_where_nothing_is_remote_any_more() -> None:
    """Cluster seed 42: all had expired, the last of it before it was copied, and a consumer there tried again without end."""
    run, partition = await plain()
    run.log_starts.offsets[partition] = END + 10
    async with open_world(run, partition, local=(END + 10, END + 20)) as world:
        world.pending.are_all = True
        for offset in (0, END, END + 9):
            assert (await row_of(world, offset)).error_code is ErrorCode.offset_out_of_range


async def test_past_the_log_end_and_of_untiered_topics_it_stays_out_of_range() -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        assert (await row_of(world, HIGH_WATERMARK + 1)).error_code is ErrorCode.offset_out_of_range
        world.tiered.known = []
        assert (await row_of(world, 0)).error_code is ErrorCode.offset_out_of_range


async def test_while_metadata_are_not_ready_clients_are_told_to_try_again_and_held() -> None:
    """U7: never OFFSET_OUT_OF_RANGE for what may be remote (S-239)."""
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        world.tiered.is_ready = False
        asking = asyncio.create_task(row_of(world, 0))
        await world.clock.advance(0.49)
        assert not asking.done()
        await world.clock.advance(0.02)
        assert (await asking).error_code is ErrorCode.not_leader_or_follower


@pytest.mark.parametrize(("pinned", "outcome"), [(True, "retry"), (False, "hole")])
async def test_between_the_tiers_clients_try_again_and_what_nobody_has_is_counted(pinned: bool, outcome: str) -> None:
    """U7; the broker has deleted what neither a segment nor a pin holds."""
    run, partition = await plain()
    async with open_world(run, partition, local=(END + 10, END + 20)) as world:
        world.pending.are_all = pinned
        asking = asyncio.create_task(row_of(world, END + 5))
        await world.clock.advance(1)
        assert (await asking).error_code is ErrorCode.not_leader_or_follower
        assert world.telemetry.value(GATEWAY_OUT_OF_RANGE, outcome=outcome) == 1


async def test_a_client_of_much_patience_is_told_to_try_again_in_time() -> None:
    """``fetch.max.wait.ms`` of a minute is no reason to sit out a minute what is over in a moment."""
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        world.tiered.is_ready = False
        asking = asyncio.create_task(row_of(world, 0, max_wait=timedelta(minutes=1)))
        await world.clock.advance(0.49)
        assert not asking.done()
        await world.clock.advance(0.02)
        assert asking.done()
        assert (await asking).error_code is ErrorCode.not_leader_or_follower


async def test_an_offset_that_has_come_back_to_the_broker_is_tried_again() -> None:
    """S-008: a crash sets the broker's start back; what is local again is not read remotely, though it is there too."""
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        asking = asyncio.create_task(row_of(world, LOCAL_START + 1))
        await world.clock.advance(1)
        assert (await asking).error_code is ErrorCode.not_leader_or_follower


class Shedding:
    """``FetchQuota`` that is used up."""

    def throttle_s(self) -> float:
        return 1.0

    def record(self, size_bytes: int) -> None:
        return None


async def test_with_the_quota_used_up_the_answer_is_empty_without_error_and_held_until_max_wait() -> None:
    """S-138: a client that gets an empty answer at once would spin."""
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK), quota=Shedding()) as world:
        asking = asyncio.create_task(row_of(world, 0))
        await world.clock.advance(0.49)
        assert not asking.done()
        await world.clock.advance(0.02)
        row = await asking
        assert (row.error_code, row.records, row.high_watermark) == (ErrorCode.none, b"", HIGH_WATERMARK)
        assert world.telemetry.value(GATEWAY_FILLS, outcome="shed") == 1


async def test_a_client_over_its_budget_gets_nothing_and_a_throttle_time_and_others_are_served() -> None:
    """KAFKA-19968: as a broker's consumer quota, for what is remote alone."""
    run, partition = await plain()
    rules = [ReaderQuotaRule(client_id="a-client", bytes_per_s=100)]
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK), budgets=rules) as world:
        given = len((await row_of(world, 0, max_bytes=FILL_BYTES)).records)
        assert given > 0
        asking = asyncio.create_task(fetched(world, {partition: Ask(offset=35)}))
        await world.clock.advance(0.4)
        assert not asking.done(), "held, or a client that knows of no throttle time would spin"
        await world.clock.advance(0.2)
        pieces = await asking
        assert pieces is not None
        row = read_rows(NEWEST, pieces)[key_of(NEWEST, partition)]
        assert (row.error_code, row.records) == (ErrorCode.none, b"")
        (throttle_ms,) = struct.unpack_from(">i", b"".join(pieces))
        assert throttle_ms == given / 100 * 1000
        assert world.telemetry.value(READS_SHED, reason="reader_quota") == 1
        world.connection.login.principal = "User:alice"
        (reading,) = world.path.cold.readings
        assert (reading.principal, reading.client_id, reading.topic) == ("User:ANONYMOUS", "a-client", "plain")
        assert (reading.requests, reading.size_bytes) == (1, given)
        await world.clock.advance(throttle_ms / 1000)
        assert (await row_of(world, 35, max_bytes=FILL_BYTES)).records


async def test_fills_count_in_the_response_memory_and_no_room_is_an_empty_answer() -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        memory = ResponseMemory(16_000)
        part = world.upstream.memory = memory.part(lambda: "a client")
        row = await row_of(world, 0)
        assert 0 < len(row.records) <= 4000, "a quarter for each connection"
        assert memory.held_bytes == len(row.records), "until the client has taken it"
        part.give_back(len(row.records) - 1000)
        row = await row_of(world, 0)
        assert 0 < len(row.records) <= 3000, "as much as there is"
        others = [memory.part(partial(str, other)) for other in "bcde"]
        assert not all(other.take(4000, lambda: None) for other in others), "the last one waits"
        asking = asyncio.create_task(row_of(world, 0))
        await settle(200)
        assert not asking.done(), "held, or the client would spin"
        await world.clock.advance(1)
        assert ((await asking).error_code, (await asking).records) == (ErrorCode.none, b"")
        assert world.telemetry.by_label(GATEWAY_FILLS, "outcome")["no_room"] == 1


class NotedMemory(MemoryPart):
    def __init__(self) -> None:
        super().__init__(ResponseMemory(2**40), lambda: "a client")
        self.wanted: list[int] = []

    def take_some(self, size_bytes: int) -> int:
        self.wanted.append(size_bytes)
        return super().take_some(size_bytes)


async def test_a_fill_is_of_16_mib_at_most_whatever_its_client_allows() -> None:
    """A read goes on when its client has left, and nobody counts its bytes then: 2 GiB of each who comes and goes."""
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        memory = world.upstream.memory = NotedMemory()
        asked = {partition: Ask(offset=0, max_bytes=2**31 - 1)}
        assert await fetched(world, asked, max_bytes=2**31 - 1) is not None
        assert memory.wanted == [16 * 2**20]


async def test_local_data_are_not_held_back_by_a_used_up_quota() -> None:
    """S-139, S-166."""
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK), quota=Shedding()) as world:
        answered = {OTHER: {"records": b"local"}, partition: out_of_range()}
        pieces = await fetched(world, {OTHER: Ask(offset=7), partition: Ask(offset=0)}, answered)
        assert pieces is not None
        assert read_rows(NEWEST, pieces)[key_of(NEWEST, partition)].error_code is ErrorCode.none


async def test_a_slow_store_gives_an_empty_answer_in_time_and_the_data_the_next_time() -> None:
    """U2, T-55: the expiry is counted, the broker's own numbers stand, and the read outlives the request, to be done once."""
    run, partition = await plain()
    store = FaultyStore(run.store)
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK), store=store) as world:
        store.gate.clear()
        asking = asyncio.create_task(row_of(world, 0))
        await world.clock.advance(0.49)
        assert not asking.done()
        await world.clock.advance(0.02)
        row = await asking
        assert (row.error_code, row.records, row.high_watermark) == (ErrorCode.none, b"", HIGH_WATERMARK)
        assert world.telemetry.value(GATEWAY_FILLS, outcome="pending") == 1
        store.gate.set()
        await settle(200)
        seen = list(store.fetched)
        assert (await row_of(world, 0)).records == batches_between("plain-0", 0, END)
        assert store.fetched == seen, "nothing was fetched again"


async def test_a_client_that_waits_for_nothing_gets_remote_records_all_the_same() -> None:
    """T-55: natively ``remote.fetch.max.wait.ms`` counts, not the client's.  Found by review: with ``fetch.max.wait.ms`` 0 a
    consumer never got one, since each read was given up before it could come."""
    run, partition = await plain()
    store = FaultyStore(run.store)
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK), store=store) as world:
        for answered in ({partition: out_of_range()}, {OTHER: {"records": b"local"}, partition: out_of_range()}):
            asked = {one: Ask(offset=0) for one in answered}
            store.gate.clear()
            asking = asyncio.create_task(fetched(world, asked, answered, max_wait=timedelta(0)))
            await settle(200)
            await world.clock.advance(0.4)
            store.gate.set()
            pieces = await asking
            assert pieces is not None
            assert read_rows(NEWEST, pieces)[key_of(NEWEST, partition)].records


async def test_a_store_that_is_away_is_an_error_that_clients_try_again_after() -> None:
    """S-150, T-56; S-152."""
    run, partition = await plain()

    def away(key: str, byte_range: ByteRange | None, data: bytes) -> bytes:
        if key.endswith(".log"):
            raise StoreError(verb="fetch", key=key, reason="503 Slow Down")
        return data

    store = FaultyStore(run.store, away)
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK), store=store) as world:
        asking = asyncio.create_task(row_of(world, 0))
        await settle(200)
        await world.clock.advance(1)
        assert (await asking).error_code is ErrorCode.kafka_storage_error
        asking = asyncio.create_task(row_of(world, 0, version=5, max_wait=timedelta(minutes=1)))
        await settle(200)
        await world.clock.advance(1)
        assert asking.done(), "an error is no long poll"
        assert (await asking).error_code is ErrorCode.not_leader_or_follower


# -- what was read ahead is answered at once


async def reading_on(world: World, times: int = 3) -> int:
    """A consumer that goes on: from the offset returned, the next fills are ready."""
    offset = 0
    for _ in range(times):
        row = await row_of(world, offset, max_bytes=FILL_BYTES)
        offset = [header for _, header in iter_batch_headers(row.records)][-1].next_offset
        await settle(300)
    return offset


def begun(world: World, offset: int, *, version: int = NEWEST, **fields: Any) -> Any:
    """What the rewrite gives without waiting: pieces, or a coroutine."""
    asked = fetch_request(version, {world.partition: Ask(offset=offset, max_bytes=FILL_BYTES)}, **fields)
    response = fetch_response(version, {world.partition: out_of_range()})
    exchange = world.exchange(1, version, asked)
    assert world.fetch.prepare(exchange) is None
    return world.fetch.rewrite(exchange, memoryview(response))


async def test_who_goes_on_is_answered_in_the_turn_of_the_loop_in_which_the_broker_has_authorised_it() -> None:
    """U3; the same bytes and numbers as by the longer way."""
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        offset = await reading_on(world)
        pieces = begun(world, offset)
        assert not isinstance(pieces, Coroutine)
        row = read_rows(NEWEST, pieces)[key_of(NEWEST, partition)]
        assert world.upstream.taken_bytes, "counted in the response memory"
        async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as fresh:
            assert row == await row_of(fresh, offset, max_bytes=FILL_BYTES)
        assert row.records


async def test_what_is_ready_waits_for_the_longer_way_once_a_delete_an_election_or_time_has_come_between() -> None:
    """Deleted records are not served though they lie in memory, and the bounds of another leader's time are looked at anew."""
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        offset = await reading_on(world)
        world.state.partition_states[partition] = PartitionState(
            remote_log_start_offset=Offset(LOCAL_START), remote_log_start_epoch=LeaderEpoch(0)
        )
        run.log_starts.offsets[partition] = LOCAL_START
        assert (await row_of(world, offset, max_bytes=FILL_BYTES)).error_code is ErrorCode.offset_out_of_range
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        offset = await reading_on(world)
        world.tiered.leader_epoch = LeaderEpoch(world.tiered.leader_epoch + 1)
        later = begun(world, offset)
        assert isinstance(later, Coroutine)
        assert await later
        offset = await reading_on(world)
        await world.clock.advance(1.1)
        later = begun(world, offset)
        assert isinstance(later, Coroutine)
        assert await later


async def test_ready_or_not_an_offset_that_is_local_again_is_tried_again() -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        offset = await reading_on(world)
        world.broker.log_starts[partition] = offset
        await world.clock.advance(0.1)
        await world.offsets.current([partition])
        asking = asyncio.create_task(row_of(world, offset, max_bytes=FILL_BYTES))
        await world.clock.advance(1)
        assert (await asking).error_code is ErrorCode.not_leader_or_follower


# -- incremental fetch sessions (KIP-227)


async def test_in_a_session_the_gateway_knows_the_offset_that_a_request_leaves_out() -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        full = await fetched(world, {partition: Ask(offset=100)}, session=(0, 0), session_id=9)
        again = await fetched(world, {}, session=(9, 1), session_id=9)
        moved = await fetched(world, {partition: Ask(offset=150)}, session=(9, 2), session_id=9)
        still = await fetched(world, {}, session=(9, 3), session_id=9)
        for pieces, offset in ((full, 100), (again, 100), (moved, 150), (still, 150)):
            assert pieces is not None
            row = read_rows(NEWEST, pieces)[key_of(NEWEST, partition)]
            assert row.records == batches_between("plain-0", offset, END)


async def test_a_session_of_another_connection_is_ended_so_that_the_client_says_all_again() -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        await fetched(world, {partition: Ask(offset=100)}, session=(0, 0), session_id=9)
        pieces = await fetched(world, {}, session=(9, 1), session_id=9, connection=ConnectionState())
        assert pieces is not None
        body = b"".join(pieces)
        assert body[4:6] == ErrorCode.fetch_session_id_not_found.value.to_bytes(2, "big")
        assert read_rows(NEWEST, pieces) == {}


async def test_a_forgotten_partition_and_a_closed_session_are_forgotten_here_too() -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        await fetched(world, {partition: Ask(offset=100)}, session=(0, 0), session_id=9)
        assert set(world.connection.fetch_sessions) == {9}
        await fetched(world, {}, {}, session=(9, -1), session_id=0)
        assert not world.connection.fetch_sessions


async def test_past_the_limit_sessions_are_refused_by_not_asking_for_them() -> None:
    run, partition = await plain()
    sessions = FetchSessions(max_partitions=1)
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK), sessions=sessions) as world:
        await fetched(world, {partition: Ask(offset=100)}, session=(0, 0), session_id=9)
        body = fetch_request(NEWEST, {partition: Ask(offset=5), OTHER: Ask(offset=6)}, session=(0, 0))
        pieces = world.fetch.prepare(world.exchange(1, NEWEST, body, ConnectionState()))
        assert pieces is not None
        request = read_fetch_request(memoryview(b"".join(pieces)), NEWEST)
        assert (request.session_epoch, len(request.partitions)) == (-1, 2)


async def test_a_session_that_grows_past_the_limit_is_given_up_here_and_begun_anew_when_it_matters() -> None:
    """Each request may add partitions to a session: what the gateway remembers stays bounded."""
    run, partition = await plain()
    sessions = FetchSessions(max_partitions=1)
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK), sessions=sessions) as world:
        await fetched(world, {partition: Ask(offset=100)}, session=(0, 0), session_id=9)
        await fetched(world, {OTHER: Ask(offset=6)}, {}, session=(9, 1), session_id=9)
        assert not world.connection.fetch_sessions
        pieces = await fetched(world, {}, session=(9, 2), session_id=9)
        assert pieces is not None
        assert b"".join(pieces)[4:6] == ErrorCode.fetch_session_id_not_found.value.to_bytes(2, "big")


async def test_a_session_that_the_broker_has_evicted_is_the_client_s_to_begin_anew() -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        await fetched(world, {partition: Ask(offset=100)}, session=(0, 0), session_id=9)
        exchange = world.exchange(1, NEWEST, fetch_request(NEWEST, {}, session=(9, 1)))
        refusal = write_session_error(NEWEST, 0, ErrorCode.fetch_session_id_not_found.value)
        pieces = await rewritten(world.fetch.rewrite(exchange, memoryview(refusal)))
        assert pieces is None or b"".join(pieces) == refusal
        assert not world.connection.fetch_sessions
        again = await fetched(world, {partition: Ask(offset=100)}, session=(0, 0), session_id=10)
        assert again is not None
        row = read_rows(NEWEST, again)[key_of(NEWEST, partition)]
        assert row.records == batches_between("plain-0", 100, END)


@pytest.mark.parametrize("version", [7, NEWEST])
async def test_what_a_request_forgets_is_no_longer_remembered(version: int) -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        asked = {partition: Ask(offset=100), OTHER: Ask(offset=6)}
        await fetched(world, asked, version=version, session=(0, 0), session_id=9)
        await fetched(world, {}, {}, version=version, session=(9, 1), session_id=9, forgotten=[OTHER])
        (kept,) = world.connection.fetch_sessions.values()
        assert isinstance(kept, FetchSession)
        assert set(kept.partitions) == {key_of(version, partition)}


# -- transactions


@pytest.mark.parametrize("version", [4, 11, NEWEST])
@pytest.mark.parametrize("end", [43, 86, 133, 180])
async def test_read_committed_shows_what_the_console_consumer_showed_wherever_the_border_lies(
    end: int, version: int
) -> None:
    """S-155, S-156: markers of transactions that began in the remote tier may be local."""
    whole = await load_run("plain")
    partition = whole.partition("transactions-0")
    run = await only_until(whole, partition, end)
    async with open_world(run, partition, local=(end, 294)) as world:
        local = world.upstream.local
        local.last_stable_offset = 211  # a transaction is open there to the end
        expected = consumed_records("transactions-0", "read_committed")
        found, offset = dict[int, object](), 0
        while offset < local.last_stable_offset:
            if offset < end:
                row = await row_of(world, offset, version=version, max_bytes=4000, isolation_level=1)
                assert row.error_code is ErrorCode.none
                records, aborted = (
                    row.records,
                    [(transaction.producer_id, transaction.first_offset) for transaction in row.aborted_transactions],
                )
            else:
                answer = await local.fetch(Credentials(), partition, offset, max_bytes=4000, read_committed=True)
                records, aborted = answer.records, list(answer.aborted)
            offset = _consume(records, aborted, offset, found)
        assert found == expected
        assert set(world.upstream.asked) <= {end}


def _consume(data: bytes, aborted: list[tuple[int, int]], offset: int, found: dict[int, object]) -> int:
    """As ``CompletedFetch`` of the Java consumer does."""
    waiting, open_ones = sorted(aborted, key=lambda one: one[1]), set[int]()
    for position, header in iter_batch_headers(data):
        while waiting and waiting[0][1] <= header.last_offset:
            open_ones.add(waiting.pop(0)[0])
        offset = header.next_offset
        if header.is_control:
            open_ones.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in open_ones):
            batch = memoryview(data)[position : position + header.size_bytes]
            found |= {record.offset: as_consumed(record) for record in read_records(batch)}
    return offset


async def test_an_open_transaction_at_the_border_is_waited_for() -> None:
    whole = await load_run("plain")
    partition = whole.partition("transactions-0")
    run = await only_until(whole, partition, 86)
    async with open_world(run, partition, local=(86, 294)) as world:
        stable = await world.path.reader.last_stable_offset(partition)
        assert stable < 86, "a transaction is open at the end of the remote tier"
        world.upstream.local.last_stable_offset = 86
        asking = asyncio.create_task(row_of(world, stable, isolation_level=1))
        await world.clock.advance(1)
        row = await asking
        assert (row.error_code, row.records, row.aborted_transactions) == (ErrorCode.none, b"", ())


class CopyingLocal(ScriptedLocal):
    """While it is asked the next segment is copied: ``run`` becomes what ``longer`` is."""

    def __init__(self, run: RemoteRun, longer: RemoteRun, *, last_stable_offset: int) -> None:
        super().__init__(log_start=43, high_watermark=294, last_stable_offset=last_stable_offset)
        self._run, self._longer = run, longer

    async def fetch(self, credentials, topic_id_partition, offset, **others):  # type: ignore[no-untyped-def]
        for event in self._longer.metadata.events:
            if event not in self._run.metadata.events:
                await self._run.metadata.publish(event)
        return await super().fetch(credentials, topic_id_partition, offset, **others)


async def test_what_is_copied_while_the_border_is_asked_about_is_not_shown_by_that_answer() -> None:
    """S-155: what came may be of an open transaction; the broker's answer is about what lies below the border asked for."""
    whole = await load_run("plain")
    partition = whole.partition("transactions-0")
    run, longer = await only_until(whole, partition, 43), await only_until(whole, partition, 86)
    async with open_world(run, partition, local=(43, 294)) as world:
        stable = await world.path.reader.last_stable_offset(partition)
        assert stable < 43
        world.upstream.local = CopyingLocal(run, longer, last_stable_offset=58)
        row = await row_of(world, stable, isolation_level=1)
        shown = [header.last_offset for _, header in iter_batch_headers(row.records)]
    assert world.upstream.asked == [43]
    assert shown[-1] == 42


async def test_a_transaction_that_reaches_over_a_hole_is_no_silent_end() -> None:
    """What became of it stands where neither tier has the log: the client is told to try again, and it is named."""
    whole = await load_run("plain")
    partition = whole.partition("transactions-0")
    run = await only_until(whole, partition, 86)
    async with open_world(run, partition, local=(100, 294)) as world:
        stable = await world.path.reader.last_stable_offset(partition)
        with capture_logs() as logs:
            asking = asyncio.create_task(row_of(world, stable, isolation_level=1))
            await world.clock.advance(1)
            row = await asking
        assert (row.error_code, row.records) == (ErrorCode.not_leader_or_follower, b"")
        assert world.telemetry.value(GATEWAY_FILLS, outcome="hole") == 1
        assert [log["reason"] for log in logs] == [f"offset 86 of {partition} is outside [0, 86)"]


@pytest.mark.parametrize("lost", [(86,), (43, 86)])
async def test_what_may_have_been_aborted_in_a_hole_is_not_shown_and_the_client_is_told_to_try_again(
    lost: tuple[int, ...],
) -> None:
    """Simulation, cluster seed 405: the gateway, too, showed records whose abort markers had never been copied."""
    whole = await load_run("plain")
    partition = whole.partition("transactions-0")
    run, hole = await without(whole, partition, *lost), lost[0]
    expected, limit = consumed_records("transactions-0", "read_committed"), first_open_offset(hole)
    async with open_world(run, partition, local=(180, 294)) as world:
        found, offset = dict[int, object](), 0
        with capture_logs() as logs:
            while offset < limit:
                row = await row_of(world, offset, max_bytes=4000, isolation_level=1)
                aborted = [
                    (transaction.producer_id, transaction.first_offset) for transaction in row.aborted_transactions
                ]
                offset = _consume(row.records, aborted, offset, found)
            asking = asyncio.create_task(row_of(world, offset, isolation_level=1))
            await world.clock.advance(1)
            row = await asking
        assert (row.error_code, row.records) == (ErrorCode.not_leader_or_follower, b"")
        assert offset == limit < hole
        assert found == {at: record for at, record in expected.items() if at < limit}
        assert world.telemetry.value(GATEWAY_FILLS, outcome="hole") == 1
        (reason,) = (log["reason"] for log in logs)
        assert f"began at {limit} ended in a hole, no segment holds [{hole}, 133)" in reason
        uncommitted = await row_of(world, limit, max_bytes=4000)
        assert (uncommitted.error_code, bool(uncommitted.records)) == (ErrorCode.none, True)
