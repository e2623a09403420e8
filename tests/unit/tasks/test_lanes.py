"""Lanes and the fate of errors (STYLE.md, tasks and supervision; S-182)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from tests.support.manual_clock import ManualClock, settle
from tests.support.segments import TIP
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.domain.errors import CorruptDataError, PartitionCountError, StoreError
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.tasks.lanes import Backoff, Lane, Lanes

BACKOFF = Backoff(initial_s=1, maximum_s=8, jitter=0, halted_s=100)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def make_lanes(clock: ManualClock) -> Lanes:
    return Lanes(clock=clock, ids=SystemIds(), telemetry=NoTelemetry(), backoff=BACKOFF)


class Work:
    """Counts its runs, and ends each as told."""

    def __init__(self, *ends: Exception | None) -> None:
        self.ends, self.runs = list(ends), 0

    async def __call__(self) -> None:
        self.runs += 1
        error = self.ends.pop(0) if self.ends else None
        if error is not None:
            raise error


def until(event: asyncio.Event) -> Callable[[], Awaitable[None]]:
    async def wait() -> None:
        await event.wait()

    return wait


AWAY = StoreError(verb="put", key="k", reason="away")
CORRUPT = CorruptDataError(where="f", position=7, reason="bad CRC")


async def test_a_retriable_error_backs_off_twice_as_long_each_time(clock: ManualClock) -> None:
    work = Work(AWAY, AWAY, AWAY, AWAY, AWAY)
    async with make_lanes(clock) as lanes:
        waited = []
        for runs in range(1, 6):
            began_s = clock.monotonic_s()
            while not lanes.start(TIP, Lane.COPY, work, "copy"):
                await clock.advance(0.5)
            waited.append(clock.monotonic_s() - began_s)
            await settle()
            assert work.runs == runs
            assert "away" in lanes.trouble(TIP)
        assert waited == [0, 1, 2, 4, 8]


async def test_success_forgets_the_failures(clock: ManualClock) -> None:
    work = Work(AWAY, None)
    async with make_lanes(clock) as lanes:
        lanes.start(TIP, Lane.COPY, work, "copy")
        await clock.advance(1)
        assert lanes.start(TIP, Lane.COPY, work, "copy")
        await settle()
        assert lanes.trouble(TIP) == ""


@pytest.mark.parametrize(
    "error", [pytest.param(CORRUPT, id="a corrupt segment"), pytest.param(KeyError("bug"), id="a bug")]
)
async def test_a_partition_is_parked_alone(clock: ManualClock, error: Exception) -> None:
    async with make_lanes(clock) as lanes:
        lanes.start(TIP, Lane.COPY, Work(error), "copy")
        await settle()
        assert lanes.halted(TIP)
        assert lanes.start(TIP, Lane.RETAIN, Work(), "retain"), "the other lane goes on"
        await clock.advance(99)
        assert not lanes.start(TIP, Lane.COPY, Work(), "copy")
        await clock.advance(1)
        assert lanes.start(TIP, Lane.COPY, Work(), "copy"), "tried again after the long back-off"
        await settle()
        assert not lanes.halted(TIP)


async def test_a_fatal_error_ends_everything(clock: ManualClock) -> None:
    async def run() -> None:
        async with make_lanes(clock) as lanes:
            lanes.start(TIP, Lane.RETAIN, until(asyncio.Event()), "other")
            lanes.start(TIP, Lane.COPY, Work(PartitionCountError(topic="t", actual=5, configured=50)), "copy")
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await run()
    assert caught.group_contains(PartitionCountError)


async def test_one_run_at_a_time(clock: ManualClock) -> None:
    """S-178."""
    gate = asyncio.Event()
    async with make_lanes(clock) as lanes:
        assert lanes.start(TIP, Lane.COPY, until(gate), "copy")
        assert not lanes.start(TIP, Lane.COPY, until(gate), "copy")
        gate.set()
        await settle()
        assert lanes.start(TIP, Lane.COPY, until(gate), "copy")


async def test_stop_cancels_at_the_next_await_and_a_new_epoch_starts_afresh(clock: ManualClock) -> None:
    """S-175, S-176."""
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with make_lanes(clock) as lanes:
        lanes.start(TIP, Lane.COPY, work, "copy orders-3@5")
        await settle()
        lanes.stop(TIP)
        await settle()
        assert cancelled.is_set()
        assert lanes.start(TIP, Lane.COPY, Work(), "copy orders-3@6")


async def test_why_a_partition_is_parked_is_said_once(clock: ManualClock) -> None:
    """It is tried again after each long back-off, for years if need be."""
    async with make_lanes(clock) as lanes:
        with capture_logs() as logs:
            for _ in range(3):
                assert lanes.start(TIP, Lane.COPY, Work(CORRUPT), "copy")
                await settle()
                assert lanes.halted(TIP)
                await clock.advance(100)
    assert [one["log_level"] for one in logs if one["event"] == "lane.halted"] == ["error", "debug", "debug"]
