"""A fetch that is late gets a second one beside it, seldom enough, and the first good answer counts (U4)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from statistics import quantiles

import pytest

from tests.support.manual_clock import ManualClock, settle
from tests.support.recorded_telemetry import RecordedTelemetry
from tiersidecar.domain.errors import ObjectNotFoundError, StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.metrics.reading import HEDGED_FETCHES
from tiersidecar.ports.store import Buffer, Take
from tiersidecar.reading.hedged_fetches import HedgedFetches

PART = ByteRange(0, 1000)
FAILURE = StoreError(verb="fetch", key="k", reason="so the test wants it")


class SlowStore:
    """Takes the time, or raises the error, that ``next_one`` gives for each request; counts those that were cancelled."""

    def __init__(self, clock: ManualClock, next_one: Callable[[], float | StoreError]) -> None:
        self._clock, self._next_one = clock, next_one
        self.is_local = False
        self.begun = self.cancelled = 0
        self.fails_after_s = 0.01

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        self.begun += 1
        number, coming = self.begun, self._next_one()
        try:
            await self._clock.sleep(coming if isinstance(coming, float) else self.fails_after_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(coming, StoreError):
            raise coming
        return str(number).encode()

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        return bytes(await self.fetch_range(key, PART))

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        take(memoryview(await self.fetch_range(key, byte_range)))


class Hedged:
    """Fetches of 10 ms each have been seen; what comes next is the test's to say."""

    def __init__(self, *, percent: int = 5, is_local: bool = False) -> None:
        self.clock, self.telemetry = ManualClock(), RecordedTelemetry()
        self.coming: list[float | StoreError] = []
        self.store = SlowStore(self.clock, lambda: self.coming.pop(0) if self.coming else 0.01)
        self.store.is_local = is_local
        self.fetches = HedgedFetches(self.store, percent=percent, clock=self.clock, telemetry=self.telemetry)

    async def fetch(self, *coming: float | StoreError) -> tuple[bytes, float]:
        """The answer, and how long it took."""
        self.coming[:] = coming
        running = asyncio.create_task(self.fetches.fetch_range("k", PART))
        began_s, ended_s = self.clock.monotonic_s(), list[float]()
        running.add_done_callback(lambda _: ended_s.append(self.clock.monotonic_s()))
        await self.clock.advance(2)
        return bytes(await running), ended_s[0] - began_s

    async def warm(self) -> None:
        for _ in range(40):
            await self.fetch()

    def outcomes(self) -> dict[str, float]:
        counted = self.telemetry.by_label(HEDGED_FETCHES, "outcome")
        return {outcome: count for outcome, count in counted.items() if count}


@pytest.fixture
async def hedged() -> AsyncIterator[Hedged]:
    world = Hedged()
    await world.warm()
    yield world
    await world.fetches.aclose()


async def test_a_late_fetch_is_overtaken_and_cancelled(hedged: Hedged) -> None:
    _, took_s = await hedged.fetch(1.0, 0.01)
    await settle()
    assert took_s < 0.03
    assert hedged.store.cancelled == 1
    assert hedged.outcomes() == {"second": 1}


async def test_a_fetch_in_time_is_alone(hedged: Hedged) -> None:
    begun = hedged.store.begun
    await hedged.fetch(0.012)
    assert hedged.store.begun == begun + 1


async def test_the_first_may_still_win(hedged: Hedged) -> None:
    _, took_s = await hedged.fetch(0.020, 1.0)
    await settle()
    assert took_s < 0.025
    assert hedged.store.cancelled == 1
    assert hedged.outcomes() == {"first": 1}


@pytest.mark.parametrize("failing", [0, 1], ids=["the first fails", "the second fails"])
async def test_one_good_answer_is_enough(hedged: Hedged, failing: int) -> None:
    hedged.store.fails_after_s = 0.05
    _, took_s = await hedged.fetch(*[FAILURE if number == failing else 0.2 for number in range(2)])
    assert took_s > 0.2


async def test_two_errors_are_the_first_ones(hedged: Hedged) -> None:
    hedged.store.fails_after_s = 0.05
    with pytest.raises(StoreError) as raised:
        await hedged.fetch(FAILURE, StoreError(verb="fetch", key="k", reason="of the second"))
    assert raised.value is FAILURE


async def test_an_object_that_is_not_there_is_not_waited_for(hedged: Hedged) -> None:
    hedged.store.fails_after_s = 0.05
    missing = ObjectNotFoundError(verb="fetch", key="k", reason="no such object")
    hedged.coming[:] = [missing, 1.0]
    running = asyncio.create_task(hedged.fetches.fetch_range("k", PART))
    await hedged.clock.advance(0.06)
    assert running.done()
    assert running.exception() is missing
    assert hedged.store.cancelled == 1


async def test_an_error_in_time_is_an_error(hedged: Hedged) -> None:
    begun = hedged.store.begun
    with pytest.raises(StoreError):
        await hedged.fetch(FAILURE)
    assert hedged.store.begun == begun + 1


async def test_without_known_times_nothing_is_late() -> None:
    hedged = Hedged()
    _, took_s = await hedged.fetch(1.0)
    assert took_s == pytest.approx(1.0, abs=0.01)
    assert hedged.store.begun == 1


@pytest.mark.parametrize("of", [Hedged(percent=0), Hedged(is_local=True)], ids=["switched off", "of files"])
async def test_a_store_that_has_no_second_one_is_asked_once(of: Hedged) -> None:
    await of.warm()
    begun = of.store.begun
    await of.fetch(1.0)
    assert of.store.begun == begun + 1


async def test_a_caller_who_leaves_ends_both(hedged: Hedged) -> None:
    hedged.coming[:] = [1.0, 1.0]
    running = asyncio.create_task(hedged.fetches.fetch_range("k", PART))
    await hedged.clock.advance(0.1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert hedged.store.cancelled == 2


@pytest.mark.parametrize("percent", [1, 5])
async def test_no_more_is_sent_than_was_allowed(percent: int) -> None:
    """Two fetches of a hundred are slow."""
    draw, hedged, reads = random.Random(7), Hedged(percent=percent), 1000
    took = []
    for _ in range(reads):
        coming = 1.0 if draw.random() < 0.02 else draw.uniform(0.008, 0.012)
        took.append((await hedged.fetch(coming))[1])
    assert hedged.store.begun - reads <= percent / 100 * reads + 1
    if percent == 5:
        assert quantiles(took, n=100)[98] <= 0.5, "99 of 100 come in half of what the slow ones take"
