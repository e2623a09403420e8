"""The one walk over a segment's bytes, on their way to the store: checks every batch, and makes anew what must be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tiersidecar.domain.epochs import Lineage
from tiersidecar.domain.errors import SegmentNotReadyError, TruncatedDataError
from tiersidecar.domain.segments import LocalSegment, SegmentScan
from tiersidecar.formats.aiven.index_blob import IndexArtefacts
from tiersidecar.formats.kafka.checkpoints import write_leader_epochs
from tiersidecar.formats.kafka.segment_rebuild import SegmentRebuilder
from tiersidecar.formats.kafka.segment_scan import SegmentScanner
from tiersidecar.formats.kafka.transactions import TransactionWalk, complete_index
from tiersidecar.ports.log_dirs import Artefact
from tiersidecar.tasks.completed_transactions import CompletedTransactions, complete_transactions
from tiersidecar.tasks.segment_check import CheckedSegment, brokers_aborted, next_base_offset_of, require_history


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
