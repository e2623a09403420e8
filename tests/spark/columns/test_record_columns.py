"""Rows built column by column, against the decoder that makes an object per record."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import cramjam
import pyarrow
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.batches import batch_bytes, legacy_message, record_bytes, varint, xerial
from tests.support.remote_rows import Row
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import AbortedRanges, read_records
from tiersidecar.spark.datasource import opened_batches, record_fields
from tiersidecar.spark.datasource.batch_columns import hidden_by, read_batch_columns
from tiersidecar.spark.datasource.record_columns import RowShape
from tiersidecar.spark.datasource.share_reading import RowMaker, WantedRows

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BASE_MS = 1_700_000_000_000
TYPES = {"CreateTime": 0, "LogAppendTime": 1}


def _gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(data) + packer.flush()


CODECS: dict[int, Callable[[bytes], bytes]] = {
    0: bytes,
    1: _gzip,
    2: xerial,
    3: lambda data: bytes(cramjam.lz4.compress(data)),
    4: zstandard.compress,
}
LOG_APPEND_TIME, CONTROL = 0x08, 0x20

fields = st.none() | st.binary(max_size=20) | st.binary(min_size=60, max_size=300)
headers = st.lists(st.tuples(st.text(max_size=5).map(str.encode), st.none() | st.binary(max_size=9)), max_size=3)
records = st.tuples(fields, fields, headers, st.integers(-(2**40), 2**40), st.integers(0, 3))


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Batches of all codecs; offsets rise, with holes as compaction leaves them."""
    data, base = b"", draw(st.integers(0, 2**40))
    for content in draw(st.lists(st.lists(records, max_size=8), min_size=1, max_size=6)):
        delta, payload = -1, b""
        for key, value, some_headers, timestamp, skipped in content:
            delta += 1 + skipped
            payload += record_bytes(delta, key, value, timestamp_delta=timestamp, headers=some_headers)
        codec = draw(st.sampled_from(sorted(CODECS)))
        attributes = codec | draw(st.sampled_from([0, LOG_APPEND_TIME, CONTROL]))
        last = max(delta, 0) + draw(st.integers(0, 2))
        opened = CODECS[codec](payload)
        data += batch_bytes(
            base, opened, count=len(content), last_offset_delta=last, attributes=attributes, max_timestamp=BASE_MS + 9
        )
        base += last + 1 + draw(st.integers(0, 5))
    return data


def rows_of(slices: Sequence[bytes], wanted: WantedRows | None = None, *, include_headers: bool = True) -> list[Row]:
    return [row for batch in batches_of(slices, wanted, include_headers=include_headers) for row in batch.to_pylist()]


def batches_of(
    slices: Sequence[bytes], wanted: WantedRows | None = None, *, include_headers: bool = True
) -> list[pyarrow.RecordBatch]:
    shape = RowShape(topic="topic", partition=7, include_headers=include_headers)
    maker = RowMaker(shape, wanted or WantedRows(start_offset=0, stop_offset=2**62), where="a log")
    batches = [batch for data in slices for batch in maker.feed(memoryview(data))]
    batches += maker.finish()
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == shape.schema
    return batches


def expected_of(log: bytes) -> list[Row]:
    rows = []
    for position, header in iter_batch_headers(log):
        for record in read_records(log[position : position + header.size_bytes]):
            if not record.is_control:
                rows.append(
                    {
                        "key": record.key,
                        "value": record.value,
                        "topic": "topic",
                        "partition": 7,
                        "offset": record.offset,
                        "timestamp": _EPOCH + timedelta(milliseconds=record.timestamp_ms),
                        "timestampType": TYPES[record.timestamp_type.value],
                        "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
                    }
                )
    return rows


@settings(max_examples=60)
@given(log=logs(), lanes=st.sampled_from([1, 2, 96]), together=st.sampled_from([1, 200, 4_000_000]))
def test_rows_are_those_of_the_record_decoder(log: bytes, lanes: int, together: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_fields, "_LANES_TOGETHER", lanes)
        patch.setattr(opened_batches, "OPENED_TOGETHER_BYTES", together)
        assert rows_of([log]) == expected_of(log)
        without = [{name: value for name, value in row.items() if name != "headers"} for row in expected_of(log)]
        assert rows_of([log], include_headers=False) == without


