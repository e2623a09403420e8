"""Segments of one partition in packed columns: a row of 62 bytes for each segment, and the rows of each leader epoch by offset.

Rows are one bytearray rather than an array per column: an event writes one whole row, so one pack call replaces ten appends,
and a snapshot is one copy.  Nested dataclasses cost ten times the memory: one is made only when a segment is looked up.

The two hot events are plain tuples: a replay hands them to the cache instead of dataclasses.  A snapshot of a metadata cache is
plain values too: it stores them instead of the events that led there.  All segments of a partition at one moment, of which
there may be a hundred thousand, are kept as packed rows, which takes some milliseconds; their dataclasses, which take a second,
are made later, in a thread.

Of an epoch (Kafka's RemoteLogLeaderEpochState) those finished segments are referenced whose span in it lies within no other
finished one's; so their starts and ends both ascend, and one bisection finds the segment of an offset.  A finished segment that
another one covers is superseded: listed, not read (S-099, T-68).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct

from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState, RemotePartitionDeleteState


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochImage:
    """One leader epoch: referenced rows with their spans (inclusive), ascending, and the superseded ones."""

    epoch: int
    highest_offset: int | None
    starts: array[int]
    ends: array[int]
    rows: array[int]
    superseded: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheImage:
    """All of a :class:`~tiersidecar.domain.metadata_cache.RemoteLogMetadataCache` but its partition.

    ``rows`` are packed (:data:`~tiersidecar.domain.metadata_cache_rows.ROW`); a row's epoch map is its place in
    ``epoch_maps``.  ``custom`` is in the order of the rows, None when no segment has any.
    """

    rows: bytes
    custom: tuple[bytes | None, ...] | None
    epoch_maps: tuple[tuple[tuple[int, int], ...], ...]
    epochs: tuple[EpochImage, ...]
    delete_state: RemotePartitionDeleteState | None


RelativeEpochs = tuple[tuple[int, int], ...]
"""Leader epochs with their starts relative to the segment's: nearly all segments share ``((epoch, 0),)``."""

AddedFields = tuple[bytes, int, int, int, int, RelativeEpochs, bool, int, int, bytes | None, int]
"""Uuid, start, end, max timestamp, size, epochs, transaction index empty, broker, event timestamp, custom metadata, state."""

UpdatedFields = tuple[bytes, int, int, bytes | None, int]
"""Uuid, broker, event timestamp, custom metadata, state."""


def added_fields(metadata: RemoteLogSegmentMetadata) -> AddedFields:
    """Return the fields that :meth:`~tiersidecar.domain.metadata_cache.RemoteLogMetadataCache.add` takes."""
    start = metadata.start_offset
    return (
        metadata.remote_log_segment_id.uuid,
        start,
        metadata.end_offset,
        metadata.max_timestamp_ms,
        metadata.segment_size_in_bytes,
        tuple((entry.epoch, entry.start_offset - start) for entry in sorted(metadata.segment_leader_epochs)),
        metadata.txn_index_empty,
        metadata.broker_id,
        metadata.event_timestamp_ms,
        metadata.custom_metadata,
        int(metadata.state),
    )


def updated_fields(update: RemoteLogSegmentMetadataUpdate) -> UpdatedFields:
    """Return the fields that :meth:`~tiersidecar.domain.metadata_cache.RemoteLogMetadataCache.update` takes."""
    return (
        update.remote_log_segment_id.uuid,
        update.broker_id,
        update.event_timestamp_ms,
        update.custom_metadata,
        int(update.state),
    )


# Segment uuid, start, end, max timestamp, size, epoch map, transaction index empty | broker, event timestamp, state.
ROW = Struct("<16sqqqiI?iqb")
_MUTABLE = Struct("<iqb")
_SPAN = Struct("<qqqiI?")
_PLACE = Struct("<qq12xI13xb")
_OFFSETS = Struct("<qq")
_UUID_SIZE = 16
_MUTABLE_AT = ROW.size - _MUTABLE.size
_STATE_AT = ROW.size - 1
_TXN_INDEX_EMPTY_AT = _MUTABLE_AT - 1
_UUIDS = Struct(f"<16s{ROW.size - _UUID_SIZE}x")
_SIZE = Struct("<i")
_SIZE_AT = _UUID_SIZE + 3 * 8
_SIZES = Struct(f"<{_SIZE_AT}xi{ROW.size - _SIZE_AT - _SIZE.size}x")

