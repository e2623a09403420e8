"""Lanes and the fate of errors (STYLE.md, tasks and supervision; S-038, S-045, S-182)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from tests.support.manual_clock import ManualClock, settle
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.segments import TOPIC_ID_PARTITION
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.domain.errors import CorruptDataError, PartitionCountError, StoreError, TopicLossError
from tiersidecar.ports.metrics.process import HALTED_PARTITIONS
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


@pytest.mark.parametrize(("is_told", "level"), [(True, "debug"), (False, "warning")])
async def test_what_is_told_as_an_outage_is_not_told_by_each_lane(
    clock: ManualClock, level: str, *, is_told: bool
) -> None:
    lanes = Lanes(
        clock=clock, ids=SystemIds(), telemetry=NoTelemetry(), backoff=BACKOFF, has_logged=lambda error: is_told
    )
    async with lanes:
        with capture_logs() as told:
            lanes.start(TOPIC_ID_PARTITION, Lane.COPY, Work(AWAY), "copy")
            await settle()
    assert [(one["event"], one["log_level"]) for one in told] == [("lane.retry", level)]


async def test_a_retriable_error_backs_off_twice_as_long_each_time(clock: ManualClock) -> None:
    """S-195."""
    work = Work(AWAY, AWAY, AWAY, AWAY, AWAY)
    async with make_lanes(clock) as lanes:
        waited = []
        for runs in range(1, 6):
            began_s = clock.monotonic_s()
            while not lanes.start(TOPIC_ID_PARTITION, Lane.COPY, work, "copy"):
                await clock.advance(0.5)
            waited.append(clock.monotonic_s() - began_s)
            await settle()
            assert work.runs == runs
            assert "away" in lanes.trouble(TOPIC_ID_PARTITION)
        assert waited == [0, 1, 2, 4, 8]


async def test_success_forgets_the_failures(clock: ManualClock) -> None:
    work = Work(AWAY, None)
    async with make_lanes(clock) as lanes:
        lanes.start(TOPIC_ID_PARTITION, Lane.COPY, work, "copy")
        await clock.advance(1)
        assert lanes.start(TOPIC_ID_PARTITION, Lane.COPY, work, "copy")
        await settle()
        assert lanes.trouble(TOPIC_ID_PARTITION) == ""


@pytest.mark.parametrize(
    "error", [pytest.param(CORRUPT, id="a corrupt segment"), pytest.param(KeyError("bug"), id="a bug")]
)
async def test_a_partition_is_parked_alone(clock: ManualClock, error: Exception) -> None:
    async with make_lanes(clock) as lanes:
        lanes.start(TOPIC_ID_PARTITION, Lane.COPY, Work(error), "copy")
        await settle()
        assert lanes.halted(TOPIC_ID_PARTITION)
        assert lanes.start(TOPIC_ID_PARTITION, Lane.RETAIN, Work(), "retain"), "the other lane goes on"
        await clock.advance(99)
        assert not lanes.start(TOPIC_ID_PARTITION, Lane.COPY, Work(), "copy")
        await clock.advance(1)
        assert lanes.start(TOPIC_ID_PARTITION, Lane.COPY, Work(), "copy"), "tried again after the long back-off"
        await settle()
        assert not lanes.halted(TOPIC_ID_PARTITION)


async def test_a_fatal_error_ends_everything(clock: ManualClock) -> None:
    async def run() -> None:
        async with make_lanes(clock) as lanes:
            lanes.start(TOPIC_ID_PARTITION, Lane.RETAIN, until(asyncio.Event()), "other")
            lanes.start(
                TOPIC_ID_PARTITION, Lane.COPY, Work(PartitionCountError(topic="t", actual=5, configured=50)), "copy"
            )
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await run()
    assert caught.group_contains(PartitionCountError)


async def test_one_run_at_a_time(clock: ManualClock) -> None:
    """S-178."""
    gate = asyncio.Event()
    async with make_lanes(clock) as lanes:
        assert lanes.start(TOPIC_ID_PARTITION, Lane.COPY, until(gate), "copy")
        assert not lanes.start(TOPIC_ID_PARTITION, Lane.COPY, until(gate), "copy")
        gate.set()
        await settle()
        assert lanes.start(TOPIC_ID_PARTITION, Lane.COPY, until(gate), "copy")


async def test_stop_cancels_at_the_next_await_and_a_new_epoch_starts_afresh(clock: ManualClock) -> None:
    """S-175, S-176, U28."""
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with make_lanes(clock) as lanes:
        lanes.start(TOPIC_ID_PARTITION, Lane.COPY, work, "copy orders-3@5")
        await settle()
        lanes.stop(TOPIC_ID_PARTITION)
        await settle()
        assert cancelled.is_set()
        assert lanes.start(TOPIC_ID_PARTITION, Lane.COPY, Work(), "copy orders-3@6")


async def test_what_an_operator_mends_outside_is_looked_for_soon(clock: ManualClock) -> None:
    async with make_lanes(clock) as lanes:
        assert lanes.start(
            TOPIC_ID_PARTITION, Lane.COPY, Work(TopicLossError(subject="orders-3", reason="lost")), "copy"
        )
        await settle()
        assert lanes.halted(TOPIC_ID_PARTITION) == "orders-3: lost"
        await clock.advance(BACKOFF.maximum_s)
        assert lanes.start(TOPIC_ID_PARTITION, Lane.COPY, Work(), "copy")


async def test_why_a_partition_is_parked_is_said_once(clock: ManualClock) -> None:
    """It is tried again after each long back-off, for years if need be."""
    async with make_lanes(clock) as lanes:
        with capture_logs() as logs:
            for _ in range(3):
                assert lanes.start(TOPIC_ID_PARTITION, Lane.COPY, Work(CORRUPT), "copy")
                await settle()
                assert lanes.halted(TOPIC_ID_PARTITION)
                await clock.advance(100)
    assert [log["log_level"] for log in logs if log["event"] == "lane.halted"] == ["error", "debug", "debug"]


@pytest.mark.parametrize(
    ("failures", "random", "delay_s"),
    [
        pytest.param(1, 0.5, 1, id="the first"),
        pytest.param(2, 0.5, 2, id="twice as long"),
        pytest.param(4, 0.5, 8, id="up to the longest"),
        pytest.param(5, 0.5, 8, id="and no longer"),
        pytest.param(1000, 0.5, 8, id="however often"),
        pytest.param(1, 0.0, 0.75, id="a quarter less"),
        pytest.param(1, 1.0, 1.25, id="or more, so that not all come back at once"),
    ],
)
def test_how_long_a_lane_rests(failures: int, random: float, delay_s: float) -> None:
    backoff = Backoff(initial_s=1, maximum_s=8, jitter=0.25, halted_s=100)
    assert backoff.delay_s(failures, random) == pytest.approx(delay_s)


def lanes_with(clock: ManualClock, telemetry: RecordedTelemetry) -> Lanes:
    return Lanes(clock=clock, ids=SystemIds(), telemetry=telemetry, backoff=BACKOFF)


async def test_what_the_status_page_says_of_lanes(clock: ManualClock) -> None:
    async with make_lanes(clock) as lanes:
        waits = asyncio.Event()
        lanes.start(TOPIC_ID_PARTITION, Lane.COPY, Work(AWAY), "copy")
        lanes.start(TOPIC_ID_PARTITION, Lane.RETAIN, Work(CORRUPT), "retain")
        lanes.start(TOPIC_ID_PARTITION, Lane.FOLLOW, until(waits), "follow")
        await settle()
        assert lanes.running(TOPIC_ID_PARTITION) == (Lane.FOLLOW,)
        assert (lanes.trouble(TOPIC_ID_PARTITION), lanes.halted(TOPIC_ID_PARTITION)) == (str(AWAY), str(CORRUPT))
        lanes.start(TOPIC_ID_PARTITION, Lane.RECOPY, Work(ValueError("a bug")), "recopy")
        waits.set()
        await settle()
        assert lanes.running(TOPIC_ID_PARTITION) == ()
        assert lanes.halted(TOPIC_ID_PARTITION) == f"{CORRUPT}; unexpected ValueError: a bug"
        await clock.advance(1)
        lanes.start(TOPIC_ID_PARTITION, Lane.COPY, Work(), "copy")
        await settle()
        assert lanes.trouble(TOPIC_ID_PARTITION) == "", "it has succeeded since"
        lanes.stop(TOPIC_ID_PARTITION)
        assert lanes.halted(TOPIC_ID_PARTITION) == ""


async def test_a_parked_partition_is_measured_until_all_its_lanes_go_on(clock: ManualClock) -> None:
    telemetry = RecordedTelemetry()

    def gauge() -> float | None:
        return telemetry.value(HALTED_PARTITIONS, topic="orders", partition="3")

    async with lanes_with(clock, telemetry) as lanes:
        for lane in (Lane.COPY, Lane.RETAIN):
            lanes.start(TOPIC_ID_PARTITION, lane, Work(CORRUPT), lane.value)
        await settle()
        assert gauge() == 1
        await clock.advance(99.9)
        assert not lanes.start(TOPIC_ID_PARTITION, Lane.COPY, Work(), "copy")
        await clock.advance(0.1)
        assert lanes.start(TOPIC_ID_PARTITION, Lane.COPY, Work(), "copy")
        await settle()
        assert gauge() == 1, "the other one is still parked"
        assert lanes.start(TOPIC_ID_PARTITION, Lane.RETAIN, Work(), "retain")
        await settle()
        assert gauge() == 0
        lanes.start(TOPIC_ID_PARTITION, Lane.COPY, Work(CORRUPT), "copy")
        await settle()
        lanes.stop(TOPIC_ID_PARTITION)
        assert gauge() is None


@pytest.mark.parametrize(
    ("answers", "is_over"),
    [
        pytest.param([True, True], True, id="it could all the time"),
        pytest.param([False], False, id="copies are paused"),
        pytest.param([True, False], False, id="they were paused meanwhile"),
    ],
)
async def test_a_run_that_may_not_act_ends_no_halt(clock: ManualClock, answers: list[bool], is_over: bool) -> None:
    """It returns early, and its cause is still there."""
    telemetry = RecordedTelemetry()
    async with lanes_with(clock, telemetry) as lanes:
        lanes.start(TOPIC_ID_PARTITION, Lane.COPY, Work(CORRUPT), "copy")
        await settle()
        await clock.advance(100)
        assert lanes.start(TOPIC_ID_PARTITION, Lane.COPY, Work(), "copy", may_act=iter(answers).__next__)
        await settle()
        assert (lanes.halted(TOPIC_ID_PARTITION) == "") is is_over
        assert telemetry.value(HALTED_PARTITIONS, topic="orders", partition="3") == (not is_over)


async def test_a_run_that_may_not_act_ends_a_trouble(clock: ManualClock) -> None:
    """What went wrong with the store is not to be told for as long as a pause lasts."""
    async with make_lanes(clock) as lanes:
        lanes.start(TOPIC_ID_PARTITION, Lane.COPY, Work(AWAY), "copy")
        await settle()
        await clock.advance(8)
        assert lanes.start(TOPIC_ID_PARTITION, Lane.COPY, Work(), "copy", may_act=lambda: False)
        await settle()
        assert lanes.trouble(TOPIC_ID_PARTITION) == ""


async def test_each_failure_is_told_with_its_count_and_its_rest(clock: ManualClock) -> None:
    async with make_lanes(clock) as lanes:
        with capture_logs() as told:
            for _ in range(3):
                lanes.start(TOPIC_ID_PARTITION, Lane.COPY, Work(AWAY), "copy")
                await settle()
                await clock.advance(8)
            lanes.start(TOPIC_ID_PARTITION, Lane.RETAIN, Work(ValueError("a bug")), "retain")
            await settle()
    retries = [dict(one) for one in told if one["event"] == "lane.retry"]
    assert [(retry["failures"], retry["backoff_ms"]) for retry in retries] == [(1, 1000), (2, 2000), (3, 4000)]
    assert {
        (retry["topic"], retry["partition"], retry["lane"], retry["error"], retry["log_level"]) for retry in retries
    } == {("orders", 3, "copy", str(AWAY), "warning")}
    (bug,) = [dict(one) for one in told if one["event"] == "lane.halted"]
    assert (bug["lane"], bug["error"], bug["log_level"]) == ("retain", "a bug", "error")


async def test_a_lane_that_ends_late_does_not_end_the_one_that_follows_it(clock: ManualClock) -> None:
    """It is cancelled, takes its time, and the partition is led again meanwhile."""
    going, may_end = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await may_end.wait()
            raise

    async with make_lanes(clock) as lanes:
        lanes.start(TOPIC_ID_PARTITION, Lane.COPY, slow, "slow")
        await settle()
        lanes.stop(TOPIC_ID_PARTITION)
        await settle()
        assert lanes.running(TOPIC_ID_PARTITION) == (Lane.COPY,), "not two at once"
        assert not lanes.start(TOPIC_ID_PARTITION, Lane.COPY, until(going), "next")
        may_end.set()
        await settle()
        assert lanes.running(TOPIC_ID_PARTITION) == ()
        assert lanes.start(TOPIC_ID_PARTITION, Lane.COPY, until(going), "next")
        await settle()
        assert lanes.running(TOPIC_ID_PARTITION) == (Lane.COPY,)
        going.set()


async def test_what_begins_or_ends_is_a_turn_for_the_watchdog(clock: ManualClock) -> None:
    async with make_lanes(clock) as lanes:
        ends = asyncio.Event()
        lanes.start(TOPIC_ID_PARTITION, Lane.COPY, until(ends), "copy")
        await settle()
        assert (lanes.turns, lanes.any_running()) == (1, True)
        ends.set()
        await settle()
        assert (lanes.turns, lanes.any_running()) == (2, False)
