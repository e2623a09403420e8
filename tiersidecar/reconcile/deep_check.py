"""``--deep``: read a segment's objects and check all that can be checked (U12).

Every chunk opens, every batch's checksum holds, offsets rise and stay within the segment, leader epochs are those of the
history uploaded with it; the indexes parse, lie within it, and point at batches that hold what they say; transaction index and
producer snapshot have everything that the batches imply, with what was open where they begin by the snapshot of the segment
before, or by its batches where an election has cut it.  Memory: one chunk at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence, Set
from contextlib import aclosing
from dataclasses import dataclass

from tiersidecar.decide.reconcile_findings import Finding, FindingKind
from tiersidecar.decide.reconcile_segments import INDEXES, LOG, MANIFEST, SegmentRow
from tiersidecar.domain.data_keys import context_of_ids
from tiersidecar.domain.errors import (
    CorruptDataError,
    DataKeyError,
    KeyRefusedError,
    KeyServiceError,
    ObjectNotFoundError,
    ObjectTooLargeError,
)
from tiersidecar.domain.offsets import EpochEntry, Lineage, Offset
from tiersidecar.domain.segments import NO_LOG_END, SegmentScan
from tiersidecar.formats.aiven.index_blob import ANY_SEGMENT, IndexKind, slice_index
from tiersidecar.formats.aiven.key_ring import DataKeys
from tiersidecar.formats.aiven.manifest import Manifest, read_manifest, reading_plan
from tiersidecar.formats.aiven.transforms import TransformPlan
from tiersidecar.formats.compaction.rewriting import delete_horizon_ms
from tiersidecar.formats.compaction.whole_batches import WholeBatches
from tiersidecar.formats.kafka.indexes import (
    AbortedTransaction,
    OffsetIndex,
    OffsetIndexEntry,
    read_offset_index,
    read_time_index,
    read_transaction_index,
)
from tiersidecar.formats.kafka.log_dir_files import read_leader_epochs
from tiersidecar.formats.kafka.producer_state import (
    ProducerState,
    TransactionWalk,
    WalkWithin,
    ended_unseen,
    lacks_none,
    open_before,
    open_states,
    read_producer_snapshot,
)
from tiersidecar.formats.kafka.record_batches import BATCH_HEADER_SIZE, read_batch_header
from tiersidecar.formats.kafka.segment_scan import SegmentScanner
from tiersidecar.formats.kafka.transaction_check import TransactionFaults, check_transactions
from tiersidecar.ports.store import FetchRange

_MOST_SHOWN = 5
"""Transactions, in a finding."""

_NO_KEY = (DataKeyError, KeyRefusedError, KeyServiceError)

KeyRingOpener = Callable[[], DataKeys | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepCheck:
    """``share`` of all segments, from 0 to 1, is read: picked by their ids, so that a run picks the same again."""

    open_key_ring: KeyRingOpener
    share: float = 1.0

    async def check(
        self,
        store: FetchRange,
        row: SegmentRow,
        manifest: Manifest,
        now_ms: int,
        preceding: Sequence[Preceding] = (),
    ) -> list[Finding]:
        """Return the faults inside, once per object.  ``preceding`` are live segments that end where this one begins, or else
        those that go on past that."""
        if not _is_picked(row.segment_id, self.share):
            return []
        try:
            plan = await self._plan(manifest, row.topic_id, row.segment_id)
        except _NO_KEY as error:  # of the segment itself it says nothing
            return [_finding(row, LOG, now_ms, f"its content was not checked: {error}", FindingKind.NOT_CHECKED)]
        try:
            indexes = _check_indexes(await _fetch_indexes(store, row.keys[INDEXES], manifest), row, manifest, plan)
        except ObjectNotFoundError:
            return []  # deleted since it was listed
        except CorruptDataError as error:
            return [_finding(row, INDEXES, now_ms, str(error))]
        carried = await self._open_before(store, row.topic_id, row.start_offset, indexes.lineage, preceding)
        walk = TransactionWalk(carried)
        found = await _check_log(store, row, manifest, plan, indexes, walk, now_ms)
        if found:
            return found
        faults = check_transactions(walk.finish(), indexes.aborted, indexes.producers)
        if ended_unseen(faults.lost_states, carried, ()) or _of_before(faults.lacking_entries, row):
            faults = _but_for_cleaned(faults, row, carried, await _left_by_cleaner(store, row, manifest, plan))
        return _lacking_transactions(row, faults, now_ms)

    async def _open_before(
        self, store: FetchRange, topic_id: str, offset: int, lineage: Lineage, preceding: Sequence[Preceding]
    ) -> Sequence[ProducerState]:
        """Return the producers whose transaction is open where a segment of ``lineage`` begins, by what is before it: the
        snapshot of the one that ends there, or the batches up to there of one that goes on.  None where that cannot be read:
        then what began in the segment itself is checked alone."""
        ours = [one for one in preceding if lineage.contains_segment(one.epochs_below(offset), offset - 1, NO_LOG_END)]
        before = min(ours, key=lambda one: one.end_offset, default=None)
        if before is None:
            return ()
        try:
            opened = await self._open(store, before, topic_id)
            if before.end_offset < offset:
                return open_states(opened.producers)
            return await self._open_at_cut(store, topic_id, opened, offset, lineage)
        except (CorruptDataError, *_NO_KEY, ObjectNotFoundError, ObjectTooLargeError):
            return ()  # a finding of its own

    async def _open_at_cut(
        self, store: FetchRange, topic_id: str, opened: _Opened, offset: int, lineage: Lineage
    ) -> Sequence[ProducerState]:
        """Find open transactions as :class:`~tiersidecar.reading.carried_transactions.OpenAtCuts`, at most one segment back.

        A transaction from before that, which no file names, is taken to begin where its producer first writes in it: a later
        offset than the true one makes no finding.
        """
        start = opened.before.start_offset
        if opened.before.before:
            states = await self._open_before(store, topic_id, start, lineage, opened.before.before)
        else:
            states = open_before(Offset(start), opened.aborted, opened.producers)
        walk = TransactionWalk(states)
        scanner = SegmentScanner(
            where=opened.log_key, base_offset=start, transactions=WalkWithin(walk, start=start, stop=offset)
        )
        async with aclosing(_parts(store, opened.log_key, opened.manifest, opened.plan)) as parts:
            async for _, part in parts:
                seen = scanner.next_offset
                scanner.feed(part)
                if offset <= seen < scanner.next_offset:
                    break  # the batch that follows has shown that the last one's offset was right
        return walk.finish().open_at_end

    async def _plan(self, manifest: Manifest, topic_id: str, segment_id: str) -> TransformPlan:
        context = context_of_ids(topic_id, segment_id)
        return await asyncio.to_thread(reading_plan, manifest, self.open_key_ring(), context)

    async def _open(self, store: FetchRange, before: Preceding, topic_id: str) -> _Opened:
        key = f"{before.stem}.{INDEXES}"
        data = await store.fetch_object(f"{before.stem}.{MANIFEST}", max_bytes=ANY_SEGMENT.manifest_bytes)
        manifest = read_manifest(data, where=key)
        plan = await self._plan(manifest, topic_id, before.segment_id)
        blob = await _fetch_indexes(store, key, manifest)
        snapshot = slice_index(blob, manifest.indexes, IndexKind.PRODUCER_SNAPSHOT, plan.cipher, where=key)
        index = slice_index(blob, manifest.indexes, IndexKind.TRANSACTION, plan.cipher, where=key)
        return _Opened(
            before=before,
            manifest=manifest,
            plan=plan,
            producers=read_producer_snapshot(snapshot, where=key) if snapshot else (),
            aborted=read_transaction_index(index or b"", base_offset=Offset(before.start_offset), where=key),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Preceding:
    """A live segment that has what comes right before another: its objects are ``stem`` and a suffix; ``end_offset`` is
    inclusive.  Of one that goes on past that, ``before`` are those that end where it begins."""

    stem: str
    start_offset: int
    end_offset: int
    epochs: tuple[EpochEntry, ...]
    before: tuple[Preceding, ...] = ()

    @property
    def segment_id(self) -> str:
        """Return its id, with which its keys end (``formats.aiven.keys``)."""
        return self.stem[-22:]

    def epochs_below(self, offset: int) -> tuple[EpochEntry, ...]:
        """Return those of what it has below ``offset``."""
        return tuple(epoch for epoch in self.epochs if epoch.start_offset < offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """The files that were uploaded with a preceding segment."""

    before: Preceding
    manifest: Manifest
    plan: TransformPlan
    producers: Sequence[ProducerState]
    aborted: Sequence[AbortedTransaction]

    @property
    def log_key(self) -> str:
        return f"{self.before.stem}.{LOG}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Indexes:
    """The files that were uploaded beside a .log; ``lineage`` is the history up to the segment's end."""

    offsets: OffsetIndex
    lineage: Lineage
    aborted: Sequence[AbortedTransaction]
    producers: Sequence[ProducerState]


