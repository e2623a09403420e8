"""The three indexes of a segment, big endian (``OffsetIndex``, ``TimeIndex``, ``TransactionIndex``).

* ``.index``: offset relative to the base i32 | position i32, per entry; sparse, ascending;
* ``.timeindex``: timestamp i64 | relative offset i32, per entry; sparse, ascending;
* ``.txnindex``: version i16 | producer id i64 | first offset i64 | last offset i64 | last stable offset i64.

The first two are preallocated with zeros while their segment is active, and trimmed when it is sealed.

Rows of a file of fixed layout are kept as its bytes, and made when they are looked at: as objects they take six times the
memory.  A transaction index or a producer snapshot of 10 MiB, which any client with write access to the bucket can make, would
be 60 MiB and more.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import eq, le, lt
from struct import Struct
from sys import byteorder
from typing import Any, NamedTuple, TypeVar, overload

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.record_batches import NO_TIMESTAMP, Buffer, RecordBatchHeader

T = TypeVar("T")


class PackedRows(Sequence[T]):
    """``make`` takes the fields of one row of ``layout``."""

    __slots__ = ("_data", "_layout", "_make")

    def __init__(self, data: bytes, layout: Struct, make: Callable[[tuple[Any, ...]], T]) -> None:
        self._data, self._layout, self._make = data, layout, make

    def __len__(self) -> int:
        return len(self._data) // self._layout.size

    def __iter__(self) -> Iterator[T]:
        return map(self._make, self._layout.iter_unpack(self._data))

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[T, ...]: ...
    def __getitem__(self, place: int | slice) -> T | tuple[T, ...]:
        if isinstance(place, slice):
            return tuple(self[at] for at in range(*place.indices(len(self))))
        at = place + len(self) if place < 0 else place
        if not 0 <= at < len(self):
            raise IndexError(place)
        return self._make(self._layout.unpack_from(self._data, at * self._layout.size))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    def __hash__(self) -> int:
        return hash(self._data)

    def __repr__(self) -> str:
        return f"PackedRows({len(self)} rows)"


_OFFSET_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")
_ABORTED_TRANSACTION = Struct(">hqqqq")
_ABORTED_TRANSACTION_VERSION = 0

DEFAULT_INDEX_INTERVAL_BYTES = 4096


class OffsetIndexEntry(NamedTuple):
    """The batch that begins at byte ``position`` of the .log has the last offset ``offset``."""

    offset: Offset
    position: int


class TimeIndexEntry(NamedTuple):
    """No record up to and including ``offset`` is later than ``timestamp_ms``."""

    timestamp_ms: int
    offset: Offset


class AbortedTransaction(NamedTuple):
    """An aborted transaction: its first record, and the abort marker, both inclusive; the LSO once it had ended."""

    producer_id: int
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetIndex:
    """An ``.index`` as two columns, both ascending strictly: a segment of 1 GiB has a quarter of a million entries."""

    base_offset: Offset
    relative_offsets: array[int] = field(default_factory=lambda: array("i"))
    positions: array[int] = field(default_factory=lambda: array("i"))

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def entries(self) -> tuple[OffsetIndexEntry, ...]:
        return tuple(map(self._entry, range(len(self))))

    def lookup(self, offset: int) -> OffsetIndexEntry:
        """Return the last entry at or below ``offset``; (base offset, 0) when there is none (``OffsetIndex.lookup``).

        The batch that holds ``offset`` begins at or after its position.
        """
        slot = bisect_right(self.relative_offsets, offset - self.base_offset) - 1
        return self._entry(slot) if slot >= 0 else OffsetIndexEntry(self.base_offset, 0)

    def lookup_position(self, position: int) -> OffsetIndexEntry:
        """Return the last entry whose position is ``position`` or below; (base offset, 0) when there is none."""
        slot = bisect_right(self.positions, position) - 1
        return self._entry(slot) if slot >= 0 else OffsetIndexEntry(self.base_offset, 0)

    def write(self) -> bytes:
        return b"".join(map(_OFFSET_ENTRY.pack, self.relative_offsets, self.positions))

    def _entry(self, slot: int) -> OffsetIndexEntry:
        return OffsetIndexEntry(Offset(self.base_offset + self.relative_offsets[slot]), self.positions[slot])


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeIndex:
    """A ``.timeindex`` as two columns: timestamps ascend strictly, offsets do not fall."""

    base_offset: Offset
    timestamps_ms: array[int] = field(default_factory=lambda: array("q"))
    relative_offsets: array[int] = field(default_factory=lambda: array("i"))

    def __len__(self) -> int:
        return len(self.timestamps_ms)

    @property
    def entries(self) -> tuple[TimeIndexEntry, ...]:
        return tuple(map(self._entry, range(len(self))))

    def lookup(self, timestamp_ms: int) -> TimeIndexEntry:
        """Return the last entry at or below ``timestamp_ms``; (-1, base offset) when there is none (``TimeIndex.lookup``)."""
        slot = bisect_right(self.timestamps_ms, timestamp_ms) - 1
        return self._entry(slot) if slot >= 0 else TimeIndexEntry(NO_TIMESTAMP, self.base_offset)

    def write(self) -> bytes:
        return b"".join(map(_TIME_ENTRY.pack, self.timestamps_ms, self.relative_offsets))

    def _entry(self, slot: int) -> TimeIndexEntry:
        return TimeIndexEntry(self.timestamps_ms[slot], Offset(self.base_offset + self.relative_offsets[slot]))


def read_offset_index(
    data: Buffer,
    *,
    base_offset: Offset,
    where: str = "offset index",
    segment_size_bytes: int | None = None,
    end_offset: Offset | None = None,
    most_entries: int | None = None,
) -> OffsetIndex:
    """Parse and check an ``.index``; zeros at its end, which an unclean stop leaves behind, are no entries.

    ``segment_size_bytes`` and ``end_offset`` (inclusive) are the limits for positions and offsets, where known.  Entries past
    ``most_entries`` are not looked at.

    Raises:
        CorruptDataError: not whole entries, not ascending, or outside the segment.
    """
    entries = _used_entries(data, _OFFSET_ENTRY, where, most_entries)
    index = OffsetIndex(
        base_offset=base_offset,
        relative_offsets=_column("i", entries, 0, _OFFSET_ENTRY.size),
        positions=_column("i", entries, 4, _OFFSET_ENTRY.size),
    )
    size = _OFFSET_ENTRY.size
    _check_ascending(index.relative_offsets, -1, lt, where, size)
    _check_ascending(index.positions, -1, lt, where, size)
    _check_limit(index.relative_offsets, None if end_offset is None else end_offset - base_offset, where, size)
    _check_limit(index.positions, None if segment_size_bytes is None else segment_size_bytes - 1, where, size)
    return index


def read_time_index(
    data: Buffer,
    *,
    base_offset: Offset,
    where: str = "time index",
    end_offset: Offset | None = None,
    most_entries: int | None = None,
) -> TimeIndex:
    """Parse and check a ``.timeindex``; zeros at its end are no entries.  ``end_offset`` is inclusive.  Entries past
    ``most_entries`` are not looked at.

    Raises:
        CorruptDataError: not whole entries, not ascending, or outside the segment.
    """
    entries = _used_entries(data, _TIME_ENTRY, where, most_entries)
    index = TimeIndex(
        base_offset=base_offset,
        timestamps_ms=_column("q", entries, 0, _TIME_ENTRY.size),
        relative_offsets=_column("i", entries, 8, _TIME_ENTRY.size),
    )
    size = _TIME_ENTRY.size
    _check_ascending(index.timestamps_ms, NO_TIMESTAMP, lt, where, size)
    _check_ascending(index.relative_offsets, 0, le, where, size)
    _check_limit(index.relative_offsets, None if end_offset is None else end_offset - base_offset, where, size)
    return index


def _aborted(row: tuple[Any, ...]) -> AbortedTransaction:
    return AbortedTransaction(*row[1:])


def read_transaction_index(
    data: Buffer, *, base_offset: Offset, where: str = "transaction index"
) -> PackedRows[AbortedTransaction]:
    """Parse and check a ``.txnindex``: the aborted transactions whose marker is in this segment, by marker.

    Raises:
        CorruptDataError: not whole entries, of a later version, not ascending, or ended before this segment.
    """
    last_offset: int = base_offset - 1
    _check_whole_entries(data, _ABORTED_TRANSACTION, where)
    for number, (version, _, first_offset, end_offset, stable_offset) in enumerate(
        _ABORTED_TRANSACTION.iter_unpack(data)
    ):
        place = number * _ABORTED_TRANSACTION.size
        if version != _ABORTED_TRANSACTION_VERSION:
            raise CorruptDataError(where=where, position=place, reason=f"unknown entry version {version}")
        if end_offset <= last_offset:
            reason = f"aborted transaction ends at {end_offset}, which is not above {last_offset}"
            raise CorruptDataError(where=where, position=place, reason=reason)
        if not (0 <= first_offset <= end_offset and 0 <= stable_offset <= end_offset + 1):
            entry = _aborted(_ABORTED_TRANSACTION.unpack_from(data, place))
            raise CorruptDataError(where=where, position=place, reason=f"aborted transaction {entry} runs backwards")
        last_offset = end_offset
    return PackedRows(bytes(data), _ABORTED_TRANSACTION, _aborted)


def write_transaction_index(transactions: Iterable[AbortedTransaction]) -> bytes:
    """Return the bytes of a ``.txnindex``."""
    return b"".join(_ABORTED_TRANSACTION.pack(_ABORTED_TRANSACTION_VERSION, *entry) for entry in transactions)


def collect_aborted(
    transactions: Sequence[AbortedTransaction], start_offset: int, stop_offset: int
) -> tuple[tuple[AbortedTransaction, ...], bool]:
    """Return those that overlap the offsets from ``start_offset`` up to, not including, ``stop_offset``, and whether the search
    ends here; if not, the next segment's index may have more (``TransactionIndex.collectAbortedTxns``)."""
    found: list[AbortedTransaction] = []
    for entry in transactions:
        if entry.last_offset >= start_offset and entry.first_offset < stop_offset:
            found.append(entry)
        if entry.last_stable_offset >= stop_offset:
            return tuple(found), True
    return tuple(found), False


