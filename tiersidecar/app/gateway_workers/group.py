"""In the process that starts them: keep the worker processes running, and know how they are.

A worker that ends by itself, or says nothing for too long, is started again, later each time that it lasts only briefly.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import structlog

from tiersidecar.adapters.telemetry_relayed import SummedTelemetry
from tiersidecar.adapters.worker_table import WorkerTable
from tiersidecar.app.config.config import Config
from tiersidecar.app.gateway_workers.begun_with import begun_with
from tiersidecar.app.gateway_workers.control import RELOAD, STOP, Channel, Report, pair
from tiersidecar.app.gateway_workers.place import WorkerPlace, worker_config
from tiersidecar.domain.errors import ConfigError
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.gateway import GATEWAY_WORKER_STARTS, GATEWAY_WORKERS
from tiersidecar.reading.reader_limits import ColdReading, summed_readings

log = structlog.get_logger(__name__)

_FIRST_REPORT_S, _SILENT_S = 120.0, 60.0
"""How long a worker may say nothing: until its interpreter, and all that it imports, is there; and from then on."""
_ABORT_S = 5.0
"""Time for the stacks of all threads to be written, which SIGABRT does, before SIGKILL."""
_AGAIN_FIRST_S, _AGAIN_LAST_S = 0.5, 30.0
_LASTED_S = 60.0
"""A worker that ran for so long is started again as if it were the first time."""
_STOOD_STILL_S = 2.0
"""Time for what came while this process itself stood still."""
_EXIT_FAILED, _EXIT_CONFIG = 1, 2

Command = Callable[[WorkerPlace], Sequence[str]]


def worker_command(config: Config) -> Command:
    """Return the command line of a worker: this program again, with the same configuration file."""

    def command(place: WorkerPlace) -> Sequence[str]:
        place = replace(place, begun_with=begun_with(worker_config(config, place)))
        program = (sys.executable, "-P", "-m", "tiersidecar")
        return (*program, "run", "--config", str(config.file), "--roles", "gateway", "--gateway-worker", str(place))

    return command


def worker_environment() -> dict[str, str]:
    """Return this process's environment, and with it what its interpreter imports from."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@dataclass(slots=True)
class _Life:
    """A worker that runs: its process, and what it said last; None: nothing yet."""

    process: Process
    channel: Channel
    report: Report | None = None
    is_hung: bool = False


