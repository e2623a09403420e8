"""The native core cleans as Python does: the same map, the same batches and companions, the same errors, for any bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.native.hostile_logs import hostile_log, pieces, some_offset, some_sizes
from tests.native.test_walks import GOLDEN_LOGS, on_both
from tests.property.test_compaction_model import Writing
from tests.support.compacted_logs import ABORT, COMMIT, NOW_MS, aborted_of, data_batch
from tests.support.compacted_logs import LogSegment as Log
from tests.support.golden import GOLDEN
from tiersidecar.domain.errors import CorruptDataError, OffsetMapTooSmallError
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats import native
from tiersidecar.formats.compaction.cleaning import Cleaner, CleaningTerms, LastRecord, SegmentCleaner
from tiersidecar.formats.compaction.offset_map import OffsetMap, OffsetMapBuilder
from tiersidecar.formats.compaction.segments import SegmentRewriter
from tiersidecar.formats.compaction.whole_batches import WholeBatches
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.record_batches import read_batch_header

SEEDS = 1500
RETENTION_MS = 1000
_HEADER = 61


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Terms of a round over one segment, and how it comes."""

    sizes: tuple[int, ...] = ()
    map_slots: int = 400
    first_dirty: int = 0
    now_ms: int = NOW_MS
    renews_from: int | None = None
    due_by_ms: int | None = None
    upper_bound: int = -1
    lasts: tuple[int, ...] = ()
    base_offset: int = 0
    keeps_last: bool = True


def cleaned(log: bytes, one: Round, aborted: tuple[AbortedTransaction, ...] = ()) -> object:
    """All that both passes make of ``log``, and all that is left in the map."""
    offset_map = OffsetMap(24 * one.map_slots)
    builder = OffsetMapBuilder(offset_map, first_dirty_offset=one.first_dirty, aborted=aborted)
    filled: list[object] = []
    batches = WholeBatches()
    try:
        for piece in pieces(log, list(one.sizes)):
            if not builder.feed(batches, piece, where="a.log"):
                filled.append("full")
                break
    except (CorruptDataError, OffsetMapTooSmallError, OverflowError) as error:
        filled.append((type(error), str(error)))
    digests, offsets = offset_map.slots
    filled += [bytes(digests), list(offsets), len(offset_map), offset_map.latest_offset]
    return filled, _second_pass(log, one, offset_map, aborted)


def _second_pass(log: bytes, one: Round, offset_map: OffsetMap, aborted: tuple[AbortedTransaction, ...]) -> object:
    lasts = {number: LastRecord(data_offset=offset, epoch=0) for number, offset in enumerate(one.lasts)}
    terms = CleaningTerms(
        now_ms=one.now_ms,
        delete_retention_ms=RETENTION_MS,
        upper_bound_offset=one.upper_bound,
        first_dirty_offset=one.renews_from,
        due_by_ms=one.due_by_ms,
        last_records=lasts,
    )
    cleaner = Cleaner(offset_map, terms, aborted)
    size = len(log) if one.keeps_last else len(log) + 1
    segment = SegmentCleaner(cleaner, size_bytes=size, max_timestamp_ms=NOW_MS, where="a.log")
    base = Offset(one.base_offset)
    rewriter = SegmentRewriter(segment, base_offset=base, rewrite_run=segment.rewrite_run)
    out, told = bytearray(), ""
    try:
        for piece in pieces(log, list(one.sizes)):
            for part in rewriter.feed(piece, where="a.log"):
                out += part
        rewriter.end_of_source(where="a.log")
    except (CorruptDataError, OverflowError) as error:
        told = f"{type(error)} {error}"
    try:
        companions: object = rewriter.finish()
    except OverflowError as error:
        companions = str(error)
    return bytes(out), told, companions, segment.is_first_compressed, cleaner.take_retained()


