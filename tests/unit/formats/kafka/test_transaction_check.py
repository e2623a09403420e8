"""A chain of golden segments, checked against what its batches say: what a broker that lost its producers uploaded shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.golden import CLEAN_LOG_DIR
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction, read_transaction_index
from tiersidecar.formats.kafka.producer_state import (
    ProducerState,
    TransactionWalk,
    merge_open,
    read_producer_snapshot,
)
from tiersidecar.formats.kafka.segment_rebuild import SegmentRebuilder
from tiersidecar.formats.kafka.segment_scan import SegmentScanner
from tiersidecar.formats.kafka.transaction_check import TransactionFaults, check_transactions

LOGS = sorted((CLEAN_LOG_DIR / "transactions-0").glob("*.log"))
Uploaded = tuple[Sequence[AbortedTransaction], Sequence[ProducerState]]


def brokers(number: int) -> Uploaded:
    """As the golden broker has them."""
    index = LOGS[number].with_suffix(".txnindex")
    entries = read_transaction_index(index.read_bytes() if index.exists() else b"", base_offset=base_of(number))
    return entries, read_producer_snapshot(LOGS[number + 1].with_suffix(".snapshot").read_bytes())


def without_state(number: int) -> Uploaded:
    """As a broker has them whose log begins with this segment."""
    rebuilder = SegmentRebuilder(where="log", base_offset=base_of(number), earlier_snapshot=None)
    rebuilder.feed(LOGS[number].read_bytes())
    made = rebuilder.finish()
    index = read_transaction_index(made.transaction_index or b"", base_offset=base_of(number))
    return index, read_producer_snapshot(made.producer_snapshot)


def base_of(number: int) -> Offset:
    return Offset(int(LOGS[number].stem))


def faults(log: Path, number: int, uploaded: Uploaded) -> tuple[TransactionFaults, tuple[ProducerState, ...]]:
    """With all before it as the golden broker has it."""
    open_at_start = merge_open(brokers(number - 1)[1], ()) if number else ()
    walk = TransactionWalk(open_at_start)
    scanner = SegmentScanner(where=log.name, base_offset=base_of(number), transactions=walk)
    for part in (log.read_bytes()[:1000], log.read_bytes()[1000:]):
        scanner.feed(part)
    scanner.finish()
    expected = walk.finish()
    return check_transactions(expected, *uploaded), expected.open_at_end


@pytest.mark.parametrize("number", range(len(LOGS) - 1))
def test_what_a_broker_uploaded_that_had_lost_nothing_lacks_nothing(number: int) -> None:
    found, open_at_end = faults(LOGS[number], number, brokers(number))
    assert not found
    assert open_at_end == merge_open(brokers(number)[1], ())


@pytest.mark.parametrize("number", [1, 2])
def test_what_a_broker_uploaded_that_had_lost_its_producers_lacks_the_ends_over_the_border(number: int) -> None:
    found, _ = faults(LOGS[number], number, without_state(number))
    assert found
    lost: list[int] = [entry.first_offset for entry in found.lacking_entries]
    lost += [state.current_transaction_first_offset for state in found.lost_states]
    assert max(lost) < base_of(number), "those that began before it, and no others"
