"""Indexes: those of the golden log dirs, lookups against a plain model, rebuilt ones, damaged ones."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet
from hypothesis import given
from hypothesis import strategies as st

from tests.support.batches import batch_bytes
from tests.support.golden import CLEAN_LOG_DIR, UNCLEAN_LOG_DIR
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.indexes import (
    AbortedTransaction,
    OffsetIndexEntry,
    TimeIndexEntry,
    collect_aborted,
    read_offset_index,
    read_time_index,
    read_transaction_index,
    rebuild_indexes,
    write_transaction_index,
)
from tiersidecar.formats.kafka.record_batches import RecordBatchHeader, iter_batch_headers

PATHS = [
    path
    for root in (CLEAN_LOG_DIR, UNCLEAN_LOG_DIR)
    for path in sorted(root.glob("*/*.log"))
    # The metadata log's indexes were removed from the golden data.
    if path.with_suffix(".index").exists()
]


def rows(paths: list[Path]) -> list[ParameterSet]:
    return [pytest.param(path, id=f"{path.parts[-3]} {path.parent.name} {path.stem}") for path in paths]


def base_of(path: Path) -> Offset:
    return Offset(int(path.stem))


def batches_of(path: Path) -> list[tuple[int, RecordBatchHeader]]:
    return list(iter_batch_headers(path.read_bytes()))


@pytest.mark.parametrize("path", rows(PATHS))
def test_each_entry_of_a_brokers_offset_index_names_a_batch(path: Path) -> None:
    """The position is where some batch begins, the offset the last of that append: of that batch or one after it."""
    batches = dict(batches_of(path))
    data = path.with_suffix(".index").read_bytes()
    index = read_offset_index(data, base_offset=base_of(path), segment_size_bytes=path.stat().st_size)
    for entry in index.entries:
        assert batches[entry.position].last_offset <= entry.offset
    assert data.rstrip(b"\0") == index.write().rstrip(b"\0")


@pytest.mark.parametrize("path", rows(PATHS))
def test_each_entry_of_a_brokers_time_index_holds(path: Path) -> None:
    """No record up to the entry's offset is later than its timestamp."""
    data = path.with_suffix(".timeindex").read_bytes()
    batches = [header for _, header in batches_of(path)]
    for entry in read_time_index(data, base_offset=base_of(path)).entries:
        assert max(h.max_timestamp for h in batches if h.last_offset <= entry.offset) == entry.timestamp_ms


def was_sealed_in_one_go(path: Path) -> bool:
    """Neither active nor open while the broker was restarted, which makes it count its index interval anew."""
    is_sealed = any(int(other.stem) > int(path.stem) for other in path.parent.glob("*.log"))
    return is_sealed and len({header.partition_leader_epoch for _, header in batches_of(path)}) == 1


@pytest.mark.parametrize("path", rows([path for path in PATHS if was_sealed_in_one_go(path)]))
def test_rebuilt_indexes_are_the_brokers(path: Path) -> None:
    """U9: where each append was one batch, as in all of these, to the byte."""
    interval = 512 if path.parent.name == "fine-index-0" else 4096
    offset_index, time_index = rebuild_indexes(
        batches_of(path), base_offset=base_of(path), index_interval_bytes=interval
    )
    assert offset_index.write() == path.with_suffix(".index").read_bytes()
    assert time_index.write() == path.with_suffix(".timeindex").read_bytes()


def headers_of(*timestamps: int, size: int = 1061) -> list[tuple[int, RecordBatchHeader]]:
    """Batches of ``size`` bytes and one record each, with these timestamps."""
    log = b"".join(
        batch_bytes(number, bytes(size - 61), base_timestamp=timestamp) for number, timestamp in enumerate(timestamps)
    )
    return list(iter_batch_headers(log))


def test_an_entry_is_due_only_after_more_than_the_interval() -> None:
    """``LogSegment.recover``: ``bytes > index.interval.bytes``."""
    exactly, _ = rebuild_indexes(headers_of(1, 2), base_offset=Offset(0), index_interval_bytes=1061)
    one_less, _ = rebuild_indexes(headers_of(1, 2), base_offset=Offset(0), index_interval_bytes=1060)
    assert exactly.entries == ()
    assert one_less.entries == (OffsetIndexEntry(Offset(1), 1061),)


