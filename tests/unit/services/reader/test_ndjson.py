"""Lines of JSON: what they cost whoever serves them."""

from __future__ import annotations

import json
import tracemalloc

import pytest
import zstandard

from tests.support.batches import batch_bytes, record_bytes
from tiersidecar.domain.errors import CorruptDataError, NotSmallError
from tiersidecar.formats.kafka.opened_memory import OpenedMemory, SmallMemory
from tiersidecar.formats.kafka.record_batches import Compression
from tiersidecar.reading.opening import TURN_S, More
from tiersidecar.services.reader.ndjson import BytesFormat, LinePieces, Selection

COUNT = 40_000
ALL = Selection(offset=0, stop_offset=None, hidden=None, bytes_format=BytesFormat.BASE64)


def many_records(count: int = COUNT, told: int = COUNT) -> memoryview:
    """A batch of a few kilobytes, whose records as lines are megabytes."""
    payload = b"".join(record_bytes(n, None, b"") for n in range(count))
    compressed = zstandard.ZstdCompressor().compress(payload)
    return memoryview(batch_bytes(100, compressed, count=told, attributes=Compression.ZSTD))


def offsets_of(piece: bytes) -> list[int]:
    return [json.loads(line)["offset"] for line in piece.splitlines()]


def test_a_batch_of_many_records_comes_in_pieces() -> None:
    pieces = list(LinePieces(many_records(), ALL, limit=10**6))
    assert all(len(piece) < 300 * 1024 for piece, _ in pieces)
    assert [offset for piece, _ in pieces for offset in offsets_of(piece)] == list(range(100, 100 + COUNT))
    assert [count for _, count in pieces] == [len(piece.splitlines()) for piece, _ in pieces]


def test_no_more_of_it_is_opened_than_a_piece_needs() -> None:
    """All records of a batch were there as objects and as lines at once: of 256 MiB, to which it may open, gigabytes."""
    batch = many_records()
    tracemalloc.start()
    try:
        _, count = next(LinePieces(batch, ALL, limit=10**6))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0 < count < COUNT // 10
    assert peak_bytes < 2 * 2**20, "the payload itself, and the piece"


@pytest.mark.parametrize(
    ("offset", "stop", "limit"), [(150, 160, 100), (150, None, 3), (0, 100, 5), (139_999, None, 9)]
)
def test_only_what_is_selected(offset: int, stop: int | None, limit: int) -> None:
    selection = Selection(offset=offset, stop_offset=stop, hidden=None, bytes_format=BytesFormat.UTF8)
    found = [one for piece, _ in LinePieces(many_records(), selection, limit) for one in offsets_of(piece)]
    wanted = range(max(offset, 100), min(100 + COUNT, 10**9 if stop is None else stop))
    assert found == list(wanted)[:limit]


def large() -> memoryview:
    """A batch that opens to more than is opened in one go."""
    payload = b"".join(record_bytes(n, None, bytes(600_000)) for n in range(4))
    compressed = zstandard.ZstdCompressor().compress(payload)
    return memoryview(batch_bytes(0, compressed, count=4, attributes=Compression.ZSTD))


def test_what_is_not_small_is_left_to_those_who_have_memory_for_it_and_goes_on_with_them() -> None:
    """Else it would be opened in the threads that all else runs in, or in half: what was read is not read twice."""
    small, memory = SmallMemory(), OpenedMemory()
    pieces = LinePieces(large(), ALL, limit=10)
    with pytest.raises(NotSmallError):
        pieces.next_piece(small)
    found = [pieces.next_piece(memory)]
    with pytest.raises(NotSmallError):
        pieces.next_piece(small)
    while (piece := pieces.next_piece(memory)) is not None:
        found.append(piece)
    assert [offset for one in found if isinstance(one, tuple) for offset in offsets_of(one[0])] == [0, 1, 2, 3]


def test_memory_that_is_given_back_between_two_pieces_changes_no_line() -> None:
    """A slow client's reads are opened again for each piece, and hold nothing while it takes one (issue 17)."""
    memory = OpenedMemory()
    pieces, found = LinePieces(large(), ALL, limit=10), list[int]()
    while (piece := pieces.next_piece(memory)) is not None:
        assert not isinstance(piece, More)
        found += offsets_of(piece[0])
        assert pieces.holds_memory
        pieces.close()
        assert (pieces.holds_memory, memory.held_bytes) == (False, 0)
    assert found == [0, 1, 2, 3]


def test_what_is_small_needs_no_memory_of_its_own() -> None:
    pieces, small = LinePieces(many_records(100, 100), ALL, limit=10), SmallMemory()
    assert pieces.next_piece(small) is not None
    assert (small.held_bytes, pieces.holds_memory) == (0, False)


def test_a_batch_that_does_not_hold_what_it_tells_ends_in_an_error() -> None:
    pieces = LinePieces(many_records(told=COUNT + 1), ALL, limit=10**6)
    with pytest.raises(CorruptDataError):
        list(pieces)


def test_records_that_are_passed_over_are_so_in_turns() -> None:
    """A batch may open to hundreds of millions of them, and the thread would be nobody else's for an hour."""
    asked, count = list[float](), 200_000

    def monotonic_s() -> float:
        asked.append(len(asked) * TURN_S / 100)
        return asked[-1]

    selection = Selection(offset=100 + count - 1, stop_offset=None, hidden=None, bytes_format=BytesFormat.BASE64)
    memory, turns = OpenedMemory(), 0
    pieces = LinePieces(many_records(count, count), selection, 10, monotonic_s=monotonic_s)
    while isinstance(piece := pieces.next_piece(memory), More):
        turns += 1
        with pytest.raises(NotSmallError):
            pieces.next_piece(SmallMemory())
    assert piece is not None
    assert offsets_of(piece[0]) == [100 + count - 1]
    assert turns >= 100
    assert pieces.next_piece(memory) is None
