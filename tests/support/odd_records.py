"""Batches that clients rarely send and brokers take: written from the format's definition, for partition 0 of a topic each."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence

import zstandard
from aiokafka.codec import lz4_encode

from tests.support.batches import batch_bytes, record_bytes, xerial

NO_TIMESTAMP = -1
NOW_MS = 1_790_000_000_000
Headers = Sequence[tuple[bytes, bytes | None]]

_CODECS = {
    0: lambda data: data,
    1: lambda data: gzip.compress(data, mtime=0),
    2: xerial,
    3: lz4_encode,
    4: lambda data: zstandard.compress(data),
}
"""By the codec bits of a batch's attributes."""


def odd_batches() -> dict[str, list[bytes]]:
    """Return batches by theme, each enough for some segments of 32 KiB."""
    draw = random.Random(16)
    return {
        "codecs": [_batch(_values(draw, size), codec=codec) for codec in _CODECS for size in (1, 3, 40, 250, 250)],
        "sizes": [_batch(values) for values in _odd_sizes(draw)],
        "timestamps": [_at(draw, base, deltas) for base, deltas in _odd_times(draw)],
        "no-timestamps": [_at(draw, NO_TIMESTAMP, [0] * 20) for _ in range(80)],
        "some-timestamps": [_at(draw, NO_TIMESTAMP if n % 3 else NOW_MS - n, [0] * 20) for n in range(80)],
        "headers": [_with_headers(draw, headers) for headers in _odd_headers(draw)],
    }


def _batch(values: Sequence[bytes | None], *, codec: int = 0) -> bytes:
    records = b"".join(record_bytes(n, b"key-%d" % n if n % 3 else None, value) for n, value in enumerate(values))
    return batch_bytes(0, _CODECS[codec](records), count=len(values), attributes=codec, base_timestamp=NOW_MS)


def _values(draw: random.Random, count: int) -> list[bytes | None]:
    return [draw.randbytes(20) + b"text " * draw.randrange(20) for _ in range(count)]


def _odd_sizes(draw: random.Random) -> list[list[bytes | None]]:
    rows: list[list[bytes | None]] = [[draw.randbytes(size)] for size in (1, 127, 128, 8_191, 8_192, 12_000)]
    rows += [[None], [b""], [b"", None] * 200, [b"x"] * 2_000]
    return rows + [[draw.randbytes(900)] for _ in range(60)]


def _odd_times(draw: random.Random) -> list[tuple[int, list[int]]]:
    """Return times ascending, descending, all the same, long ago, far from now, and anything."""
    rows = [
        (0, [0, 1, 2]),
        (NOW_MS, [0, -5_000, -10_000]),
        (NOW_MS - 86_400_000, [0] * 30),
        (1, [0]),
        (NOW_MS + 3_600_000, [0, 1]),
    ]
    return rows + [(NOW_MS + n, [0, *(draw.randrange(-900, 900) for _ in range(20))]) for n in range(60)]


def _at(draw: random.Random, base_ms: int, deltas: Sequence[int]) -> bytes:
    records = b"".join(
        record_bytes(n, b"k", draw.randbytes(30), timestamp_delta=delta) for n, delta in enumerate(deltas)
    )
    return batch_bytes(
        0, records, count=len(deltas), base_timestamp=base_ms, max_timestamp=max(base_ms + delta for delta in deltas)
    )


def _odd_headers(draw: random.Random) -> list[Headers]:
    """Return names that are empty, twice there, long, or no UTF-8; values that are null, empty or no text."""
    rows: list[Headers] = [
        [],
        [(b"", b"")],
        [(b"name", None), (b"name", b"1"), (b"name", b"2")],
        [(b"\xff\xfe\xc0", b"no UTF-8"), ("schön".encode("latin-1"), None)],
        [("header-\N{SNOWMAN}".encode(), bytes(range(256)))],
        [(b"n" * 3_000, b"v" * 3_000)],
        [(b"h%d" % n, b"%d" % n) for n in range(300)],
    ]
    return rows + [[(b"h", draw.randbytes(400))] for _ in range(60)]


def _with_headers(draw: random.Random, headers: Headers) -> bytes:
    records = b"".join(record_bytes(n, b"k", draw.randbytes(10), headers=headers) for n in range(2))
    return batch_bytes(0, records, count=2, base_timestamp=NOW_MS)
