"""The newest timestamp of a sealed segment, from the last entry of its time index: 12 bytes instead of a walk."""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct

from tiersidecar.domain.segments import NO_TIMESTAMP_MS

_ENTRY = Struct(">qi")
"""Timestamp, and offset relative to the segment's base."""


def read_max_timestamp_ms(path: str) -> int:
    """As Kafka's LogSegment.largestTimestamp, which the broker writes there when it rolls; -1 where the records have no time,
    or the index is away or not whole.

    Raises:
        OSError: it cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            size_bytes = file.seek(0, os.SEEK_END)
            if size_bytes < _ENTRY.size or size_bytes % _ENTRY.size:
                return NO_TIMESTAMP_MS
            file.seek(-_ENTRY.size, os.SEEK_END)
            timestamp_ms, _ = _ENTRY.unpack(file.read(_ENTRY.size))
    except FileNotFoundError:
        return NO_TIMESTAMP_MS
    return timestamp_ms if timestamp_ms > 0 else NO_TIMESTAMP_MS
