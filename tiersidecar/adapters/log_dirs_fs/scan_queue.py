"""Many callers, one scan at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tiersidecar.adapters.log_dirs_fs.log_dir_scan import LogDirScan


class ScanQueue:
    """Runs ``scan`` so that each caller gets one that began after it asked: who comes while one runs shares the next.

    A scan that hangs is waited for, not doubled.
    """

    def __init__(self, scan: Callable[[], Awaitable[LogDirScan]]) -> None:
        self._scan = scan
        self._running: asyncio.Task[LogDirScan] | None = None
        self._next: asyncio.Task[LogDirScan] | None = None

    def next_scan(self) -> asyncio.Task[LogDirScan]:
        """Not to be cancelled by the caller: others share it."""
        if self._running is None or self._running.done():
            self._running, self._next = self._next, None
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run(), name="scan log dir")
            return self._running
        if self._next is None:
            self._next = asyncio.create_task(self._run_after(self._running), name="scan log dir next")
        return self._next

    async def _run(self) -> LogDirScan:
        return await self._scan()

    async def _run_after(self, before: asyncio.Task[LogDirScan]) -> LogDirScan:
        await asyncio.wait([before])
        return await self._scan()
