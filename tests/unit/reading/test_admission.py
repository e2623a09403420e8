"""The reader pool: 10 run, 100 wait, the rest are shed at once (S-138, S-140; T-58)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from tests.support.manual_clock import ManualClock, settle
from tests.support.recorded_telemetry import RecordedTelemetry
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.app.builders.read_path import ConfiguredFetchQuota
from tiersidecar.decide.quota import RateQuota
from tiersidecar.domain.errors import ObjectNotFoundError, QuotaExceededError
from tiersidecar.ports.metrics.reading import (
    FETCH_THROTTLE_SECONDS,
    READ_POOL_BUSY,
    READER_FETCH_SECONDS,
    READER_IDLE_RATIO,
    READER_TASK_QUEUE_SIZE,
    READS_SHED,
)
from tiersidecar.reading.admission import CountedFetches, ReaderPool, RetryAfter


class Quota:
    def __init__(self, throttle: float) -> None:
        self.throttle = throttle

    def throttle_s(self) -> float:
        return self.throttle

    def record(self, amount: int) -> None:
        return None


async def hold(pool: ReaderPool, gate: asyncio.Event, running: list[int]) -> None:
    async with pool.admit():
        running.append(1)
        await gate.wait()
        running.pop()


async def test_as_many_run_and_wait_as_may_and_the_next_is_turned_away_without_waiting() -> None:
    pool, gate, running = ReaderPool(running=2, waiting=3), asyncio.Event(), list[int]()
    reads = [asyncio.create_task(hold(pool, gate, running)) for _ in range(5)]
    await settle()
    assert len(running) == 2
    with pytest.raises(QuotaExceededError, match="pool"):
        async with pool.admit():
            pytest.fail("it was let in")
    gate.set()
    await asyncio.gather(*reads)
    async with pool.admit():
        pass


async def test_a_place_that_is_given_back_is_anothers_meanwhile_and_waited_for_again() -> None:
    """A lookup in a batch that opens to a GiB takes seconds: ten of them left nobody a place."""
    pool, away, gate, running = ReaderPool(running=1, waiting=3), asyncio.Event(), asyncio.Event(), list[int]()
    back = list[bool]()

    async def lookup() -> None:
        async with pool.admit() as place:
            async with place.given_back():
                await away.wait()
            back.append(True)

    looking = asyncio.create_task(lookup())
    await settle()
    reading = asyncio.create_task(hold(pool, gate, running))
    await settle()
    assert len(running) == 1
    away.set()
    await settle()
    assert back == []
    gate.set()
    await asyncio.gather(looking, reading)
    assert back == [True]


async def test_no_more_are_without_their_places_than_there_are_places() -> None:
    """Each keeps what it has read: without a bound, as many batches were in memory as lookups came."""
    pool, away, gate, running = ReaderPool(running=2, waiting=9), asyncio.Event(), asyncio.Event(), list[int]()

    async def lookup() -> None:
        async with pool.admit() as place, place.given_back():
            running.append(1)
            await away.wait()

    looking = [asyncio.create_task(lookup()) for _ in range(9)]
    await settle()
    assert len(running) == 4
    away.set()
    gate.set()
    await asyncio.gather(*looking)
    await hold(pool, gate, running)


async def test_who_is_cancelled_while_its_place_is_given_back_gives_back_nothing_twice() -> None:
    pool, gate, running = ReaderPool(running=1, waiting=3), asyncio.Event(), list[int]()

    async def lookup() -> None:
        async with pool.admit() as place, place.given_back():
            await asyncio.Event().wait()

    looking = asyncio.create_task(lookup())
    await settle()
    reading = asyncio.create_task(hold(pool, gate, running))
    await settle()
    looking.cancel()
    await settle()
    looking.cancel()  # while it waits for its place
    await asyncio.gather(looking, return_exceptions=True)
    others = [asyncio.create_task(hold(pool, gate, running)) for _ in range(2)]
    await settle()
    assert len(running) == 1
    gate.set()
    await asyncio.gather(reading, *others)


async def test_one_that_stops_waiting_frees_its_place_in_the_queue() -> None:
    pool, gate, running = ReaderPool(running=1, waiting=1), asyncio.Event(), list[int]()
    first = asyncio.create_task(hold(pool, gate, running))
    second = asyncio.create_task(hold(pool, gate, running))
    await settle()
    second.cancel()
    await settle()
    third = asyncio.create_task(hold(pool, gate, running))
    await settle()
    gate.set()
    await asyncio.gather(first, third)


async def test_the_next_step_of_an_admitted_read_waits_and_is_not_shed() -> None:
    pool, gate, running = ReaderPool(running=1, waiting=0), asyncio.Event(), list[int]()
    first = asyncio.create_task(hold(pool, gate, running))
    await settle()

    async def step() -> str:
        async with pool.resume():
            return "read"

    second = asyncio.create_task(step())
    await settle()
    assert not second.done()
    gate.set()
    assert await second == "read"
    await first


async def test_a_used_up_quota_sheds_although_places_are_free() -> None:
    pool = ReaderPool(quota=Quota(0.25))
    with pytest.raises(QuotaExceededError) as error:
        async with pool.admit():
            pytest.fail("it was let in")
    assert error.value.retry_after_ms == 251


async def test_reads_over_the_budget_of_requests_are_shed_and_said_to_be() -> None:
    """U4: in a minute of its own for each budget, not queued."""
    clock, telemetry = ManualClock(), RecordedTelemetry()
    budget = ConfiguredFetchQuota(RateQuota(bytes_per_s=2, window_num=1, window_size_s=60), clock)
    store = CountedFetches(MemoryStore(clock=clock, ids=SystemIds()), budget)
    pool = ReaderPool(requests=budget, telemetry=telemetry)
    for _ in range(121):
        async with pool.admit():
            with pytest.raises(ObjectNotFoundError):
                await store.fetch_object("nothing", max_bytes=2**30)
    with pytest.raises(QuotaExceededError, match="requests to the store") as shed:
        async with pool.admit():
            pytest.fail("it was let in")
    assert shed.value.retry_after_ms > 59_000
    assert telemetry.value(READS_SHED, reason="store_requests") == 1
    await clock.advance(61)
    async with pool.admit():
        pass


async def refuse_for_a_second(retry_after: RetryAfter, clock: ManualClock, *, refused: int, served: int) -> float:
    """What those who are refused next are told, in seconds."""
    for _ in range(refused):
        retry_after.refused_ms()
    for _ in range(served):
        retry_after.served()
    await clock.advance(1)
    return retry_after.refused_ms() / 1000


async def test_a_crowd_is_told_to_come_back_after_the_time_that_serving_it_takes() -> None:
    clock = ManualClock()
    retry_after = RetryAfter(clock)
    assert await refuse_for_a_second(retry_after, clock, refused=900, served=1000) == 1.0
    assert await refuse_for_a_second(retry_after, clock, refused=899, served=300) == 3.0
    # Sent away for three seconds, a third of the crowd comes each second: it is as large as before.
    assert await refuse_for_a_second(retry_after, clock, refused=299, served=300) == 3.0
    assert await refuse_for_a_second(retry_after, clock, refused=299, served=0) == 10.0
    assert await refuse_for_a_second(retry_after, clock, refused=0, served=10) == 1.0


async def test_what_counts_is_how_many_came_a_second_however_long_nobody_looked() -> None:
    clock = ManualClock()
    retry_after = RetryAfter(clock)
    for _ in range(1200):
        retry_after.refused_ms()
    for _ in range(400):
        retry_after.served()
    await clock.advance(2)
    # 600 came each second, and 200 were served.
    assert retry_after.refused_ms() == 3000
    # A second that is not over tells nothing.
    for _ in range(500):
        assert retry_after.refused_ms() == 3000
    await clock.advance(0.5)
    assert retry_after.refused_ms() == 3000


async def test_the_pool_of_a_read_path_sends_away_for_longer_while_it_serves_little() -> None:
    clock = ManualClock()
    pool, gate = ReaderPool(running=1, waiting=0, clock=clock), asyncio.Event()
    read = asyncio.create_task(hold(pool, gate, []))
    await settle()

    async def refused_ms() -> int:
        with pytest.raises(QuotaExceededError) as error:
            async with pool.admit():
                pytest.fail("it was let in")
        return error.value.retry_after_ms

    assert [await refused_ms() for _ in range(5)] == [1000] * 5
    await clock.advance(1)
    assert await refused_ms() == 5000
    gate.set()
    await read


async def test_kafkas_metrics_of_the_pool_tell_how_full_it_is() -> None:
    """RemoteLogReaderTaskQueueSize, RemoteLogReaderAvgIdlePercent, RemoteLogReaderFetchRateAndTimeMs (S-141, S-172)."""
    telemetry, clock, gate = RecordedTelemetry(), ManualClock(), asyncio.Event()
    pool = ReaderPool(running=4, waiting=3, telemetry=telemetry, clock=clock)
    reads = [asyncio.create_task(hold(pool, gate, [0] * 9)) for _ in range(6)]
    await settle()
    assert telemetry.value(READER_TASK_QUEUE_SIZE) == 2
    assert telemetry.value(READER_IDLE_RATIO) == 0
    await clock.advance(3)
    gate.set()
    await asyncio.gather(*reads)
    assert telemetry.value(READER_TASK_QUEUE_SIZE) == 0
    assert telemetry.value(READER_IDLE_RATIO) == 1
    assert telemetry.observations(READER_FETCH_SECONDS) == [3, 3, 3, 3, 0, 0]


async def test_what_the_fetch_quota_makes_wait_is_counted_and_nothing_else() -> None:
    """S-166, S-167: remote-fetch-throttle-time; a read over the quota is turned away and does not wait here."""
    telemetry = RecordedTelemetry()
    pool = ReaderPool(quota=Quota(0.25), telemetry=telemetry)
    with pytest.raises(QuotaExceededError):
        async with pool.admit():
            pytest.fail("it was let in")
    assert telemetry.value(FETCH_THROTTLE_SECONDS) == 0.25


class Parts:
    """A stream that gives its parts in the pool's places; ``taken`` are the places at each time that one was fetched."""

    def __init__(self, pool: ReaderPool, telemetry: RecordedTelemetry, count: int) -> None:
        self.pool, self.telemetry, self.count = pool, telemetry, count
        self.fetched = list[float | None]()

    async def __aiter__(self) -> AsyncGenerator[int, None]:
        for number in range(self.count):
            self.fetched.append(self.telemetry.value(READ_POOL_BUSY))
            yield number


