"""Offsets, epochs and ranges, with their inclusiveness in one place.

``base_offset``, ``start_offset`` and ``end_offset`` are inclusive; ``next_offset``, last stable offset, high watermark
and log end offset are exclusive; :class:`ByteRange` is half-open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)

NO_OFFSET = Offset(-1)
NO_EPOCH = LeaderEpoch(-1)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes ``start`` up to, not including, ``stop``."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"not a byte range: [{self.start}, {self.stop})")

    def __len__(self) -> int:
        return self.stop - self.start
