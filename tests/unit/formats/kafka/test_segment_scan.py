"""The scan of a .log: equal to what Kafka says, the same for any slicing, and deaf to no flipped bit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.batches import batch_bytes, legacy_message, plain_segment
from tests.support.golden import GOLDEN, read_json_lines
from tiersidecar.domain.errors import CorruptDataError, TruncatedDataError
from tiersidecar.domain.offsets import Lineage
from tiersidecar.domain.segments import SegmentScan
from tiersidecar.formats.kafka.segment_scan import SegmentScanner

SEGMENTS = [
    pytest.param(f"{which}/{segment['file']}", segment, id=f"{which}/{segment['file']}")
    for which in ("clean", "unclean")
    for segment in read_json_lines("log-dirs", "expected", f"segments-{which}.jsonl")
]


def scan(log: bytes, slices: Sequence[int] = (), **bounds: Any) -> SegmentScan:
    """The scan of ``log``, cut at ``slices``."""
    scanner = SegmentScanner(where="a.log", **bounds)
    cuts = [0, *sorted(slices), len(log)]
    for start, stop in pairwise(cuts):
        # A buffer of its own that is wiped at once, as the reader's is.
        buffer = bytearray(log[start:stop])
        scanner.feed(memoryview(buffer))
        buffer[:] = bytes(len(buffer))
    return scanner.finish()


@pytest.mark.parametrize(("path", "expected"), SEGMENTS)
def test_the_scan_sums_up_kafkas_list_of_batches(path: str, expected: dict[str, Any]) -> None:
    log = GOLDEN.joinpath("log-dirs", path).read_bytes()
    batches = expected["batchList"]
    seen = scan(log, list(range(0, len(log), 1000)))
    assert seen.batch_count == expected["batches"]
    assert seen.last_offset == expected["lastOffset"]
    assert seen.max_timestamp_ms == expected["maxTimestamp"]
    assert seen.crc32c == google_crc32c.value(log)
    firsts: dict[int, int] = {}
    for batch in batches:
        firsts.setdefault(batch["ple"], batch["base"])
    assert dict(seen.leader_epochs) == firsts
    lasts = {batch["ple"]: batch["last"] for batch in batches}
    assert seen.leader_epoch_ends == tuple(lasts.values())
    assert seen.first_batch_compressed == (bool(batches) and batches[0]["codec"] != "none")


def test_an_empty_segment_has_no_last_offset() -> None:
    assert scan(b"", base_offset=100) == SegmentScan(
        batch_count=0,
        last_offset=-1,
        max_timestamp_ms=-1,
        leader_epochs=(),
        first_batch_compressed=False,
        crc32c=0,
    )


mixed_logs = st.lists(st.integers(0, 300), min_size=1, max_size=8).map(
    lambda sizes: plain_segment(sizes, epochs=(1, 4))
)


@given(mixed_logs, st.data())
def test_any_slicing_gives_the_same_scan(log: bytes, data: st.DataObject) -> None:
    slices = data.draw(st.lists(st.integers(0, len(log)), max_size=20))
    assert scan(log, slices) == scan(log)


def test_one_byte_at_a_time_gives_the_same_scan() -> None:
    log = plain_segment([0, 5, 100]) + legacy_message(9, b"k", b"v", magic=1) + legacy_message(10, None, None, magic=0)
    assert scan(log, list(range(len(log)))) == scan(log)
    assert scan(log).batch_count == 5


@settings(max_examples=300)
@given(mixed_logs, st.data())
def test_no_flipped_bit_passes_in_silence(log: bytes, data: st.DataObject) -> None:
    """With the bounds of a sealed segment and its lineage at hand; T-19 aside, which leaves gaps.

    A damaged epoch is the one thing that the scan alone cannot always tell: it is left to the comparison with the lineage.
    """
    sound = scan(log)
    lineage = Lineage(sound.leader_epochs)
    place = data.draw(st.integers(0, len(log) * 8 - 1))
    damaged = bytearray(log)
    damaged[place // 8] ^= 1 << place % 8
    slices = data.draw(st.lists(st.integers(0, len(log)), max_size=5))
    is_found = False
    try:
        seen = scan(bytes(damaged), slices, base_offset=0, next_base_offset=sound.last_offset + 1)
        is_found = not lineage.explains(seen.leader_epochs, seen.leader_epoch_ends)
    except CorruptDataError as error:
        # At the very end, where only the next segment's offset tells that the last one is wrong.
        is_found = error.where == "a.log" and 0 <= error.position <= len(log)
    assert is_found


@given(mixed_logs, st.data())
def test_a_file_cut_within_a_batch_is_truncated(log: bytes, data: st.DataObject) -> None:
    last = max(data.draw(st.integers(1, 60)), 1)
    with pytest.raises(TruncatedDataError):
        scan(log[:-last])


def test_truncation_is_told_with_the_place_and_what_is_missing() -> None:
    log = plain_segment([10, 20])
    with pytest.raises(TruncatedDataError, match=r"a.log is corrupt at byte 71: .*81 bytes, the last 5 are not there"):
        scan(log[:-5])


def test_a_huge_length_takes_no_memory_before_the_file_ends() -> None:
    log = bytearray(plain_segment([10]))
    log[8:12] = b"\x7f\xff\xff\xff"
    scanner = SegmentScanner(where="a.log")
    scanner.feed(log)
    for _ in range(100):
        scanner.feed(bytes(1000))
    assert len(scanner._head) == 61
    with pytest.raises(TruncatedDataError, match=f"the last {2**31 - 1 + 12 - len(log) - 100_000} are not there"):
        scanner.finish()


@pytest.mark.parametrize(
    ("log", "bounds", "reason"),
    [
        pytest.param(
            batch_bytes(9), {"base_offset": 10}, "does not rise above 9", id="below the segment's base offset"
        ),
        pytest.param(batch_bytes(19), {"next_base_offset": 19}, "not below the next segment's 19", id="past its end"),
        pytest.param(batch_bytes(5) + batch_bytes(5), {}, "does not rise above 5", id="the same offset twice"),
        pytest.param(
            batch_bytes(5, epoch=3) + batch_bytes(6, epoch=2), {}, "falls from 3 to 2", id="an epoch that falls"
        ),
    ],
)
def test_batches_out_of_order_are_corrupt(log: bytes, bounds: dict[str, int], reason: str) -> None:
    with pytest.raises(CorruptDataError, match=reason):
        scan(log, (), **bounds)


def test_gaps_in_offsets_are_sound() -> None:
    """T-19: compaction and index overflow leave gaps; the last record may lie below the segment's end."""
    seen = scan(batch_bytes(5, count=2) + batch_bytes(50), base_offset=0, next_base_offset=100)
    assert (seen.batch_count, seen.last_offset) == (2, 50)


def test_old_formats_are_scanned_without_an_epoch() -> None:
    log = legacy_message(0, None, b"v", magic=0) + legacy_message(1, None, b"v", magic=1, timestamp=77)
    seen = scan(log + batch_bytes(2, epoch=8))
    assert (seen.batch_count, seen.last_offset, seen.leader_epochs) == (3, 2, ((8, 2),))
