"""Reading a file in short turns with rests between them, for callers in no hurry (docs/design/0012).

A thread of the broker that wakes up on this core waits for the end of a turn at most.  All functions here block.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

_REST_S = 0.0005
_TURNS = 16
_LEAST_TURN_BYTES = 64 * 1024
"""With what is done to them they take a core for about 0.1 ms."""
_PAGE_BYTES = 4096


def short_turns(fileno: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield position and count of each turn of reading from ``start`` to ``stop``, in order; sleep between two turns.

    They are 16 at most, and of 64 KiB at least: all rests together take no more than 9 ms, however large the range.

    From here on the disk is asked for one turn ahead, and no further.  What the kernel reads ahead of its own accord it brings
    in, page by page, within one read: with the 8 MiB of ``read_ahead_kb`` that some hosts set, for 1 to 4 ms at a time, which
    no thread of the broker interrupts.
    """
    turn_bytes = max((stop - start) // _TURNS, _LEAST_TURN_BYTES)
    turn_bytes = -(-turn_bytes // _PAGE_BYTES) * _PAGE_BYTES
    os.posix_fadvise(fileno, 0, 0, os.POSIX_FADV_RANDOM)
    for position in range(start, stop, turn_bytes):
        if position > start:
            time.sleep(_REST_S)
        os.posix_fadvise(fileno, position + turn_bytes, turn_bytes, os.POSIX_FADV_WILLNEED)
        yield position, min(turn_bytes, stop - position)
