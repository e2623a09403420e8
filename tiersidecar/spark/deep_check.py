"""``--deep``: read a segment's objects and check all that can be checked (U12).

Every chunk opens, every batch's checksum holds, offsets rise and stay within the segment; the indexes parse, lie within it, and
point at batches that hold what they say.  Memory: one chunk at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tiersidecar.decide.reconcile_findings import Finding, FindingKind
from tiersidecar.decide.reconcile_segments import INDEXES, LOG, SegmentRow
from tiersidecar.domain.errors import CorruptDataError, DataKeyError, ObjectNotFoundError, ObjectTooLargeError
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.aiven.index_blob import IndexKind, slice_index
from tiersidecar.formats.aiven.key_ring import KeyRing
from tiersidecar.formats.aiven.layout import reading_plan
from tiersidecar.formats.aiven.manifest import Manifest
from tiersidecar.formats.aiven.transforms import TransformPlan
from tiersidecar.formats.kafka.checkpoints import read_leader_epochs
from tiersidecar.formats.kafka.indexes import (
    OffsetIndex,
    OffsetIndexEntry,
    read_offset_index,
    read_time_index,
    read_transaction_index,
)
from tiersidecar.formats.kafka.producer_snapshots import read_producer_snapshot
from tiersidecar.formats.kafka.record_batches import BATCH_HEADER_SIZE, read_batch_header
from tiersidecar.formats.kafka.segment_scan import SegmentScanner
from tiersidecar.ports.store import FetchRange

KeyRingOpener = Callable[[], KeyRing | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepCheck:
    """``share`` of all segments, from 0 to 1, is read: picked by their ids, so that a run picks the same again."""

    open_key_ring: KeyRingOpener
    share: float = 1.0

    async def check(self, store: FetchRange, row: SegmentRow, manifest: Manifest, now_ms: int) -> list[Finding]:
        """What is wrong inside, once per object."""
        if not _is_picked(row.segment_id, self.share):
            return []
        try:
            plan = reading_plan(manifest, self.open_key_ring())
        except DataKeyError as error:
            return [_finding(row, LOG, now_ms, str(error))]
        try:
            index = _check_indexes(await _fetch_indexes(store, row, manifest), row, manifest, plan)
        except ObjectNotFoundError:
            return []  # deleted since it was listed
        except CorruptDataError as error:
            return [_finding(row, INDEXES, now_ms, str(error))]
        return await _check_log(store, row, manifest, plan, index, now_ms)


async def _fetch_indexes(store: FetchRange, row: SegmentRow, manifest: Manifest) -> bytes:
    try:
        return await store.fetch_object(row.keys[INDEXES], max_bytes=manifest.indexes.size_bytes)
    except ObjectTooLargeError as error:
        raise CorruptDataError(where=row.keys[INDEXES], position=0, reason=error.reason) from error


def _is_picked(segment_id: str, share: float) -> bool:
    return sum(ord(letter) * (31 + place) for place, letter in enumerate(segment_id)) % 1000 < share * 1000


def _check_indexes(blob: bytes, row: SegmentRow, manifest: Manifest, plan: TransformPlan) -> OffsetIndex:
    base, end, where = Offset(row.start_offset), Offset(row.end_offset), row.keys[INDEXES]
    parts = {kind: slice_index(blob, manifest.indexes, kind, plan.cipher, where=where) for kind in IndexKind}
    read_time_index(parts[IndexKind.TIMESTAMP] or b"", base_offset=base, end_offset=end, where=f"time index of {where}")
    snapshot = parts[IndexKind.PRODUCER_SNAPSHOT]
    if snapshot:
        read_producer_snapshot(snapshot, where=f"producer snapshot of {where}")
    read_leader_epochs(parts[IndexKind.LEADER_EPOCH] or b"", where=f"leader epochs of {where}")
    read_transaction_index(parts[IndexKind.TRANSACTION] or b"", base_offset=base, where=f"transaction index of {where}")
    return read_offset_index(
        parts[IndexKind.OFFSET] or b"",
        base_offset=base,
        end_offset=end,
        segment_size_bytes=row.segment_size_bytes,
        where=f"offset index of {where}",
    )


async def _check_log(
    store: FetchRange, row: SegmentRow, manifest: Manifest, plan: TransformPlan, index: OffsetIndex, now_ms: int
) -> list[Finding]:
    key = row.keys[LOG]
    scanner = SegmentScanner(where=key, base_offset=row.start_offset, next_base_offset=row.end_offset + 1)
    wanted = list(index.entries)[::-1]
    carried, position = b"", 0
    try:
        for number in range(manifest.chunk_index.chunk_count):
            chunk = manifest.chunk_index.chunk(number)
            stored = await store.fetch_range(key, chunk.transformed)
            part = bytes(plan.detransform(stored, len(chunk.original), where=f"chunk {number} of {key}"))
            scanner.feed(part)
            seen = carried + part
            _check_entries(wanted, seen, position - len(carried), key)
            position += len(part)
            carried = seen[-BATCH_HEADER_SIZE:]
        scanner.finish()
        _check_entries(wanted, carried, position - len(carried), key)
    except ObjectNotFoundError:
        return []
    except CorruptDataError as error:
        return [_finding(row, LOG, now_ms, str(error))]
    return []


def _check_entries(wanted: list[OffsetIndexEntry], seen: bytes, begins_at: int, key: str) -> None:
    """Take from the end of ``wanted`` what points into ``seen``, whose first byte is at ``begins_at`` of the file."""
    while wanted and wanted[-1].position + BATCH_HEADER_SIZE <= begins_at + len(seen):
        entry = wanted.pop()
        header = read_batch_header(seen, entry.position - begins_at, where=key, position=entry.position)
        if not header.base_offset <= entry.offset <= header.last_offset:
            said = f"offsets {header.base_offset} to {header.last_offset}, the offset index says {entry.offset}"
            raise CorruptDataError(where=key, position=entry.position, reason=f"the batch has {said}")


def _finding(row: SegmentRow, kind: str, now_ms: int, detail: str) -> Finding:
    return Finding(
        kind=FindingKind.CORRUPT_CONTENT,
        topic=row.topic,
        topic_id=row.topic_id,
        partition=row.partition,
        segment_id=row.segment_id,
        key=row.keys[kind],
        start_offset=row.start_offset,
        end_offset=row.end_offset,
        found_bytes=row.objects[kind].size_bytes,
        age_ms=now_ms - row.since_ms,
        detail=detail,
    )
