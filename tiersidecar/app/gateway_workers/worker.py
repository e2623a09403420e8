"""In a worker process: report to the process that started it, and do what it says."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing

import structlog

from tiersidecar.adapters.telemetry_relayed import RelayedTelemetry
from tiersidecar.adapters.worker_table import RowShares, WorkerTable
from tiersidecar.app.gateway_workers.control import RELOAD, STOP, Channel, Report
from tiersidecar.app.gateway_workers.place import WorkerPlace
from tiersidecar.app.process_status import ProcessStatus
from tiersidecar.app.service_manager import Progress
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.gateway import GATEWAY_WORKER_CPU, GATEWAY_WORKER_MEMORY
from tiersidecar.ports.shares import Shares
from tiersidecar.ports.telemetry import Telemetry

log = structlog.get_logger(__name__)

_REPORT_S = 1.0
_PAGE_BYTES = resource.getpagesize()
_LINE_BYTES = 256


class Worker:
    """What a worker process has that others have not: a row of the table, and metrics that are sent."""

    def __init__(self, place: WorkerPlace) -> None:
        self.place = place
        self.telemetry = RelayedTelemetry()
        self.shares: Shares = RowShares(WorkerTable(place.table_fd), place.number)

    @asynccontextmanager
    async def reporting(
        self,
        status: ProcessStatus,
        *,
        progress: Progress,
        reload: Callable[[], None],
        stop: Callable[[], None],
        clock: Clock,
    ) -> AsyncIterator[None]:
        """Report while the body runs.  ``stop`` is called when it is told to stop, or the channel is closed; a signal may have
        come before."""
        channel = await Channel.of(socket.socket(fileno=self.place.control_fd))
        tasks = [
            asyncio.create_task(self._report(channel, status, progress, clock), name="worker reports"),
            asyncio.create_task(_listen(channel, reload, stop), name="worker is told"),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            channel.close()

    async def _report(self, channel: Channel, status: ProcessStatus, progress: Progress, clock: Clock) -> None:
        logged = ""
        with closing(Usage(self.telemetry, worker=str(self.place.number))) as usage:
            while True:
                # Silence is what ends a worker that has stopped working: see Group.
                if stopped := progress.stopped():
                    if not logged:
                        log.error("watchdog.withheld", reason=stopped)
                else:
                    usage.look()
                    try:
                        await channel.send(report_of(status, self.telemetry.take()).to_line())
                    except OSError:
                        return  # the other task has seen the end as well
                logged = stopped
                await clock.sleep(_REPORT_S)


async def _listen(channel: Channel, reload: Callable[[], None], stop: Callable[[], None]) -> None:
    async for word in channel.words():
        if word == RELOAD:
            reload()
        elif word == STOP:
            stop()
    stop()


def report_of(status: ProcessStatus, metrics: Mapping[str, object]) -> Report:
    """Return what there is to say of this process now."""
    identity = status.identity
    return Report(
        reasons=status.ready_reasons(),
        warnings=status.mount_halts(),
        cold=() if status.cold is None else status.cold.readings,
        node=None if identity is None else (identity.cluster_id, identity.broker_id),
        metrics=metrics,
    )


class Usage:
    """CPU time and memory of this process, as metrics."""

    def __init__(self, telemetry: Telemetry, *, worker: str) -> None:
        self._telemetry, self._worker = telemetry, worker
        self._counted_s = 0.0
        # Kept open: a process that has no descriptor left has to report that, above all.
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def look(self) -> None:
        """Measure both."""
        used_s = time.process_time()
        self._telemetry.count(GATEWAY_WORKER_CPU, used_s - self._counted_s, worker=self._worker)
        self._counted_s = used_s
        pages = int(os.pread(self._statm, _LINE_BYTES, 0).split()[1])
        self._telemetry.gauge(GATEWAY_WORKER_MEMORY, pages * _PAGE_BYTES, worker=self._worker)

    def close(self) -> None:
        """Close what it looks at."""
        os.close(self._statm)
