"""Logs as nobody should write them: sound batches among damaged ones, in any order, cut anywhere."""

from __future__ import annotations

import struct

from crc32c import crc32c
from hypothesis import strategies as st

from tests.support.batches import batch_bytes, legacy_message

_EDGES = (-(2**63), -1, 0, 1, 2**31, 2**62, 2**63 - 3, 2**63 - 2, 2**63 - 1)
_NUMBERS = {"q": 64, "i": 32, "h": 16, "b": 8}
_FIELDS = {
    "base offset": (0, "q"),
    "length": (8, "i"),
    "leader epoch": (12, "i"),
    "magic": (16, "b"),
    "crc": (17, "i"),
    "attributes": (21, "h"),
    "last offset delta": (23, "i"),
    "max timestamp": (35, "q"),
    "record count": (57, "i"),
}


def _in_range(code: str) -> st.SearchStrategy[int]:
    half = 1 << (_NUMBERS[code] - 1)
    near = st.sampled_from([edge for edge in _EDGES if -half <= edge < half] + [half - 1, -half])
    return near | st.integers(-4, 200).filter(lambda number: -half <= number < half) | st.integers(-half, half - 1)


@st.composite
def _damaged(draw: st.DrawFn, batch: bytes) -> bytes:
    """``batch`` with a field changed, and in half of the cases the checksum that goes with it."""
    at, code = _FIELDS[draw(st.sampled_from(sorted(_FIELDS)))]
    changed = bytearray(batch)
    struct.pack_into(f">{code}", changed, at, draw(_in_range(code)))
    if draw(st.booleans()):
        struct.pack_into(">I", changed, 17, crc32c(changed[21:]))
    return bytes(changed)


@st.composite
def _batch(draw: st.DrawFn, base: int, epoch: int) -> bytes:
    payload = draw(st.binary(max_size=40))
    if draw(st.integers(0, 7)) == 0:
        return legacy_message(base, b"k", payload, magic=draw(st.integers(0, 1)), timestamp=base)
    attributes = draw(st.sampled_from([0, 0, 0, 1, 4, 5, 8, 0x10, 0x17]))
    batch = bytearray(
        batch_bytes(base, payload, count=draw(st.integers(1, 4)), epoch=epoch, base_timestamp=draw(st.integers(0, 9)))
    )
    struct.pack_into(">h", batch, 21, attributes)
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return draw(_damaged(bytes(batch))) if draw(st.integers(0, 9)) == 0 else bytes(batch)


@st.composite
def hostile_logs(draw: st.DrawFn) -> bytes:
    """Batches whose offsets mostly rise and whose epochs mostly stay, some of them damaged; perhaps cut off at the end."""
    log, base, epoch = b"", draw(st.sampled_from([0, 0, 5, 2**63 - 40])), draw(st.integers(0, 2))
    for _ in range(draw(st.integers(0, 12))):
        log += draw(_batch(base, epoch))
        base = min(max(base + draw(st.sampled_from([4, 4, 4, 5, 9, 1, 0, -3])), 0), 2**63 - 1)
        epoch += draw(st.sampled_from([0, 0, 0, 0, 1, -1]))
    if draw(st.integers(0, 5)) == 0:
        log = log[: draw(st.integers(0, len(log)))]
    return log + (draw(st.binary(max_size=80)) if draw(st.integers(0, 5)) == 0 else b"")


def pieces(log: bytes, sizes: list[int]) -> list[bytes]:
    """``log`` in pieces of ``sizes``, over and over; whole if there are none."""
    found, begin, turn = [], 0, 0
    while begin < len(log):
        size = sizes[turn % len(sizes)] if sizes else len(log)
        found.append(log[begin : begin + size])
        begin, turn = begin + size, turn + 1
    return found


cuts = st.lists(st.integers(1, 400), max_size=5)
