"""One piece of work per key, which outlives those who asked for it (U2)."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from tests.support.manual_clock import settle
from tiersidecar.domain.errors import QuotaExceededError, StoreError
from tiersidecar.reading.remote_objects import SingleFlight


class Work:
    """Counts its runs and waits to be let go."""

    def __init__(self, result: str | Exception = "done") -> None:
        self.result, self.runs, self.gate = result, 0, asyncio.Event()

    async def __call__(self) -> str:
        self.runs += 1
        await self.gate.wait()
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


async def test_those_who_ask_meanwhile_share_one_run() -> None:
    flights: SingleFlight[str, str] = SingleFlight("test")
    work = Work()
    waiting = [asyncio.create_task(flights.run("a", work)) for _ in range(5)]
    await settle()
    work.gate.set()
    assert await asyncio.gather(*waiting) == ["done"] * 5
    assert work.runs == 1
    assert len(flights) == 0


async def test_a_caller_that_leaves_leaves_the_work_to_the_others() -> None:
    flights: SingleFlight[str, str] = SingleFlight("test")
    work = Work()
    leaving, staying = (asyncio.create_task(flights.run("a", work)) for _ in range(2))
    await settle()
    leaving.cancel()
    await settle()
    assert leaving.cancelled()
    work.gate.set()
    assert await staying == "done"


async def test_work_that_everyone_left_goes_on_to_its_end() -> None:
    flights: SingleFlight[str, str] = SingleFlight("test")
    work = Work()
    leaving = asyncio.create_task(flights.run("a", work))
    await settle()
    leaving.cancel()
    await settle()
    assert len(flights) == 1
    work.gate.set()
    await settle()
    assert len(flights) == 0


async def test_a_failure_reaches_all_who_wait_and_is_not_kept() -> None:
    flights: SingleFlight[str, str] = SingleFlight("test")
    work = Work(StoreError(verb="fetch", key="k", reason="away"))
    waiting = [asyncio.create_task(flights.run("a", work)) for _ in range(2)]
    work.gate.set()
    assert [type(one) for one in await asyncio.gather(*waiting, return_exceptions=True)] == [StoreError] * 2
    assert await flights.run("a", lambda: Work.__call__(open_work())) == "done"


def open_work() -> Work:
    work = Work()
    work.gate.set()
    return work


async def test_callers_that_give_up_early_cannot_pile_up_work() -> None:
    """Rule 8: bounded."""
    flights: SingleFlight[int, str] = SingleFlight("chunk", max_flights=2)
    work = Work()
    leaving = [asyncio.create_task(flights.run(n, work)) for n in range(2)]
    await settle()
    for one in leaving:
        one.cancel()
    await settle()
    with pytest.raises(QuotaExceededError, match="chunk in flight") as shed:
        await flights.run(3, work)
    assert shed.value.retry_after_ms == 1000
    await flights.aclose()
    assert len(flights) == 0


async def test_it_tells_what_is_in_flight() -> None:
    flights: SingleFlight[str, str] = SingleFlight("test")
    work = Work()
    waiting = asyncio.create_task(flights.run("a", work))
    await settle()
    assert [flights.has(key) for key in "ab"] == [True, False]
    work.gate.set()
    await waiting
    assert not flights.has("a")


@pytest.mark.parametrize("ends", ["fails", "is cancelled"])
async def test_work_that_ends_badly_when_everyone_has_left_is_no_error_of_the_loops(ends: str) -> None:
    """asyncio would say so in the log, once for each reader that gave up."""
    told = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    flights: SingleFlight[str, str] = SingleFlight("test")
    work = Work(StoreError(verb="fetch", key="k", reason="away"))
    leaving = asyncio.create_task(flights.run("a", work))
    await settle()
    leaving.cancel()
    await settle()
    if ends == "fails":
        work.gate.set()
        await settle()
    else:
        await flights.aclose()
    del leaving, work
    gc.collect()
    await settle()
    assert (told, len(flights)) == ([], 0)