def compacted_log(lots: Random) -> bytes:
    """Plain, idempotent and transactional batches, most of one kind; few keys, tombstones, values of all sizes."""
    log = Writing()
    codecs = lots.choice([(0,), (0,), (0, 0, 0, 4), (0, 1, 2, 3, 4)])
    producers = lots.choice([(-1,), (-1, 0, 1), (-1, 0, 1, 2, 3)])
    keys, tombstones = lots.choice([2, 12, 300]), lots.choice([0, 0.2, 0.8])
    for _ in range(lots.randrange(1, 30)):
        producer_id = lots.choice(producers)
        if producer_id in log.open_now and lots.random() < 0.4:
            log.end(producer_id, lots.choice([ABORT, COMMIT]))
            continue
        records = [(_key(lots, keys), _value(lots, tombstones)) for _ in range(lots.choice([1, 1, 3, 70]))]
        log.data(records, lots.choice(codecs), producer_id)
    for producer_id in sorted(log.open_now):
        log.end(producer_id, lots.choice([ABORT, COMMIT]))
    return b"".join(map(partial(_marked, lots), log.batches))


def _key(lots: Random, keys: int) -> bytes | None:
    return None if lots.random() < 0.03 else b"%0*d" % (lots.choice([1, 1, 90]), lots.randrange(keys))


def _value(lots: Random, tombstones: float) -> bytes | None:
    return None if lots.random() < tombstones else lots.randbytes(lots.choice([0, 5, 100, 9000]))


def _marked(lots: Random, batch: bytes) -> bytes:
    """``batch``, perhaps with a delete horizon or the log's own time."""
    if lots.random() < 0.8:
        return batch
    attributes = read_batch_header(batch).attributes | lots.choice([0x40, 0x08, 0x48, 0x80])
    changed = bytearray(batch)
    changed[21:23] = attributes.to_bytes(2, "big")
    base_ms = NOW_MS - 1_000_000 + lots.choice([0, 0, 2_000_000, 2**62])
    changed[27:35] = base_ms.to_bytes(8, "big")
    return _sealed(changed)


def _sealed(batch: bytearray) -> bytes:
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    return bytes(batch)


def some_round(lots: Random) -> Round:
    end = max(some_offset(lots), 0) if lots.random() < 0.1 else lots.randrange(0, 80)
    return Round(
        sizes=tuple(lots.choice([some_sizes(lots), [], [100_000], [lots.randrange(1, 40_000)]])),
        map_slots=lots.choice([2, 6, 40, 2000]),
        first_dirty=lots.choice([0, 0, end]),
        now_ms=NOW_MS + lots.choice([0, 900_000, 1_000_000, 1_200_000]),
        renews_from=lots.choice([None, 0, end]),
        upper_bound=lots.choice([-1, 1000, lots.randrange(80)]),
        lasts=tuple(lots.randrange(80) for _ in range(lots.randrange(5))),
        base_offset=lots.choice([0, 0, 0, lots.randrange(9)]),
        keeps_last=lots.random() < 0.5,
    )


def aborted_in(log: bytes) -> tuple[AbortedTransaction, ...]:
    return aborted_of([Log(base_offset=0, next_base_offset=1, log=log)])


def test_both_passes() -> None:
    for seed in range(SEEDS):
        lots = Random(seed)
        log = compacted_log(lots)
        on_both(partial(cleaned, log, some_round(lots), aborted_in(log)), seed)


def test_both_passes_over_hostile_logs() -> None:
    for seed in range(SEEDS):
        lots = Random(seed)
        log = hostile_log(lots)
        on_both(partial(cleaned, log, some_round(lots)), seed)


def test_both_passes_over_hostile_records() -> None:
    """The checksum is right, and the records are not: a byte is another one, or the count is."""
    for seed in range(SEEDS):
        lots = Random(seed)
        log = compacted_log(lots)
        transactions = aborted_in(log)
        damaged = bytearray()
        while log:
            size = read_batch_header(log).size_bytes
            damaged += _with_other_records(lots, log[:size]) if lots.random() < 0.3 else log[:size]
            log = log[size:]
        on_both(partial(cleaned, bytes(damaged), some_round(lots), transactions), seed)


