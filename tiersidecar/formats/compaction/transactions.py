"""Transactions that a pass over the log is in, and markers that may go (``CleanedTransactionMetadata``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.record_batches import RecordBatchHeader
from tiersidecar.formats.kafka.records import ControlKind, read_control_marker, read_records


@dataclass(slots=True)
class _Ongoing:
    entry: AbortedTransaction
    is_seen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedTransactions:
    """State of a pass where one segment ends and the next begins: ``ongoing`` are aborted transactions that have begun, and
    whether a batch of theirs was seen; ``committed`` are producers of whose other transactions one was."""

    ongoing: tuple[tuple[AbortedTransaction, bool], ...] = ()
    committed: frozenset[int] = frozenset()


class CleanedTransactions:
    """Takes every batch of one pass, in the order of the log.

    ``aborted`` has all transactions whose abort marker lies in what the pass reads, or that began there: in any order, perhaps
    named twice.  They must come from the batches (``TransactionWalk``), not from a broker's index alone.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._waiting = sorted(set(aborted), key=lambda transaction: transaction.first_offset, reverse=True)
        self._aborted: dict[int, _Ongoing] = {}
        self._committed: set[int] = set()
        self._retained: list[AbortedTransaction] = []

    @classmethod
    def resumed(cls, carried: CarriedTransactions, aborted: Iterable[AbortedTransaction]) -> CleanedTransactions:
        """Return the state of a pass that goes on with a segment, where ``aborted`` are those that begin in it."""
        resumed = cls(aborted)
        resumed._aborted = {entry.producer_id: _Ongoing(entry, is_seen) for entry, is_seen in carried.ongoing}
        resumed._committed = set(carried.committed)
        return resumed

    def carried(self, end_offset: int) -> CarriedTransactions:
        """Return the state after a segment that ends at ``end_offset`` (inclusive), for :meth:`resumed`."""
        self._begin_up_to(end_offset)
        ongoing = tuple((one.entry, one.is_seen) for one in self._aborted.values())
        return CarriedTransactions(ongoing=ongoing, committed=frozenset(self._committed))

    def pass_over(self, last_offset: int) -> None:
        """Take batches of data that are of no transaction, up to this offset (inclusive), the highest of theirs."""
        self._begin_up_to(last_offset)

    def is_aborted(self, header: RecordBatchHeader) -> bool:
        """Take a batch of data; return True if it is of an aborted transaction, and its records go whatever their keys are."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        ongoing = self._aborted.get(header.producer_id)
        if ongoing is None:
            self._committed.add(header.producer_id)
            return False
        ongoing.is_seen = True
        return True

    def may_drop_marker(self, batch: memoryview, header: RecordBatchHeader, *, where: str, position: int) -> bool:
        """Take a control batch; return True if no batch of its transaction was seen in this pass.

        Raises:
            CorruptDataError: the marker cannot be read.
        """
        self._begin_up_to(header.last_offset)
        records = read_records(batch, where=where, position=position)
        if not records:
            return True  # a cleaner has been here before
        marker = read_control_marker(records[0], where=where)
        if marker is None:
            return False
        if marker.kind is ControlKind.COMMIT:
            was_seen = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not was_seen
        ongoing = self._aborted.pop(header.producer_id, None)
        if ongoing is None or not ongoing.is_seen:
            return True
        self._retained.append(ongoing.entry)
        return False

    def take_retained(self) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions that ended since the last call and had batches: the entries of the cleaned segment's
        transaction index."""
        retained, self._retained = tuple(self._retained), []
        return retained

    def _begin_up_to(self, offset: int) -> None:
        while self._waiting and self._waiting[-1].first_offset <= offset:
            entry = self._waiting.pop()
            self._aborted.setdefault(entry.producer_id, _Ongoing(entry))