Row = tuple[bytes, int, int, int, int, int, bool, int, int, int]
"""The columns, in the order of :data:`ROW`."""


class SegmentRows:
    """Rows by number, found by segment uuid; the number of a removed row is used again."""

    __slots__ = ("_custom", "_data", "_free", "_number_of", "size_bytes")

    def __init__(self, data: bytes = b"", custom: Sequence[bytes | None] | None = None) -> None:
        self._data = bytearray(data)
        self._custom: list[bytes | None] = []
        self._number_of: dict[bytes, int] = {}
        self._free: list[int] = []
        self.size_bytes = 0
        """Size of all segments together."""
        if data or custom:  # thousands of partitions begin without any
            self._read(custom)

    def _read(self, custom: Sequence[bytes | None] | None) -> None:
        count = len(self._data) // ROW.size
        self._custom = [None] * count if custom is None else list(custom)
        self._number_of = {uuid: number for number, (uuid,) in enumerate(_UUIDS.iter_unpack(self._data))}
        self.size_bytes = sum(size for (size,) in _SIZES.iter_unpack(self._data))
        if len(self._number_of) != count or len(self._custom) != count:
            raise ValueError(f"{count} rows, {len(self._number_of)} uuids, {len(self._custom)} custom metadata")

    def __len__(self) -> int:
        return len(self._number_of)

    def find(self, uuid: bytes) -> int | None:
        """Return the number of a segment's row."""
        return self._number_of.get(uuid)

    def numbers(self) -> list[int]:
        """Return all row numbers in use."""
        return list(self._number_of.values())

    def unfinished(self, finished: int) -> set[int]:
        """Return numbers of the rows in any state but ``finished``, right after construction."""
        return {number for number, state in enumerate(self._data[_STATE_AT :: ROW.size]) if state != finished}

    def insert(self, row: Row, custom: bytes | None) -> int:
        """Insert a row for a uuid that has none; return its number."""
        if self._free:
            number = self._free.pop()
            ROW.pack_into(self._data, number * ROW.size, *row)
            self._custom[number] = custom
        else:
            number = len(self._custom)
            self._data += ROW.pack(*row)
            self._custom.append(custom)
        self._number_of[row[0]] = number
        self.size_bytes += row[4]
        return number

    def replace(self, number: int, row: Row, custom: bytes | None) -> None:
        """Write the row anew, under the same uuid."""
        self.size_bytes += row[4] - self._size(number)
        ROW.pack_into(self._data, number * ROW.size, *row)
        self._custom[number] = custom

    def update(self, number: int, broker: int, event_timestamp_ms: int, custom: bytes | None, state: int) -> None:
        """Write what an update may change (S-117)."""
        _MUTABLE.pack_into(self._data, number * ROW.size + _MUTABLE_AT, broker, event_timestamp_ms, state)
        self._custom[number] = custom

    def remove(self, number: int) -> None:
        """Forget a row."""
        self.size_bytes -= self._size(number)
        del self._number_of[self.uuid(number)]
        self._custom[number] = None
        self._free.append(number)

    def row(self, number: int) -> Row:
        """Return all columns."""
        return ROW.unpack_from(self._data, number * ROW.size)

    def uuid(self, number: int) -> bytes:
        at = number * ROW.size
        return bytes(self._data[at : at + _UUID_SIZE])

    def _size(self, number: int) -> int:
        (size,) = _SIZE.unpack_from(self._data, number * ROW.size + _SIZE_AT)
        return int(size)

    def state(self, number: int) -> int:
        return self._data[number * ROW.size + _STATE_AT]

    def is_txn_index_empty(self, number: int) -> bool:
        return bool(self._data[number * ROW.size + _TXN_INDEX_EMPTY_AT])

    def custom(self, number: int) -> bytes | None:
        return self._custom[number]

    def span(self, number: int) -> tuple[int, int, int, int]:
        """Return start offset, end offset, size, epoch map."""
        start, end, _, size, epoch_map, _ = _SPAN.unpack_from(self._data, number * ROW.size + _UUID_SIZE)
        return start, end, size, epoch_map

    def place(self, number: int) -> tuple[int, int, int, int]:
        """Return start offset, end offset, epoch map, state."""
        return _PLACE.unpack_from(self._data, number * ROW.size + _UUID_SIZE)

    def overlaps(self, number: int, start: int, stop: int) -> bool:
        """Return whether the row holds any offset from ``start`` to ``stop`` (exclusive)."""
        first, last = _OFFSETS.unpack_from(self._data, number * ROW.size + _UUID_SIZE)
        return bool(first < stop and last >= start)

    def copied(self) -> tuple[bytes, list[bytes | None], list[int]]:
        """Return the packed rows, gaps included; custom metadata by row number; the numbers in use, as in :meth:`numbers`."""
        return bytes(self._data), list(self._custom), self.numbers()

    def compact(self) -> dict[int, int]:
        """Close the gaps that removed rows left; return the new number of each row that stays, empty when none moved."""
        if not self._free:
            return {}
        kept = sorted(self._number_of.values())
        new_numbers = {number: position for position, number in enumerate(kept)}
        self._data = bytearray().join(self._data[n * ROW.size : (n + 1) * ROW.size] for n in kept)
        self._custom = [self._custom[number] for number in kept]
        self._number_of = {uuid: new_numbers[number] for uuid, number in self._number_of.items()}
        self._free = []
        return new_numbers

    def image(self) -> tuple[bytes, tuple[bytes | None, ...] | None]:
        """Return the packed rows without gaps (call :meth:`compact` first), and their custom metadata in the same order, None
        when there is none at all."""
        return bytes(self._data), tuple(self._custom) if any(c is not None for c in self._custom) else None

    def __iter__(self) -> Iterator[bytes]:
        """Yield segment uuids."""
        return iter(self._number_of)


