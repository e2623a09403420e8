"""Reading a file in short turns with rests between them, for callers in no hurry (docs/design/0012).

A thread of the broker that wakes up on this core waits for the end of a turn at most.  All functions here block.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from tiersidecar.formats.native import TurnReader

_REST_S = 0.0005
_TURNS = 16
_LEAST_TURN_BYTES = 64 * 1024
"""With what is done to them they take a core for about 0.1 ms."""
_LEAST_NATIVE_TURN_BYTES = 512 * 1024
"""Without the interpreter between its steps, reading this takes a core for about 0.06 ms."""
_AT_ONCE_BYTES = 1024 * 1024
"""Given to the caller at once, who looks at it for about 0.1 ms."""
_PAGE_BYTES = 4096


def short_turns(fileno: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield position and count of each turn of reading from ``start`` to ``stop``, in order; sleep between two turns.

    They are 16 at most, and of 64 KiB at least: all rests together take no more than 9 ms, however large the range.

    From here on the disk is asked for one turn ahead, and no further.  What the kernel reads ahead of its own accord it brings
    in, page by page, within one read: with the 8 MiB of ``read_ahead_kb`` that some hosts set, for 1 to 4 ms at a time, which
    no thread of the broker interrupts.
    """
    turn_bytes = _turn_bytes(stop - start, _LEAST_TURN_BYTES)
    os.posix_fadvise(fileno, 0, 0, os.POSIX_FADV_RANDOM)
    for position in range(start, stop, turn_bytes):
        if position > start:
            time.sleep(_REST_S)
        os.posix_fadvise(fileno, position + turn_bytes, turn_bytes, os.POSIX_FADV_WILLNEED)
        yield position, min(turn_bytes, stop - position)


class NativeTurns:
    """Reads a file from ``start`` to ``stop`` as :func:`short_turns` would have it read, several turns in one call: it rests in
    native code, where nothing waits for the interpreter after a rest.

    ``at_once_bytes`` are to be read in one call.
    """

    def __init__(self, reader: TurnReader, fileno: int, start: int, stop: int) -> None:
        self._reader, self._fileno, self._start = reader, fileno, start
        self._turn_bytes = _turn_bytes(stop - start, _LEAST_NATIVE_TURN_BYTES)
        self.at_once_bytes = max(_AT_ONCE_BYTES, self._turn_bytes)
        os.posix_fadvise(fileno, 0, 0, os.POSIX_FADV_RANDOM)

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill ``buffer`` from ``position`` on; the count is short only at the end of the file.

        Raises:
            OSError: the disk fails.
        """
        rests_first = position > self._start
        return self._reader.read_in_turns(
            self._fileno, position, buffer, self._turn_bytes, int(_REST_S * 1_000_000), rests_first
        )


def _turn_bytes(size_bytes: int, least_bytes: int) -> int:
    """Return how much of ``size_bytes`` is read between two rests, in whole pages."""
    turn_bytes = max(size_bytes // _TURNS, least_bytes)
    return -(-turn_bytes // _PAGE_BYTES) * _PAGE_BYTES