def _with_other_records(lots: Random, batch: bytes) -> bytes:
    changed = bytearray(batch)
    if read_batch_header(batch).is_control:
        return batch
    if lots.random() < 0.2:
        changed[57:61] = lots.choice([-1, 0, 1, 2, 4, 2**31 - 1]).to_bytes(4, "big", signed=True)
        return _sealed(changed)
    at = min(_HEADER + lots.choice([lots.randrange(12), lots.randrange(len(batch))]), len(batch) - 1)
    changed[at] = lots.choice([0, 1, 0x7F, 0x80, 0xFE, 0xFF, lots.randrange(256)])
    return _sealed(changed)


@given(st.binary(max_size=120), st.integers(-1, 4))
@settings(max_examples=300, deadline=None)
def test_any_records(body: bytes, count: int) -> None:
    batch = bytearray(data_batch(3, [(b"k", b"v")])[:_HEADER] + body)
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[23:27], batch[57:61] = (3).to_bytes(4, "big"), count.to_bytes(4, "big", signed=True)
    on_both(partial(cleaned, _sealed(batch) + data_batch(7, [(b"k", b"w")]), Round()))


@pytest.mark.parametrize("path", GOLDEN_LOGS, ids=lambda path: str(path.relative_to(GOLDEN)))
def test_what_kafka_wrote(path: Path) -> None:
    log = path.read_bytes()
    for seed in range(6):
        on_both(partial(cleaned, log, some_round(Random(seed)), aborted_in(log)), seed)


