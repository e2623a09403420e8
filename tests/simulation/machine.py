"""The machine that a sidecar runs on: its clock, the blocking calls to its log dirs, which run where they stand."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tests.simulation.chances import Chances
from tests.simulation.disk import Disk
from tests.simulation.virtual_time import BEGAN_S, VirtualTimeLoop, current_process
from tiersidecar.adapters.pins_fs.pins import FilesystemPins
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.failpoints import BlockingFailpoints
from tiersidecar.ports.pins import DiskSpace

T = TypeVar("T")

_READS_OF_SEGMENTS = ("OpenSegmentFile._read_through", "OpenSegmentFile._scan_slice", "read_segment_artefacts")
EPOCH_MS = 1_700_000_000_000
"""The wall clock at the start of a run."""


class SimulatedClock:
    """``ports.clock.Clock``; ``skew_ms`` is how far the wall clock of this machine is off."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop, self._began_s = loop, BEGAN_S
        self.skew_ms = 0

    def true_ms(self) -> int:
        """Return what a right clock would say."""
        return EPOCH_MS + int((self._loop.time() - self._began_s) * 1000)

    def now_ms(self) -> int:
        return self.true_ms() + self.skew_ms

    def monotonic_s(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class InlineBlocking:
    """``ports.clock.Blocking``: each call takes its time, and some of those that read a segment fail or hang a while.

    Buried processes get their answers at once: nothing is left to be decided for them.  ``disk`` learns that something may
    have been written.
    """

    def __init__(self, chances: Chances, fault_rate: float, disk: Disk) -> None:
        self._chances, self._fault_rate, self._disk = chances, fault_rate, disk

    async def run(self, function: Callable[..., T], *args: object) -> T:
        process = current_process()
        place = f"{process.name if process else 'world'} disk"
        await asyncio.sleep(max(self._chances.between(place, -0.006, 0.002), 0))
        if getattr(function, "__qualname__", "") in _READS_OF_SEGMENTS and self._fault_rate:
            if self._chances.strikes(f"{place} hangs", self._fault_rate):
                await asyncio.sleep(self._chances.between(f"{place} hangs s", 1, 45))
            if self._chances.strikes(f"{place} fails", self._fault_rate):
                raise OSError(errno.EIO, os.strerror(errno.EIO), place)
        try:
            return function(*args)
        finally:
            self._disk.changed()


class AtOnce:
    """``ports.clock.Blocking`` of files that are no part of what is simulated: nothing is drawn for them."""

    async def run(self, function: Callable[..., T], *args: object) -> T:
        return function(*args)


class PinsOnDisk(FilesystemPins):
    """The real ones, on a file system whose size is not this machine's."""

    def __init__(
        self, log_dirs: Sequence[str], disk: Disk, *, blocking: Blocking, failpoints: BlockingFailpoints
    ) -> None:
        super().__init__(log_dirs, blocking=blocking, link=disk.link, failpoints=failpoints)
        self._names, self._disk = tuple(str(Path(log_dir)) for log_dir in log_dirs), disk

    async def disk_spaces(self) -> Mapping[str, DiskSpace]:
        space = self._disk.space(asyncio.get_running_loop().time())
        return dict.fromkeys(self._names, space)
