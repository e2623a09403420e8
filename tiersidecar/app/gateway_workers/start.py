"""What the workers of a gateway share, made before the first of them is started: addresses, the table, metrics."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import structlog

from tiersidecar.adapters.telemetry_relayed import SummedTelemetry
from tiersidecar.adapters.worker_table import STARTER, RowShares, WorkerTable
from tiersidecar.app.builders.gateway import listener_settings
from tiersidecar.app.builders.read_path import CHUNK_CACHE_DIRECTORY, INDEX_CACHE_DIRECTORY
from tiersidecar.app.config.config import Config
from tiersidecar.app.gateway_workers.group import Group, worker_command
from tiersidecar.app.gateway_workers.place import directories_left
from tiersidecar.app.process_status import ProcessStatus
from tiersidecar.domain.errors import ConfigError
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.shares import Shares
from tiersidecar.reading.reader_limits import BUDGETS
from tiersidecar.services.gateway.listener import bind

log = structlog.get_logger(__name__)

_LOCK = "gateway-workers.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """All that the workers need."""

    config: Config
    ports: Sequence[int]
    table: WorkerTable
    telemetry: SummedTelemetry

    @property
    def shares(self) -> Shares:
        """Return what this process has of the table: it reads as well, with the role ``read``."""
        return RowShares(self.table, STARTER)

    def group(self, clock: Clock) -> Group:
        """Return the workers, of which none runs yet."""
        return Group(
            workers=self.config.gateway.workers,
            command=worker_command(self.config),
            ports=self.ports,
            table=self.table,
            telemetry=self.telemetry,
            clock=clock,
        )


async def prepare_workers(stack: AsyncExitStack, config: Config) -> Prepared:
    """Open what the workers share, until ``stack`` closes.

    The addresses are bound here, and nothing listens on this process's sockets: they keep the ports while no worker runs.

    Raises:
        ListenError: an address cannot be listened on.
        ConfigError: another process has workers with the same state.dir, or it cannot be used.
    """
    stack.callback(os.close, _lock(Path(config.state_dir)))
    ports = [await _reserve(stack, config, index) for index in range(len(config.gateway.listeners))]
    # Not before: until here, the addresses may be those of a gateway that runs, and the caches too.
    alone = [Path(config.state_dir) / f"{name}-gateway" for name in (CHUNK_CACHE_DIRECTORY, INDEX_CACHE_DIRECTORY)]
    _remove(*directories_left(config, workers=config.gateway.workers), *alone)
    table = WorkerTable.create(workers=config.gateway.workers, keys=_keys(config))
    stack.callback(table.close)
    return Prepared(config=config, ports=ports, table=table, telemetry=SummedTelemetry(version=version("tiersidecar")))


def show_workers(group: Group, status: ProcessStatus) -> None:
    """Have ``status`` say how the workers are."""
    status.reasons += [partial(group.reason_not_ready, number) for number in range(1, group.workers + 1)]
    status.mount_halts, status.cold_elsewhere, status.node_elsewhere = group.warnings, group.cold_readings, group.node


async def _reserve(stack: AsyncExitStack, config: Config, index: int) -> int:
    bound = await bind(listener_settings(config, config.gateway.listeners[index]))
    stack.callback(bound.close)
    # Only now: with SO_REUSEPORT from the beginning, two gateways of one user would share an address, and none would know.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    port: int = bound.getsockname()[1]
    return port


def _keys(config: Config) -> int:
    """Return how many keys a worker may show: addresses of connections, and readers with a budget of their own."""
    connections = sum(listener.max_connections + 1 for listener in config.gateway.listeners)
    unauthenticated = config.gateway.unauthenticated_max_connections
    return connections + unauthenticated + (BUDGETS if config.remote_fetch_quota else 0)


def remove_what_workers_left(config: Config) -> None:
    """Remove the directories of all workers, for a process that serves clients itself; none while another one has them."""
    left = directories_left(config, workers=0)
    if not left:
        return
    try:
        lock = _lock(Path(config.state_dir))
    except ConfigError:
        return
    try:
        _remove(*left)
    finally:
        os.close(lock)


def _lock(directory: Path) -> int:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(source="state.dir", faults=(f"{directory} cannot be used: {error.strerror}",)) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        fault = f"another process has gateway workers with {directory}: stop it first, or give this one a state.dir of its own"
        raise ConfigError(source="state.dir", faults=(fault,)) from error
    return lock


def _remove(*directories: Path) -> None:
    """Remove those that there are, of a former configuration: caches that nothing bounds any more."""
    for left in directories:
        if left.is_dir():
            log.info("gateway.worker.directory_removed", directory=str(left))
            shutil.rmtree(left, ignore_errors=True)
