"""The one walk over a segment's bytes, on their way to the store: checks every batch, and makes anew what must be.

What a broker's files lack of a segment's transactions, added from its batches (DESIGN.md rule 14).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tiersidecar.domain.epochs import Lineage
from tiersidecar.domain.errors import SegmentNotReadyError, TruncatedDataError
from tiersidecar.domain.segments import LocalSegment, SegmentScan
from tiersidecar.formats.aiven.index_blob import IndexArtefacts
from tiersidecar.formats.kafka.checkpoints import write_leader_epochs
from tiersidecar.formats.kafka.indexes import AbortedTransaction, read_transaction_index, write_transaction_index
from tiersidecar.formats.kafka.producer_snapshots import (
    ProducerState,
    read_open_producers,
    read_producer_snapshot,
    write_producer_snapshot,
)
from tiersidecar.formats.kafka.segment_rebuild import SegmentRebuilder
from tiersidecar.formats.kafka.segment_scan import SegmentScanner
from tiersidecar.formats.kafka.transactions import (
    SegmentTransactions,
    TransactionWalk,
    complete_index,
    complete_snapshot,
    lacks_none,
    open_states,
)
from tiersidecar.ports.log_dirs import Artefact
from tiersidecar.tasks.segment_check import CheckedSegment, brokers_aborted, next_base_offset_of, require_history


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
    segment: LocalSegment, artefacts: IndexArtefacts, derived: SegmentTransactions
) -> CompletedTransactions:
    """``artefacts`` with all that ``derived`` has; what lacks nothing stays as it is, byte for byte."""
    index = artefacts.transaction_index or b""
    brokers = read_transaction_index(index, base_offset=segment.base_offset, where=segment.log_path)
    entries = complete_index(brokers, derived.aborted)
    if entries != brokers:
        artefacts = replace(artefacts, transaction_index=write_transaction_index(entries))
    open_at_end = read_open_producers(artefacts.producer_snapshot, where=segment.log_path)
    undecided = tuple(state for state in derived.open_at_end if not lacks_none(open_at_end, (state,)))
    if undecided:
        states = read_producer_snapshot(artefacts.producer_snapshot, where=segment.log_path)
        completed = complete_snapshot(states, derived.open_at_end)
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
    """Shown the whole file once, in order, by :meth:`look`; then :meth:`finish` compares it with what was published."""

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
        """The next bytes of the file.

        Raises:
            CorruptDataError: a batch that fails its checks.
        """
        self._scanner.feed(part)
        if self._rebuilder is not None:
            self._rebuilder.feed(part)

    def finish(self) -> None:
        """All bytes were shown.

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
        """The broker's, and in place of those that cannot be used the ones made here; what the broker has lost of transactions
        is added from the batches.  After :meth:`finish`."""
        return self.transactions().artefacts

    def transactions(self) -> CompletedTransactions:
        """What was added of transactions; after :meth:`finish`."""
        if self._completed is None:
            self._completed = complete_transactions(self._segment, self._usable_artefacts(), self._walk.finish())
        return self._completed

    def _require_published_transactions(self) -> None:
        """Readers ask for no transaction index that is published as empty (S-157)."""
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