@settings(max_examples=40)
@given(log=logs(), data=st.data())
def test_only_offsets_that_are_wanted_are_given(log: bytes, data: st.DataObject) -> None:
    rows = expected_of(log)
    offsets = [row["offset"] for row in rows] or [0]
    bounds = st.integers(min(offsets) - 1, max(offsets) + 2)
    start, stop = data.draw(bounds), data.draw(bounds)
    wanted = WantedRows(start_offset=start, stop_offset=stop)
    assert rows_of([log], wanted) == [row for row in rows if start <= row["offset"] < stop]


def _payload(count: int = 3) -> bytes:
    return b"".join(record_bytes(delta, b"key", b"value") for delta in range(count))


MALFORMED = {
    "a record longer than its batch": _payload(2) + varint(90) + b"\0\0\4\1\1\0",
    "a record of a negative length": _payload(2) + varint(-4) + b"\0\0\4\1\1\0",
    "a batch that ends within a length": _payload(2) + b"\xff",
    "bytes after the last record": _payload(3) + b"\0\0",
    "a key longer than its record": _payload(2) + varint(7) + b"\0\0\4" + varint(50) + b"ab\1\0",
    "a value longer than its record": _payload(2) + varint(6) + b"\0\0\4\1" + varint(44) + b"\0",
    "a length of eleven bytes": _payload(2) + b"\xff" * 11 + b"\1",
    "headers that are not there": _payload(2) + varint(6) + b"\0\0\4\1\1" + varint(3),
    "a negative number of headers": _payload(2) + varint(6) + b"\0\0\4\1\1" + varint(-1),
    "bytes after the headers": _payload(2) + varint(8) + b"\0\0\4\1\1\0\0\0",
    "a header whose key is null": _payload(2) + varint(8) + b"\0\0\4\1\1" + varint(1) + varint(-1) + varint(0),
    "a header whose value is too long": _payload(2) + varint(8) + b"\0\0\4\1\1" + varint(1) + varint(0) + varint(9),
}


@pytest.mark.parametrize("lanes", [1, 96])
@pytest.mark.parametrize("payload", MALFORMED.values(), ids=MALFORMED.keys())
def test_records_that_are_none_are_an_error(payload: bytes, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_fields, "_LANES_TOGETHER", lanes)
    batch = batch_bytes(40, payload, count=3)
    with pytest.raises(CorruptDataError, match="a log"):
        rows_of([batch])


def test_a_value_so_large_that_its_end_wraps_around_is_an_error() -> None:
    huge = b"\0\0\4\1" + varint(2**63 - 1) + b"\0"
    payload = zstandard.compress(_payload(2) + varint(len(huge)) + huge)
    with pytest.raises(CorruptDataError, match="a value does not fit"):
        rows_of([batch_bytes(0, payload, count=3, attributes=4)], include_headers=False)


def test_header_keys_that_are_no_utf8_are_mended_as_kafkas_consumer_does() -> None:
    record = record_bytes(0, None, None, headers=[(b"a\xff", b""), (b"b", None)])
    (row,) = rows_of([batch_bytes(0, record)])
    assert row["headers"] == [{"key": "a\ufffd", "value": b""}, {"key": "b", "value": None}]


def test_a_batch_that_does_not_open_is_an_error() -> None:
    with pytest.raises(CorruptDataError, match="lz4"):
        rows_of([batch_bytes(0, b"no lz4 frame", attributes=3)])


@settings(max_examples=60)
@given(log=logs(), position=st.integers(61, 2**16), byte=st.integers(0, 255))
def test_damaged_records_give_rows_or_an_error_and_nothing_else(log: bytes, position: int, byte: int) -> None:
    """Checksums are compared before: this is what a producer might send on purpose."""
    damaged = bytearray(log)
    damaged[position % len(damaged)] = byte
    try:
        batches_of([bytes(damaged)])  # not as Python's objects: a timestamp may be past the year 9999
    except CorruptDataError:
        return


