"""Indexes and producer snapshot of a segment, rebuilt from its batches while they stream past (U9)."""

from __future__ import annotations

from dataclasses import dataclass

from tiersidecar.domain.errors import TruncatedDataError
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.indexes import IndexRebuilder, write_transaction_index
from tiersidecar.formats.kafka.producer_state import ProducerStates, read_producer_snapshot, write_producer_snapshot
from tiersidecar.formats.kafka.record_batches import Buffer, RecordBatchHeader, iter_batch_headers
from tiersidecar.formats.kafka.records import read_control_marker, read_records


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltArtefacts:
    """The bytes of each; ``transaction_index`` is None when no transaction was aborted."""

    offset_index: bytes
    time_index: bytes
    transaction_index: bytes | None
    producer_snapshot: bytes


class SegmentRebuilder:
    """Takes a .log in slices of any size, in order.

    ``earlier_snapshot`` has the producers' states before the segment.  Without it those that wrote nothing in the segment
    are missing from the snapshot, and a transaction that began earlier from the transaction index.
    """

    def __init__(self, *, where: str, base_offset: Offset, earlier_snapshot: bytes | None) -> None:
        self._where = where
        self._indexes = IndexRebuilder(base_offset=base_offset)
        self._states = ProducerStates(read_producer_snapshot(earlier_snapshot) if earlier_snapshot else ())
        self._tail = b""
        self._position = 0

    def feed(self, buffer: Buffer) -> None:
        """Take the next slice of the file.  The buffer may be reused as soon as this returns.

        Raises:
            CorruptDataError: a batch that cannot be read.
        """
        view = memoryview(b"".join((self._tail, buffer)) if self._tail else buffer)
        whole = 0
        for position, header in iter_batch_headers(view, self._position, where=self._where):
            start, whole = whole, whole + header.size_bytes
            self._indexes.add(position, header)
            if header.is_control:
                self._add_markers(header, view[start:whole], position)
            else:
                self._states.add_batch(header)
        self._tail = bytes(view[whole:])
        self._position += whole

    def finish(self) -> RebuiltArtefacts:
        """Return the rebuilt files, after the last slice.

        Raises:
            TruncatedDataError: the file ends within a batch.
        """
        if self._tail:
            reason = "the file ends within a batch"
            raise TruncatedDataError(where=self._where, position=self._position, reason=reason)
        offset_index, time_index = self._indexes.finish()
        aborted = self._states.aborted
        return RebuiltArtefacts(
            offset_index=offset_index.write(),
            time_index=time_index.write(),
            transaction_index=write_transaction_index(aborted) if aborted else None,
            producer_snapshot=write_producer_snapshot(self._states.states),
        )

    def _add_markers(self, header: RecordBatchHeader, batch: memoryview, position: int) -> None:
        for record in read_records(batch, where=self._where, position=position):
            marker = read_control_marker(record, where=self._where)
            if marker is not None:
                self._states.add_marker(header, marker, record.timestamp_ms)
