"""Compare the transaction index and the producer snapshot of a remote segment with its batches.

Earlier versions, and brokers with native tiering, uploaded what the broker's files had: after a broker had lost its producers'
state, less than the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.producer_state import (
    ProducerState,
    SegmentTransactions,
    TransactionWalk,
    lacking_entries,
    lacks_none,
)
from tiersidecar.formats.kafka.record_batches import Buffer
from tiersidecar.formats.kafka.segment_scan import SegmentScanner


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFaults:
    """``lacking_entries`` are aborted transactions that the uploaded index does not hide, ``lost_states`` producers whose
    transaction is open where the segment ends, and not by the uploaded snapshot: what follows then lacks its end."""

    lacking_entries: tuple[AbortedTransaction, ...]
    lost_states: tuple[ProducerState, ...]

    def __bool__(self) -> bool:
        return bool(self.lacking_entries or self.lost_states)


def expected_transactions(
    slices: Iterable[Buffer], *, base_offset: Offset, open_at_start: Iterable[ProducerState], where: str = "segment"
) -> SegmentTransactions:
    """Return the transactions by the batches of a segment, given as slices of its .log in order, and the producers whose
    transaction is open where it begins: by the snapshot of the segment before it, once that is checked and completed too.

    Raises:
        CorruptDataError: a batch fails its checks.
        TruncatedDataError: the file ends within a batch.
    """
    walk = TransactionWalk(open_at_start)
    scanner = SegmentScanner(where=where, base_offset=base_offset, transactions=walk)
    for buffer in slices:
        scanner.feed(buffer)
    scanner.finish()
    return walk.finish()


def check_transactions(
    expected: SegmentTransactions, entries: Sequence[AbortedTransaction], states: Sequence[ProducerState]
) -> TransactionFaults:
    """Return what the uploaded index ``entries`` and the uploaded snapshot ``states`` lack of ``expected``."""
    return TransactionFaults(
        lacking_entries=lacking_entries(entries, expected.aborted),
        lost_states=tuple(one for one in expected.open_at_end if not lacks_none(states, (one,))),
    )
