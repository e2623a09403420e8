"""The native core does what Python's loops do: same results, same errors at the same byte, same state, for any bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.native.conftest import PYTHON
from tests.native.hostile_logs import (
    Limit,
    hostile_log,
    pieces,
    some_limit,
    some_offset,
    some_plan,
    some_sizes,
    wide_plan,
)
from tests.support.batches import batch_bytes, plain_segment
from tests.support.golden import CLEAN_LOG_DIR, GOLDEN
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.formats import native
from tiersidecar.formats.kafka.batch_digest import BatchDigest
from tiersidecar.formats.kafka.record_batches import Buffer
from tiersidecar.formats.kafka.segment_scan import SegmentScanner
from tiersidecar.reading.batch_cutter import BatchCutter, CutPlan

SEEDS = 1500
GOLDEN_LOGS = sorted(GOLDEN.joinpath("log-dirs").rglob("*.log"))


def on_both(work: Callable[[], object], seed: int | None = None) -> None:
    """Assert that ``work`` gives the same on both cores, the error's text (with its position) included."""
    by_native = _outcome(work)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "core", PYTHON)
        by_python = _outcome(work)
    assert by_native == by_python, seed


def _outcome(work: Callable[[], object]) -> object:
    try:
        return work()
    except CorruptDataError as error:
        return type(error), str(error), error.position


class Told:
    """Transactions: what was said of them."""

    def __init__(self) -> None:
        self.batches: list[tuple[bytes, str, int]] = []

    def take(self, batch: Buffer, *, where: str, position: int) -> None:
        self.batches.append((bytes(batch), where, position))


def scanned(log: bytes, sizes: list[int], base_offset: int = 0) -> object:
    told = Told()
    scanner = SegmentScanner(where="a.log", base_offset=base_offset, transactions=told)
    try:
        for piece in pieces(log, sizes):
            scanner.feed(piece)
        return scanner.finish(), scanner.next_offset, told.batches
    except CorruptDataError as error:
        return type(error), str(error), told.batches


def digested(log: bytes, sizes: list[int], start: int, stop: int) -> object:
    digest = BatchDigest(start_offset=start, stop_offset=stop)
    digest.begin_segment("a segment")
    for piece in pieces(log, sizes):
        digest.feed(piece)
    digest.end_segment()
    return digest.digest(), digest.next_offset


def cut(log: bytes, sizes: list[int], plan: CutPlan, limit: Limit) -> object:
    cutter = BatchCutter(plan, max_bytes=limit.most, min_one_message=limit.least_one)
    seen: list[object] = []
    try:
        for piece in pieces(log, sizes):
            if cutter.is_done:
                break
            slices = [(bytes(one.buffer), one.base_offset, one.next_offset) for one in cutter.cut(piece)]
            state = cutter.position, cutter.next_offset, cutter.skipped_bytes, cutter.is_done, cutter.is_full
            seen.append((slices, state))
        cutter.finish()
    except CorruptDataError as error:
        seen.append((type(error), str(error), error.position))
    return seen


def test_a_scan() -> None:
    for seed in range(SEEDS):
        lots = Random(seed)
        log, sizes, base = hostile_log(lots), some_sizes(lots), lots.choice([0, 0, some_offset(lots)])
        on_both(partial(scanned, log, sizes, base), seed)


def test_a_digest() -> None:
    for seed in range(SEEDS):
        lots = Random(seed)
        log, sizes, start, stop = hostile_log(lots), some_sizes(lots), some_offset(lots), some_offset(lots)
        on_both(partial(digested, log, sizes, lots.choice([0, start]), lots.choice([2**63, stop])), seed)


def test_a_cut() -> None:
    for seed in range(2 * SEEDS):
        lots = Random(seed)
        log, sizes = hostile_log(lots), some_sizes(lots)
        on_both(partial(cut, log, sizes, some_plan(lots, log), some_limit(lots)), seed)


@given(st.binary(max_size=300), st.lists(st.integers(1, 99), max_size=3))
@example(batch_bytes(2**63 - 4, b"", count=3), [])
@example(batch_bytes(2**63 - 3, b"", count=3), [])
@example(plain_segment([1, 2, 3], epochs=(-1, 0)), [])
def test_any_bytes(log: bytes, sizes: list[int]) -> None:
    on_both(partial(scanned, log, sizes))
    on_both(partial(digested, log, sizes, 0, 2**63))
    on_both(partial(cut, log, sizes, wide_plan(log), Limit()))


@pytest.mark.parametrize("path", GOLDEN_LOGS, ids=lambda path: str(path.relative_to(GOLDEN)))
@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_what_kafka_wrote(path: Path, size: int) -> None:
    log = path.read_bytes()
    on_both(partial(scanned, log, [size]))
    on_both(partial(digested, log, [size], 0, 2**62))
    on_both(partial(cut, log, [size], wide_plan(log), Limit()))


def test_a_flipped_bit_anywhere_gives_the_same_error() -> None:
    log = (CLEAN_LOG_DIR / "plain-0" / "00000000000000000000.log").read_bytes()[:700]
    plan = wide_plan(log)
    for bit in range(0, len(log) * 8, 3):
        flipped = bytearray(log)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged = bytes(flipped)
        on_both(partial(scanned, damaged, []), bit)
        on_both(partial(digested, damaged, [], 0, 2**62), bit)
        on_both(partial(cut, damaged, [], plan, Limit()), bit)


@pytest.mark.parametrize("size", [70, 40_000], ids=["with Python's lock", "without it"])
def test_the_native_core_is_the_one_that_walks(size: int) -> None:
    walks = native.core.walks
    assert walks is not None
    log = memoryview(plain_segment([size, size, size]))
    assert walks.scan(log, 0, 0, -1, -1)[:3] == (len(log), 3, 8)
    stop, next_offset, headers = walks.digest(log, 0, 0, 6)
    assert (stop, next_offset, headers) == (len(log), 6, bytes(log[:61]) + bytes(log[size + 61 : size + 122]))
    one = size + 61
    assert walks.cut(log, 0, 3, 9, 0, 9, 0, 1 << 62, 1 << 62, Limit(least_one=False).least_one) == (
        3 * one,
        one,
        3,
        9,
        2 * one,
        6,
        one,
    )


def test_a_buffer_with_gaps_is_refused() -> None:
    walks = native.core.walks
    assert walks is not None
    with pytest.raises(BufferError, match="follow one another"):
        walks.scan(memoryview(bytes(400))[::2], 0, 0, 0, 0)
