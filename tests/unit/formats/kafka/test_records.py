"""Records, decoded: equal to what the Java consumer returned; every codec; damage and bombs refused."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator
from contextlib import nullcontext
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
from tiersidecar.domain.errors import CorruptDataError, NotSmallError, TooLargeToOpenError
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.compression import decompress, open_pieces
from tiersidecar.formats.kafka.indexes import AbortedTransaction, read_transaction_index
from tiersidecar.formats.kafka.opened_memory import OpenedMemory, SmallMemory
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
    iter_record_times,
    iter_records,
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
        pytest.param(b"\x80" * 11, 1, "more than 5 bytes", id="an integer without end"),
        pytest.param(b"\x0c\0\0\0\1\1\1", 1, "-1 record headers", id="a negative count of headers"),
        pytest.param(b"\x10\0\0\0\1\1\2\1\1", 1, "a record header without a key", id="a header without a key"),
    ],
)
def test_malformed_records_are_told(payload: bytes, count: int, reason: str) -> None:
    with pytest.raises(CorruptDataError, match=reason):
        read_records(batch_bytes(0, payload, count=count))


def wide(value: int, bits: int) -> bytes:
    """``value`` as a zig-zag varint of ``bits``, in as many bytes as there are, with the bits set that are beyond."""
    raw, size = (value << 1) ^ (value >> bits - 1), -(-bits // 7)
    groups = [raw >> 7 * number & 0x7F | 0x80 for number in range(size - 1)]
    beyond = 0x7F << bits - 7 * (size - 1) & 0x7F
    return bytes([*groups, raw >> 7 * (size - 1) | beyond])


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_bits_beyond_an_integers_width_are_dropped_as_java_drops_them(codec: Compression) -> None:
    """A broker takes such records, and a consumer of it sees these offsets and times."""
    bodies = [
        b"\0" + wide(ms, 64) + wide(number, 32) + wide(-1, 32) + wide(1, 32) + b"x" + wide(0, 32)
        for number, ms in enumerate((7, -3))
    ]
    payload = b"".join(wide(len(body), 32) + body for body in bodies)
    if codec is Compression.ZSTD:
        payload = zstandard.ZstdCompressor().compress(payload)
    batch = batch_bytes(100, payload, count=2, attributes=int(codec), base_timestamp=1000, max_timestamp=1007)
    found = [
        (record.offset, record.timestamp_ms, record.key, record.value, record.headers) for record in read_records(batch)
    ]
    assert found == [(100, 1007, None, b"x", ()), (101, 997, None, b"x", ())]
    assert list(iter_record_times(batch)) == [(100, 1007), (101, 997)]


@pytest.mark.parametrize(
    ("base_ms", "delta_ms", "told_ms"), [(1000, -1002, -2), (2**63 - 1, 2, -(2**63) + 1), (-5, 2**63 - 1, 2**63 - 6)]
)
def test_a_timestamp_wraps_at_64_bits(base_ms: int, delta_ms: int, told_ms: int) -> None:
    body = b"\0" + wide(delta_ms, 64) + b"\0\1\1\0"
    batch = batch_bytes(0, wide(len(body), 32) + body, count=1, base_timestamp=base_ms, max_timestamp=base_ms)
    assert list(iter_record_times(batch)) == [(0, told_ms)]
    assert read_records(batch)[0].timestamp_ms == told_ms


@pytest.mark.parametrize("delta", [-1, 2, 2**31 - 1, -(2**31)])
def test_a_record_outside_its_batch_is_told(delta: int) -> None:
    """A reader would go on behind it, and leave out what comes before."""
    payload = record_bytes(0, None, b"x") + record_bytes(delta, None, b"y")
    batch = batch_bytes(100, payload, count=2)
    for read in (read_records, lambda one: list(iter_record_times(one))):
        with pytest.raises(CorruptDataError, match="in a batch of 100 to 101"):
            read(batch)


def test_what_record_headers_become_is_counted() -> None:
    """8 million empty ones in a batch of 1,560 bytes were 2.8 GiB."""
    few, many = (b"\0\0\0\1\1" + wide(count, 32) + b"\0\1" * count for count in (1000, 300_000))
    for body, fits in ((few, True), (many, False)):
        payload = zstandard.ZstdCompressor().compress(wide(len(body), 32) + body)
        batch = batch_bytes(0, payload, count=1, attributes=int(Compression.ZSTD))
        with nullcontext() if fits else pytest.raises(NotSmallError):
            assert len(next(iter_records(batch, memory=SmallMemory())).headers) == 1000
        with nullcontext() if fits else pytest.raises(TooLargeToOpenError):
            assert next(iter_records(batch, memory=OpenedMemory(100 << 20))).offset == 0


MEMBERS: dict[Compression, Callable[[bytes], bytes]] = {
    Compression.GZIP: gzip.compress,
    Compression.SNAPPY: xerial,
    Compression.ZSTD: zstandard.ZstdCompressor(write_checksum=True).compress,
}
SKIPPABLE = struct.pack("<II", 0x184D2A53, 4) + b"skip"


@pytest.mark.parametrize("size_bytes", [20, 300_000, 3_000_000])
@pytest.mark.parametrize("codec", MEMBERS)
def test_what_is_compressed_in_several_parts_is_one(codec: Compression, size_bytes: int) -> None:
    """As Java reads it, and a broker takes it: Kafka answered for each of these, and we called them corrupt."""
    compress, value = MEMBERS[codec], bytes(range(256)) * (size_bytes // 256 + 1)
    parts = [compress(record_bytes(number, None, value)) for number in range(3)]
    rows = [b"".join(parts), b"".join([compress(b""), *parts])]
    if codec is Compression.ZSTD:
        rows += [SKIPPABLE + b"".join(parts), SKIPPABLE.join([b"", *parts, b""]), compress(b"").join(parts)]
    if codec is Compression.GZIP:
        rows.append(b"".join(parts) + b"junk")
    for payload in rows:
        batch = batch_bytes(0, payload, count=3, attributes=int(codec))
        assert [(record.offset, record.value) for record in iter_records(batch)] == [
            (number, value) for number in range(3)
        ]
        assert [offset for offset, _ in iter_record_times(batch)] == [0, 1, 2]
        opened = decompress(memoryview(payload), codec, max_bytes=1 << 24)
        assert bytes(opened) == b"".join(record_bytes(number, None, value) for number in range(3))


def test_a_later_frames_window_takes_its_room_too() -> None:
    wide_frames = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    ).compressobj()
    frame = wide_frames.compress(bytes(2 << 20)) + wide_frames.flush()
    data = zstandard.ZstdCompressor().compress(b"small") + frame
    memory = OpenedMemory(1 << 28)
    with memory.lease() as lease:
        held = [memory.held_bytes for _ in open_pieces(memoryview(data), Compression.ZSTD, lease)]
    assert max(held) >= 1 << 27
    with pytest.raises(NotSmallError), SmallMemory().lease() as lease:
        list(open_pieces(memoryview(data), Compression.ZSTD, lease))


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