def test_a_flipped_bit_anywhere_gives_the_same_error() -> None:
    log = data_batch(0, [(b"a", b"1"), (b"b", None)]) + data_batch(2, [(b"a", b"2"), (b"c", b"3")])
    log += data_batch(4, [(b"b", b"5")])
    for bit in range(len(log) * 8):
        flipped = bytearray(log)
        flipped[bit // 8] ^= 1 << bit % 8
        on_both(partial(cleaned, bytes(flipped), Round()), bit)


def resealed_flip(log: bytes, bit: int) -> bytes:
    """A flipped bit behind the header of the only batch, under a right checksum."""
    flipped = bytearray(log)
    flipped[bit // 8] ^= 1 << bit % 8
    return _sealed(flipped)


def test_a_flipped_bit_under_a_right_checksum_means_the_same() -> None:
    first = data_batch(0, [(b"a", b"1"), (b"b", None), (None, b"3")])
    behind = data_batch(3, [(b"a", b"2")])
    for bit in range(21 * 8, len(first) * 8):
        on_both(partial(cleaned, resealed_flip(first, bit) + behind, Round(keeps_last=False)), bit)


def test_a_tombstone_may_go_from_its_horizon_on() -> None:
    tombstone = bytearray(data_batch(0, [(b"a", None)]))
    tombstone[21:23], tombstone[27:35] = (0x40).to_bytes(2, "big"), NOW_MS.to_bytes(8, "big")
    log = _sealed(tombstone) + data_batch(1, [(b"b", b"1")])
    sizes = {now_ms: len(_left(log, Round(now_ms=now_ms))) for now_ms in (NOW_MS - 1, NOW_MS, NOW_MS + 1)}
    assert sizes[NOW_MS - 1] == len(log) > sizes[NOW_MS] == sizes[NOW_MS + 1]
    for now_ms in sizes:
        on_both(partial(cleaned, log, Round(now_ms=now_ms)), now_ms)
        on_both(partial(cleaned, log, Round(now_ms=NOW_MS + 9, due_by_ms=now_ms)), now_ms)
    limited = {due_ms: len(_left(log, Round(now_ms=NOW_MS + 9, due_by_ms=due_ms))) for due_ms in sizes}
    assert limited == sizes, "a limit stands for the time"


def test_an_index_entry_is_due_above_the_interval_and_not_at_it() -> None:
    beside_value = len(data_batch(0, [(b"0", bytes(4000))])) - 4000
    for size in (4095, 4096, 4097):
        batches = [data_batch(n, [(b"%d" % n, bytes(size - beside_value))]) for n in range(6)]
        assert {*map(len, batches)} == {size}
        on_both(partial(cleaned, b"".join(batches), Round()), size)


def _left(log: bytes, one: Round) -> bytes:
    offset_map = OffsetMap(24 * one.map_slots)
    OffsetMapBuilder(offset_map, first_dirty_offset=0).feed(WholeBatches(), log, where="a.log")
    terms = CleaningTerms(
        now_ms=one.now_ms, delete_retention_ms=RETENTION_MS, upper_bound_offset=-1, due_by_ms=one.due_by_ms
    )
    segment = SegmentCleaner(Cleaner(offset_map, terms), size_bytes=len(log), max_timestamp_ms=NOW_MS, where="a.log")
    rewriter = SegmentRewriter(segment, base_offset=Offset(0), rewrite_run=segment.rewrite_run)
    return b"".join(rewriter.feed(log, where="a.log"))


def test_native_code_cuts_a_number_to_32_bits_as_java_does() -> None:
    core = native.core.walks
    assert core is not None
    whole = data_batch(0, [(b"k", b"v")])
    assert whole[_HEADER:] == bytes([16, 0, 0, 0, 2]) + b"k" + bytes([2]) + b"v" + bytes([0])
    key_size = bytes([0x82, 0x80, 0x80, 0x80, 0x80, 0x01])  # 2 + (1 << 35), zig-zag
    record = bytes([16 + 10, 0, 0, 0]) + key_size + b"k" + bytes([2]) + b"v" + bytes([0])
    batch = bytearray(whole[:_HEADER] + record)
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    log, offset_map = _sealed(batch), OffsetMap(24 * 9)
    assert core.fill_map(memoryview(log), 0, 0, offset_map.slots, offset_map.room) == (len(log), 0, 1)
    assert offset_map.get(b"k") == 0
    on_both(partial(cleaned, log + data_batch(1, [(b"k", b"w")]), Round()))


def test_native_code_takes_whole_runs() -> None:
    """Python looks at the last batch of the .log, and at no other one."""
    core = native.core.walks
    assert core is not None
    log = b"".join(data_batch(n * 70, [(b"%d" % (n * r), b"v" * 500) for r in range(70)]) for n in range(40))
    offset_map = OffsetMap(24 * 5000)
    view = memoryview(log)
    stop, last, keys = core.fill_map(view, 0, 0, offset_map.slots, offset_map.room)
    assert (stop, last) == (len(log), 2799)
    assert keys == len({n * r for n in range(40) for r in range(70)})
    terms = (2799, NOW_MS, NOW_MS + RETENTION_MS, native.HIGHEST)
    kept_empty = OffsetMap(24 * 2).slots[1]
    run, data = core.clean_run(view, 0, len(log) - 1, (0, 1 << 31), kept_empty, offset_map.slots, terms, (0, 0, -1, 0))
    assert (run.batches_read, run.records_read, run.last_offset_read) == (39, 39 * 70, 39 * 70 - 1)
    assert 0 < run.records_kept < run.records_read
    assert len(data) == run.indexed[0]


def test_a_map_of_two_sizes_is_refused() -> None:
    core = native.core.walks
    assert core is not None
    log = memoryview(data_batch(0, [(b"a", b"1")]))
    with pytest.raises(ValueError, match="not those of one map"):
        core.fill_map(log, 0, 0, (bytearray(16), OffsetMap(24 * 2).slots[1]), (0, 1))
    with pytest.raises(BufferError, match="read-only"):
        core.fill_map(log, 0, 0, (bytes(32), OffsetMap(24 * 2).slots[1]), (0, 1))  # type: ignore[arg-type]
