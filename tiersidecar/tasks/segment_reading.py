"""The one walk over a segment's bytes, on their way to the store, and the look at its files before the first byte goes up.

The walk checks every batch, and makes anew what must be: what a broker's files lack of a segment's transactions is added from
its batches (docs/design/0011).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from tiersidecar.domain.errors import CorruptDataError, SegmentNotReadyError, TruncatedDataError
from tiersidecar.domain.offsets import EpochEntry, Lineage, Offset
from tiersidecar.domain.segments import LocalSegment, SegmentScan
from tiersidecar.formats.aiven.index_blob import IndexArtefacts
from tiersidecar.formats.kafka.indexes import AbortedTransaction, read_transaction_index, write_transaction_index
from tiersidecar.formats.kafka.log_dir_files import write_leader_epochs
from tiersidecar.formats.kafka.producer_state import (
    ProducerState,
    SegmentTransactions,
    TransactionWalk,
    complete_index,
    complete_snapshot,
    ended_unseen,
    lacks_none,
    merge_open,
    open_states,
    read_open_producers,
    read_producer_snapshot,
    write_producer_snapshot,
)
from tiersidecar.formats.kafka.record_batches import BATCH_HEADER_SIZE, Compression, read_batch_header
from tiersidecar.formats.kafka.segment_rebuild import SegmentRebuilder
from tiersidecar.formats.kafka.segment_scan import SegmentScanner
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.log_dirs import Artefact, LogDirs, SegmentArtefacts, SegmentFile

log = structlog.get_logger(__name__)

ARTEFACT_WAIT_S = 60.0
"""How long the broker gets to write a companion that is missing, before it is made from the batches (U9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSegment:
    """``epochs`` are those of the segment's offsets, the first start raised to its base offset.  ``rebuild`` names the
    artefacts that must be made from the batches.  ``max_timestamp_ms`` is -1 where no record has a timestamp.
    ``open_at_start`` are the producers whose transaction is open where it begins, by the remote segment before it and by the
    broker; ``has_aborted`` says whether its transaction index has entries: published before its batches are read.
    ``is_compacted``: the broker's cleaner may have taken markers away."""

    artefacts: SegmentArtefacts
    epochs: tuple[EpochEntry, ...]
    max_timestamp_ms: int
    is_compressed: bool
    rebuild: frozenset[Artefact]
    open_at_start: tuple[ProducerState, ...]
    has_aborted: bool
    is_compacted: bool = False


class SegmentChecker:
    """Looks at all that is small.  The batches are checked while they go up; but those of a segment that failed once, that
    only a pin holds, whose time index or transaction index cannot be used, or before which the broker has lost a transaction,
    are read before anything is published."""

    def __init__(self, *, log_dirs: LogDirs, clock: Clock) -> None:
        self._log_dirs, self._clock = log_dirs, clock
        self._missing_since_s: dict[str, float] = {}
        self._suspects: set[str] = set()

    async def check(
        self,
        segment: LocalSegment,
        file: SegmentFile,
        lineage: Lineage,
        carried: Sequence[ProducerState] = (),
        *,
        is_compacted: bool = False,
    ) -> CheckedSegment:
        """Look at the segment's files.  ``carried`` are the producers whose transaction is open where the remote segment before
        this one ends; ``is_compacted`` is that of :class:`CheckedSegment`.

        Raises:
            SegmentNotReadyError: the broker may still be writing an artefact, or its leader epochs; or the segment is of
                another history.
            SegmentChangedError: the segment is gone.
            CorruptDataError: a batch fails its checks.
        """
        epochs = lineage.entries_in_range(segment.base_offset, next_base_offset_of(segment))
        if not epochs:
            raise SegmentNotReadyError(path=segment.log_path, reason="the leader-epoch-checkpoint has no entry for it")
        artefacts = await self._log_dirs.read_artefacts(segment)
        self._wait_for_what_may_come(segment, artefacts)
        rebuild = {fault.artefact for fault in artefacts.faults}
        max_timestamp_ms = artefacts.latest_timestamp_ms
        open_at_start, is_known = _open_at_start(artefacts, carried)
        entries = brokers_aborted(segment, artefacts)
        must_read = Artefact.TRANSACTION_INDEX in rebuild or not is_known or segment.log_path in self._suspects
        if max_timestamp_ms is None or segment.pinned or must_read:
            walk = TransactionWalk(open_at_start)
            scan = await file.scan(walk)
            require_history(segment, scan, lineage)
            entries = complete_index(entries, walk.finish().aborted)
            if scan.max_timestamp_ms != max_timestamp_ms:
                rebuild.add(Artefact.TIME_INDEX)
            max_timestamp_ms = scan.max_timestamp_ms
        return CheckedSegment(
            artefacts=artefacts,
            epochs=epochs,
            max_timestamp_ms=max_timestamp_ms,
            is_compressed=await _is_compressed(file),
            rebuild=frozenset(rebuild),
            open_at_start=open_at_start,
            has_aborted=bool(entries),
            is_compacted=is_compacted,
        )

    def suspect(self, segment: LocalSegment) -> None:
        """Note that a reading found it damaged: from now on it is read before it is copied."""
        self._suspects.add(segment.log_path)

    def forget(self, segment: LocalSegment) -> None:
        """Note that it was copied."""
        self._suspects.discard(segment.log_path)
        self._missing_since_s.pop(segment.log_path, None)

    def _wait_for_what_may_come(self, segment: LocalSegment, artefacts: SegmentArtefacts) -> None:
        awaited = [fault for fault in artefacts.faults if fault.may_come]
        if not awaited:
            return
        now_s = self._clock.monotonic_s()
        waited_s = now_s - self._missing_since_s.setdefault(segment.log_path, now_s)
        if waited_s < ARTEFACT_WAIT_S:
            raise SegmentNotReadyError(path=segment.log_path, reason=f"its {awaited[0].artefact}: {awaited[0].reason}")


def require_history(segment: LocalSegment, scan: SegmentScan, lineage: Lineage) -> None:
    """Return if the batches are of the lineage's leader epochs.

    Raises:
        SegmentNotReadyError: the batches are of other leader epochs than the lineage says of their offsets.
    """
    if not lineage.explains(scan.leader_epochs, scan.leader_epoch_ends):
        found = ", ".join(f"{entry.epoch} from offset {entry.start_offset}" for entry in scan.leader_epochs)
        reason = f"its batches are of leader epoch {found}: the leader-epoch-checkpoint says otherwise"
        raise SegmentNotReadyError(path=segment.log_path, reason=reason)


def brokers_aborted(segment: LocalSegment, artefacts: SegmentArtefacts) -> Sequence[AbortedTransaction]:
    """Return the entries of the broker's transaction index: none where it cannot be used."""
    index = artefacts.transaction_index or b""
    return read_transaction_index(index, base_offset=segment.base_offset, where=segment.log_path)


def _open_at_start(
    artefacts: SegmentArtefacts, carried: Sequence[ProducerState]
) -> tuple[tuple[ProducerState, ...], bool]:
    """Return the producers whose transaction is open, and whether the broker knows all of them: if not, it has lost its state,
    and its transaction index may lack an entry."""
    brokers = read_open_producers(artefacts.earlier_snapshot) if artefacts.earlier_snapshot else ()
    return merge_open(carried, brokers), lacks_none(brokers, carried)


async def _is_compressed(file: SegmentFile) -> bool:
    head = bytearray(BATCH_HEADER_SIZE)
    count = await file.read_into(0, memoryview(head))
    try:
        return read_batch_header(head[:count], where=file.path).compression is not Compression.NONE
    except CorruptDataError:
        return False  # the reading that follows names what is wrong, unless the segment is empty


def next_base_offset_of(segment: LocalSegment) -> Offset:
    """Return where a sealed segment's successor begins."""
    assert segment.next_base_offset is not None, "only sealed segments are copied"
    return segment.next_base_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedTransactions:
    """Artefacts as they go up; ``added`` are the entries that the broker's transaction index lacked, or had later offsets in;
    ``open_at_end`` the producers whose transaction is open where the segment ends, of those in ``undecided`` the broker has
    lost it, so that its last stable offset says nothing of them."""

    artefacts: IndexArtefacts
    added: tuple[AbortedTransaction, ...]
    open_at_end: tuple[ProducerState, ...]
    undecided: tuple[ProducerState, ...]


def complete_transactions(
    segment: LocalSegment,
    artefacts: IndexArtefacts,
    derived: SegmentTransactions,
    cleaned_since: Sequence[ProducerState] = (),
) -> CompletedTransactions:
    """Return ``artefacts`` with all that ``derived`` has; what lacks nothing stays as it is, byte for byte.  Of producers that
    the broker had open where the segment begins, ``cleaned_since``, the marker may be gone: of these the broker's snapshot
    counts.
    """
    index = artefacts.transaction_index or b""
    brokers = read_transaction_index(index, base_offset=segment.base_offset, where=segment.log_path)
    entries = complete_index(brokers, derived.aborted)
    if entries != brokers:
        artefacts = replace(artefacts, transaction_index=write_transaction_index(entries))
    open_at_end = read_open_producers(artefacts.producer_snapshot, where=segment.log_path)
    ended = ended_unseen(derived.open_at_end, cleaned_since, open_at_end)
    still_open = [state for state in derived.open_at_end if state not in ended]
    undecided = tuple(state for state in still_open if not lacks_none(open_at_end, (state,)))
    if undecided:
        states = read_producer_snapshot(artefacts.producer_snapshot, where=segment.log_path)
        completed = complete_snapshot(states, still_open)
        artefacts = replace(artefacts, producer_snapshot=write_producer_snapshot(completed))
        open_at_end = open_states(completed)
    known = set(brokers)
    return CompletedTransactions(
        artefacts=artefacts,
        added=tuple(entry for entry in entries if entry not in known),
        open_at_end=open_at_end,
        undecided=undecided,
    )


class SegmentReading:
    """Sees the whole file once, in order, by :meth:`look`; then :meth:`finish` compares it with what was published."""

    def __init__(self, segment: LocalSegment, checked: CheckedSegment, lineage: Lineage) -> None:
        self._segment, self._checked, self._lineage = segment, checked, lineage
        self._walk = TransactionWalk(checked.open_at_start)
        self._scanner = SegmentScanner(
            where=segment.log_path,
            base_offset=segment.base_offset,
            next_base_offset=segment.next_base_offset,
            transactions=self._walk,
        )
        self._rebuilder: SegmentRebuilder | None = None
        if checked.rebuild:
            self._rebuilder = SegmentRebuilder(
                where=segment.log_path,
                base_offset=segment.base_offset,
                earlier_snapshot=checked.artefacts.earlier_snapshot,
            )
        self.scan: SegmentScan | None = None
        self._completed: CompletedTransactions | None = None

    def look(self, part: memoryview) -> None:
        """See the next bytes of the file.

        Raises:
            CorruptDataError: a batch that fails its checks.
        """
        self._scanner.feed(part)
        if self._rebuilder is not None:
            self._rebuilder.feed(part)

    def finish(self) -> None:
        """Note that all bytes were shown.

        Raises:
            CorruptDataError: offsets go past the following segment's.
            SegmentNotReadyError: it ends within a batch, or is not what the broker's files said of it.
        """
        try:
            scan = self._scanner.finish()
        except TruncatedDataError as error:
            reason = f"it ends within the batch at byte {error.position}: {error.reason}"
            raise SegmentNotReadyError(path=self._segment.log_path, reason=reason) from error
        require_history(self._segment, scan, self._lineage)
        if scan.max_timestamp_ms != self._checked.max_timestamp_ms:
            reason = (
                f"its latest record is of {scan.max_timestamp_ms}, its time index says {self._checked.max_timestamp_ms}"
            )
            raise SegmentNotReadyError(path=self._segment.log_path, reason=reason)
        self._require_published_transactions()
        self.scan = scan

    def artefacts(self) -> IndexArtefacts:
        """Return the broker's artefacts, and in place of those that cannot be used the ones made here; what the broker has lost
        of transactions is added from the batches.  After :meth:`finish`."""
        return self.transactions().artefacts

    def transactions(self) -> CompletedTransactions:
        """Return what was added of transactions; after :meth:`finish`."""
        if self._completed is None:
            self._completed = complete_transactions(
                self._segment, self._usable_artefacts(), self._walk.finish(), self._cleaned_since()
            )
        return self._completed

    def _cleaned_since(self) -> tuple[ProducerState, ...]:
        """Return the producers whose transaction the broker had open where the segment begins, of which its cleaner may have
        taken the marker away.  A snapshot that is made here says what the batches say."""
        earlier = self._checked.artefacts.earlier_snapshot
        if not self._checked.is_compacted or not earlier or Artefact.PRODUCER_SNAPSHOT in self._checked.rebuild:
            return ()
        return read_open_producers(earlier)

    def _require_published_transactions(self) -> None:
        """Raise where a transaction index was published as empty and is not: readers ask for none then (S-157)."""
        entries = complete_index(brokers_aborted(self._segment, self._checked.artefacts), self._walk.finish().aborted)
        if bool(entries) != self._checked.has_aborted:
            reason = f"its batches have {len(entries)} aborted transactions, its transaction index says otherwise"
            raise SegmentNotReadyError(path=self._segment.log_path, reason=reason)

    def _usable_artefacts(self) -> IndexArtefacts:
        brokers, rebuild = self._checked.artefacts, self._checked.rebuild
        epochs = self._lineage.entries_below(next_base_offset_of(self._segment))
        artefacts = IndexArtefacts(
            offset_index=brokers.offset_index or b"",
            time_index=brokers.time_index or b"",
            producer_snapshot=brokers.producer_snapshot or b"",
            leader_epochs=write_leader_epochs(epochs),
            transaction_index=brokers.transaction_index,
        )
        if self._rebuilder is None:
            return artefacts
        made = self._rebuilder.finish()
        ours: dict[Artefact, dict[str, Any]] = {
            Artefact.OFFSET_INDEX: {"offset_index": made.offset_index},
            Artefact.TIME_INDEX: {"time_index": made.time_index},
            Artefact.PRODUCER_SNAPSHOT: {"producer_snapshot": made.producer_snapshot},
            Artefact.TRANSACTION_INDEX: {"transaction_index": made.transaction_index},
        }
        for artefact in rebuild:
            artefacts = replace(artefacts, **ours[artefact])
        return artefacts
