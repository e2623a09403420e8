"""Contents of a store as files of this machine: opened, and read piece by piece in a thread of the process that asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.simulation.chances import Chances
from tests.simulation.network import FaultRates
from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.store import Take

_STALE_SHARE = 0.3
"""Share, of reads of a file that was removed after it was opened, that are on a network file system.  Elsewhere what is open
stays."""


class LocalFiles:
    """``open_file`` gives what a file holds when it is opened, ``is_there`` whether it still is; ``as_read``
    may cut off or damage a piece."""

    def __init__(
        self,
        chances: Chances,
        rates: FaultRates,
        *,
        open_file: Callable[[str], Awaitable[bytes]],
        is_there: Callable[[str], bool],
        as_read: Callable[[str, bytes], bytes],
    ) -> None:
        self._chances, self._rates = chances, rates
        self._open_file, self._is_there, self._as_read = open_file, is_there, as_read
        self._threads: set[asyncio.Task[None]] = set()

    async def feed(self, key: str, byte_range: ByteRange, take: Take) -> None:
        """Feed a range as :meth:`tiersidecar.ports.store.FeedRange.feed_range` does.  The thread goes on when nothing waits for
        it any more, and ends with its process."""
        thread = asyncio.create_task(self._read(key, byte_range, take), name=f"read {key}")
        self._threads.add(thread)
        thread.add_done_callback(self._threads.discard)
        await asyncio.shield(thread)

    async def _read(self, key: str, byte_range: ByteRange, take: Take) -> None:
        data, position = await self._open_file(key), byte_range.start
        while position < byte_range.stop:
            await self._wait(key)
            size = int(self._chances.between("local piece", 1, 700))
            piece = self._as_read(key, data[position : min(position + size, byte_range.stop)])
            if not piece:
                raise StoreError(verb="fetch", key=key, reason=f"it ends at {position}, not at {byte_range.stop}")
            taken_bytes = take(memoryview(piece))
            if not taken_bytes:
                return
            position += taken_bytes

    async def _wait(self, key: str) -> None:
        """Wait for one pread: it takes its time, and fails now and then."""
        chances = self._chances
        await asyncio.sleep(chances.between("local read s", 0, 0.004))
        if chances.strikes("local read is slow", self._rates.slow):
            await asyncio.sleep(chances.between("local read is slow s", 0.5, 8.0))
        if chances.strikes("local read hangs", self._rates.hang_before):
            await asyncio.sleep(chances.between("local read hangs s", 20.0, 90.0))
        if chances.strikes("local read fails", self._rates.fail_before):
            raise StoreError(verb="fetch", key=key, reason="Input/output error")
        if not self._is_there(key) and chances.strikes("local file is stale", _STALE_SHARE):
            raise StoreError(verb="fetch", key=key, reason="Stale file handle")
