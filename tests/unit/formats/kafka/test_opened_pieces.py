"""Compressed records opened piece by piece: the same bytes as whole, and never more of them in memory than is leased."""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.support.batches import batch_bytes, legacy_message, record_bytes, xerial
from tiersidecar.domain.errors import CorruptDataError, NoMemoryLeftError, TooLargeToOpenError
from tiersidecar.formats.kafka.compression import open_pieces
from tiersidecar.formats.kafka.opened_memory import UNLIMITED, OpenedMemory
from tiersidecar.formats.kafka.record_batches import Compression
from tiersidecar.formats.kafka.records import iter_record_times, iter_records

MIB = 1024 * 1024
_RANDOM = random.Random(17)
NOISE = _RANDOM.randbytes(MIB)
TEXT = b"".join(b"record %d of a text that says much the same again; " % (number % 977) for number in range(100_000))
CONTENTS = {
    "nothing": b"",
    "a little": b"a little",
    "5 MiB of text": TEXT,
    "text, then noise, then text": TEXT[: 2 * MIB] + NOISE + TEXT[2 * MIB :],
    "zeros": bytes(9 * MIB),
    "noise": NOISE * 3,
}


def lz4_frame(data: bytes, *, size_id: int) -> bytes:
    """A frame of blocks that are not linked."""
    largest = {4: 1 << 16, 7: 1 << 22}[size_id]
    if len(data) <= 2 * MIB:
        return bytes(cramjam.lz4.compress(data))  # opened whole by liblz4, which checks the header's checksum
    out = bytearray(b"\x04\x22\x4d\x18" + bytes((0x60, size_id << 4, 0)))
    for at in range(0, len(data), largest):
        piece = data[at : at + largest]
        block = bytes(cramjam.lz4.compress_block(piece, store_size=False))
        is_stored = len(block) >= len(piece)
        body = piece if is_stored else block
        out += struct.pack("<I", len(body) | (1 << 31 if is_stored else 0)) + body
    return bytes(out + bytes(4))


