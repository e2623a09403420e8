"""Compare the transaction index and the producer snapshot of a remote segment with its batches.

Earlier versions, and brokers with native tiering, uploaded what the broker's files had: after a broker had lost its producers'
state, less than the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.producer_state import (
    ProducerState,
    SegmentTransactions,
    lacking_entries,
    lacks_none,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFaults:
    """``lacking_entries`` are aborted transactions that the uploaded index does not hide, ``lost_states`` producers whose
    transaction is open where the segment ends, and not by the uploaded snapshot: what follows then lacks its end."""

    lacking_entries: tuple[AbortedTransaction, ...]
    lost_states: tuple[ProducerState, ...]

    def __bool__(self) -> bool:
        return bool(self.lacking_entries or self.lost_states)


def check_transactions(
    expected: SegmentTransactions, entries: Sequence[AbortedTransaction], states: Sequence[ProducerState]
) -> TransactionFaults:
    """Return what the uploaded index ``entries`` and the uploaded snapshot ``states`` lack of ``expected``."""
    return TransactionFaults(
        lacking_entries=lacking_entries(entries, expected.aborted),
        lost_states=tuple(one for one in expected.open_at_end if not lacks_none(states, (one,))),
    )