async def _fetch_indexes(store: FetchRange, key: str, manifest: Manifest) -> bytes:
    try:
        return await store.fetch_object(key, max_bytes=manifest.indexes.size_bytes)
    except ObjectTooLargeError as error:
        raise CorruptDataError(where=key, position=0, reason=error.reason) from error


def _is_picked(segment_id: str, share: float) -> bool:
    return sum(ord(letter) * (31 + place) for place, letter in enumerate(segment_id)) % 1000 < share * 1000


def _check_indexes(blob: bytes, row: SegmentRow, manifest: Manifest, plan: TransformPlan) -> _Indexes:
    base, end, where = Offset(row.start_offset), Offset(row.end_offset), row.keys[INDEXES]
    parts = {kind: slice_index(blob, manifest.indexes, kind, plan.cipher, where=where) for kind in IndexKind}
    read_time_index(parts[IndexKind.TIMESTAMP] or b"", base_offset=base, end_offset=end, where=f"time index of {where}")
    snapshot = parts[IndexKind.PRODUCER_SNAPSHOT]
    producers = read_producer_snapshot(snapshot, where=f"producer snapshot of {where}") if snapshot else ()
    epochs = read_leader_epochs(parts[IndexKind.LEADER_EPOCH] or b"", where=f"leader epochs of {where}")
    aborted = read_transaction_index(
        parts[IndexKind.TRANSACTION] or b"", base_offset=base, where=f"transaction index of {where}"
    )
    offsets = read_offset_index(
        parts[IndexKind.OFFSET] or b"",
        base_offset=base,
        end_offset=end,
        segment_size_bytes=row.segment_size_bytes,
        where=f"offset index of {where}",
    )
    return _Indexes(offsets=offsets, lineage=Lineage.of(epochs), aborted=aborted, producers=producers)


