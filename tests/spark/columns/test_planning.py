"""Reads planned and carried out over segments in memory: by offsets, timestamps and filters, whatever the cut."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.batches import batch_bytes, record_bytes
from tests.support.local_batches import LocalBatch
from tests.support.remote_builder import RemoteBuilder, SegmentSource
from tests.support.remote_rows import RowReads, SilentBroker, opened_rows
from tiersidecar.domain.errors import ConfigError, OffsetOutOfRangeError, UndecidedTransactionError
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.producer_state import ProducerState
from tiersidecar.formats.kafka.record_batches import read_batch_header
from tiersidecar.spark.datasource import plan
from tiersidecar.spark.datasource.filters import PushedBounds

BASE_MS = 1_700_000_000_000
PER_BATCH, BATCHES, SEGMENTS = 4, 40, 3
END = PER_BATCH * BATCHES * SEGMENTS
HOLE = "a hole in the remote tier"


def batch_at(base: int, draw: random.Random) -> LocalBatch:
    """Four records; timestamps rise with the segments, and lie in disorder within them."""
    later = base // (PER_BATCH * BATCHES) * 1000
    deltas = [later + draw.randrange(500) for _ in range(PER_BATCH)]
    payload = b"".join(
        record_bytes(number, b"k%d" % (base + number), draw.randbytes(draw.randrange(120)), timestamp_delta=delta)
        for number, delta in enumerate(deltas)
    )
    data = batch_bytes(
        base,
        payload,
        count=PER_BATCH,
        base_timestamp=BASE_MS,
        max_timestamp=BASE_MS + max(deltas),
        producer_id=base % 3,
    )
    return LocalBatch(read_batch_header(data), data)


def segment_at(number: int, draw: random.Random) -> SegmentSource:
    start = number * PER_BATCH * BATCHES
    batches = [batch_at(start + at * PER_BATCH, draw) for at in range(BATCHES)]
    return SegmentSource(batches=batches, start_offset=start, end_offset=start + PER_BATCH * BATCHES - 1)


def built(*numbers: int) -> RemoteBuilder:
    builder = RemoteBuilder(chunk_size=700, compression=True, index_interval=300)
    draw = random.Random(3)
    for number in numbers:
        asyncio.run(builder.add(segment_at(number, draw)))
    return builder


@pytest.fixture(scope="module")
def opened() -> Iterator[RowReads]:
    with opened_rows(built(0, 1, 2).run) as reads:
        yield reads


@pytest.fixture(autouse=True)
def small_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "CUT_AT_MULTIPLES_OF_BYTES", 700)


def by_partition(value: int) -> str:
    return json.dumps({"built": {"0": value}})


offsets = st.integers(0, END)


@settings(max_examples=60)
@given(offsets, offsets, st.sampled_from([200, 700, 1500, 5000, 10**9]))
def test_offsets_are_exact_whatever_the_cut(opened: RowReads, start: int, end: int, max_bytes: int) -> None:
    options = {
        "startingOffsets": by_partition(start),
        "endingOffsets": by_partition(end),
        "maxBytesPerPartition": str(max_bytes),
    }
    rows = opened.rows(opened.run.partitions, options)
    assert [row["offset"] for row in rows] == list(range(start, end))
    assert [row["key"] for row in rows] == [b"k%d" % offset for offset in range(start, end)]


def all_rows(opened: RowReads) -> list[tuple[int, int]]:
    """Offset and timestamp in ms of every record."""
    return [
        (row["offset"], int(row["timestamp"].timestamp() * 1000 + 0.5)) for row in opened.rows(opened.run.partitions)
    ]


@pytest.mark.parametrize("after_ms", [0, 250, 499, 1000, 1700, 2100])
def test_a_timestamp_is_the_first_record_that_is_as_late(opened: RowReads, after_ms: int) -> None:
    rows = all_rows(opened)
    first = next(offset for offset, timestamp in rows if timestamp >= BASE_MS + after_ms)
    started = opened.rows(opened.run.partitions, {"startingTimestamp": str(BASE_MS + after_ms)})
    assert [row["offset"] for row in started] == list(range(first, END))
    ended = opened.rows(opened.run.partitions, {"endingTimestamp": str(BASE_MS + after_ms)})
    assert [row["offset"] for row in ended] == list(range(first))


def test_a_timestamp_later_than_all_is_an_error_as_a_start_unless_it_may_be_the_end(opened: RowReads) -> None:
    late = {"startingTimestamp": str(BASE_MS + 10_000)}
    with pytest.raises(ConfigError, match="built-0: no record is of the starting timestamp or later"):
        opened.plan(opened.run.partitions, late)
    assert opened.rows(opened.run.partitions, {**late, "startingOffsetsByTimestampStrategy": "latest"}) == []
    ended = opened.rows(opened.run.partitions, {"endingTimestamp": str(BASE_MS + 10_000)})
    assert len(ended) == END


@pytest.mark.parametrize("after_ms", [-5, 0, 300, 1000, 1400, 2000, 2499, 9999])
def test_a_least_timestamp_leaves_out_only_what_is_earlier(opened: RowReads, after_ms: int) -> None:
    least_ms = BASE_MS + after_ms
    shares = opened.plan(opened.run.partitions, pushed=PushedBounds(min_timestamp_ms=least_ms))
    assert all(one.metadata.max_timestamp_ms >= least_ms for share in shares for one in share.segment_slices)
    found = [row["offset"] for share in shares for row in opened.rows_of(share, min_timestamp_ms=least_ms)]
    wanted = [offset for offset, timestamp in all_rows(opened) if timestamp >= least_ms]
    assert found == sorted(found)
    assert set(wanted) <= set(found)
    if after_ms >= 1000:
        assert len(found) < END


@settings(max_examples=30)
@given(offsets, offsets)
def test_offsets_of_filters_narrow_the_plan(opened: RowReads, least: int, stop: int) -> None:
    shares = opened.plan(opened.run.partitions, pushed=PushedBounds(min_offset=least, stop_offset=stop))
    found = [row["offset"] for share in shares for row in opened.rows_of(share)]
    assert found == list(range(least, stop))


def test_partitions_and_topics_of_filters_narrow_the_plan(opened: RowReads) -> None:
    assert opened.plan(opened.run.partitions, pushed=PushedBounds(partitions=frozenset({1}))) == ()
    assert opened.plan(opened.run.partitions, pushed=PushedBounds(topics=frozenset({"other"}))) == ()
    assert opened.plan(opened.run.partitions, pushed=PushedBounds(topics=frozenset({"built"})))


def test_offsets_past_the_end_are_an_error_unless_data_may_be_lost(opened: RowReads) -> None:
    beyond = {"endingOffsets": by_partition(END + 1)}
    with pytest.raises(OffsetOutOfRangeError, match=f"offset {END} of built"):
        opened.plan(opened.run.partitions, beyond)
    assert len(opened.rows(opened.run.partitions, {**beyond, "failOnDataLoss": "false"})) == END


def test_every_partition_must_be_named_and_no_other(opened: RowReads) -> None:
    with pytest.raises(ConfigError, match="start: built-0 is missing"):
        opened.plan(opened.run.partitions, {"startingOffsets": json.dumps({"built": {}})})
    both = json.dumps({"built": {"0": 1, "1": 1}})
    with pytest.raises(ConfigError, match="end: built-1 is not among"):
        opened.plan(opened.run.partitions, {"endingOffsets": both})


def test_a_hole_is_an_error_unless_data_may_be_lost() -> None:
    run = built(0, 2).run
    run.log_starts.offsets = {}
    with opened_rows(run) as reads:
        with pytest.raises(OffsetOutOfRangeError, match=HOLE):
            reads.plan(run.partitions)
        rows = reads.rows(run.partitions, {"failOnDataLoss": "false"})
    half = PER_BATCH * BATCHES
    assert [row["offset"] for row in rows] == [*range(half), *range(2 * half, 3 * half)]


def test_a_moved_remote_log_start_is_where_reads_begin() -> None:
    run = built(0, 1).run
    run.log_starts.offsets = {run.partitions[0]: 77}
    with opened_rows(run) as reads:
        assert [row["offset"] for row in reads.rows(run.partitions)] == list(range(77, 2 * PER_BATCH * BATCHES))
        with pytest.raises(OffsetOutOfRangeError, match="offset 76"):
            reads.plan(run.partitions, {"startingOffsets": by_partition(76)})


def test_what_is_read_committed_reaches_over_the_border_with_what_the_broker_tells() -> None:
    """S-156: the marker of a transaction may be local still."""
    builder = RemoteBuilder()
    opening = batch_bytes(0, record_bytes(0, b"a", b""), attributes=0x10, producer_id=9)
    other = batch_bytes(1, record_bytes(0, b"b", b""))
    source = SegmentSource(
        batches=[LocalBatch(read_batch_header(data), data) for data in (opening, other)],
        start_offset=0,
        end_offset=1,
        producers=[ProducerState(producer_id=9, current_transaction_first_offset=0)],
    )
    asyncio.run(builder.add(source))
    run, committed = builder.run, {"isolation.level": "read_committed"}
    aborted = AbortedTransaction(9, Offset(0), Offset(3), Offset(4))
    for told, keys in ((None, []), ((), [b"a", b"b"]), ((aborted,), [b"b"])):
        border = SilentBroker({} if told is None else {run.partitions[0]: told})
        with opened_rows(run, border=border) as reads:
            assert [row["key"] for row in reads.rows(run.partitions, committed)] == keys
            assert [row["key"] for row in reads.rows(run.partitions)] == [b"a", b"b"]


def test_what_may_have_been_aborted_in_a_hole_is_an_error_unless_data_may_be_lost_and_then_it_is_hidden() -> None:
    """Simulation, cluster seed 405."""
    builder = built(2)
    batches = [
        (batch_bytes(at, record_bytes(0, b"%d" % at, b""), attributes=kind, producer_id=pid))
        for at, kind, pid in ((0, 0x10, 9), (1, 0x10, 8), (2, 0, -1))
    ]
    source = SegmentSource(
        batches=[LocalBatch(read_batch_header(data), data) for data in batches],
        start_offset=0,
        end_offset=2,
        producers=[ProducerState(producer_id=9, current_transaction_first_offset=0)],
    )
    asyncio.run(builder.add(source))
    run, committed = builder.run, {"isolation.level": "read_committed"}
    first = 2 * PER_BATCH * BATCHES
    ends = {"endingOffsets": by_partition(3)}
    with opened_rows(run) as reads:
        with pytest.raises(
            UndecidedTransactionError, match=rf"began at 0 ended in a hole, no segment holds \[3, {first}\)"
        ):
            reads.plan(run.partitions, {**committed, **ends})
        rows = reads.rows(run.partitions, {**committed, "failOnDataLoss": "false"})
        assert [row["offset"] for row in rows] == [1, 2, *range(first, first + PER_BATCH * BATCHES)]
        assert [row["offset"] for row in reads.rows(run.partitions, ends)] == [0, 1, 2]


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_a_partition_with_nothing_remote_has_no_rows(level: str) -> None:
    builder = RemoteBuilder()
    asyncio.run(builder.run.metadata.assign(builder.run.partitions))
    with opened_rows(builder.run) as reads:
        assert reads.rows(reads.run.partitions, {"isolation.level": level}) == []
