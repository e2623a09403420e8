"""Cutting chunks at batch boundaries, every batch checked (S-144, S-147)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.faulty_store import flip_bit
from tests.support.golden import CLEAN_LOG_DIR
from tests.support.local_batches import local_batches
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import NO_EPOCH, Lineage
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.reading.batch_cutter import BatchCutter, BatchSlice, CutPlan

SEGMENT = (CLEAN_LOG_DIR / "plain-0" / "00000000000000000000.log").read_bytes()
BATCHES = [
    (header.base_offset, SEGMENT[position : position + header.size_bytes])
    for position, header in iter_batch_headers(SEGMENT)
]


def plan(*, start: int = 0, stop: int = 35, position: int = 0, least: int = 0, size: int = len(SEGMENT)) -> CutPlan:
    return CutPlan(
        where="segment",
        position=position,
        start_offset=start,
        stop_offset=stop,
        first_offset_at_most=34,
        least_offset=least,
        greatest_offset=34,
        leader_epochs=Lineage.of([(0, 0)]),
        file_size_bytes=size,
    )


def cut_all(cutter: BatchCutter, data: bytes, sizes: list[int]) -> list[BatchSlice]:
    """Feed ``data`` in pieces of ``sizes``, over and over."""
    slices, begin, turn = [], 0, 0
    while begin < len(data) and not cutter.is_done:
        size = sizes[turn % len(sizes)]
        slices += cutter.cut(data[begin : begin + size])
        begin, turn = begin + size, turn + 1
    cutter.finish()
    return slices


def joined(slices: list[BatchSlice]) -> bytes:
    return b"".join(bytes(one.buffer) for one in slices)


def expected(start: int, stop: int) -> bytes:
    return b"".join(data for base, data in BATCHES if base + 4 >= start and base < stop)


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=5), start=st.integers(0, 34), stop=st.integers(0, 40))
def test_however_chunks_cut_the_segment_the_same_whole_batches_come_out(
    sizes: list[int], start: int, stop: int
) -> None:
    slices = cut_all(BatchCutter(plan(start=start, stop=stop)), SEGMENT, sizes)
    assert joined(slices) == expected(start, stop)
    for one in slices:
        headers = [header for _, header in iter_batch_headers(one.buffer)]
        assert one.base_offset == headers[0].base_offset
        assert one.next_offset == headers[-1].next_offset
        assert sum(header.size_bytes for header in headers) == len(one)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=5), most=st.integers(0, 20_000), least_one=st.booleans()
)
def test_a_limit_takes_as_many_whole_batches_as_fit(sizes: list[int], most: int, least_one: bool) -> None:
    cutter = BatchCutter(plan(), max_bytes=most, min_one_message=least_one)
    found = joined(cut_all(cutter, SEGMENT, sizes))
    fitting = b""
    for _, data in BATCHES:
        if len(fitting) + len(data) > most and not (least_one and not fitting):
            break
        fitting += data
    assert found == fitting
    assert cutter.is_full == (len(fitting) < len(SEGMENT))


def test_a_compacted_segment_may_have_gaps() -> None:
    path = min((CLEAN_LOG_DIR / "compacted-0").glob("*.log"))
    data, batches = path.read_bytes(), local_batches("compacted-0")
    end = max(batch.header.last_offset for batch in batches)
    wide = CutPlan(
        where="compacted",
        position=0,
        start_offset=0,
        stop_offset=end + 1,
        first_offset_at_most=end,
        least_offset=0,
        greatest_offset=end,
        leader_epochs=Lineage.of([(0, 0)]),
        file_size_bytes=len(data),
    )
    assert joined(cut_all(BatchCutter(wide), data, [700])) == data


@settings(max_examples=300, deadline=None)
@given(bit=st.integers(0, len(SEGMENT) * 8 - 1), size=st.integers(100, 20_000))
def test_no_flipped_bit_gets_through(bit: int, size: int) -> None:
    with pytest.raises(CorruptDataError):
        cut_all(BatchCutter(plan()), flip_bit(SEGMENT, bit), [size])


@pytest.mark.parametrize("byte", range(21), ids=lambda byte: f"byte {byte} of the header")
@pytest.mark.parametrize("number", [0, 3, 6], ids=["first batch", "middle batch", "last batch"])
def test_each_bit_of_what_no_checksum_covers_is_seen(number: int, byte: int) -> None:
    """Base offset, length, leader epoch, format; and the checksum itself."""
    position = [position for position, _ in iter_batch_headers(SEGMENT)][number]
    for bit in range(8):
        damaged = flip_bit(SEGMENT, (position + byte) * 8 + bit)
        with pytest.raises(CorruptDataError):
            cut_all(BatchCutter(plan()), damaged, [len(SEGMENT)])


@pytest.mark.parametrize("bytes_behind", [0, 3, 7, 8, 20, 60, 61, 90])
@pytest.mark.parametrize("bit", range(64))
def test_a_base_offset_is_believed_only_once_the_one_behind_it_is_there(bytes_behind: int, bit: int) -> None:
    """Simulation, cluster seed 171 with fetch sessions in all runs: the last whole batch of a chunk, a bit of its base offset
    turned on the way, left under another offset."""
    number = 2
    at = sum(len(data) for _, data in BATCHES[:number])
    cutter, slices = BatchCutter(plan()), list[BatchSlice]()
    stop = at + len(BATCHES[number][1]) + bytes_behind
    damaged = flip_bit(SEGMENT, 8 * at + bit)

    def cut() -> None:
        for chunk in (damaged[:stop], damaged[stop:]):
            slices.extend(cutter.cut(chunk))

    with pytest.raises(CorruptDataError):
        cut()
    assert joined(slices) in (b"", SEGMENT[:at])
    assert not slices or slices[-1].next_offset == BATCHES[number][0]


@pytest.mark.parametrize(
    ("without", "is_sound"),
    [
        pytest.param(range(7), True, id="no batch has an epoch"),
        pytest.param([0], False, id="the first has none, though others of that epoch have"),
        pytest.param([3], False, id="one in the middle has none"),
        pytest.param([6], False, id="the last has none"),
    ],
)
def test_a_batch_without_an_epoch_is_damaged_where_others_have_one(without: Sequence[int], *, is_sound: bool) -> None:
    """No checksum covers it, and what was compressed may open to anything (simulation, cluster seed 1305)."""
    assert len(BATCHES) == 7
    data = b"".join(
        one[:12] + NO_EPOCH.to_bytes(4, "big", signed=True) + one[16:] if number in without else one
        for number, (_, one) in enumerate(BATCHES)
    )
    if is_sound:
        assert joined(cut_all(BatchCutter(plan()), data, [100])) == data
    else:
        with pytest.raises(CorruptDataError, match="leader epoch"):
            cut_all(BatchCutter(plan()), data, [100])


def test_batches_may_pass_from_epoch_to_epoch_where_the_metadata_say_so() -> None:
    data = (CLEAN_LOG_DIR / "epochs-0" / "00000000000000000020.log").read_bytes()
    epochs = [(header.partition_leader_epoch, header.base_offset) for _, header in iter_batch_headers(data)]
    assert {epoch for epoch, _ in epochs} == {0, 2}
    for starts, is_sound in (([(0, 20), (2, 35)], True), ([(0, 20), (2, 30)], False), ([(0, 20)], False)):
        one = CutPlan(
            where="epochs",
            position=0,
            start_offset=20,
            stop_offset=40,
            first_offset_at_most=39,
            least_offset=20,
            greatest_offset=39,
            leader_epochs=Lineage.of(starts),
            file_size_bytes=len(data),
        )
        if is_sound:
            assert joined(cut_all(BatchCutter(one), data, [500])) == data
        else:
            with pytest.raises(CorruptDataError, match="leader epoch"):
                cut_all(BatchCutter(one), data, [500])


def legacy_message(offset: int, magic: int, value: bytes) -> bytes:
    """A message of format 0 or 1."""
    timestamp = struct.pack(">q", 5) if magic else b""
    body = struct.pack(">bb", magic, 0) + timestamp + struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


@pytest.mark.parametrize("magic", [0, 1])
@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 90), min_size=1, max_size=4), start=st.integers(0, 34))
def test_messages_of_the_old_formats_are_cut_too(magic: int, sizes: list[int], start: int) -> None:
    """S-122: they are shorter than a header of format 2, and one segment may have both."""
    old = [legacy_message(offset, magic, b"v" * (offset % 7)) for offset in range(20)]
    new = [data for base, data in BATCHES if base >= 20]
    data = b"".join((*old, *new))
    slices = cut_all(BatchCutter(plan(start=start, size=len(data))), data, sizes)
    assert joined(slices) == b"".join(old[start:]) + b"".join(
        data for base, data in BATCHES if base >= 20 and base + 4 >= start
    )


def test_a_length_that_reaches_past_the_segment_is_told_before_anything_is_gathered_for_it() -> None:
    position = next(iter_batch_headers(SEGMENT))[0]
    damaged = bytearray(SEGMENT)
    damaged[position + 8 : position + 12] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(CorruptDataError, match="past the segment"):
        BatchCutter(plan()).cut(bytes(damaged[:100]))


def test_a_segment_that_ends_within_a_batch_is_told() -> None:
    cutter = BatchCutter(plan())
    cutter.cut(SEGMENT[:-1])
    with pytest.raises(CorruptDataError, match="into a batch"):
        cutter.finish()


def test_an_index_entry_that_leads_past_its_offset_is_told() -> None:
    """Batches below would be left out without a word."""
    position = len(BATCHES[0][1]) + len(BATCHES[1][1])
    led_astray = replace(plan(start=8, position=position, least=5), first_offset_at_most=9)
    with pytest.raises(CorruptDataError, match="offset 10 where the index has 9"):
        BatchCutter(led_astray).cut(SEGMENT[position:])


def test_skipped_batches_are_counted() -> None:
    cutter = BatchCutter(plan(start=12))
    cut_all(cutter, SEGMENT, [4096])
    assert cutter.skipped_bytes == sum(len(data) for base, data in BATCHES if base + 4 < 12)


@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=6), at_most=st.integers(0, 500), start=st.integers(0, 34)
)
@settings(deadline=None)
def test_what_is_dropped_and_fed_again_changes_nothing(sizes: list[int], at_most: int, start: int) -> None:
    cutter, slices, begin, turn = BatchCutter(plan(start=start)), list[BatchSlice](), 0, 0
    while begin < len(SEGMENT) and not cutter.is_done:
        stop = begin + sizes[turn % len(sizes)]
        came = cutter.cut(SEGMENT[begin:stop])
        slices += came
        begin, turn = min(stop, len(SEGMENT)) - (cutter.drop_tail(at_most_bytes=at_most) if came else 0), turn + 1
    cutter.finish()
    assert joined(slices) == expected(start, 35)