async def test_a_stream_has_a_place_while_it_fetches_and_none_while_its_client_has_the_part() -> None:
    telemetry, clock = RecordedTelemetry(), ManualClock()
    pool = ReaderPool(running=1, waiting=0, telemetry=telemetry)
    parts = Parts(pool, telemetry, 3)
    found = list[int]()
    async for part in pool.in_steps(aiter(parts), clock):
        found.append(part)
        assert telemetry.value(READ_POOL_BUSY) == 0
        async with pool.admit():
            pass
    assert (found, parts.fetched) == ([0, 1, 2], [1, 1, 1])
    assert telemetry.value(READ_POOL_BUSY) == 0


async def test_a_stream_is_shed_before_its_first_part_and_waits_its_turn_later() -> None:
    telemetry, clock, gate = RecordedTelemetry(), ManualClock(), asyncio.Event()
    pool = ReaderPool(running=1, waiting=0, telemetry=telemetry)
    parts = Parts(pool, telemetry, 2)
    steps = pool.in_steps(aiter(parts), clock)
    assert await anext(steps) == 0
    other = asyncio.create_task(hold(pool, gate, []))
    await settle()
    with pytest.raises(QuotaExceededError):
        await anext(pool.in_steps(aiter(Parts(pool, telemetry, 1)), clock))
    following = asyncio.create_task(anext(steps))
    await settle()
    assert not following.done(), "it waits for the place"
    gate.set()
    assert await following == 1
    await other
    assert telemetry.value(READS_SHED, reason="pool") == 1