def test_of_equal_times_the_first_offset_is_indexed() -> None:
    _, time_index = rebuild_indexes(headers_of(5, 9, 9, 7), base_offset=Offset(0))
    assert time_index.entries == (TimeIndexEntry(9, Offset(1)),)


rising = st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=30).map(sorted)


@given(st.data())
def test_an_offset_is_looked_up_as_by_a_plain_walk(data: st.DataObject) -> None:
    """``OffsetIndex.lookup``: the largest entry at or below, else the segment's beginning."""
    offsets = data.draw(rising)
    count = len(offsets)
    positions = sorted(data.draw(st.lists(st.integers(1, 2**31 - 1), unique=True, min_size=count, max_size=count)))
    base = data.draw(st.integers(0, 2**60))
    written = b"".join(map(struct.Struct(">ii").pack, offsets, positions))
    index = read_offset_index(written, base_offset=Offset(base))
    assert index.write() == written
    target = data.draw(st.integers(0, 2**61))
    expected = OffsetIndexEntry(Offset(base), 0)
    for entry in index.entries:
        if entry.offset <= target:
            expected = entry
    assert index.lookup(target) == expected


@given(st.data())
def test_a_time_is_looked_up_as_by_a_plain_walk(data: st.DataObject) -> None:
    times = sorted(data.draw(st.lists(st.integers(1, 2**62), unique=True, max_size=30)))
    count = len(times)
    offsets = sorted(data.draw(st.lists(st.integers(0, 2**31 - 1), min_size=count, max_size=count)))
    written = b"".join(map(struct.Struct(">qi").pack, times, offsets))
    index = read_time_index(written, base_offset=Offset(100))
    assert index.write() == written
    target = data.draw(st.integers(0, 2**62))
    expected = TimeIndexEntry(-1, Offset(100))
    for entry in index.entries:
        if entry.timestamp_ms <= target:
            expected = entry
    assert index.lookup(target) == expected


def test_zeros_after_an_unclean_stop_are_no_entries() -> None:
    """The active segment's indexes are preallocated and were not trimmed."""
    path = UNCLEAN_LOG_DIR / "epochs-0" / "00000000000000000200"
    for suffix, read in (("index", read_offset_index), ("timeindex", read_time_index)):
        data = path.with_suffix(f".{suffix}").read_bytes()
        assert len(data) > 4000
        assert len(read(data, base_offset=Offset(200))) == 0


def test_an_entry_that_ends_in_zeros_is_kept_whole() -> None:
    written = struct.pack(">iiii", 1, 256, 256, 65536) + bytes(16)
    assert len(read_offset_index(written, base_offset=Offset(0))) == 2


@pytest.mark.parametrize(
    ("entries", "place", "reason"),
    [
        pytest.param([(5, 100), (5, 200)], 8, "5 after 5", id="the same offset twice"),
        pytest.param([(5, 100), (4, 200)], 8, "4 after 5", id="an offset that falls"),
        pytest.param([(5, 100), (6, 100)], 8, "100 after 100", id="the same position twice"),
        pytest.param([(-5, 100)], 0, "-5 after -1", id="an offset below the base"),
        pytest.param([(5, 100), (9, 5000)], 8, "entry 5000 is past the segment's 999", id="a position past the file"),
        pytest.param([(5, 100), (51, 200)], 8, "entry 51 is past the segment's 50", id="an offset past the segment"),
    ],
)
def test_a_damaged_offset_index_is_told_with_its_place(entries: list[tuple[int, int]], place: int, reason: str) -> None:
    written = b"".join(struct.pack(">ii", *entry) for entry in entries)
    with pytest.raises(CorruptDataError, match=reason) as caught:
        read_offset_index(written, base_offset=Offset(0), segment_size_bytes=1000, end_offset=Offset(50))
    assert caught.value.position == place


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        pytest.param([(5, 1), (5, 2)], "5 after 5", id="the same time twice"),
        pytest.param([(5, 3), (6, 2)], "2 after 3", id="an offset that falls"),
        pytest.param([(5, 3), (6, 51)], "entry 51 is past", id="an offset past the segment"),
        pytest.param([(-7, 3)], "-7 after -1", id="a negative time"),
    ],
)
def test_a_damaged_time_index_is_told(entries: list[tuple[int, int]], reason: str) -> None:
    written = b"".join(struct.pack(">qi", *entry) for entry in entries)
    with pytest.raises(CorruptDataError, match=reason):
        read_time_index(written, base_offset=Offset(0), end_offset=Offset(50))


