"""The native core does what Python's loops do: same results, same errors at the same byte, same state, for any bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.native.conftest import PYTHON
from tests.native.hostile_logs import cuts, hostile_logs, pieces
from tests.support.batches import batch_bytes, plain_segment
from tests.support.golden import CLEAN_LOG_DIR, GOLDEN
from tiersidecar.domain.epochs import Lineage
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.formats import native
from tiersidecar.formats.kafka.batch_digest import BatchDigest
from tiersidecar.formats.kafka.record_batches import Buffer, read_batch_header
from tiersidecar.formats.kafka.segment_scan import SegmentScanner
from tiersidecar.reading.batch_cutter import BatchCutter, CutPlan

EXAMPLES = settings(max_examples=250)
GOLDEN_LOGS = sorted(GOLDEN.joinpath("log-dirs").rglob("*.log"))
offsets = st.integers(-1, 60) | st.sampled_from([2**62, 2**63 - 2, 2**63 - 1, 2**63])
lineages = st.lists(st.integers(0, 40), unique=True, max_size=4).map(
    lambda starts: Lineage.of(list(enumerate(sorted(starts))))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Of a cut."""

    most: int | None
    least_one: bool


NO_LIMIT = Limit(most=None, least_one=True)


def on_both(work: Callable[[], object]) -> None:
    """Assert that ``work`` gives the same on both cores, the error's text (with its position) included."""
    by_native = _outcome(work)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "core", PYTHON)
        by_python = _outcome(work)
    assert by_native == by_python


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


def lineage_of(log: bytes) -> Lineage:
    """As the sound beginning of ``log`` has it."""
    found: dict[int, int] = {}
    position = 0
    while position < len(log):
        try:
            header = read_batch_header(log, position)
        except CorruptDataError:
            break
        if header.partition_leader_epoch > max(found, default=-1) and header.base_offset > max(
            found.values(), default=-1
        ):
            found[header.partition_leader_epoch] = header.base_offset
        position += header.size_bytes
    return Lineage.of(list(found.items()))


def plan_of(log: bytes, start: int, stop: int, least: int, greatest: int, lineage: Lineage) -> CutPlan:
    return CutPlan(
        where="a.log",
        position=0,
        start_offset=start,
        stop_offset=stop,
        first_offset_at_most=greatest,
        least_offset=least,
        greatest_offset=greatest,
        leader_epochs=lineage,
        file_size_bytes=len(log),
    )


@EXAMPLES
@given(hostile_logs(), cuts, offsets)
@example(batch_bytes(2**63 - 4, b"", count=3), [], 0)
@example(plain_segment([1, 2, 3], epochs=(-1, 0)), [], 0)
def test_a_scan(log: bytes, sizes: list[int], base: int) -> None:
    on_both(lambda: scanned(log, sizes, base))


@EXAMPLES
@given(hostile_logs(), cuts, offsets, offsets)
@example(batch_bytes(2**63 - 4, b"", count=3), [], 0, 2**63)
def test_a_digest(log: bytes, sizes: list[int], start: int, stop: int) -> None:
    on_both(lambda: digested(log, sizes, start, stop))


@EXAMPLES
@given(
    hostile_logs(),
    cuts,
    st.tuples(offsets, offsets, st.integers(-1, 9), offsets, st.none() | lineages),
    st.builds(Limit, most=st.none() | st.integers(0, 600), least_one=st.booleans()),
)
@example(batch_bytes(2**63 - 4, b"", count=3), [], (0, 2**63, 0, 2**63, Lineage.of([(0, 0)])), NO_LIMIT)
@example(plain_segment([1] * 9), [70], (7, 2**63, 0, 2**63, Lineage.of([(0, 0)])), Limit(most=150, least_one=False))
def test_a_cut(log: bytes, sizes: list[int], bounds: tuple[int, int, int, int, Lineage | None], limit: Limit) -> None:
    start, stop, least, greatest, lineage = bounds
    plan = plan_of(log, start, stop, least, greatest, lineage or lineage_of(log))
    on_both(lambda: cut(log, sizes, plan, limit))


@pytest.mark.parametrize("path", GOLDEN_LOGS, ids=lambda path: str(path.relative_to(GOLDEN)))
@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_what_kafka_wrote(path: Path, size: int) -> None:
    log = path.read_bytes()
    on_both(lambda: scanned(log, [size]))
    on_both(lambda: digested(log, [size], 0, 2**62))
    plan = plan_of(log, 3, 2**62, 0, 2**62, Lineage.of([(0, 0)]))
    on_both(lambda: cut(log, [size], plan, NO_LIMIT))


def test_a_flipped_bit_anywhere_gives_the_same_error() -> None:
    log = (CLEAN_LOG_DIR / "plain-0" / "00000000000000000000.log").read_bytes()[:700]
    plan = plan_of(log, 0, 2**62, 0, 2**62, Lineage.of([(0, 0)]))
    for bit in range(0, len(log) * 8, 3):
        flipped = bytearray(log)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged = bytes(flipped)
        on_both(lambda damaged=damaged: scanned(damaged, []))  # type: ignore[misc]
        on_both(lambda damaged=damaged: digested(damaged, [], 0, 2**62))  # type: ignore[misc]
        on_both(lambda damaged=damaged: cut(damaged, [], plan, NO_LIMIT))  # type: ignore[misc]


@pytest.mark.parametrize("size", [70, 40_000], ids=["with Python's lock", "without it"])
def test_the_native_core_is_the_one_that_walks(size: int) -> None:
    walks = native.core.walks
    assert walks is not None
    log = memoryview(plain_segment([size, size, size]))
    assert walks.scan(log, 0, 0, -1, -1)[:3] == (len(log), 3, 8)
    stop, next_offset, headers = walks.digest(log, 0, 0, 6)
    assert (stop, next_offset, headers) == (len(log), 6, bytes(log[:61]) + bytes(log[size + 61 : size + 122]))
    one = size + 61
    assert walks.cut(log, 0, 3, 9, 0, 9, 0, 1 << 62, 1 << 62, NO_LIMIT.least_one) == (
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