EpochMaps = Sequence[RelativeEpochs]
"""The leader epochs of segments, by their number in a row."""


class SegmentPicture:
    """A view of rows that no longer change, without anything of the cache that does: :meth:`segments` may run in a thread."""

    __slots__ = ("_custom", "_data", "_epoch_maps", "_numbers", "topic_id_partition")

    def __init__(
        self,
        topic_id_partition: TopicIdPartition,
        *,
        data: bytes,
        custom: Sequence[bytes | None],
        numbers: Sequence[int],
        epoch_maps: EpochMaps,
    ) -> None:
        self.topic_id_partition = topic_id_partition
        self._data, self._custom, self._numbers, self._epoch_maps = data, custom, numbers, epoch_maps

    def __len__(self) -> int:
        """Return the number of segments in any state but DELETE_SEGMENT_FINISHED."""
        return len(self._numbers)

    @property
    def mark(self) -> int:
        """Return a value that is the same for pictures of the same segments of a partition."""
        return hash((self._data, tuple(self._custom), tuple(self._numbers)))

    @property
    def custom_metadata(self) -> tuple[bytes, ...]:
        """Return the custom metadata of all segments that have any, in no order."""
        return tuple(custom for custom in self._custom if custom)

    def segments(self, from_offset: int = 0) -> tuple[RemoteLogSegmentMetadata, ...]:
        """Return segments that end at ``from_offset`` or above, ascending by start offset."""
        rows = ((ROW.unpack_from(self._data, number * ROW.size), self._custom[number]) for number in self._numbers)
        wanted = sorted(((row, custom) for row, custom in rows if row[2] >= from_offset), key=lambda one: one[0][1])
        return tuple(
            segment_of(self.topic_id_partition, row, custom, self._epoch_maps[row[5]]) for row, custom in wanted
        )