CODECS: dict[str, tuple[Compression, Callable[[bytes], bytes]]] = {
    "gzip": (Compression.GZIP, gzip.compress),
    "snappy-java's snappy": (Compression.SNAPPY, xerial),
    "one block of snappy": (Compression.SNAPPY, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "LZ4 as liblz4 frames it": (Compression.LZ4, lambda data: bytes(cramjam.lz4.compress(data))),
    "LZ4 in blocks of 64 KiB": (Compression.LZ4, lambda data: lz4_frame(data, size_id=4)),
    "LZ4 in blocks of 4 MiB": (Compression.LZ4, lambda data: lz4_frame(data, size_id=7)),
    "zstd": (Compression.ZSTD, zstandard.ZstdCompressor().compress),
    "zstd that does not tell its size": (
        Compression.ZSTD,
        zstandard.ZstdCompressor(write_content_size=False).compress,
    ),
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("content", CONTENTS)
def test_pieces_are_what_was_compressed(codec: str, content: str) -> None:
    compression, compress = CODECS[codec]
    with UNLIMITED.lease() as lease:
        pieces = [bytes(piece) for piece in open_pieces(memoryview(compress(CONTENTS[content])), compression, lease)]
    assert b"".join(pieces) == CONTENTS[content]
    assert all(len(piece) <= 4 * MIB for piece in pieces) or codec == "one block of snappy"


def test_a_block_that_begins_like_a_length_is_opened_whole() -> None:
    """Its first four bytes, a sequence of its own, say 95,250: they were taken for its size, and left out."""
    for seed in range(40):
        words = random.Random(seed).choices([b"ttttttt", b"\xf7"], k=3000)
        content = (b"".join(words) * 200)[: 2 * MIB]
        frame = bytes(cramjam.lz4.compress(content))
        with UNLIMITED.lease() as lease:
            pieces = open_pieces(memoryview(frame), Compression.LZ4, lease)
            assert b"".join(bytes(piece) for piece in pieces) == content


@given(st.data())
def test_linked_blocks_of_lz4_see_what_comes_before(data: st.DataObject) -> None:
    """liblz4 links blocks by default: each refers to the 64 KiB before it."""
    words = data.draw(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=20))
    content = b"".join(_RANDOM.choice(words) for _ in range(data.draw(st.sampled_from([10, 1000, 60_000]))))
    content += content[: len(content) // 2]
    content = (content * (1 + 2 * MIB // len(content)))[: 2 * MIB]
    frame = bytes(cramjam.lz4.compress(content))
    with UNLIMITED.lease() as lease:
        assert b"".join(bytes(piece) for piece in open_pieces(memoryview(frame), Compression.LZ4, lease)) == content


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_cut_short_is_damaged(codec: str) -> None:
    compression, compress = CODECS[codec]
    records = b"".join(record_bytes(number, b"key", NOISE[:1000]) for number in range(3000))
    payload = compress(records)
    batch = batch_bytes(0, payload[: len(payload) * 3 // 4], count=3000, attributes=compression)
    with pytest.raises(CorruptDataError):
        list(iter_records(batch))
    with pytest.raises(CorruptDataError):
        list(iter_record_times(batch))


@pytest.mark.parametrize("codec", CODECS)
def test_times_are_those_of_the_records(codec: str) -> None:
    compression, compress = CODECS[codec]
    sizes = [0, 10, 300_000, 70_000, 3 * MIB, 1]
    records = [record_bytes(n, b"key", TEXT[:size], timestamp_delta=7 * n) for n, size in enumerate(sizes)]
    batch = batch_bytes(100, compress(b"".join(records)), count=len(sizes), attributes=compression)
    found = list(iter_records(batch))
    assert [len(one.value or b"") for one in found] == sizes
    assert list(iter_record_times(batch)) == [(one.offset, one.timestamp_ms) for one in found]


@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages_within_a_message_are_opened_piece_by_piece(magic: int) -> None:
    inner = b"".join(legacy_message(number, b"k", TEXT[:100_000], magic=magic) for number in range(30))
    outer = legacy_message(29 if magic == 0 else 129, None, gzip.compress(inner), magic=magic, attributes=1)
    offsets = [record.offset for record in iter_records(outer)]
    assert offsets == list(range(30) if magic == 0 else range(100, 130))
    assert [offset for offset, _ in iter_record_times(outer)] == offsets


def test_a_wide_window_takes_its_room_and_gives_it_back() -> None:
    memory = OpenedMemory(160 * MIB)
    payload = record_bytes(0, None, bytes(9 * MIB))
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = stream.compress(payload) + stream.flush()
    batch = batch_bytes(0, packed, attributes=Compression.ZSTD)
    times = iter_record_times(batch, memory=memory)
    next(times)
    assert memory.held_bytes == 128 * MIB
    with pytest.raises(NoMemoryLeftError):
        next(iter_record_times(batch, memory=memory))
    times.close()  # type: ignore[attr-defined]
    assert memory.held_bytes == 0
    with pytest.raises(TooLargeToOpenError):
        next(iter_record_times(batch, memory=OpenedMemory(100 * MIB)))


def test_a_large_record_counts_while_it_is_in_hand() -> None:
    memory = OpenedMemory(100 * MIB)
    payload = record_bytes(0, None, bytes(20 * MIB)) + record_bytes(1, None, bytes(900_000))
    batch = batch_bytes(0, gzip.compress(payload), count=2, attributes=Compression.GZIP)
    records = iter_records(batch, memory=memory)
    next(records)
    assert 60 * MIB <= memory.held_bytes < 61 * MIB
    next(records)
    assert memory.held_bytes == 0
    with pytest.raises(TooLargeToOpenError):
        next(iter_records(batch, memory=memory, copies=8))


def test_a_record_that_says_to_be_two_gib_is_not_waited_for() -> None:
    length = b"\xfe\xff\xff\xff\x0f"  # 2^31 - 1, zig-zag
    batch = batch_bytes(0, gzip.compress(length + bytes(9 * MIB)), attributes=Compression.GZIP)
    with pytest.raises((TooLargeToOpenError, CorruptDataError)):
        next(iter_records(batch, memory=OpenedMemory(160 * MIB)))


@pytest.mark.parametrize("read", [iter_records, iter_record_times])
@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(
            batch_bytes(
                0,
                gzip.compress(b"".join(record_bytes(n, None, b"") for n in range(20_000))),
                count=20_000,
                attributes=Compression.GZIP,
            ),
            id="small records",
        ),
        pytest.param(
            batch_bytes(0, gzip.compress(record_bytes(0, None, bytes(9 * MIB))), attributes=Compression.GZIP),
            id="one record of many pieces",
        ),
    ],
)
def test_whoever_opens_a_batch_is_let_rest_again_and_again(batch: bytes, read: Callable[..., Iterator[Any]]) -> None:
    rests = list[None]()
    for _ in read(batch, memory=OpenedMemory(rest=lambda: rests.append(None))):
        pass
    assert len(rests) >= 35
