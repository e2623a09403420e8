"""A worker process's place: which one of the gateway's it is, what it is given, and its part of the configuration."""

from __future__ import annotations

import ctypes
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tiersidecar.app.config.config import Config
from tiersidecar.app.config.top_level import Role
from tiersidecar.app.config.values import Address

_PR_SET_PDEATHSIG = 1
_DIRECTORY = "gateway-worker-"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """What the starting process gives a worker on its command line.

    ``control_fd`` is a socket to that process, ``table_fd`` the memory that all share, ``ports`` those of the listeners, in
    their order.  ``number`` begins at 1.  ``begun_with`` stands for its release and configuration.
    """

    number: int
    starter_pid: int
    control_fd: int
    table_fd: int
    ports: tuple[int, ...]
    begun_with: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what ``str()`` gives.

        Raises:
            ValueError: it is something else.
        """
        number, starter_pid, control_fd, table_fd, begun_with, *ports = map(int, text.split(","))
        return cls(
            number=number,
            starter_pid=starter_pid,
            control_fd=control_fd,
            table_fd=table_fd,
            begun_with=begun_with,
            ports=tuple(ports),
        )

    def __str__(self) -> str:
        parts = (self.number, self.starter_pid, self.control_fd, self.table_fd, self.begun_with, *self.ports)
        return ",".join(map(str, parts))

    def end_with_starter(self) -> None:
        """Have the kernel end this process when the one that started it ends, however that comes: as if a gateway without
        workers had been killed."""
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self.starter_pid:  # it ended before
            os.kill(os.getpid(), signal.SIGKILL)


def is_served_by_workers(config: Config, roles: frozenset[Role]) -> bool:
    """Return whether a process with ``roles`` starts others for the role ``gateway``."""
    return Role.GATEWAY in roles and config.gateway.workers > 1


def worker_directory(config: Config, number: int) -> Path:
    """Return where a worker has its files: nothing that two processes write."""
    return Path(config.state_dir) / f"{_DIRECTORY}{number}"


def directories_left(config: Config, *, workers: int) -> list[Path]:
    """Return the directories of workers beyond the first ``workers``: of a former configuration, with caches that nothing
    bounds any more."""
    found = [path for path in Path(config.state_dir).glob(f"{_DIRECTORY}*") if path.is_dir() and not path.is_symlink()]
    numbers = {path: path.name.removeprefix(_DIRECTORY) for path in found}
    return sorted(path for path, number in numbers.items() if number.isdecimal() and int(number) > workers)


def worker_config(config: Config, place: WorkerPlace) -> Config:
    """Return a worker's part of the configuration: files of its own, and of caches and threads what falls to it.

    Limits that can be lent from one worker to another stay as they are: those are in the table (``decide.shares``).
    """
    workers, read = config.gateway.workers, config.read
    listeners = tuple(
        listener.model_copy(update={"listen": Address(host=listener.listen.host, port=port)})
        for listener, port in zip(config.gateway.listeners, place.ports, strict=False)
    )
    return config.model_copy(
        update={
            "state_dir": str(worker_directory(config, place.number)),
            "gateway": config.gateway.model_copy(update={"listeners": listeners}),
            "remote_log_reader_threads": _part(config.remote_log_reader_threads, workers),
            "remote_log_reader_max_pending_tasks": _part(config.remote_log_reader_max_pending_tasks, workers),
            "remote_log_index_file_cache_total_size_bytes": config.remote_log_index_file_cache_total_size_bytes
            // workers,
            "read": read.model_copy(
                update={
                    "chunk_cache_memory_bytes": read.chunk_cache_memory_bytes // workers,
                    "chunk_cache_disk_bytes": read.chunk_cache_disk_bytes // workers,
                    "ahead_memory_bytes": read.ahead_memory_bytes // workers,
                }
            ),
        }
    )


def _part(count: int, workers: int) -> int:
    return max(-(-count // workers), 1)
