"""Worker processes are started, heard, started again, and ended: with real processes, which a small program stands in for."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support import gateway_worker_stand_in
from tests.support.patience import patient_s
from tiersidecar.adapters.clock import SystemClock
from tiersidecar.adapters.telemetry_relayed import SummedTelemetry
from tiersidecar.adapters.worker_table import RowShares, WorkerTable
from tiersidecar.app.gateway_workers import group as group_module
from tiersidecar.app.gateway_workers.group import Group
from tiersidecar.app.gateway_workers.place import WorkerPlace
from tiersidecar.domain.errors import ConfigError
from tiersidecar.domain.taken import NOTHING, Taken
from tiersidecar.ports.metrics.gateway import (
    GATEWAY_CONNECTIONS,
    GATEWAY_REQUESTS,
    GATEWAY_WORKER_STARTS,
    GATEWAY_WORKERS,
)
from tiersidecar.ports.shares import Shared
from tiersidecar.ports.telemetry import Metric

PROGRAM = str(Path(gateway_worker_stand_in.__file__))


@pytest.fixture
def table() -> Iterator[WorkerTable]:
    made = WorkerTable.create(workers=2, keys=10)
    yield made
    made.close()


def group_of(table: WorkerTable, *behaviours: str) -> Group:
    """One worker for each; a worker that is started again behaves as the last of ``behaviours``."""
    left = list(behaviours)

    def command(place: WorkerPlace) -> Sequence[str]:
        behaviour = left.pop(0) if len(left) > 1 else left[0]
        return (sys.executable, "-I", "-S", PROGRAM, behaviour, str(place))

    return Group(
        workers=2,
        command=command,
        ports=[9192],
        table=table,
        telemetry=SummedTelemetry(version="1"),
        clock=SystemClock(),
        first_report_s=0.5 if "silent" in behaviours else 30,
        silent_s=0.5,
    )


@asynccontextmanager
async def running(group: Group) -> AsyncIterator[None]:
    async with asyncio.timeout(patient_s(60)), group.running(grace_s=patient_s(20)):
        yield


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(patient_s(30)):
        while not condition():  # noqa: ASYNC110  it is another process that changes it
            await asyncio.sleep(0.01)


def value(group: Group, metric: Metric, **labels: str) -> float:
    return sum(one for found, one in group.telemetry.series(metric) if dict(found).items() >= labels.items())


def pids(group: Group) -> list[int]:
    return [int(one.split()[1]) for one in group.warnings() if one.startswith("pid")]


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_what_all_say_is_put_together(table: WorkerTable) -> None:
    group = group_of(table, "work")
    assert group.reason_not_ready(1) == "gateway worker 1: is being started"
    async with running(group):
        await until(lambda: value(group, GATEWAY_WORKERS) == 2)
        assert group.reason_not_ready(1) == group.reason_not_ready(2) == ""
        assert group.node() == ("cluster", 7)
        assert value(group, GATEWAY_CONNECTIONS) == 10, "five of each"
        assert value(group, GATEWAY_WORKER_STARTS, reason="begin") == 2
        assert group.warnings().count("the same of all") == 1
        (reading,) = group.cold_readings()
        assert (reading.principal, reading.requests, reading.size_bytes) == ("User:a", 2, 20)
        workers = pids(group)
        group.reload()
        await until(lambda: sum("reloaded 1 times" in one for one in group.warnings()) == 2)
    assert not any(map(is_running, workers))
    assert value(group, GATEWAY_CONNECTIONS) == 0
    assert value(group, GATEWAY_REQUESTS) >= 2, "what they have counted stays"


async def test_a_worker_that_is_not_ready_says_why(table: WorkerTable) -> None:
    group = group_of(table, "work", "not ready")
    async with running(group):
        await until(lambda: "waits" in group.reason_not_ready(2))
        assert group.reason_not_ready(2) == "gateway worker 2: it waits for a broker"
        await until(lambda: value(group, GATEWAY_WORKERS) == 1)


async def test_a_worker_that_is_killed_is_started_again_and_keeps_nothing_of_the_table(table: WorkerTable) -> None:
    group = group_of(table, "work")
    async with running(group):
        await until(lambda: len(pids(group)) == 2)
        for row in (1, 2):
            RowShares(table, row).show(Shared.CONNECTIONS, Taken(5), "GATEWAY")
        first = pids(group)
        os.kill(first[0], signal.SIGKILL)
        await until(lambda: value(group, GATEWAY_WORKER_STARTS, reason="ended") == 1)
        await until(lambda: len(pids(group)) == 2 and set(pids(group)) != set(first))
        shown = [RowShares(table, 0).others(Shared.CONNECTIONS, "GATEWAY")[worker] for worker in (0, 1)]
        assert sorted(one.amount for one in shown) == [0, 5]
        assert NOTHING in shown
        await until(lambda: value(group, GATEWAY_CONNECTIONS) == 10)


async def test_workers_that_are_killed_at_any_moment_leave_nothing(
    table: WorkerTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While they begin, report or wait: what is counted only grows, and in the end all is as if nothing had been."""
    monkeypatch.setattr(group_module, "_AGAIN_LAST_S", 0.01)
    group, chances, counted = group_of(table, "work"), random.Random(1), 0.0
    async with running(group):
        for _ in range(20):
            await until(lambda: group._lives)
            await asyncio.sleep(chances.uniform(0, 0.1))
            life = chances.choice(list(group._lives.values()) or [None])
            if life is not None and life.process.returncode is None:
                life.process.kill()
            now = value(group, GATEWAY_REQUESTS)
            assert now >= counted
            counted = now
        await until(lambda: value(group, GATEWAY_WORKERS) == 2)
        await until(lambda: value(group, GATEWAY_CONNECTIONS) == 10)
        assert group.reason_not_ready(1) == group.reason_not_ready(2) == ""


