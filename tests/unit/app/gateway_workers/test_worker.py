"""What a worker process says of itself, and does when it is told, or when the one that started it is gone."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.patience import patient_s
from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.adapters.telemetry_relayed import SummedTelemetry
from tiersidecar.adapters.worker_table import WorkerTable
from tiersidecar.app.gateway_workers.control import RELOAD, STOP, Channel, Report, pair
from tiersidecar.app.gateway_workers.place import WorkerPlace
from tiersidecar.app.gateway_workers.worker import Worker
from tiersidecar.app.identity import Identity
from tiersidecar.app.process_status import ProcessStatus
from tiersidecar.app.service_manager import Progress
from tiersidecar.domain.ids import BrokerId
from tiersidecar.ports.metrics.gateway import GATEWAY_REQUESTS, GATEWAY_WORKER_CPU, GATEWAY_WORKER_MEMORY
from tiersidecar.services.descriptors import reason_not_ready
from tiersidecar.tasks.partition_table import PartitionTable


@pytest.fixture
def table() -> Iterator[WorkerTable]:
    made = WorkerTable.create(workers=2, keys=10)
    yield made
    made.close()


@pytest.fixture
def status(tmp_path: Path) -> ProcessStatus:
    return ProcessStatus(
        version="1", config=load(tmp_path, LEAST), roles=frozenset(), table=PartitionTable(), started_ms=0, starting=""
    )


class Reporting:
    """A worker that reports, and the other end of its channel."""

    def __init__(self, table: WorkerTable, status: ProcessStatus) -> None:
        ours, theirs = pair()
        self._ours, self.clock, self.status, self.reloads = ours, ManualClock(), status, 0
        self.stopping = asyncio.Event()
        place = WorkerPlace(
            number=2, starter_pid=1, control_fd=theirs.detach(), table_fd=os.dup(table.fd), ports=(9192,)
        )
        self.worker, self.progress = Worker(place), Progress(self.clock)

    def _reload(self) -> None:
        self.reloads += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Channel]:
        channel = await Channel.of(self._ours)
        reporting = self.worker.reporting(
            self.status,
            progress=self.progress,
            reload=self._reload,
            stop=self.stopping.set,
            clock=self.clock,
        )
        async with asyncio.timeout(patient_s(30)), reporting:
            yield channel
        channel.close()


async def test_it_reports_once_a_second(table: WorkerTable, status: ProcessStatus) -> None:
    one, sums = Reporting(table, status), SummedTelemetry(version="1")
    status.reasons.append(lambda: "it waits for metadata")
    status.mount_halts = lambda: ["a mount has halted"]
    status.identity = Identity(cluster_id="c", broker_id=BrokerId(7))
    one.worker.telemetry.count(GATEWAY_REQUESTS, 3, listener="GATEWAY")
    async with one.running() as channel:
        report = Report.of_line(await channel.line())
        assert (report.reasons, report.warnings) == (["it waits for metadata"], ["a mount has halted"])
        assert report.node == ("c", 7)
        sums.add(2, report.metrics)
        assert sums.series(GATEWAY_REQUESTS) == [({"listener": "GATEWAY"}, 3)]
        ((_, memory),), ((_, used_s),) = sums.series(GATEWAY_WORKER_MEMORY), sums.series(GATEWAY_WORKER_CPU)
        assert memory > 10_000_000
        assert used_s > 0
        status.reasons.clear()
        await one.clock.advance(1)
        report = Report.of_line(await channel.line())
        assert report.reasons == []
        sums.add(2, report.metrics)
        assert sums.series(GATEWAY_REQUESTS) == [({"listener": "GATEWAY"}, 3)], "not counted again"


async def test_one_in_which_nothing_moves_says_nothing(table: WorkerTable, status: ProcessStatus) -> None:
    """It is ended for that, as systemd would end a process whose watchdog is not fed."""
    one = Reporting(table, status)
    with one.progress.counting("reads", lambda: 1, limit_s=10):
        async with one.running() as channel:
            await channel.line()
            await one.clock.advance(11)
            for _ in range(9):
                assert await channel.line()
            await one.clock.advance(20)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(channel.line(), 0.1)


async def test_it_reports_without_a_descriptor_left(table: WorkerTable, status: ProcessStatus) -> None:
    """It says so, and is not ended as one that says nothing."""
    one, taken = Reporting(table, status), list[int]()
    status.reasons.append(reason_not_ready)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with one.running() as channel:
        await channel.line()
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 64, hard))
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.dup(table.fd))
            await one.clock.advance(1)
            report = Report.of_line(await channel.line())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for descriptor in taken:
                os.close(descriptor)
    assert [reason for reason in report.reasons if "descriptors 0 are left" in reason]


async def test_it_is_told_to_reload(table: WorkerTable, status: ProcessStatus) -> None:
    one = Reporting(table, status)
    async with one.running() as channel:
        channel.say(RELOAD)
        channel.say("what a later release says")
        channel.say(RELOAD)
        while one.reloads < 2:  # noqa: ASYNC110  it is told by a socket
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_told", [True, False])
async def test_it_stops_in_order_when_it_is_told_or_the_channel_is_closed(
    table: WorkerTable, status: ProcessStatus, is_told: bool
) -> None:
    """No signal is sent for that: the unit's stop has sent one, and a second one would end it at once."""
    one = Reporting(table, status)
    async with one.running() as channel:
        await channel.line()
        if is_told:
            channel.say(STOP)
        else:
            channel.close()
        await one.stopping.wait()
        await one.clock.advance(3)


PROGRAM = """
import os, signal, sys, time
from tiersidecar.app.gateway_workers.place import WorkerPlace
starter = os.getpid()
if os.fork():
    time.sleep(1000)
place = WorkerPlace(number=1, starter_pid=starter, control_fd=0, table_fd=0, ports=())
if sys.argv[1] == "late":
    os.kill(starter, signal.SIGKILL)
    while os.getppid() == starter:
        time.sleep(0.01)
place.end_with_starter()
print(os.getpid(), flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("when", ["in time", "late"])
def test_it_ends_with_the_process_that_started_it(when: str) -> None:
    """That is killed once the worker has asked for it, or before."""
    starter = subprocess.Popen([sys.executable, "-c", PROGRAM, when], stdout=subprocess.PIPE)
    assert starter.stdout is not None
    if when == "in time":
        assert int(starter.stdout.readline())
        starter.kill()
    starter.wait(patient_s(20))
    assert starter.stdout.read() == b"", "its end of the pipe is closed as well"
    starter.stdout.close()
