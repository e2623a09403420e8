"""What a broker's files lack of a segment's transactions, added from its batches (DESIGN.md rule 14)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tiersidecar.domain.segments import LocalSegment
from tiersidecar.formats.aiven.index_blob import IndexArtefacts
from tiersidecar.formats.kafka.indexes import AbortedTransaction, read_transaction_index, write_transaction_index
from tiersidecar.formats.kafka.producer_snapshots import (
    ProducerState,
    read_open_producers,
    read_producer_snapshot,
    write_producer_snapshot,
)
from tiersidecar.formats.kafka.transactions import (
    SegmentTransactions,
    complete_index,
    complete_snapshot,
    lacks_none,
    open_states,
)


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
    undecided = tuple(one for one in derived.open_at_end if not lacks_none(open_at_end, (one,)))
    if undecided:
        states = read_producer_snapshot(artefacts.producer_snapshot, where=segment.log_path)
        completed = complete_snapshot(states, derived.open_at_end)
        artefacts = replace(artefacts, producer_snapshot=write_producer_snapshot(completed))
        open_at_end = open_states(completed)
    known = set(brokers)
    return CompletedTransactions(
        artefacts=artefacts,
        added=tuple(one for one in entries if one not in known),
        open_at_end=open_at_end,
        undecided=undecided,
    )
