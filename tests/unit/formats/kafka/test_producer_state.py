"""Producer snapshots: read, written and rebuilt as the broker has them (S-160, U9)."""

from __future__ import annotations

from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden import CLEAN_LOG_DIR, UNCLEAN_LOG_DIR
from tiersidecar.domain.errors import CorruptDataError, TruncatedDataError
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.indexes import read_transaction_index
from tiersidecar.formats.kafka.producer_state import (
    ProducerState,
    ProducerStates,
    read_producer_snapshot,
    write_producer_snapshot,
)
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import read_control_marker, read_records

SNAPSHOTS = [
    pytest.param(path, id=str(path.relative_to(root.parent)))
    for root in (CLEAN_LOG_DIR, UNCLEAN_LOG_DIR)
    for path in sorted(root.glob("*/*.snapshot"))
]
REBUILT = [
    pytest.param(path, id=f"{path.parent.name} {path.stem}")
    for topic in ("transactions-0", "idempotent-0", "plain-0")
    for path in sorted((CLEAN_LOG_DIR / topic).glob("*.log"))
]


@pytest.mark.parametrize("path", SNAPSHOTS)
def test_a_brokers_snapshot_is_written_as_it_was_read(path: Path) -> None:
    assert write_producer_snapshot(read_producer_snapshot(path.read_bytes())) == path.read_bytes()


def test_a_snapshot_says_what_the_broker_says_of_its_producers() -> None:
    """expected/producers.txt."""
    data = (CLEAN_LOG_DIR / "transactions-0" / "00000000000000000294.snapshot").read_bytes()
    assert read_producer_snapshot(data) == (
        ProducerState(producer_id=2, epoch=57, timestamp_ms=1795221952755, coordinator_epoch=6),
        ProducerState(producer_id=3, epoch=1, timestamp_ms=1795221890581, coordinator_epoch=0),
        ProducerState(
            producer_id=1000,
            epoch=0,
            last_sequence=2,
            last_offset=213,
            offset_delta=2,
            timestamp_ms=1700000900002,
            current_transaction_first_offset=211,
        ),
    )


@pytest.mark.parametrize("path", REBUILT)
def test_batches_move_one_snapshot_on_to_the_next(path: Path) -> None:
    """U9: the snapshot at a segment's base offset and its batches give the one at the next, and its transaction index."""
    base = int(path.stem)
    before = path.with_suffix(".snapshot")
    states = ProducerStates(read_producer_snapshot(before.read_bytes()) if before.exists() else ())
    log = path.read_bytes()
    next_offset = base
    for position, header in iter_batch_headers(log):
        next_offset = header.next_offset
        if not header.is_control:
            states.add_batch(header)
            continue
        for record in read_records(log[position : position + header.size_bytes]):
            marker = read_control_marker(record)
            assert marker is not None
            states.add_marker(header, marker, record.timestamp_ms)
    after = path.with_name(f"{next_offset:020d}.snapshot")
    assert {*states.states} == {*read_producer_snapshot(after.read_bytes())}
    index = path.with_suffix(".txnindex")
    expected = read_transaction_index(index.read_bytes(), base_offset=Offset(base)) if index.exists() else ()
    assert tuple(states.aborted) == expected


def test_an_empty_snapshot_is_that_of_a_topic_without_producer_ids() -> None:
    empty = (CLEAN_LOG_DIR / "plain-0" / "00000000000000000035.snapshot").read_bytes()
    assert write_producer_snapshot() == empty


@given(st.integers(0, 10), st.data())
def test_no_flipped_bit_passes(count: int, data: st.DataObject) -> None:
    """S-024: a snapshot may be caught half written, so that every byte of it counts."""
    written = bytearray(write_producer_snapshot(ProducerState(producer_id=number) for number in range(count)))
    place = data.draw(st.integers(0, len(written) * 8 - 1))
    written[place // 8] ^= 1 << place % 8
    with pytest.raises(CorruptDataError):
        read_producer_snapshot(bytes(written), where="a.snapshot")


def test_a_snapshot_cut_short_is_truncated() -> None:
    written = write_producer_snapshot([ProducerState(producer_id=1), ProducerState(producer_id=2)])
    for size in range(len(written)):
        with pytest.raises(TruncatedDataError):
            read_producer_snapshot(written[:size])


def test_bytes_after_the_last_producer_are_corrupt() -> None:
    """Even under a checksum that covers them."""
    body = bytes(5)
    written = b"\0\1" + crc32c(body).to_bytes(4, "big") + body
    with pytest.raises(CorruptDataError, match="11 bytes for 0 producers"):
        read_producer_snapshot(written)


numbers = st.integers(-1, 2**31 - 1)


@given(st.lists(st.builds(ProducerState, producer_id=numbers, epoch=st.integers(-1, 2**15 - 1), last_offset=numbers)))
def test_any_states_come_back(states: list[ProducerState]) -> None:
    assert read_producer_snapshot(write_producer_snapshot(states)) == tuple(states)
