"""Records, decoded: equal to what the Java consumer returned; every codec; damage and bombs refused."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.support.batches import batch_bytes, legacy_message, record_bytes, xerial
from tests.support.golden import CLEAN_LOG_DIR, read_json, read_json_lines
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction, read_transaction_index
from tiersidecar.formats.kafka.record_batches import (
    Compression,
    RecordBatchHeader,
    TimestampType,
    iter_batch_headers,
    read_batch_header,
)
from tiersidecar.formats.kafka.records import (
    AbortedRanges,
    ControlKind,
    ControlMarker,
    Record,
    aborted_ranges,
    read_control_marker,
    read_records,
)

EXPECTED: dict[tuple[str, str], list[dict[str, Any]]] = {}
for line in read_json_lines("log-dirs", "expected", "records.jsonl"):
    EXPECTED.setdefault((line["tp"], line["iso"]), []).append(line)
OFFSETS = read_json("log-dirs", "expected", "offsets.json")


def iter_batches(directory: Path) -> Iterator[tuple[RecordBatchHeader, memoryview]]:
    for path in sorted(directory.glob("*.log")):
        log = memoryview(path.read_bytes())
        for position, header in iter_batch_headers(log):
            yield header, log[position : position + header.size_bytes]


def aborted_in(directory: Path) -> list[AbortedTransaction]:
    paths = sorted(directory.glob("*.txnindex"))
    return [
        entry
        for path in paths
        for entry in read_transaction_index(path.read_bytes(), base_offset=Offset(int(path.stem)))
    ]


def as_consumer_tells(record: Record) -> tuple[Any, ...]:
    value = record.value
    return (
        record.offset,
        record.timestamp_ms,
        None if record.key is None else record.key.decode(),
        -1 if value is None else len(value),
        "" if value is None else sha256(value).hexdigest()[:16],
        len(record.headers),
    )


@pytest.mark.parametrize(("partition", "isolation"), [pytest.param(*key, id=" ".join(key)) for key in EXPECTED])
def test_records_equal_what_the_java_consumer_returned(partition: str, isolation: str) -> None:
    directory = CLEAN_LOG_DIR / partition
    start = OFFSETS[partition]["earliest"]
    is_committed = isolation == "read_committed"
    stop = OFFSETS[partition]["lso_read_committed_latest" if is_committed else "latest"]
    hidden = aborted_ranges(aborted_in(directory)) if is_committed else AbortedRanges({})
    seen = [
        as_consumer_tells(record)
        for header, batch in iter_batches(directory)
        if not header.is_control and not hidden.hides(header)
        for record in read_records(batch)
        if start <= record.offset < stop
    ]
    expected = [
        (line["offset"], line["ts"], line["key"], line["len"], line["sha256_16"], line["headers"])
        for line in EXPECTED[partition, isolation]
    ]
    assert seen == expected


def test_every_codec_is_among_the_golden_batches() -> None:
    codecs = {header.compression for header, _ in iter_batches(CLEAN_LOG_DIR / "compressed-0")}
    assert codecs == set(Compression)


def test_markers_tell_how_each_transaction_ended() -> None:
    """The abort markers are exactly the ends that the transaction indexes have."""
    directory = CLEAN_LOG_DIR / "transactions-0"
    ends: dict[ControlKind, list[int]] = {ControlKind.ABORT: [], ControlKind.COMMIT: []}
    for header, batch in iter_batches(directory):
        if header.is_control:
            (record,) = read_records(batch)
            marker = read_control_marker(record)
            assert marker is not None
            assert record.is_control
            ends[marker.kind].append(record.offset)
    assert ends[ControlKind.ABORT] == [entry.last_offset for entry in aborted_in(directory)]
    assert ends[ControlKind.COMMIT]


def test_a_control_record_of_another_kind_is_no_marker() -> None:
    leader_change = Record(
        offset=Offset(0),
        timestamp_ms=0,
        timestamp_type=TimestampType.CREATE_TIME,
        key=b"\0\0\0\2",
        value=b"",
        is_control=True,
    )
    assert read_control_marker(leader_change) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [pytest.param(b"\0\0", b"", id="a short key"), pytest.param(b"\0\0\0\1", b"\0\0\0", id="a short value")],
)
def test_a_marker_cut_short_is_corrupt(key: bytes, value: bytes) -> None:
    record = Record(offset=Offset(0), timestamp_ms=0, timestamp_type=TimestampType.CREATE_TIME, key=key, value=value)
    with pytest.raises(CorruptDataError):
        read_control_marker(record)


def test_a_marker_has_the_coordinators_epoch() -> None:
    record = Record(
        offset=Offset(0),
        timestamp_ms=0,
        timestamp_type=TimestampType.CREATE_TIME,
        key=b"\0\0\0\1",
        value=b"\0\0\0\0\0\7",
        is_control=True,
    )
    assert read_control_marker(record) == ControlMarker(kind=ControlKind.COMMIT, coordinator_epoch=7)


ENCODERS: dict[Compression, Callable[[bytes], bytes]] = {
    Compression.NONE: lambda data: data,
    Compression.GZIP: gzip.compress,
    Compression.SNAPPY: xerial,
    Compression.LZ4: lambda data: bytes(cramjam.lz4.compress(data)),
    Compression.ZSTD: lambda data: zstandard.ZstdCompressor(write_content_size=False).compress(data),
}
WAYS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    **{codec.name.lower(): (int(codec), encode) for codec, encode in ENCODERS.items()},
    "snappy without framing": (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "snappy in many blocks": (2, lambda data: xerial(data, 100)),
}
"""Attributes of the batch, and its payload from records."""

optional_bytes = st.none() | st.binary(max_size=50)
drawn_records = st.lists(
    st.tuples(
        optional_bytes, optional_bytes, st.integers(-(2**40), 2**40), st.lists(st.tuples(st.text(), optional_bytes))
    ),
    min_size=1,
    max_size=5,
)


@given(drawn=drawn_records, base_offset=st.integers(0, 2**62))
def test_any_records_come_back(drawn: list[Any], base_offset: int) -> None:
    """Each example in every way: to draw one takes ten times as long as to write and read it."""
    payload = b"".join(
        record_bytes(
            number,
            key,
            value,
            timestamp_delta=delta,
            headers=[(name.encode(), content) for name, content in headers],
        )
        for number, (key, value, delta, headers) in enumerate(drawn)
    )
    expected = [
        Record(
            offset=Offset(base_offset + number),
            timestamp_ms=1000 + delta,
            timestamp_type=TimestampType.CREATE_TIME,
            key=key,
            value=value,
            headers=tuple(headers),
        )
        for number, (key, value, delta, headers) in enumerate(drawn)
    ]
    for way, (attributes, encode) in WAYS.items():
        data = encode(payload)
        batch = batch_bytes(base_offset, data, count=len(drawn), attributes=attributes, base_timestamp=1000)
        assert read_records(batch) == expected, way


@pytest.mark.parametrize(("attributes", "encode"), list(WAYS.values())[1:], ids=list(WAYS)[1:])
def test_a_batch_that_opens_to_too_much_is_refused(attributes: int, encode: Any) -> None:
    payload = record_bytes(0, None, bytes(1_000_000))
    batch = batch_bytes(0, encode(payload), attributes=attributes)
    assert read_records(batch, max_bytes=len(payload))[0].value == bytes(1_000_000)
    with pytest.raises(CorruptDataError, match=f"{len(payload) - 1} bytes"):
        read_records(batch, max_bytes=len(payload) - 1)


@pytest.mark.parametrize(("attributes", "encode"), WAYS.values(), ids=WAYS)
@given(data=st.data())
def test_damaged_payloads_are_corrupt_and_nothing_else(attributes: int, encode: Any, data: st.DataObject) -> None:
    """With a checksum that fits, so that the damage gets as far as codec and records: nothing but our error comes out."""
    payload = bytearray(encode(record_bytes(0, b"key", b"value" * 30, headers=[(b"h", None)])))
    place = data.draw(st.integers(0, len(payload) - 1))
    payload[place] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.sampled_from([len(payload), place]))
    batch = batch_bytes(0, bytes(payload[:cut]), attributes=attributes)
    try:
        read_records(batch, max_bytes=100_000)
    except CorruptDataError as error:
        assert error.reason  # noqa: PT017 - most draws raise, some damage only values


@pytest.mark.parametrize(
    ("payload", "count", "reason"),
    [
        pytest.param(record_bytes(0, b"k", b"v")[:-1], 1, "where 7 are left", id="cut short"),
        pytest.param(record_bytes(0, b"k", b"v") + b"x", 1, "1 bytes after the last of 1", id="bytes after the last"),
        pytest.param(record_bytes(0, b"k", b"v"), 2, "ends too early", id="fewer records than announced"),
        pytest.param(b"\x12\0\0\0\x64" + bytes(5), 1, "field of 50 bytes", id="a key longer than its record"),
        pytest.param(b"\x80" * 11, 1, "more than 10 bytes", id="an integer without end"),
        pytest.param(b"\x0c\0\0\0\1\1\1", 1, "-1 record headers", id="a negative count of headers"),
        pytest.param(b"\x10\0\0\0\1\1\2\1\1", 1, "a record header without a key", id="a header without a key"),
    ],
)
def test_malformed_records_are_told(payload: bytes, count: int, reason: str) -> None:
    with pytest.raises(CorruptDataError, match=reason):
        read_records(batch_bytes(0, payload, count=count))


def test_log_append_time_is_the_batchs() -> None:
    payload = record_bytes(0, None, b"a", timestamp_delta=5) + record_bytes(1, None, b"b", timestamp_delta=9)
    batch = batch_bytes(0, payload, count=2, attributes=8, base_timestamp=1000, max_timestamp=7777)
    assert [record.timestamp_ms for record in read_records(batch)] == [7777, 7777]
    assert read_records(batch)[0].timestamp_type is TimestampType.LOG_APPEND_TIME


def test_an_empty_batch_left_by_compaction_has_no_records() -> None:
    assert read_records(batch_bytes(0, b"", count=0, last_offset_delta=4)) == []


@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages_are_decoded(magic: int) -> None:
    (record,) = read_records(legacy_message(7, b"k", None, magic=magic, timestamp=99))
    assert (record.offset, record.key, record.value) == (7, b"k", None)
    assert record.timestamp_ms == (99 if magic else -1)


@pytest.mark.parametrize(
    ("magic", "inner_offsets"),
    [pytest.param(0, (40, 41, 42), id="format 0: absolute"), pytest.param(1, (0, 1, 2), id="format 1: relative")],
)
@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4])
def test_old_compressed_messages_are_opened(magic: int, inner_offsets: tuple[int, ...], codec: Compression) -> None:
    inner = b"".join(legacy_message(offset, None, b"v", magic=magic, timestamp=offset) for offset in inner_offsets)
    outer = legacy_message(42, None, ENCODERS[codec](inner), magic=magic, attributes=codec, timestamp=2)
    assert [record.offset for record in read_records(outer)] == [40, 41, 42]
    assert [record.timestamp_ms for record in read_records(outer)] == ([0, 1, 2] if magic else [-1, -1, -1])


@given(st.data())
def test_damaged_old_messages_are_corrupt_and_nothing_else(data: st.DataObject) -> None:
    inner = bytearray(legacy_message(0, b"k", b"v", magic=1) + legacy_message(1, None, b"vv", magic=1))
    inner[data.draw(st.integers(0, len(inner) - 1))] ^= data.draw(st.integers(1, 255))
    outer = legacy_message(42, None, gzip.compress(inner), magic=1, attributes=1)
    try:
        read_records(outer)
    except CorruptDataError as error:
        assert error.reason  # noqa: PT017 - as above


def aborted(producer_id: int, first: int, last: int) -> AbortedTransaction:
    return AbortedTransaction(producer_id, Offset(first), Offset(last), Offset(last + 1))


@pytest.mark.parametrize(
    ("producer_id", "base_offset", "attributes", "is_hidden"),
    [
        pytest.param(7, 10, 0x10, True, id="the transaction's first batch"),
        pytest.param(7, 15, 0x10, True, id="a batch in the middle"),
        pytest.param(7, 20, 0x10, True, id="a batch at the marker's offset, were there one"),
        pytest.param(7, 9, 0x10, False, id="the same producer's transaction before"),
        pytest.param(7, 21, 0x10, False, id="the same producer's transaction after"),
        pytest.param(7, 32, 0x10, True, id="the same producer's second aborted transaction"),
        pytest.param(8, 15, 0x10, False, id="another producer's transaction in between"),
        pytest.param(7, 15, 0, False, id="a batch outside any transaction"),
    ],
)
def test_aborted_ranges_hide_just_the_aborted_transactions(
    producer_id: int, base_offset: int, attributes: int, is_hidden: bool
) -> None:
    hidden = aborted_ranges([aborted(7, 10, 20), aborted(7, 30, 35)])
    header = read_batch_header(batch_bytes(base_offset, attributes=attributes, producer_id=producer_id))
    assert hidden.hides(header) is is_hidden