async def _check_log(
    store: FetchRange,
    row: SegmentRow,
    manifest: Manifest,
    plan: TransformPlan,
    indexes: _Indexes,
    walk: TransactionWalk,
    now_ms: int,
) -> list[Finding]:
    key = row.keys[LOG]
    scanner = SegmentScanner(
        where=key, base_offset=row.start_offset, next_base_offset=row.end_offset + 1, transactions=walk
    )
    wanted = list(indexes.offsets.entries)[::-1]
    carried = b""
    try:
        async for position, part in _parts(store, key, manifest, plan):
            scanner.feed(part)
            seen = carried + part
            _check_entries(wanted, seen, position - len(carried), key)
            carried = seen[-BATCH_HEADER_SIZE:]
        _check_epochs(scanner.finish(), indexes.lineage, key)
        _check_entries(wanted, carried, manifest.chunk_index.original_file_size - len(carried), key)
    except ObjectNotFoundError:
        return []
    except CorruptDataError as error:
        return [_finding(row, LOG, now_ms, str(error))]
    return []


def _check_epochs(scan: SegmentScan, lineage: Lineage, key: str) -> None:
    """Check leader epochs, which no checksum covers: only the history that was uploaded with a batch shows a damaged one."""
    if not lineage.explains(scan.leader_epochs, scan.leader_epoch_ends):
        found = ", ".join(f"{epoch} from offset {start}" for epoch, start in scan.leader_epochs)
        known = ", ".join(f"{epoch} from offset {start}" for epoch, start in lineage.entries)
        reason = f"its batches are of leader epoch {found}; the history uploaded with it says {known or 'nothing'}"
        raise CorruptDataError(where=key, position=0, reason=reason)


async def _parts(
    store: FetchRange, key: str, manifest: Manifest, plan: TransformPlan
) -> AsyncGenerator[tuple[int, bytes]]:
    """Yield the original .log chunk by chunk, each with the position of its first byte."""
    for number in range(manifest.chunk_index.chunk_count):
        chunk = manifest.chunk_index.chunk(number)
        stored = await store.fetch_range(key, chunk.transformed)
        part = bytes(plan.detransform(stored, len(chunk.original), where=f"chunk {number} of {key}"))
        yield chunk.original.start, part


def _of_before(entries: Sequence[AbortedTransaction], row: SegmentRow) -> list[AbortedTransaction]:
    return [entry for entry in entries if entry.first_offset < row.start_offset]