@dataclass(slots=True, kw_only=True)
class Group:
    """The workers of a gateway, by number.  ``ports`` are those that its listeners have."""

    workers: int
    command: Command
    ports: Sequence[int]
    table: WorkerTable
    telemetry: SummedTelemetry
    clock: Clock
    first_report_s: float = _FIRST_REPORT_S
    silent_s: float = _SILENT_S
    _lives: dict[int, _Life] = field(init=False, default_factory=dict)
    _ended: dict[int, str] = field(init=False, default_factory=dict)
    _stopping: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _was_ready: bool = field(init=False, default=False)

    @asynccontextmanager
    async def running(self, grace_s: float) -> AsyncIterator[None]:
        """Keep them running while the body does; then they have ``grace_s`` to end.

        Raises:
            ConfigError: a worker cannot use the configuration, cancelling the body; only before all have been ready.
        """
        for reason in ("ended", "hung"):  # from 0 on, so that the first one is seen as an increase
            self.telemetry.count(GATEWAY_WORKER_STARTS, 0, reason=reason)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._keep(number), name=f"gateway worker {number}")
                for number in range(1, self.workers + 1)
            ]
            try:
                yield
            finally:
                self.begin_stop()
                _, late = await asyncio.wait(tasks, timeout=grace_s)
                for life in self._lives.values() if late else ():
                    log.error("gateway.worker.stop_late", pid=life.process.pid)
                    _signal(life.process, signal.SIGKILL)
                for task in tasks:
                    task.cancel()

    def begin_stop(self) -> None:
        """Tell all workers to stop, and start none again."""
        self._stopping.set()
        for life in self._lives.values():
            _stop(life)

    async def stop_soon(self) -> None:
        """Do the same before the stop of this process."""
        self.begin_stop()

    def reload(self) -> None:
        """Tell all workers to read the configuration again."""
        for life in self._lives.values():
            life.channel.say(RELOAD)

    def reason_not_ready(self, number: int) -> str:
        """Return why a worker is not ready for clients; empty where it is."""
        return "; ".join(f"gateway worker {number}: {reason}" for reason in self._reasons_of(number))

    def warnings(self) -> Sequence[str]:
        """Return what the workers warn of; most of it all of them say."""
        return list(dict.fromkeys(one for report in self._reports() for one in report.warnings))

    def cold_readings(self) -> Sequence[ColdReading]:
        """Return the readers of remote data through all workers that run."""
        return summed_readings(one for report in self._reports() for one in report.cold)

    def node(self) -> tuple[str, int] | None:
        """Return cluster id and node id of the broker, once a worker knows them."""
        return next((report.node for report in self._reports() if report.node is not None), None)

    def _reports(self) -> list[Report]:
        return [life.report for life in self._lives.values() if life.report is not None]

    def _reasons_of(self, number: int) -> Sequence[str]:
        life = self._lives.get(number)
        if life is None:
            return [self._ended.get(number, "is being started")]
        return ["is being started"] if life.report is None else life.report.reasons

    async def _keep(self, number: int) -> None:
        reason, failures = "begin", 0
        while not self._stopping.is_set():
            self.telemetry.count(GATEWAY_WORKER_STARTS, reason=reason)
            began_s = self.clock.monotonic_s()
            try:
                code, is_hung = await self._live(number)
            except OSError as error:  # no process, or no descriptor, for it now
                code, is_hung = _EXIT_FAILED, False
                log.error("gateway.worker.not_started", worker=number, error=str(error))  # noqa: TRY400
            if self._stopping.is_set():
                return
            if code == _EXIT_CONFIG and not self._was_ready:
                fault = f"worker {number} cannot use the configuration: its last events in the log say why"
                raise ConfigError(source="gateway.workers", faults=(fault,))
            lasted_s = self.clock.monotonic_s() - began_s
            failures = 0 if lasted_s >= _LASTED_S else failures + 1
            again_s = min(_AGAIN_FIRST_S * 2 ** max(failures - 1, 0), _AGAIN_LAST_S)
            reason = "hung" if is_hung else "ended"
            self._ended[number] = f"{_how(code, is_hung)}; it is started again"
            log.warning(
                "gateway.worker.ended",
                worker=number,
                how=_how(code, is_hung),
                lasted_s=round(lasted_s),
                again_s=again_s,
            )
            await self._pause(again_s)

    async def _pause(self, pause_s: float) -> None:
        """Wait, and no longer once a stop has begun."""
        waits = asyncio.create_task(self.clock.sleep(pause_s)), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    async def _live(self, number: int) -> tuple[int, bool]:
        """Run a worker until it ends; return its exit code (negative: by a signal), and whether it was ended for hanging."""
        ours, theirs = pair()
        with theirs:
            place = WorkerPlace(
                number=number,
                starter_pid=os.getpid(),
                control_fd=theirs.fileno(),
                table_fd=self.table.fd,
                ports=tuple(self.ports),
            )
            process = await _started(self.command(place), (theirs.fileno(), self.table.fd), ours)
        life = self._lives[number] = _Life(process, await Channel.of(ours))
        log.info("gateway.worker.started", worker=number, pid=process.pid)
        if self._stopping.is_set():
            _stop(life)
        try:
            await self._hear(number, life)
            if not life.is_hung:
                with suppress(TimeoutError):  # it has closed its end, and has little left to do
                    async with asyncio.timeout(self.silent_s):
                        return await process.wait(), False
            return await _end(process), True
        finally:
            _signal(process, signal.SIGKILL)  # the task is cancelled, or there is nothing left to kill
            life.channel.close()
            await process.wait()
            self._lives.pop(number, None)
            self.table.clear(number)
            self.telemetry.drop(number)
            self._show_ready()

    async def _hear(self, number: int, life: _Life) -> None:
        """Take reports until the channel is closed, or nothing has come for too long."""
        while True:
            try:
                line = await self._line(life)
                if not line:
                    return
                report = Report.of_line(line)
                self.telemetry.add(number, report.metrics)
                life.report = report
            except (TimeoutError, ValueError) as error:
                log.error("gateway.worker.hung", worker=number, pid=life.process.pid, reason=str(error))  # noqa: TRY400
                life.is_hung = True
                return
            self._show_ready()

    async def _line(self, life: _Life) -> bytes:
        reading = asyncio.ensure_future(life.channel.line())
        limit_s = self.first_report_s if life.report is None else self.silent_s
        try:
            done, _ = await asyncio.wait((reading,), timeout=limit_s)
            if not done:
                done, _ = await asyncio.wait((reading,), timeout=_STOOD_STILL_S)
            if not done:
                raise TimeoutError(f"it has said nothing for {limit_s:.0f} s")
            return reading.result()
        finally:
            reading.cancel()

    def _show_ready(self) -> None:
        ready = sum(report.reasons == [] for report in self._reports())
        self._was_ready = self._was_ready or ready == self.workers
        self.telemetry.gauge(GATEWAY_WORKERS, ready)


async def _started(command: Sequence[str], descriptors: Sequence[int], ours: socket.socket) -> Process:
    try:
        return await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, pass_fds=descriptors, env=worker_environment()
        )
    except BaseException:
        ours.close()
        raise


async def _end(process: Process) -> int:
    """End a process that hangs: first so that it says where."""
    _signal(process, signal.SIGABRT)
    with suppress(TimeoutError):
        async with asyncio.timeout(_ABORT_S):
            return await process.wait()
    _signal(process, signal.SIGKILL)
    return await process.wait()


def _stop(life: _Life) -> None:
    # No signal: a service manager sends one to all processes of a unit, and a second one would end a worker at once.
    life.channel.say(STOP)
    if life.report is None:  # it has no clients, and does not listen yet
        _signal(life.process, signal.SIGTERM)


def _signal(process: Process, number: signal.Signals) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.send_signal(number)


def _how(code: int, is_hung: bool) -> str:
    if is_hung:
        return "it hung, and was ended"
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"
