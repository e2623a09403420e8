"""Filters of clean segments are the same with the native core, and so are their answers, for any bytes."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from tests.native.hostile_logs import hostile_log
from tests.native.test_compaction import compacted_log
from tests.native.test_walks import on_both
from tests.support.compacted_logs import NOW_MS, LogSegment, clean, data_batch
from tiersidecar.formats import native
from tiersidecar.formats.compaction.key_filter import SegmentKeys, write_key_filter
from tiersidecar.formats.compaction.offset_map import OffsetMap

SEEDS = 600


def answers(log: bytes, asked: tuple[bytes, ...], most_asked: int) -> object:
    keys = SegmentKeys()
    keys.look(log, where="a.log")
    one = keys.key_filter(most_asked)
    if one is None:
        return None
    found = []
    for key in asked:
        offset_map = OffsetMap(24 * 5)
        offset_map.put(key, 7)
        found.append(one.rules_out(offset_map, now_ms=NOW_MS))
    return b"".join(write_key_filter(one, bytes(16))), found


def some_keys(lots: Random) -> tuple[bytes, ...]:
    return tuple(b"%0*d" % (lots.choice([1, 90]), lots.randrange(300)) for _ in range(20))


def test_of_cleaned_logs() -> None:
    made = 0
    for seed in range(SEEDS):
        lots = Random(seed)
        log = compacted_log(lots)
        if lots.random() < 0.8:
            log = clean([LogSegment(base_offset=0, next_base_offset=5000, log=log)], now_ms=NOW_MS).segments[0].log
        work = partial(answers, log, some_keys(lots), lots.choice([1, 100, 10**7]))
        on_both(work, seed)
        made += work() is not None
    assert made > SEEDS / 5, "or these logs would say little"


def test_of_hostile_logs() -> None:
    for seed in range(SEEDS):
        lots = Random(seed)
        on_both(partial(answers, hostile_log(lots), some_keys(lots), 100), seed)


def test_native_code_takes_whole_runs() -> None:
    core = native.core.walks
    assert core is not None
    log = b"".join(data_batch(n * 70, [(b"%d" % (n + r), b"v" * 500) for r in range(70)]) for n in range(40))
    stop, digests, due_ms = core.collect_keys(memoryview(log), 0)
    assert (stop, len(digests), due_ms) == (len(log), 40 * 70 * 16, native.HIGHEST)
    bits = bytearray(50_000)
    core.fill_filter(bits, 9, bytearray(digests))
    asked = OffsetMap(24 * 5)
    asked.put(b"other", 0)
    assert not core.filter_has_any(bits, 9, asked.slots)
    asked.put(b"17", 1)
    assert core.filter_has_any(bits, 9, asked.slots)


def test_a_filter_without_bits_is_refused() -> None:
    core = native.core.walks
    assert core is not None
    with pytest.raises(ValueError, match="without bits"):
        core.filter_has_any(b"", 3, OffsetMap(24 * 5).slots)
