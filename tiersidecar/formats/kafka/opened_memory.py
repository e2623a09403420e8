"""Memory for opened record batches, of all readers of a process together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from tiersidecar.domain.errors import NoMemoryLeftError, NotSmallError, TooLargeToOpenError

_NO_LIMIT = 1 << 62


def _no_rest() -> None:
    return None


class OpenedMemory:
    """``size_bytes`` for all leases together.  Safe to use from several threads at once.

    ``rest`` is called by the thread that opens, every millisecond or so: there it may let other threads go first.
    """

    def __init__(self, size_bytes: int = _NO_LIMIT, *, rest: Callable[[], None] = _no_rest) -> None:
        self._size_bytes = size_bytes
        self.rest = rest
        self._held_bytes = 0
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def held_bytes(self) -> int:
        """Return the bytes taken now."""
        return self._held_bytes

    def lease(self) -> MemoryLease:
        """Return a context manager for one batch."""
        return MemoryLease(self)

    def change(self, before_bytes: int, now_bytes: int) -> None:
        """Hold ``now_bytes`` instead of ``before_bytes``.

        Raises:
            NoMemoryLeftError: other leases hold too much; nothing has changed.
            TooLargeToOpenError: it is more than there is for all leases together.
        """
        if now_bytes > self._size_bytes:
            raise TooLargeToOpenError(wanted_bytes=now_bytes, most_bytes=self._size_bytes)
        with self._lock:
            held_bytes = self._held_bytes + now_bytes - before_bytes
            if now_bytes > before_bytes and held_bytes > self._size_bytes:
                raise NoMemoryLeftError(wanted_bytes=now_bytes - before_bytes)
            self._held_bytes = held_bytes


class MemoryLease:
    """Memory held by one open batch: its codec's window, and the record in hand."""

    __slots__ = ("_memory", "_record_bytes", "_window_bytes")

    def __init__(self, memory: OpenedMemory) -> None:
        self._memory = memory
        self._window_bytes = self._record_bytes = 0

    def __enter__(self) -> MemoryLease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.window(0)
        self.record(0)

    def window(self, size_bytes: int) -> None:
        """Hold as much for the codec.  Raise what :meth:`OpenedMemory.change` does."""
        if size_bytes != self._window_bytes:
            self._change(size_bytes, self._record_bytes)

    def record(self, size_bytes: int) -> None:
        """Hold as much for the record in hand.  Raise what :meth:`OpenedMemory.change` does."""
        if size_bytes != self._record_bytes:
            self._change(self._window_bytes, size_bytes)

    def stream(self) -> None:
        """Note that the opened data is not small: it will come in pieces, and may take its time."""

    def rest(self) -> None:
        """Let other threads go first, after some hundred records, or a piece."""
        self._memory.rest()

    def _change(self, window_bytes: int, record_bytes: int) -> None:
        self._memory.change(self._window_bytes + self._record_bytes, window_bytes + record_bytes)
        self._window_bytes, self._record_bytes = window_bytes, record_bytes


class _SmallLease(MemoryLease):
    __slots__ = ()

    def stream(self) -> None:
        raise NotSmallError

    def _change(self, window_bytes: int, record_bytes: int) -> None:
        if window_bytes or record_bytes:
            raise NotSmallError


class SmallMemory(OpenedMemory):
    """Memory for batches that open to little (``compression.SMALL_BYTES``), which holds nothing: any other raises NotSmallError
    where it would begin to be opened in pieces, or would have a large record whole."""

    def lease(self) -> MemoryLease:
        return _SmallLease(self)


UNLIMITED = OpenedMemory()
