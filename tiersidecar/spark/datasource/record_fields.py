"""Locate the fields of many records in a buffer: numpy columns instead of an object per record.

Records of format 2 follow one another, each behind its length: only that chain is walked one by one.  All other fields are
read for all records at once (the layout is in :mod:`tiersidecar.formats.kafka.records`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]

_VARINT_MAX_BYTES = 10
_LANES_TOGETHER = 96
"""Number of batches from which a step of all of them in numpy is cheaper than a step of each in Python."""


class MalformedRecordsError(ValueError):
    """The bytes are no records of format 2."""


@dataclass(frozen=True, slots=True)
class RecordFields:
    """One entry per record, in order.  Starts are positions in the buffer; sizes are in bytes, -1 for null.

    ``headers_start`` is where the first record header begins, ``stop`` the end of the record (exclusive).
    """

    timestamp_delta: Column
    offset_delta: Column
    key_start: Column
    key_size: Column
    value_start: Column
    value_size: Column
    header_count: Column
    headers_start: Column
    stop: Column


@dataclass(frozen=True, slots=True)
class HeaderFields:
    """One entry per record header, in the order of the records; ``key_size`` is never -1."""

    key_start: Column
    key_size: Column
    value_start: Column
    value_size: Column


def find_fields(data: bytes | memoryview, begins: Column, ends: Column, counts: Column) -> RecordFields:
    """Return the fields of all records of some batches, each with ``counts`` records in [``begins``, ``ends``).

    Raises:
        MalformedRecordsError: lengths or sizes do not fit.
    """
    buffer = np.frombuffer(data, np.uint8)
    starts, stops = _record_bounds(data, buffer, begins, ends, counts)
    timestamp_delta, at = _varints(buffer, starts + 1)
    offset_delta, at = _varints(buffer, at)
    key_size, key_start = _varints(buffer, at)
    value_size, value_start = _varints(buffer, key_start + np.maximum(key_size, 0))
    header_count, headers_start = _varints(buffer, value_start + np.maximum(value_size, 0))
    # Sizes are checked against what is left, so that none can wrap around.
    _require(key_size <= stops - key_start, "a key")
    _require(value_size <= stops - value_start, "a value")
    _require((headers_start <= stops) & (header_count >= 0), "headers")
    _require((headers_start == stops) | (header_count > 0), "a record")
    return RecordFields(
        timestamp_delta, offset_delta, key_start, key_size, value_start, value_size, header_count, headers_start, stops
    )


def find_headers(data: bytes | memoryview, records: RecordFields) -> HeaderFields:
    """Return the record headers of all records.

    Raises:
        MalformedRecordsError: they do not fill their records exactly.
    """
    buffer = np.frombuffer(data, np.uint8)
    counts = records.header_count
    _require(counts <= (records.stop - records.headers_start) // 2, "headers")  # each takes two bytes at least
    firsts = np.cumsum(counts) - counts
    columns = np.empty((4, int(counts.sum())), np.int64)
    bearers = np.flatnonzero(counts)
    at, nth = records.headers_start[bearers], 0
    while bearers.size:
        stops = records.stop[bearers]
        key_size, key_start = _varints(buffer, at)
        _require((key_size >= 0) & (key_size <= stops - key_start), "a header's key")
        value_size, value_start = _varints(buffer, key_start + key_size)
        _require(value_size <= stops - value_start, "a header's value")
        columns[:, firsts[bearers] + nth] = key_start, key_size, value_start, value_size
        at = value_start + np.maximum(value_size, 0)
        nth += 1
        goes_on = counts[bearers] > nth
        _require(goes_on | (at == stops), "headers")
        bearers, at = bearers[goes_on], at[goes_on]
    return HeaderFields(*columns)


def _record_bounds(
    data: bytes | memoryview, buffer: NDArray[np.uint8], begins: Column, ends: Column, counts: Column
) -> tuple[Column, Column]:
    """Return where each record begins, behind its length, and where it ends."""
    if (counts < 0).any() or (counts > ends - begins).any():
        raise MalformedRecordsError("more records than bytes")
    starts, stops = np.empty((2, int(counts.sum())), np.int64)
    firsts = np.cumsum(counts) - counts
    _require((counts > 0) | (begins == ends), "a batch")
    lanes, nth = np.flatnonzero(counts), 0
    at, slots = begins[lanes], firsts[lanes]
    while lanes.size >= _LANES_TOGETHER:
        for _ in range(int(counts[lanes].min()) - nth):
            bodies, following = _step(buffer, at, ends[lanes])
            starts[slots], stops[slots] = bodies, following
            at, slots, nth = following, slots + 1, nth + 1
        goes_on = counts[lanes] > nth
        # A length that does not fit shows here: positions only grow.
        _require(goes_on | (at == ends[lanes]), "a batch")
        lanes, at, slots = lanes[goes_on], at[goes_on], slots[goes_on]
    for lane, position, slot in zip(lanes.tolist(), at.tolist(), slots.tolist(), strict=True):
        walked = _walk_one(data, position, int(ends[lane]), int(counts[lane]) - nth)
        starts[slot : slot + len(walked[0])], stops[slot : slot + len(walked[1])] = walked
    return starts, stops


def _step(buffer: NDArray[np.uint8], at: Column, ends: Column) -> tuple[Column, Column]:
    """Go from the record at each position to the next; return where it begins, behind its length, and where it ends."""
    first_two = buffer.take(at, mode="clip") + (buffer.take(at + 1, mode="clip").astype(np.int64) << 8)
    advance = _ADVANCE.take(first_two)
    if np.count_nonzero(advance) == len(at):
        return at + _WIDTH.take(first_two), at + advance
    size, bodies = _varints(buffer, at)
    _require((size > 0) & (size <= ends - bodies), "a record")
    return bodies, bodies + size


def _walk_one(data: bytes | memoryview, position: int, end: int, count: int) -> tuple[list[int], list[int]]:
    # Three bytes of length suffice up to a MiB; the cost of large batches is this loop.
    bodies, following = [], []
    try:
        for _ in range(count):
            raw = data[position]
            position += 1
            if raw >= 0x80:
                byte = data[position]
                raw, shift = raw & 0x7F | (byte & 0x7F) << 7, 14
                position += 1
                while byte >= 0x80:
                    byte = data[position]
                    raw |= (byte & 0x7F) << shift
                    shift += 7
                    position += 1
            bodies.append(position)
            position += raw >> 1
            if raw & 1 or position > end or raw == 0:
                raise MalformedRecordsError("a record's length does not fit")
            following.append(position)
    except IndexError:
        raise MalformedRecordsError("the last record ends too early") from None
    if position != end:
        raise MalformedRecordsError(f"{end - position} bytes after the last record of a batch")
    return bodies, following


def _varints(buffer: NDArray[np.uint8], at: Column) -> tuple[Column, Column]:
    """Return zig-zag varints of up to 64 bits at each position, and the positions after them.  Positions outside the buffer
    give bytes at its ends: the caller checks the result."""
    first = buffer.take(at, mode="clip")
    following = at + 1
    if not (first & 0x80).any():
        small = first.astype(np.int64)
        return (small >> 1) ^ -(small & 1), following
    raw = (first & 0x7F).astype(np.uint64)
    longer, shift = np.flatnonzero(first & 0x80), 7
    while longer.size:
        if shift >= 7 * _VARINT_MAX_BYTES:
            raise MalformedRecordsError("a variable-length integer of more than 10 bytes")
        byte = buffer.take(following[longer], mode="clip")
        raw[longer] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        following[longer] += 1
        longer = longer[byte >= 0x80]
        shift += 7
    return ((raw >> np.uint64(1)) ^ (np.uint64(0) - (raw & np.uint64(1)))).view(np.int64), following


def _short_lengths() -> tuple[Column, Column]:
    """Return by a record's first two bytes (the second one above): how far it is to the next record, and how many bytes its
    length takes.  0 where two bytes are not enough, or impossible."""
    first_two = np.arange(1 << 16)
    first, second = first_two & 0xFF, first_two >> 8
    width = np.where(first < 0x80, 1, 2)
    raw = np.where(first < 0x80, first, first & 0x7F | second << 7)
    is_enough = ((first < 0x80) | (second < 0x80)) & (raw & 1 == 0) & (raw > 0)
    return np.where(is_enough, width + (raw >> 1), 0), width


_ADVANCE, _WIDTH = _short_lengths()


def _require(fits: NDArray[np.bool_], what: str) -> None:
    if not fits.all():
        raise MalformedRecordsError(f"{what} does not fit")