@pytest.mark.parametrize("behaviour", ["silent", "falls silent", "nonsense"])
async def test_a_worker_that_says_nothing_or_nonsense_is_ended(table: WorkerTable, behaviour: str) -> None:
    group = group_of(table, behaviour, "work")
    async with running(group):
        await until(lambda: value(group, GATEWAY_WORKER_STARTS, reason="hung") == 1)
        await until(lambda: value(group, GATEWAY_WORKERS) == 2)


async def test_a_worker_that_stands_still_is_ended_as_well(table: WorkerTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGABRT waits for SIGCONT, and SIGKILL does not."""
    monkeypatch.setattr(group_module, "_ABORT_S", 0.3)
    group = group_of(table, "work")
    async with running(group):
        await until(lambda: len(pids(group)) == 2)
        stopped = pids(group)[0]
        os.kill(stopped, signal.SIGSTOP)
        await until(lambda: value(group, GATEWAY_WORKER_STARTS, reason="hung") == 1)
        assert not is_running(stopped)


async def test_a_worker_that_ends_again_and_again_is_started_ever_later(table: WorkerTable) -> None:
    group = group_of(table, "exit1")
    async with running(group):
        await until(lambda: value(group, GATEWAY_WORKER_STARTS, reason="ended") == 2)
        await until(lambda: "exit code 1" in group.reason_not_ready(1))
        await asyncio.sleep(0.7)
        assert value(group, GATEWAY_WORKER_STARTS, reason="ended") == 2, "a second later, and two after that"
        assert "it is started again" in group.reason_not_ready(1)


async def test_a_configuration_that_no_worker_can_use_ends_the_process(table: WorkerTable) -> None:
    group = group_of(table, "work", "exit2")
    with pytest.raises(ExceptionGroup) as caught:
        async with running(group):
            await asyncio.sleep(patient_s(30))
    (error,) = caught.value.exceptions
    assert isinstance(error, ConfigError)
    assert "worker 2 cannot use the configuration" in str(error)


async def test_one_that_no_worker_can_use_any_more_is_tried_again(table: WorkerTable) -> None:
    """An operator is changing it, and the other workers go on."""
    group = group_of(table, "work", "work", "exit2", "work")
    async with running(group):
        await until(lambda: value(group, GATEWAY_WORKERS) == 2)
        os.kill(pids(group)[0], signal.SIGKILL)
        await until(lambda: value(group, GATEWAY_WORKER_STARTS, reason="ended") == 2)
        await until(lambda: value(group, GATEWAY_WORKERS) == 2)


async def test_they_are_ended_before_the_process_stops_and_not_started_again(table: WorkerTable) -> None:
    group = group_of(table, "work")
    async with running(group):
        await until(lambda: len(pids(group)) == 2)
        workers = pids(group)
        await group.stop_soon()
        await until(lambda: not any(map(is_running, workers)))
        await asyncio.sleep(0.7)
        assert value(group, GATEWAY_WORKER_STARTS) == 2


async def test_a_stop_does_not_wait_for_the_next_start_of_one_that_ends_again_and_again(
    table: WorkerTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take all the time that there is for a stop, and end as one that was late."""
    monkeypatch.setattr(group_module, "_AGAIN_FIRST_S", 1000.0)
    monkeypatch.setattr(group_module, "_AGAIN_LAST_S", 1000.0)
    group = group_of(table, "exit1")
    async with asyncio.timeout(patient_s(10)), group.running(grace_s=1000):
        await until(lambda: group.reason_not_ready(1).endswith("it is started again"))


async def test_one_that_does_not_stop_in_time_is_killed(table: WorkerTable) -> None:
    group = group_of(table, "work")
    async with asyncio.timeout(patient_s(60)), group.running(grace_s=0.3):
        await until(lambda: len(pids(group)) == 2)
        workers = pids(group)
        os.kill(workers[0], signal.SIGSTOP)
    assert not any(map(is_running, workers))


async def test_a_program_that_cannot_be_started_is_tried_again(table: WorkerTable) -> None:
    group = group_of(table, "work")
    works, wrong = group.command, [("/nonexistent/python",)]
    group.command = lambda place: wrong.pop() if wrong else works(place)
    async with running(group):
        await until(lambda: value(group, GATEWAY_WORKERS) == 2)
        assert value(group, GATEWAY_WORKER_STARTS, reason="ended") == 1