class IndexRebuilder:
    """Rebuild both indexes from a segment's batches, like a recovering broker (``LogSegment.recover``): an entry for
    the first batch after each ``index_interval_bytes``, and the largest timestamp at the end.  The broker's first ones may
    differ, since they count appends, which can be several batches."""

    def __init__(self, *, base_offset: Offset, index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES) -> None:
        self._offset_index, self._time_index = OffsetIndex(base_offset=base_offset), TimeIndex(base_offset=base_offset)
        self._interval_bytes = index_interval_bytes
        self._latest = TimeIndexEntry(NO_TIMESTAMP, base_offset)
        self._indexed_position = 0

    def add(self, position: int, header: RecordBatchHeader) -> None:
        """Add the next batch, and its position in the file."""
        if header.max_timestamp > self._latest.timestamp_ms:
            self._latest = TimeIndexEntry(header.max_timestamp, header.last_offset)
        if position - self._indexed_position > self._interval_bytes:
            self._offset_index.relative_offsets.append(header.last_offset - self._offset_index.base_offset)
            self._offset_index.positions.append(position)
            _append_later(self._time_index, self._latest)
            self._indexed_position = position

    @property
    def known(self) -> tuple[int, int, int]:
        """Return the position of the last entry, and the latest timestamp with its offset."""
        return self._indexed_position, *self._latest

    def add_rows(self, rows: Iterable[tuple[int, int, int, int]], known: Sequence[int]) -> None:
        """Add batches of which native code found the entries: last offset, position, latest timestamp and its offset of each;
        ``known`` is what :attr:`known` is after them."""
        base_offset = self._offset_index.base_offset
        for last_offset, position, timestamp_ms, offset in rows:
            self._offset_index.relative_offsets.append(last_offset - base_offset)
            self._offset_index.positions.append(position)
            _append_later(self._time_index, TimeIndexEntry(timestamp_ms, Offset(offset)))
        self._indexed_position, timestamp_ms, offset = known
        self._latest = TimeIndexEntry(timestamp_ms, Offset(offset))

    def finish(self) -> tuple[OffsetIndex, TimeIndex]:
        """Return both, after the last batch."""
        _append_later(self._time_index, self._latest)
        return self._offset_index, self._time_index


