"""Ends of transactions that are open where the remote tier ends: by the markers in the broker's log behind it (rule 14).

The broker lists the aborted transactions that it knows of.  One that began before its log did, and that it has lost, it does
not list, like one that was committed: only the marker shows the difference.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch, Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.record_batches import Buffer, RecordBatchHeader, iter_batch_headers
from tiersidecar.formats.kafka.records import ControlKind, read_control_marker, read_records

Transaction = tuple[int, int]
"""Producer id and first offset."""


class BorderWalk:
    """Search for the first marker of each producer of ``open_at_end`` from ``end_offset`` on, in a broker's answers to one
    Fetch after the other.  The result holds for as long as the history is the same."""

    def __init__(
        self, end_offset: int, open_at_end: Iterable[Transaction], epoch_before: LeaderEpoch = NO_EPOCH
    ) -> None:
        self.next_offset = end_offset
        self.epoch_before = self.last_epoch = epoch_before
        """The leader epochs of the records right before ``end_offset``, and right before :attr:`next_offset`."""
        self._open: Mapping[int, int] = dict(open_at_end)
        self._ended: dict[int, AbortedTransaction | None] = {}

    def seeks(self, listed: Collection[Transaction]) -> bool:
        """Return whether a marker is yet to be found: of a transaction that the broker has not ``listed`` as aborted."""
        return any(pid not in self._ended and (pid, first) not in listed for pid, first in self._open.items())

    def take(self, records: Buffer, *, where: str) -> bool:
        """Take whole batches from :attr:`next_offset` on; return False if there was none.

        Raises:
            CorruptDataError: a batch that cannot be read.
        """
        before, view = self.next_offset, memoryview(records)
        for position, header in iter_batch_headers(view, where=where):
            if header.last_offset < self.next_offset:
                continue
            self.next_offset, self.last_epoch = header.next_offset, header.partition_leader_epoch
            if header.is_control and header.producer_id in self._open and header.producer_id not in self._ended:
                self._end(header, view[position : position + header.size_bytes], where)
        return self.next_offset > before

    def aborted(self, listed: Collection[Transaction], last_stable_offset: Offset) -> tuple[AbortedTransaction, ...]:
        """Return those that the broker has listed, as if they reached up to its ``last_stable_offset``, and others."""
        found = [
            AbortedTransaction(pid, Offset(first), Offset(last_stable_offset - 1), last_stable_offset)
            for pid, first in listed
        ]
        found += [
            one for one in self._ended.values() if one is not None and (one.producer_id, one.first_offset) not in listed
        ]
        return tuple(found)

    def _end(self, header: RecordBatchHeader, batch: memoryview, where: str) -> None:
        for record in read_records(batch, where=where):
            marker = read_control_marker(record, where=where)
            if marker is not None:
                first = Offset(self._open[header.producer_id])
                entry = AbortedTransaction(header.producer_id, first, header.base_offset, header.next_offset)
                self._ended[header.producer_id] = entry if marker.kind is ControlKind.ABORT else None