def segment_of(
    topic_id_partition: TopicIdPartition, row: Row, custom: bytes | None, epochs: RelativeEpochs
) -> RemoteLogSegmentMetadata:
    """Return the segment of a row."""
    uuid, start, end, max_timestamp_ms, size, _, is_empty, broker, event_timestamp_ms, state = row
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(topic_id_partition=topic_id_partition, uuid=Uuid(uuid)),
        start_offset=Offset(start),
        end_offset=Offset(end),
        max_timestamp_ms=max_timestamp_ms,
        broker_id=BrokerId(broker),
        event_timestamp_ms=event_timestamp_ms,
        segment_size_in_bytes=size,
        segment_leader_epochs=tuple(EpochEntry(LeaderEpoch(epoch), Offset(start + first)) for epoch, first in epochs),
        custom_metadata=custom,
        state=RemoteLogSegmentState(state),
        txn_index_empty=is_empty,
    )


Run = tuple[int, int]
"""Offsets that finished segments hold without a hole: start inclusive, stop exclusive."""


class EpochSegments:
    """Row numbers of :class:`~tiersidecar.domain.metadata_cache_rows.SegmentRows`, ordered for one epoch.

    Spans are inclusive at both ends.  Where Kafka is order-dependent (a late, smaller copy of a deposed leader displaces the
    larger one there, and the offsets beyond it are no longer found) the larger span wins here in every order.
    """

    __slots__ = ("_runs", "_superseded", "ends", "highest_offset", "rows", "starts")

    def __init__(self) -> None:
        self.starts = array("q")
        self.ends = array("q")
        self.rows = array("I")
        self.highest_offset: int | None = None
        """Highest offset ever finished: deletion does not lower it (T-67)."""
        self._superseded: set[int] | None = None  # an empty set has the size of three segments
        self._runs: tuple[Run, ...] | None = None  # found at the first call, then updated where that is cheap

    @property
    def superseded(self) -> frozenset[int]:
        """Return finished rows that another one covers: listed, not read."""
        return frozenset(self._superseded or ())

    def finish(self, row: int, start: int, end: int) -> None:
        """Let row ``row`` be read from ``start`` to ``end``; of two equal spans the later one counts, as in Kafka."""
        if self.highest_offset is None or end > self.highest_offset:
            self.highest_offset = end
        if end >= start and (not self.starts or (start > self.starts[-1] and end > self.ends[-1])):
            if self._runs is not None:
                self._runs = _extended(self._runs, start, end + 1)
            self.starts.append(start)
            self.ends.append(end)
            self.rows.append(row)
        else:
            self._place(row, start, end)

    def withdraw(self, row: int, start: int) -> bool:
        """Begin the deletion of row ``row``.  Return whether superseded rows may now be read again: see :meth:`restore`."""
        self._uncover(row)
        at = bisect_left(self.starts, start)
        if at == len(self.rows) or self.rows[at] != row:
            return False
        del self.starts[at], self.ends[at], self.rows[at]
        self._runs = _begun_at(self._runs, self.starts[0] if self.starts else None) if at == 0 else None
        return self._superseded is not None

    def restore(self, row: int, start: int, end: int) -> None:
        """Reference a superseded row again, unless another one still covers it or is of the same span: what a finished
        segment holds stays readable until its own deletion starts."""
        before = bisect_right(self.starts, start) - 1
        if before < 0 or (self.starts[before], self.ends[before]) != (start, end):
            self._place(row, start, end)

    def find(self, offset: int) -> int | None:
        """Return the row whose span holds ``offset``."""
        at = bisect_right(self.starts, offset) - 1
        return self.rows[at] if at >= 0 and offset <= self.ends[at] else None

    def all_at(self, offset: int) -> Iterator[int]:
        """Yield the rows that may be read whose spans hold ``offset``: first the one of :meth:`find`."""
        first, stop = bisect_left(self.ends, offset), bisect_right(self.starts, offset)
        return reversed(self.rows[first:stop])

    def at_or_after(self, offset: int) -> Iterator[int]:
        """Yield rows with anything at or after ``offset``, ascending."""
        return iter(self.rows[bisect_left(self.ends, offset) :])

    def runs(self) -> tuple[Run, ...]:
        """Return the offsets that finished segments hold without a hole: start (inclusive) and stop (exclusive), ascending."""
        if self._runs is None:
            behind_holes = [at + 1 for at, start in enumerate(self.starts[1:]) if start > self.ends[at] + 1]
            firsts = [0, *behind_holes] if self.starts else []
            lasts = [at - 1 for at in (*behind_holes, len(self.starts))]
            self._runs = tuple(
                (self.starts[first], self.ends[last] + 1) for first, last in zip(firsts, lasts, strict=False)
            )
        return self._runs

    def finished_rows(self) -> list[int]:
        """Return every finished row of this epoch, those that may be read first (T-68)."""
        return [*self.rows, *sorted(self.superseded)]

    def renumber(self, new_numbers: dict[int, int]) -> None:
        """Renumber the rows: ``new_numbers`` has the new number of each."""
        self.rows = array("I", [new_numbers[row] for row in self.rows])
        self._superseded = {new_numbers[row] for row in self.superseded} or None

    def image(self, epoch: int) -> EpochImage:
        """Return a copy of all of it."""
        return EpochImage(
            epoch=epoch,
            highest_offset=self.highest_offset,
            starts=self.starts[:],
            ends=self.ends[:],
            rows=self.rows[:],
            superseded=tuple(sorted(self.superseded)),
        )

    @classmethod
    def from_image(cls, image: EpochImage) -> EpochSegments:
        """Return the segments of :meth:`image`.

        Raises:
            ValueError: the columns differ in length.
        """
        if not len(image.starts) == len(image.ends) == len(image.rows):
            raise ValueError(f"{len(image.starts)} starts, {len(image.ends)} ends, {len(image.rows)} rows")
        segments = cls()
        segments.starts, segments.ends, segments.rows = image.starts[:], image.ends[:], image.rows[:]
        segments._superseded = set(image.superseded) or None
        segments.highest_offset = image.highest_offset
        return segments

    def _place(self, row: int, start: int, end: int) -> None:
        """Put the span in its place, superseding those it covers, unless a present one covers it.

        A span that ends before it starts (epochs out of order, by a foreign writer) is listed and never read.
        """
        before = bisect_right(self.starts, start) - 1
        is_equal = before >= 0 and (self.starts[before], self.ends[before]) == (start, end)
        if end < start or (before >= 0 and self.ends[before] >= end and not is_equal):
            self._cover((row,))
            return
        self._runs = None
        first, stop = bisect_left(self.starts, start), bisect_right(self.ends, end)
        if stop > first:
            self._cover(self.rows[first:stop])
            del self.starts[first:stop], self.ends[first:stop], self.rows[first:stop]
        self._uncover(row)
        self.starts.insert(first, start)
        self.ends.insert(first, end)
        self.rows.insert(first, row)

    def _cover(self, rows: Iterable[int]) -> None:
        self._superseded = (self._superseded or set()).union(rows)

    def _uncover(self, row: int) -> None:
        if self._superseded is not None:
            self._superseded.discard(row)
            self._superseded = self._superseded or None


def _extended(runs: tuple[Run, ...], start: int, stop: int) -> tuple[Run, ...]:
    """Return ``runs`` with a span behind all others."""
    if runs and start <= runs[-1][1]:
        return (*runs[:-1], (runs[-1][0], stop))
    return (*runs, (start, stop))


def _begun_at(runs: tuple[Run, ...] | None, start: int | None) -> tuple[Run, ...] | None:
    """Return ``runs`` without the first segment, which retention takes: ``start`` is the next one's, None if there is none."""
    if runs is None or start is None:
        return None if runs is None else ()
    first, *others = runs
    return ((start, first[1]), *others) if start < first[1] else tuple(others)