def _but_for_cleaned(
    faults: TransactionFaults, row: SegmentRow, carried: Sequence[ProducerState], left: _Left
) -> TransactionFaults:
    """Return the faults without what a cleaner explains, where transactions were open at the segment's begin: it takes their
    markers once it has met none of their batches any more, and a round before that the entries of those that were aborted."""

    def is_needed(entry: AbortedTransaction) -> bool:
        hides = any(producer == entry.producer_id and offset < entry.last_offset for producer, offset in left.batches)
        return hides or not _of_before([entry], row)

    def was_cleaned(entry: AbortedTransaction) -> bool:
        return left.is_thinned or left.has_holes or entry.last_offset in left.marked

    states = faults.lost_states
    entries = tuple(entry for entry in faults.lacking_entries if is_needed(entry) or not was_cleaned(entry))
    if left.has_holes:
        states = tuple(one for one in states if not lacks_none(carried, (one,)))
    return TransactionFaults(lacking_entries=entries, lost_states=states)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """What a cleaner has left of a segment.  ``batches`` has producer id and first offset of each batch of a transaction that
    has records; ``is_thinned`` says that some batch lacks records, ``has_holes`` that a whole one was taken: some offset is in
    no batch, or a marker's batch, which as the segment's last one stays, is empty.  ``marked`` are the offsets of markers with
    a delete horizon: the round that takes an entry sets it."""

    batches: Sequence[tuple[int, int]]
    marked: Set[int]
    is_thinned: bool
    has_holes: bool


async def _left_by_cleaner(store: FetchRange, row: SegmentRow, manifest: Manifest, plan: TransformPlan) -> _Left:
    """Read the segment once more, as is seldom necessary."""
    key, expected, batches = row.keys[LOG], row.start_offset, WholeBatches()
    found, marked, is_thinned, has_holes = list[tuple[int, int]](), set[int](), False, False
    async with aclosing(_parts(store, key, manifest, plan)) as parts:
        async for _, part in parts:
            for _, header, _ in batches.feed(part, where=key):
                is_thinned |= header.record_count < header.next_offset - header.base_offset
                has_holes |= header.base_offset > expected or (header.is_control and not header.record_count)
                expected = header.next_offset
                if header.is_control and delete_horizon_ms(header) is not None:
                    marked.add(header.last_offset)
                if header.is_transactional and not header.is_control and header.record_count:
                    found.append((header.producer_id, header.base_offset))
    has_holes |= expected <= row.end_offset
    return _Left(batches=found, marked=marked, is_thinned=is_thinned, has_holes=has_holes)


def _lacking_transactions(row: SegmentRow, faults: TransactionFaults, now_ms: int) -> list[Finding]:
    """Report indexes of a broker that had lost its producers' state, from before this program read the batches itself."""
    if not faults:
        return []
    lacking = [
        *(
            f"producer {entry.producer_id} aborted {entry.first_offset} to {entry.last_offset}"
            for entry in faults.lacking_entries
        ),
        *(
            f"producer {state.producer_id} has a transaction open from {state.current_transaction_first_offset}"
            for state in faults.lost_states
        ),
    ]
    more = f" and {len(lacking) - _MOST_SHOWN} more" if len(lacking) > _MOST_SHOWN else ""
    detail = f"its batches contain what its indexes lack: {'; '.join(lacking[:_MOST_SHOWN])}{more}"
    return [_finding(row, INDEXES, now_ms, detail, kind=FindingKind.LACKING_TRANSACTIONS)]


def _check_entries(wanted: list[OffsetIndexEntry], seen: bytes, begins_at: int, key: str) -> None:
    """Take from the end of ``wanted`` what points into ``seen``, whose first byte is at ``begins_at`` of the file."""
    while wanted and wanted[-1].position + BATCH_HEADER_SIZE <= begins_at + len(seen):
        entry = wanted.pop()
        header = read_batch_header(seen, entry.position - begins_at, where=key, position=entry.position)
        if not header.base_offset <= entry.offset <= header.last_offset:
            said = f"offsets {header.base_offset} to {header.last_offset}, the offset index says {entry.offset}"
            raise CorruptDataError(where=key, position=entry.position, reason=f"the batch has {said}")


def _finding(
    row: SegmentRow, object_kind: str, now_ms: int, detail: str, kind: FindingKind = FindingKind.CORRUPT_CONTENT
) -> Finding:
    return Finding(
        kind=kind,
        topic=row.topic,
        topic_id=row.topic_id,
        partition=row.partition,
        segment_id=row.segment_id,
        key=row.keys[object_kind],
        start_offset=row.start_offset,
        end_offset=row.end_offset,
        found_bytes=row.objects[object_kind].size_bytes,
        age_ms=now_ms - row.since_ms,
        detail=detail,
    )
