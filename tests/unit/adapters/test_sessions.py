"""Work that is tried again without end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support.manual_clock import ManualClock, settle
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.sessions import keep_trying, run_until_one_ends, running
from tiersidecar.domain.errors import (
    BrokerUnreachableError,
    MetadataTopicUnavailableError,
    PartitionCountError,
)

AWAY = BrokerUnreachableError(address="broker:9092", reason="refused")
DRIFT = PartitionCountError(topic="metadata", actual=4, configured=50)


class Steady(SystemIds):
    def random(self) -> float:
        return 1.0


async def endless() -> None:
    await asyncio.get_running_loop().create_future()


async def failing(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


def trying(
    clock: ManualClock, outcomes: list[object], reasons: list[str], *, give_up_after_ms: int | None = None
) -> asyncio.Task[None]:
    async def session(connected: Callable[[], None]) -> None:
        outcome = outcomes.pop(0)
        if outcome == "lasts":
            connected()
            await clock.sleep(100)
            raise AWAY
        if isinstance(outcome, BaseException):
            raise outcome
        await endless()

    return asyncio.create_task(
        keep_trying(
            session,
            topic="metadata",
            clock=clock,
            ids=Steady(),
            first_interval_ms=100,
            max_interval_ms=1000,
            give_up_after_ms=give_up_after_ms,
            on_failure=lambda error: reasons.append(str(error)),
        )
    )


async def test_failures_back_off_and_are_told_and_a_lasting_connection_ends_that() -> None:
    clock, reasons = ManualClock(), list[str]()
    outcomes: list[object] = [AWAY, ExceptionGroup("", [AWAY]), AWAY, AWAY, AWAY, "lasts", AWAY, AWAY, "endless"]
    task = trying(clock, outcomes, reasons)
    steps = [(0, 8), (0.19, 8), (0.02, 7), (0.41, 6), (0.81, 5), (1.01, 4), (1.01, 3)]
    for seconds, left in [*steps, (100, 3), (0.21, 2), (0.3, 2), (0.11, 1), (0.81, 0)]:
        await clock.advance(seconds)
        assert len(outcomes) == left
    assert len(reasons) == 8
    assert set(reasons) == {str(AWAY)}
    task.cancel()


@pytest.mark.parametrize("error", [DRIFT, ExceptionGroup("", [DRIFT])], ids=["alone", "from a task"])
async def test_what_is_not_retriable_ends_it(error: Exception) -> None:
    task = trying(ManualClock(), [error], [])
    with pytest.raises((PartitionCountError, ExceptionGroup)):
        await task


async def test_an_operators_limit_holds_until_the_first_connection() -> None:
    """S-102."""
    clock = ManualClock()
    task = trying(clock, [AWAY] * 9, [], give_up_after_ms=2000)
    for _ in range(4):
        await clock.advance(1)
    with pytest.raises(MetadataTopicUnavailableError, match="topic metadata could not be reached for 2400 ms"):
        await task
    clock = ManualClock()
    task = trying(clock, ["lasts", *[AWAY] * 90], [], give_up_after_ms=2000)
    await clock.advance(120)
    assert not task.done()
    task.cancel()


async def test_the_error_of_the_work_cancels_the_body_and_is_raised_itself() -> None:
    with pytest.raises(PartitionCountError):
        async with running(failing(DRIFT), name="work"):
            await endless()


async def test_the_error_of_the_body_is_raised_itself() -> None:
    with pytest.raises(KeyError):
        async with running(endless(), name="work"):
            raise KeyError("body")


async def test_the_work_ends_with_the_body() -> None:
    async with running(endless(), name="work"):
        work = next(task for task in asyncio.all_tasks() if task.get_name() == "work")
        await settle()
    assert work.cancelled()


async def test_one_that_a_library_cancels_ends_all() -> None:
    """aiokafka 0.14 does that to whoever closes its consumer: a TaskGroup alone would go on without it."""
    await run_until_one_ends({"cancelled": failing(asyncio.CancelledError()), "other": endless()})
    with pytest.raises(ExceptionGroup):
        await run_until_one_ends({"failing": failing(AWAY), "other": endless()})
