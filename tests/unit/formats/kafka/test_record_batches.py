"""Headers of all batches in the golden log dirs, the old formats, and what is no batch at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.batches import batch_bytes, legacy_message, plain_segment
from tests.support.golden import GOLDEN, read_json_lines
from tiersidecar.domain.errors import CorruptDataError, TruncatedDataError
from tiersidecar.formats.kafka.record_batches import (
    BATCH_HEADER_SIZE,
    Compression,
    RecordBatchHeader,
    check_batch,
    iter_batch_headers,
    read_batch_header,
)

SEGMENTS = [
    pytest.param(f"{which}/{segment['file']}", segment, id=f"{which}/{segment['file']}")
    for which in ("clean", "unclean")
    for segment in read_json_lines("log-dirs", "expected", f"segments-{which}.jsonl")
]


def as_kafka_tells(position: int, header: RecordBatchHeader) -> dict[str, Any]:
    return {
        "pos": position,
        "size": header.size_bytes,
        "base": header.base_offset,
        "last": header.last_offset,
        "count": header.record_count,
        "maxTs": header.max_timestamp,
        "tsType": header.timestamp_type,
        "codec": header.compression.name.lower(),
        "pid": header.producer_id,
        "pepoch": header.producer_epoch,
        "seq": header.base_sequence,
        "ple": header.partition_leader_epoch,
        "txn": header.is_transactional,
        "ctl": header.is_control,
        "crc": header.crc,
    }


@pytest.mark.parametrize(("path", "expected"), SEGMENTS)
def test_every_batch_is_what_kafka_says_it_is(path: str, expected: dict[str, Any]) -> None:
    log = GOLDEN.joinpath("log-dirs", path).read_bytes()
    headers = list(iter_batch_headers(log))
    assert [as_kafka_tells(position, header) for position, header in headers] == expected["batchList"]
    for position, header in headers:
        check_batch(log, header, position)
    assert sum(header.size_bytes for _, header in headers) == expected["size"]


def test_positions_count_from_the_given_base() -> None:
    log = plain_segment([10, 20])
    assert [position for position, _ in iter_batch_headers(memoryview(log), 1000)] == [1000, 1071]


@given(st.lists(st.integers(0, 200), min_size=1, max_size=6), st.data())
def test_a_cut_anywhere_leaves_the_whole_batches_before_it(sizes: list[int], data: st.DataObject) -> None:
    log = plain_segment(sizes)
    ends = [position + header.size_bytes for position, header in iter_batch_headers(log)]
    cut = data.draw(st.integers(0, len(log)))
    whole = [position + header.size_bytes for position, header in iter_batch_headers(log[:cut])]
    assert whole == [end for end in ends if end <= cut]


def test_a_header_cut_short_is_truncated_not_corrupt() -> None:
    log = batch_bytes(5, b"payload")
    for size in range(BATCH_HEADER_SIZE):
        with pytest.raises(TruncatedDataError, match="batch header"):
            read_batch_header(log[:size])


def test_a_body_cut_short_is_truncated_not_corrupt() -> None:
    log = batch_bytes(5, b"payload")
    header = read_batch_header(log)
    with pytest.raises(TruncatedDataError, match="68 bytes, only 67"):
        check_batch(log[:-1], header)


@pytest.mark.parametrize(
    ("start", "patch", "reason"),
    [
        pytest.param(8, b"\0\0\0\x30", "batch length 48 is below", id="a length below the header's"),
        pytest.param(8, b"\xff\xff\xff\xff", "batch length -1 is below", id="a negative length"),
        pytest.param(0, b"\x80", "are negative", id="a negative base offset"),
        pytest.param(23, b"\xff", "are negative", id="a negative last offset delta"),
        pytest.param(16, b"\x03", "unknown message format 3", id="a format of the future"),
        pytest.param(22, b"\x05", "unknown compression 5", id="a codec that does not exist"),
    ],
)
def test_an_impossible_header_is_corrupt(start: int, patch: bytes, reason: str) -> None:
    log = bytearray(batch_bytes(5, b"payload"))
    log[start : start + len(patch)] = patch
    with pytest.raises(CorruptDataError, match=reason) as caught:
        read_batch_header(bytes(log), where="00000000000000000005.log", position=77)
    assert (caught.value.where, caught.value.position) == ("00000000000000000005.log", 77)
    assert not isinstance(caught.value, TruncatedDataError)


def test_a_wrong_checksum_is_told_with_both_values() -> None:
    log = bytearray(batch_bytes(5, b"payload"))
    log[-1] ^= 1
    with pytest.raises(CorruptDataError, match=r"checksum is 0x[0-9a-f]{8}, the header says 0x[0-9a-f]{8}"):
        check_batch(bytes(log), read_batch_header(bytes(log)))


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_have_offset_and_time_but_neither_epoch_nor_producer(magic: int) -> None:
    """Magic first; formats 0 and 1 have CRC32 and no epoch."""
    log = legacy_message(41, None, b"v", magic=magic, timestamp=1234) + legacy_message(42, b"k", b"vv", magic=magic)
    first, second = (header for _, header in iter_batch_headers(log))
    assert (first.magic, first.last_offset, first.partition_leader_epoch, first.producer_id) == (magic, 41, -1, -1)
    assert first.max_timestamp == (1234 if magic else -1)
    assert second.base_offset == 42
    check_batch(log, first)
    check_batch(log, second, first.size_bytes)
    damaged = bytearray(log)
    damaged[first.size_bytes - 1] ^= 0x10
    with pytest.raises(CorruptDataError, match="checksum"):
        check_batch(bytes(damaged), first)


def test_sequences_wrap_at_the_largest_int32() -> None:
    header = read_batch_header(batch_bytes(0, count=5, producer_id=7, producer_epoch=0, base_sequence=2**31 - 3))
    assert header.last_sequence == 1
    assert read_batch_header(batch_bytes(0, count=5)).last_sequence == -1


def test_a_compaction_delete_horizon_does_not_disturb_the_codec() -> None:
    header = read_batch_header(batch_bytes(0, attributes=0x40 | 0x10 | 4))
    assert header.compression is Compression.ZSTD
    assert header.is_transactional
    assert not header.is_control
