"""Two copies of a log have one digest exactly if they hold the same batches, however they are cut; what is damaged has none."""

from __future__ import annotations

from hashlib import blake2b
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.batches import batch_bytes, legacy_message, plain_segment
from tiersidecar.domain.errors import CorruptDataError, TruncatedDataError
from tiersidecar.formats.kafka.batch_digest import BatchDigest

ALL = 1 << 62
HEADER = 61
MIXED = (
    batch_bytes(0, b"first", count=2)
    + legacy_message(2, b"key", b"a value that is long enough to fill the header of a batch", magic=1)
    + batch_bytes(3, b"last")
)
"""Format 1 between batches of format 2, as after an upgrade."""


def digest_of(pieces: list[bytes], *, start: int = 0, stop: int = ALL) -> bytes:
    digest = BatchDigest(start_offset=start, stop_offset=stop)
    digest.begin_segment("a segment")
    for piece in pieces:
        digest.feed(piece)
    digest.end_segment()
    return digest.digest()


def cut(log: bytes, at: list[int]) -> list[bytes]:
    edges = sorted({0, len(log), *(position % (len(log) + 1) for position in at)})
    return [log[begin:end] for begin, end in pairwise(edges)]


@given(st.lists(st.integers(0, 300), min_size=1, max_size=8), st.lists(st.integers(0, 10_000), max_size=12))
def test_it_is_that_of_the_headers_in_their_order_wherever_the_log_is_cut(sizes: list[int], at: list[int]) -> None:
    log, expected = plain_segment(sizes), blake2b(digest_size=32)
    position = 0
    for size in sizes:
        expected.update(log[position : position + HEADER])
        position += HEADER + size
    assert digest_of(cut(log, at)) == expected.digest()


@given(st.lists(st.integers(0, len(MIXED)), max_size=12))
def test_messages_of_an_old_format_count_as_well(at: list[int]) -> None:
    assert digest_of(cut(MIXED, at)) == digest_of([MIXED]) != digest_of([batch_bytes(0, b"first", count=2)])


def test_a_batch_counts_if_any_of_its_offsets_is_in_the_range() -> None:
    log = plain_segment([10, 20, 30, 40])  # offsets 0 to 2, 3 to 5, 6 to 8, 9 to 11
    inner = plain_segment([10, 20, 30, 40])[HEADER + 10 : 3 * HEADER + 60]
    assert digest_of([log], start=5, stop=7) == digest_of([inner])
    assert digest_of([log], start=5, stop=6) != digest_of([inner])
    assert digest_of([log], start=6, stop=7) != digest_of([inner])


def test_a_batch_that_comes_twice_counts_once() -> None:
    first, second = plain_segment([10]), plain_segment([10], base_offset=3)
    assert digest_of([first + first + second]) == digest_of([first + second])


@pytest.mark.parametrize("piece_bytes", [1, 50, 1000])
@pytest.mark.parametrize("at", [21, HEADER + 5, 2 * HEADER + 140], ids=["attributes", "records", "records of the last"])
def test_a_flipped_bit_is_told_with_its_batch(at: int, piece_bytes: int) -> None:
    log = bytearray(plain_segment([100, 100]))
    log[at] ^= 1
    with pytest.raises(CorruptDataError, match="checksum") as caught:
        digest_of([bytes(log[begin : begin + piece_bytes]) for begin in range(0, len(log), piece_bytes)])
    assert caught.value.position == (0 if at < HEADER + 100 else HEADER + 100)


def test_an_end_within_a_batch_is_told() -> None:
    with pytest.raises(TruncatedDataError, match="middle of a batch"):
        digest_of([plain_segment([100, 100])[:-1]])
