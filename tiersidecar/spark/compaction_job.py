"""A round of compaction on Spark: executors read and rewrite segments, Spark brings each its share of the map.

```
segments ─ scan ─ (digest, segment, last offset there) ─ by digest: the last of all ─ by segment: entries of its own keys
                                                                                      └ measure, put: segment by segment
```
No executor and no driver has the whole map: at one time a task has the entries of the keys of one segment.  A task scans one
segment.  It measures or puts up those whose numbers hash to it, one after the other.  What is read, and which records stay, is
the ``worker``'s affair; here is only the way that its data takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.storagelevel import StorageLevel

from tiersidecar.formats.compaction.offset_map import OffsetMap, bytes_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS = 50_000
"""In one Arrow batch: two megabytes."""

_SHARES = "segment int, share binary"
_SCANNED = "segment int, digest binary, last bigint, event binary"
_ANSWERS = "segment int, answer binary"
_SCANNED_ARROW = pa.schema(
    [("segment", pa.int32()), ("digest", pa.binary()), ("last", pa.int64()), ("event", pa.binary())]
)
_ANSWERS_ARROW = pa.schema([("segment", pa.int32()), ("answer", pa.binary())])

_BELOW = -1
"""Stands for the last offset of a key that the dirty part of the segment does not have."""


class Scanned(Protocol):
    """First pass over one segment: the last offset of each of its keys, of which those at ``first_dirty`` or above count.  If a
    key is in several maps, the last of its offsets counts."""

    @property
    def maps(self) -> Sequence[OffsetMap]: ...

    @property
    def first_dirty(self) -> int: ...

    @property
    def events(self) -> Sequence[bytes]: ...


class Worker(Protocol):
    """Does one segment's share, on an executor; it and its shares are pickled."""

    def scan(self, share: bytes) -> Scanned:
        """Do the first pass."""
        ...

    def clean(self, share: bytes, terms: bytes, offset_map: OffsetMap) -> bytes:
        """Do the second pass with the map's entries of the segment's keys, and return the answer."""
        ...


class CompactionJob:
    """One round.  Shares are numbered by their segments, ascending; :meth:`close` it."""

    def __init__(self, spark: SparkSession, worker: Worker) -> None:
        self._spark, self._worker = spark, worker
        self._scanned: DataFrame | None = None
        self._entries: DataFrame | None = None

    def scan(self, shares: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
        """Do the first pass over all segments; yield the events of each, in the order of the log."""
        self.close()
        rows = self._spread(shares)
        self._scanned = rows.mapInArrow(_scanning(self._worker), _SCANNED).persist(StorageLevel.DISK_ONLY)
        # Their numbers order those of one segment, as offsets would.
        events = self._scanned.where(F.col("event").isNotNull()).select("segment", "last", "event")
        for row in events.orderBy("segment", "last").toLocalIterator():
            yield row["segment"], bytes(row["event"])

    def clean(self, shares: Mapping[int, bytes], terms: bytes) -> dict[int, bytes]:
        """Do the second pass over some segments; return the answer of each.  ``terms`` are the same for all, and go to each
        executor once."""
        rows = self._spread(shares)
        # Of more than ten values Spark makes a set, by which it leaves out nothing of what it keeps: by the bounds it does.
        entries = self._map().where(
            F.col("segment").between(min(shares), max(shares)) & F.col("segment").isin([*shares])
        )
        answers = rows.groupBy("segment").cogroup(entries.groupBy("segment"))
        done = answers.applyInArrow(_cleaning(self._worker, terms), _ANSWERS)
        return {row["segment"]: bytes(row["answer"]) for row in done.collect()}

    def close(self) -> None:
        """Let go of what executors keep on their disks."""
        for rows in (self._entries, self._scanned):
            if rows is not None:
                rows.unpersist()
        self._scanned = self._entries = None

    def _map(self) -> DataFrame:
        """Return the map's entries of each segment's keys: those that the dirty part has."""
        if self._entries is None:
            assert self._scanned is not None, "the first pass comes before the second"
            keys = self._scanned.where(F.col("digest").isNotNull())
            # A key may be in each segment, and in several maps of one.
            lasts = keys.groupBy("digest").agg(F.max("last").alias("last"), F.collect_set("segment").alias("segments"))
            entries = lasts.where(F.col("last") > _BELOW).select(
                F.explode("segments").alias("segment"), "digest", "last"
            )
            # Sorted once, or each job would sort the whole map again to tell segments apart.
            spread = entries.repartition("segment").sortWithinPartitions("segment")
            self._entries = spread.persist(StorageLevel.DISK_ONLY)
        return self._entries

    def _spread(self, shares: Mapping[int, bytes]) -> DataFrame:
        """Return the shares, each in a partition of its own."""
        rows = self._spark.sparkContext.parallelize(
            [(number, bytearray(share)) for number, share in shares.items()], max(len(shares), 1)
        )
        return self._spark.createDataFrame(rows, _SHARES)


def _scanning(worker: Worker) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def scan(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                scanned = worker.scan(row["share"])
                for keys in scanned.maps:
                    yield from _key_rows(row["segment"], keys, scanned.first_dirty)
                yield from _event_rows(row["segment"], scanned.events)

    return scan


def _key_rows(segment: int, keys: OffsetMap, first_dirty: int) -> Iterator[pa.RecordBatch]:
    digests, offsets = keys.slots
    count = len(offsets)
    lasts = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(offsets)])
    named = pa.Array.from_buffers(pa.binary(16), count, [None, pa.py_buffer(digests)])
    taken = pc.greater(lasts, 0)  # 0 is an empty slot, and others have the offset plus 1
    lasts, named = pc.subtract(lasts.filter(taken), 1), named.filter(taken).cast(pa.binary())
    lasts = pc.if_else(pc.greater_equal(lasts, first_dirty), lasts, _BELOW)
    for start in range(0, len(lasts), _ROWS):
        part = lasts.slice(start, _ROWS)
        yield pa.RecordBatch.from_arrays(
            [
                pa.repeat(pa.scalar(segment, pa.int32()), len(part)),
                named.slice(start, _ROWS),
                part,
                pa.nulls(len(part), pa.binary()),
            ],
            schema=_SCANNED_ARROW,
        )


def _event_rows(segment: int, events: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield the events, numbered in place of an offset."""
    for start in range(0, len(events), _ROWS):
        part = events[start : start + _ROWS]
        yield pa.RecordBatch.from_arrays(
            [
                pa.repeat(pa.scalar(segment, pa.int32()), len(part)),
                pa.nulls(len(part), pa.binary()),
                pa.array(range(start, start + len(part)), pa.int64()),
                pa.array(part, pa.binary()),
            ],
            schema=_SCANNED_ARROW,
        )


def _cleaning(worker: Worker, terms: bytes) -> Callable[[pa.Table, pa.Table], pa.Table]:
    def clean(shares: pa.Table, entries: pa.Table) -> pa.Table:
        rows = shares.to_pylist()
        answers = [worker.clean(row["share"], terms, _offset_map(entries)) for row in rows]
        return pa.Table.from_arrays(
            [pa.array([row["segment"] for row in rows], pa.int32()), pa.array(answers, pa.binary())],
            schema=_ANSWERS_ARROW,
        )

    return clean


def _offset_map(entries: pa.Table) -> OffsetMap:
    offset_map = OffsetMap(bytes_for(entries.num_rows))
    for batch in entries.to_batches(max_chunksize=_ROWS):
        columns = batch.to_pydict()
        for digest, last in zip(columns["digest"], columns["last"], strict=True):
            offset_map.put_digest(digest, last)
    return offset_map
