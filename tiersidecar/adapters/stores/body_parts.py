"""Turn the pieces of a body into parts of an upload: buffers filled once, summed, and sent as often as needed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from crc32c import crc32c

from tiersidecar.domain.errors import SegmentChangedError
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.store import ObjectBody, SourceFile

_READ_BYTES = 4 * 1024 * 1024
_SENT_AT_ONCE = 256 * 1024
"""Most bytes passed to the socket in one go: the event loop is held for about a tenth of a millisecond."""


class PartBuffers:
    """``count`` buffers of ``size_bytes``, made at their first use and used again: all the memory that uploads take.

    Waiting callers get one in order, and no caller that holds one waits for another.
    """

    def __init__(self, *, count: int, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._free: list[bytearray] = []
        self._slots = asyncio.Semaphore(count)

    async def acquire(self) -> bytearray:
        await self._slots.acquire()
        return self._free.pop() if self._free else bytearray(self._size_bytes)

    def release(self, buffer: bytearray) -> None:
        self._free.append(buffer)
        self._slots.release()

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[bytearray]:
        buffer = await self.acquire()
        try:
            yield buffer
        finally:
            self.release(buffer)


class PartFiller:
    """Takes a body's pieces in order, cut anew into parts.

    ``size_bytes`` and, unless ``sums`` is false, ``crc32c`` are of all that was taken so far.  The body's errors pass
    unchanged.
    """

    def __init__(self, body: ObjectBody, *, blocking: Blocking, sums: bool = True) -> None:
        self._body, self._blocking, self._sums = body, blocking, sums
        self._next_piece = 0
        self._rest = memoryview(b"")
        self.size_bytes = 0
        self.crc32c = 0

    async def fill(self, buffer: memoryview) -> int:
        """Fill ``buffer``; return how many bytes it has now, fewer than its size only at the end of the body."""
        source = self._body.source_file
        filled = await (self._fill_from_pieces(buffer) if source is None else self._fill_from_file(buffer, source))
        self.size_bytes += filled
        if self._sums:
            self.crc32c = await self._blocking.run(crc32c, buffer[:filled], self.crc32c)
        return filled

    async def _fill_from_pieces(self, buffer: memoryview) -> int:
        filled = 0
        while filled < len(buffer):
            if not self._rest:
                if self._next_piece == self._body.piece_count:
                    break
                self._rest = memoryview(await self._body.piece(self._next_piece)).cast("B")
                self._next_piece += 1
            count = min(len(self._rest), len(buffer) - filled)
            await self._blocking.run(_copy, buffer[filled : filled + count], self._rest[:count])
            self._rest = self._rest[count:]
            filled += count
        return filled

    async def _fill_from_file(self, buffer: memoryview, source: SourceFile) -> int:
        wanted = min(len(buffer), len(source.byte_range) - self.size_bytes)
        filled = 0
        while filled < wanted:
            position = source.byte_range.start + self.size_bytes + filled
            into = buffer[filled : min(filled + _READ_BYTES, wanted)]
            count = await self._blocking.run(source.read_into, position, into)
            if count == 0:
                raise SegmentChangedError(
                    path=source.path, reason=f"it ends at byte {position} of {source.byte_range.stop}"
                )
            filled += count
        return filled


class PartBody:
    """A filled buffer in the form of a file for botocore and an async iterable for aiohttp: sent in slices as ``grant`` allows
    them, again from the front when botocore retries.

    ``on_sending`` is called before each slice, ``on_waiting`` when none is on its way for reasons of our own: it waits for a
    grant, or for the next attempt.
    """

    def __init__(
        self,
        view: memoryview,
        *,
        grant: Callable[[int], Awaitable[int]],
        on_sending: Callable[[], None],
        on_waiting: Callable[[], None],
    ) -> None:
        self._view, self._grant, self._on_sending, self._on_waiting = view, grant, on_sending, on_waiting
        self._position = 0

    def __len__(self) -> int:
        return len(self._view)

    async def __aiter__(self) -> AsyncIterator[memoryview]:
        self._on_sending()
        while self._position < len(self._view):
            self._on_waiting()
            granted = await self._grant(min(_SENT_AT_ONCE, len(self._view) - self._position))
            self._on_sending()
            part = self._view[self._position : self._position + granted]
            self._position += len(part)
            yield part

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: len(self._view)}[whence]
        self._position = base + offset
        self._on_waiting()
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, count: int = -1) -> bytes:
        """Satisfy botocore, which recognizes a stream by it; the data goes through ``__aiter__``."""
        stop = len(self._view) if count < 0 else self._position + count
        data = bytes(self._view[self._position : stop])
        self._position += len(data)
        return data


@asynccontextmanager
async def watched_part(
    view: memoryview, *, grant: Callable[[int], Awaitable[int]], stall_timeout_s: float
) -> AsyncIterator[PartBody]:
    """Yield a :class:`PartBody` to send.  Waiting to be granted, or to be sent, between attempts or under a client's own
    throttling, is no stall.

    Raises:
        TimeoutError: nothing of it moves for the stall timeout (U1).
    """
    loop = asyncio.get_running_loop()

    def reschedule(when: float | None) -> None:
        with suppress(RuntimeError):  # it has fired, or the answer came before the whole body was sent
            stalled.reschedule(when)

    async with asyncio.timeout(None) as stalled:
        yield PartBody(
            view,
            grant=grant,
            on_sending=lambda: reschedule(loop.time() + stall_timeout_s),
            on_waiting=lambda: reschedule(None),
        )


def _copy(target: memoryview, source: memoryview) -> None:
    target[:] = source