def test_cut_indexes_are_corrupt_where_they_were_cut() -> None:
    for size, read in ((8, read_offset_index), (12, read_time_index), (34, read_transaction_index)):
        with pytest.raises(CorruptDataError, match=f"not a multiple of {size}") as caught:
            read(bytes(3 * size + 1), base_offset=Offset(0))
        assert caught.value.position == 3 * size


@given(st.binary(max_size=200), st.integers(0, 2**40))
def test_any_bytes_are_an_index_or_corrupt(data: bytes, base: int) -> None:
    for read in (read_offset_index, read_time_index, read_transaction_index):
        try:
            assert len(read(data, base_offset=Offset(base))) >= 0
        except CorruptDataError as error:
            assert error.position <= len(data)  # noqa: PT017 - either way is right


def test_transaction_indexes_are_written_as_they_were_read() -> None:
    paths = sorted((CLEAN_LOG_DIR / "transactions-0").glob("*.txnindex"))
    assert paths
    for path in paths:
        entries = read_transaction_index(path.read_bytes(), base_offset=base_of(path))
        assert write_transaction_index(entries) == path.read_bytes()


def aborted(producer_id: int, first: int, last: int, stable: int) -> AbortedTransaction:
    return AbortedTransaction(producer_id, Offset(first), Offset(last), Offset(stable))


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        pytest.param(aborted(1, 5, 9, 10), "not above 99", id="ended before the segment"),
        pytest.param(aborted(1, 120, 110, 111), "runs backwards", id="ends before it begins"),
        pytest.param(aborted(1, 105, 110, 112), "runs backwards", id="stable further than its own end"),
    ],
)
def test_an_impossible_aborted_transaction_is_corrupt(entry: AbortedTransaction, reason: str) -> None:
    with pytest.raises(CorruptDataError, match=reason):
        read_transaction_index(write_transaction_index([entry]), base_offset=Offset(100))


def test_a_later_entry_version_is_refused() -> None:
    with pytest.raises(CorruptDataError, match="unknown entry version 1"):
        read_transaction_index(b"\0\1" + bytes(32), base_offset=Offset(0))


ABORTED = (aborted(1, 10, 20, 15), aborted(2, 15, 30, 31), aborted(1, 40, 50, 51))


@pytest.mark.parametrize(
    ("start", "stop", "expected", "is_complete"),
    [
        pytest.param(0, 10, (), True, id="all begin after the range: the first LSO ends the search"),
        pytest.param(0, 11, ABORTED[:1], True, id="one begins in the range"),
        pytest.param(20, 31, ABORTED[:2], True, id="a marker at the first offset counts"),
        pytest.param(21, 40, ABORTED[1:2], True, id="one has ended before the range"),
        pytest.param(21, 51, ABORTED[1:], True, id="the range ends at the last LSO"),
        pytest.param(21, 60, ABORTED[1:], False, id="the range goes past the last LSO: the next segment may have more"),
        pytest.param(60, 70, (), False, id="all have ended before the range"),
    ],
)
def test_aborted_transactions_of_a_range(
    start: int, stop: int, expected: tuple[AbortedTransaction, ...], is_complete: bool
) -> None:
    """``TransactionIndex.collectAbortedTxns``."""
    assert collect_aborted(ABORTED, start, stop) == (expected, is_complete)