@pytest.mark.parametrize(
    ("quota_s", "requests_s", "waits_s", "counted"),
    [
        pytest.param(0.0, 0.0, 0.0, None, id="nothing is used up"),
        pytest.param(0.5, 0.0, 0.5, 0.5, id="the quota of bytes"),
        pytest.param(0.0, 0.5, 0.5, 0.0, id="the budget of requests: not Kafka's throttle time"),
        pytest.param(0.25, 2.0, 2.0, 0.25, id="both: the longer one"),
        pytest.param(2.0, 0.25, 2.0, 2.0, id="both the other way round"),
    ],
)
async def test_a_stream_that_has_begun_is_delayed_by_what_is_used_up_and_not_shed(
    quota_s: float, requests_s: float, waits_s: float, counted: float | None
) -> None:
    quota, requests, telemetry, clock = Quota(0), Quota(0), RecordedTelemetry(), ManualClock()
    pool = ReaderPool(quota=quota, requests=requests, telemetry=telemetry)
    steps = pool.in_steps(aiter(Parts(pool, telemetry, 2)), clock)
    assert await anext(steps) == 0
    quota.throttle, requests.throttle = quota_s, requests_s
    following = asyncio.create_task(anext(steps))
    await settle()
    assert following.done() is (waits_s == 0)
    await clock.advance(waits_s * 0.99)
    assert following.done() is (waits_s == 0)
    await clock.advance(waits_s * 0.02)
    assert await following == 1
    assert telemetry.value(FETCH_THROTTLE_SECONDS) == counted


@pytest.mark.parametrize(
    ("throttle_s", "retry_after_ms"),
    [
        pytest.param(0.001, 2, id="a moment"),
        pytest.param(1.0, 1001, id="a second"),
        pytest.param(90, 90_001, id="long"),
    ],
)
async def test_who_is_shed_by_a_budget_is_told_when_there_is_room_again(throttle_s: float, retry_after_ms: int) -> None:
    for pool, reason in (
        (ReaderPool(quota=Quota(throttle_s), telemetry=RecordedTelemetry()), "the remote fetch quota"),
        (ReaderPool(requests=Quota(throttle_s), telemetry=RecordedTelemetry()), "the budget of requests to the store"),
    ):
        with pytest.raises(QuotaExceededError, match=reason) as shed:
            async with pool.admit():
                pytest.fail("it was let in")
        assert shed.value.retry_after_ms == retry_after_ms


async def test_a_read_that_is_cancelled_while_it_waits_never_runs() -> None:
    """T-58, S-175: nothing of it happens later."""
    pool, gate, running = ReaderPool(running=1, waiting=1), asyncio.Event(), list[int]()
    first = asyncio.create_task(hold(pool, gate, running))
    second = asyncio.create_task(hold(pool, gate, running))
    await settle()
    second.cancel()
    gate.set()
    await asyncio.gather(first, second, return_exceptions=True)
    await settle()
    assert (second.cancelled(), running) == (True, [])
