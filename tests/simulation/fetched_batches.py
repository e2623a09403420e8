"""What a follower appends of its leader's history: what a cleaner has left there of each batch, Fetch by Fetch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from tests.simulation.records import Batch

AS_WRITTEN: Mapping[int, bytes] = MappingProxyType({})
"""Of a leader whose cleaner never ran."""
_RECORD_COUNT = slice(57, 61)

Run = list[tuple[Batch, bytes]]
"""Batches with what the leader has of each, nothing where it is gone."""


def fetched_runs(
    history: Sequence[Batch],
    start: int,
    at_most: int,
    *,
    bases: Sequence[int],
    left_of: Mapping[int, bytes],
    most_bytes: int,
) -> Iterator[Run]:
    """Yield what follows of ``history`` from number ``start`` on, in runs that are appended at once: at most ``at_most``
    batches, or up to the next one that the leader has still.  What comes with one Fetch is of one of the leader's segments at
    ``bases``, and of ``most_bytes`` at most where it is more than one batch."""
    stop = min(start + at_most, len(history))
    while start < stop < len(history) and left_of.get(history[stop - 1].base_offset) == b"":
        stop += 1
    fetched = [(batch, left_of.get(batch.base_offset, batch.data)) for batch in history[start:stop]]
    while fetched:
        first, data = fetched[0]
        end = next((base for base in bases if base > first.base_offset), fetched[-1][0].next_offset)
        count, size = 1, len(data)
        while data and count < len(fetched) and fetched[count][0].base_offset < end:
            if size + len(fetched[count][1]) > most_bytes:
                break
            size += len(fetched[count][1])
            count += 1
        yield fetched[:count]
        fetched = fetched[count:]


def is_empty(data: bytes) -> bool:
    """Return whether a batch has no record left."""
    return int.from_bytes(data[_RECORD_COUNT], "big") == 0