def test_transactions_that_were_aborted_and_markers_are_left_out() -> None:
    transactional = 0x10
    log = batch_bytes(0, _payload(), count=3, attributes=transactional, producer_id=5)
    log += batch_bytes(3, _payload(), count=3, attributes=transactional, producer_id=6)
    log += batch_bytes(6, record_bytes(0, b"\0\0\0\0", b""), attributes=transactional | CONTROL, producer_id=5)
    log += batch_bytes(7, _payload(), count=3, producer_id=5)
    assert [row["offset"] for row in rows_of([log])] == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    committed = WantedRows(start_offset=0, stop_offset=100, aborted=AbortedRanges({5: ((0, 6),)}))
    assert [row["offset"] for row in rows_of([log], committed)] == [3, 4, 5, 7, 8, 9]


def test_batches_before_the_least_timestamp_are_left_out_whole() -> None:
    log = batch_bytes(0, _payload(), count=3, max_timestamp=BASE_MS)
    log += batch_bytes(3, _payload(), count=3, max_timestamp=BASE_MS + 5)
    wanted = WantedRows(start_offset=0, stop_offset=100, min_timestamp_ms=BASE_MS + 1)
    assert [row["offset"] for row in rows_of([log], wanted)] == [3, 4, 5]


def test_messages_of_formats_0_and_1_come_in_their_order() -> None:
    log = legacy_message(0, None, b"zero", magic=0)
    log += legacy_message(1, b"k", b"one", magic=1, timestamp=BASE_MS)
    log += legacy_message(2, b"k", None, magic=1, attributes=LOG_APPEND_TIME, timestamp=BASE_MS + 1)
    log += batch_bytes(3, _payload(1))
    rows = rows_of([log])
    assert [(row["offset"], row["key"], row["value"], row["timestampType"]) for row in rows] == [
        (0, None, b"zero", -1),
        (1, b"k", b"one", 0),
        (2, b"k", None, 1),
        (3, b"key", b"value", 0),
    ]
    assert rows[0]["timestamp"] == _EPOCH - timedelta(milliseconds=1)
    assert rows[1]["timestamp"] == _EPOCH + timedelta(milliseconds=BASE_MS)


def test_a_timestamp_later_than_spark_can_tell_is_the_latest_that_it_can() -> None:
    log = batch_bytes(0, record_bytes(0, None, None, timestamp_delta=2**62))
    shape = RowShape(topic="topic", partition=0)
    maker = RowMaker(shape, WantedRows(start_offset=0, stop_offset=1), where="a log")
    (batch,) = [*maker.feed(memoryview(log)), *maker.finish()]
    assert batch.column("timestamp").cast("int64").to_pylist() == [(2**63 - 1) // 1000 * 1000]


spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda two: (min(two), max(two))), max_size=4)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=12),
    st.dictionaries(st.integers(0, 2), spans.filter(bool).map(tuple)),
)
def test_hidden_batches_are_those_that_the_filter_of_single_headers_hides(
    batches: list[tuple[int, bool]], ranges: dict[int, tuple[tuple[int, int], ...]]
) -> None:
    log = b"".join(
        batch_bytes(3 * number, _payload(), count=3, attributes=0x10 if is_transactional else 0, producer_id=producer)
        for number, (producer, is_transactional) in enumerate(batches)
    )
    aborted = AbortedRanges(ranges)
    expected = [aborted.hides(header) for _, header in iter_batch_headers(log)]
    assert hidden_by(aborted, read_batch_columns(memoryview(log), where="a log")).tolist() == expected


def test_a_slice_that_ends_within_a_batch_is_an_error() -> None:
    with pytest.raises(CorruptDataError, match="does not end with a batch"):
        rows_of([batch_bytes(0, _payload(), count=3)[:-1]])