def rebuild_indexes(
    batches: Iterable[tuple[int, RecordBatchHeader]],
    *,
    base_offset: Offset,
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
) -> tuple[OffsetIndex, TimeIndex]:
    """Return both indexes from positions and headers of a segment's batches: see :class:`IndexRebuilder`."""
    rebuilder = IndexRebuilder(base_offset=base_offset, index_interval_bytes=index_interval_bytes)
    for position, header in batches:
        rebuilder.add(position, header)
    return rebuilder.finish()


def _append_later(index: TimeIndex, latest: TimeIndexEntry) -> None:
    """Append only what is later than the last entry (``TimeIndex.maybeAppend``)."""
    if latest.timestamp_ms > (index.timestamps_ms[-1] if index.timestamps_ms else NO_TIMESTAMP):
        index.timestamps_ms.append(latest.timestamp_ms)
        index.relative_offsets.append(latest.offset - index.base_offset)


def _used_entries(data: Buffer, layout: Struct, where: str, most_entries: int | None) -> bytes:
    """Return the entries without zero entries at the end (no broker writes an entry of zeros at position 0; one for time 0 at
    the base offset says nothing)."""
    _check_whole_entries(data, layout, where)
    entries = bytes(data)
    count = -(-len(entries.rstrip(b"\0")) // layout.size)
    if most_entries is not None and count > most_entries:
        reason = f"{count} entries, where the segment has at most {most_entries} batches"
        raise CorruptDataError(where=where, position=most_entries * layout.size, reason=reason)
    return entries[: count * layout.size]


def _column(typecode: str, entries: bytes, begin: int, entry_size: int) -> array[int]:
    """Return the big-endian field at byte ``begin`` of each entry, gathered byte by byte of the field rather than entry by
    entry: a segment of 1 GiB has a quarter of a million of them."""
    column = array(typecode)
    width = column.itemsize
    gathered = bytearray(len(entries) // entry_size * width)
    for byte in range(width):
        gathered[byte::width] = entries[begin + byte :: entry_size]
    column.frombytes(gathered)
    if byteorder == "little":
        column.byteswap()
    return column


def _check_whole_entries(data: Buffer, layout: Struct, where: str) -> None:
    if rest := len(data) % layout.size:
        reason = f"{len(data)} bytes are not a multiple of {layout.size}"
        raise CorruptDataError(where=where, position=len(data) - rest, reason=reason)


def _check_ascending(
    column: array[int], least: int, in_order: Callable[[int, int], bool], where: str, entry_size: int
) -> None:
    if all(map(in_order, chain((least,), column), column)):
        return
    pairs = zip(chain((least,), column), column, strict=False)
    slot, (before, after) = next((slot, pair) for slot, pair in enumerate(pairs) if not in_order(*pair))
    reason = f"entries do not ascend: {after} after {before}"
    raise CorruptDataError(where=where, position=slot * entry_size, reason=reason)


def _check_limit(column: array[int], limit: int | None, where: str, entry_size: int) -> None:
    """Check the last value of ``column``, which ascends, so that it is the largest."""
    if limit is not None and column and column[-1] > limit:
        slot = bisect_right(column, limit)
        reason = f"entry {column[slot]} is past the segment's {limit}"
        raise CorruptDataError(where=where, position=slot * entry_size, reason=reason)
