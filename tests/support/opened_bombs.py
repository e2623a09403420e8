"""Batches of a few kilobytes that open to a GiB, and what lookups by time and NDJSON of 20 of them at once take.

``python -m tests.support.opened_bombs`` measures each codec, and prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from functools import partial
from struct import Struct

import cramjam
import zstandard

from tests.support.batches import batch_bytes, varint
from tests.support.memory_use import measure
from tiersidecar.adapters.clock import SystemClock, ThreadBlocking
from tiersidecar.domain.errors import TiersidecarError
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.opened_memory import OpenedMemory
from tiersidecar.formats.kafka.record_batches import Compression
from tiersidecar.reading.opening import DEFAULT_OPENED_BYTES, LONG_AT_ONCE, Opening
from tiersidecar.reading.timestamp_lookup import first_at
from tiersidecar.services.reader.ndjson import BytesFormat, LinePieces, Selection

MIB = 1024 * 1024
AT_ONCE = 20
BASE_MS = 1_700_000_000_000
_PIECE = bytes(MIB)
_XERIAL = b"\x82SNAPPY\x00" + Struct(">ii").pack(1, 1)


def payload(value_bytes: int, count: int) -> Iterator[bytes]:
    """``count`` records of ``value_bytes`` zeros, a millisecond apart."""
    for number in range(count):
        head = b"\0" + varint(number) + varint(number) + varint(-1) + varint(value_bytes)
        yield varint(len(head) + value_bytes + 1) + head
        for at in range(0, value_bytes, MIB):
            yield _PIECE[: min(MIB, value_bytes - at)]
        yield b"\0"


def _gzip(pieces: Iterator[bytes]) -> bytes:
    stream = zlib.compressobj(level=1, wbits=31)
    return b"".join([*(stream.compress(piece) for piece in pieces), stream.flush()])


def _zstd(window_log: int) -> Callable[[Iterator[bytes]], bytes]:
    def compress(pieces: Iterator[bytes]) -> bytes:
        parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=window_log, write_content_size=False)
        stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        return b"".join([*(stream.compress(piece) for piece in pieces), stream.flush()])

    return compress


def _lz4(pieces: Iterator[bytes]) -> bytes:
    """Blocks of 4 MiB that are not linked; the head's own sum is what a broker looks at."""
    out = bytearray(b"\x04\x22\x4d\x18" + bytes((0x60, 7 << 4, 0x73)))
    for block in _blocks(pieces, 4 * MIB):
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        out += Struct("<I").pack(len(packed)) + packed
    return bytes(out + bytes(4))


def _snappy(block_bytes: int) -> Callable[[Iterator[bytes]], bytes]:
    def compress(pieces: Iterator[bytes]) -> bytes:
        out = bytearray(_XERIAL)
        for block in _blocks(pieces, block_bytes):
            packed = bytes(cramjam.snappy.compress_raw(block))
            out += Struct(">i").pack(len(packed)) + packed
        return bytes(out)

    return compress


def _blocks(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    held = bytearray()
    for piece in pieces:
        held += piece
        while len(held) >= size:
            yield bytes(held[:size])
            del held[:size]
    if held:
        yield bytes(held)


CODECS: dict[str, tuple[Compression, Callable[[Iterator[bytes]], bytes]]] = {
    "gzip": (Compression.GZIP, _gzip),
    "snappy": (Compression.SNAPPY, _snappy(32 * 1024)),
    "snappy in one block": (Compression.SNAPPY, _snappy(2048 * MIB)),
    "lz4": (Compression.LZ4, _lz4),
    "zstd": (Compression.ZSTD, _zstd(21)),
    "zstd with a window of 128 MiB": (Compression.ZSTD, _zstd(27)),
}
SHAPES = {"a record of 1,000 MiB": (1000 * MIB, 1), "1,000 records of 1 MiB": (MIB, 1000)}


def bomb(codec: str, shape: str, *, base_timestamp: int = BASE_MS) -> bytes:
    value_bytes, count = SHAPES[shape]
    compression, compress = CODECS[codec]
    return batch_bytes(
        0,
        compress(payload(value_bytes, count)),
        count=count,
        attributes=compression,
        base_timestamp=base_timestamp,
        max_timestamp=base_timestamp + count - 1,
    )


async def _looked_up(opening: Opening, batch: bytes, count: int) -> str:
    """Return the last record by its time."""
    try:
        found = await opening.run_steps(partial(first_at, memoryview(batch), BASE_MS + count - 1, Offset(0)))
    except TiersidecarError as error:
        return type(error).__name__
    assert found is not None
    assert found.offset == count - 1
    return "right"


async def _written(opening: Opening, batch: bytes, count: int) -> str:
    """Return the last ten records as NDJSON."""
    selection = Selection(offset=max(count - 10, 0), stop_offset=None, hidden=None, bytes_format=BytesFormat.BASE64)
    found = 0
    try:
        with closing(LinePieces(memoryview(batch), selection, 10, monotonic_s=opening.monotonic_s)) as pieces:
            while (piece := await opening.run(pieces.next_piece)) is not None:
                found += piece[1]
    except TiersidecarError as error:
        return type(error).__name__
    assert found == min(count, 10)
    return "right"


async def _at_once(batch: bytes, count: int) -> str:
    async with ThreadBlocking(max_threads=8) as blocking, ThreadBlocking(max_threads=LONG_AT_ONCE) as long_blocking:
        memory = OpenedMemory(DEFAULT_OPENED_BYTES)
        opening = Opening(memory=memory, blocking=blocking, long_blocking=long_blocking, clock=SystemClock())
        work = (_looked_up, _written)
        outcomes = await asyncio.gather(*(work[turn % 2](opening, batch, count) for turn in range(AT_ONCE)))
        assert memory.held_bytes == 0
    lookups, lines = set(outcomes[::2]), set(outcomes[1::2])
    return f"{', '.join(sorted(lookups))} | {', '.join(sorted(lines))}"


async def _measure_all(names: list[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for codec in names or list(CODECS):
        for shape, (_, count) in SHAPES.items():
            batch = bomb(codec, shape)
            found[f"{codec}: {shape}"] = asdict(await measure(lambda batch=batch, count=count: _at_once(batch, count)))  # type: ignore[misc]
            del batch
    return found


if __name__ == "__main__":
    json.dump(asyncio.run(_measure_all(sys.argv[1:])), sys.stdout)
