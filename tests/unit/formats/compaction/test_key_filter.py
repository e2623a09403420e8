"""Filters of clean segments: nothing that is in one is ruled out, and little that is not is not (S-253, S-254)."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.batches import legacy_message
from tests.support.compacted_logs import COMMIT, NOW_MS, clean, data_batch, marker_batch
from tests.unit.formats.compaction.test_cleaning import headers, segment
from tiersidecar.formats.compaction import key_filter as module
from tiersidecar.formats.compaction.key_filter import (
    KeyFilter,
    SegmentKeys,
    read_key_filter,
    write_key_filter,
)
from tiersidecar.formats.compaction.offset_map import BYTES_PER_SLOT, OffsetMap, most_keys
from tiersidecar.formats.compaction.rewriting import delete_horizon_ms

SEGMENT_ID = bytes(range(16))


def map_of(*keys: bytes, slots: int | None = None) -> OffsetMap:
    offset_map = OffsetMap((slots or 2 * len(keys) + 2) * BYTES_PER_SLOT)
    for offset, key in enumerate(keys):
        offset_map.put(key, offset)
    return offset_map


def filter_of(log: bytes, *, most_asked: int = 1000) -> KeyFilter | None:
    keys = SegmentKeys()
    keys.look(log, where="a.log")
    return keys.key_filter(most_asked)


def filter_of_keys(*keys: bytes, most_asked: int = 1000) -> KeyFilter:
    batches = [data_batch(0, [(key, b"v") for key in keys[at : at + 50]]) for at in range(0, len(keys), 50)]
    found = filter_of(b"".join(batches), most_asked=most_asked)
    assert found is not None
    return found


def test_a_key_that_is_in_it_is_never_ruled_out() -> None:
    keys = [b"key-%d" % number for number in range(300)]
    one = filter_of_keys(*keys)
    assert not any(one.rules_out(map_of(key), now_ms=NOW_MS) for key in keys)
    assert not one.rules_out(map_of(b"other", keys[-1], b"another"), now_ms=NOW_MS)
    assert one.rules_out(map_of(b"other", b"another"), now_ms=NOW_MS)


@pytest.mark.parametrize("keys", [1, 20, 400])
def test_of_segments_without_any_key_of_a_full_map_one_in_a_hundred_is_read(keys: int) -> None:
    """However many keys the segment has; the figure is of 400 segments, of which five may be off by chance."""
    asked = 2000
    offset_map = map_of(*(b"asked-%d" % number for number in range(asked)))
    filters = [
        filter_of_keys(*(b"%d-%d" % (number, key) for key in range(keys)), most_asked=asked)
        for number in range(400 if keys < 400 else 100)
    ]
    read = sum(not one.rules_out(offset_map, now_ms=NOW_MS) for one in filters)
    assert read <= 0.01 * len(filters) + 5


def test_its_size_is_what_so_many_questions_need() -> None:
    one = filter_of_keys(*(b"%d" % key for key in range(2000)), most_asked=most_keys(128 * 1024 * 1024))
    assert 5.1 * 2000 < len(one.bits) < 5.3 * 2000 + 512
    assert one.probes == 30


def test_a_map_with_more_keys_than_it_was_made_for_is_not_answered() -> None:
    one = filter_of_keys(b"a", most_asked=2)
    assert one.rules_out(map_of(b"x", b"y"), now_ms=NOW_MS)
    assert not one.rules_out(map_of(b"x", b"y", b"z"), now_ms=NOW_MS)


@pytest.mark.parametrize("codec", range(5))
def test_it_holds_until_the_first_tombstone_may_go(codec: int) -> None:
    log = segment(
        data_batch(0, [(b"a", b"1"), (b"b", None)], codec=codec),
        data_batch(2, [(b"c", b"1")], codec=codec),
        data_batch(3, [(b"d", None)], codec=codec),
    )
    new = clean([log], now_ms=NOW_MS, delete_retention_ms=1000, upper_bound_offset=1000).segments[0]
    one = filter_of(new.log)
    assert one is not None
    assert one.due_ms == NOW_MS + 1000
    other = map_of(b"other")
    assert one.rules_out(other, now_ms=NOW_MS + 999)
    assert not one.rules_out(other, now_ms=NOW_MS + 1000)
    assert not any(one.rules_out(map_of(key), now_ms=NOW_MS) for key in (b"a", b"b", b"c", b"d"))


def test_a_horizon_of_tombstones_that_are_gone_means_nothing() -> None:
    """The batch keeps it."""
    log = segment(data_batch(0, [(b"a", b"1"), (b"b", None)]))
    first = clean([log], now_ms=NOW_MS, delete_retention_ms=1000, upper_bound_offset=1000).segments[0]
    behind = segment(data_batch(2, [(b"b", b"2")]), base_offset=2)
    both = clean([first, behind], now_ms=NOW_MS, first_dirty_offset=2, upper_bound_offset=1000, segment_bytes=1)
    assert delete_horizon_ms(headers(both.segments[0])[0]) == NOW_MS + 1000
    one = filter_of(both.segments[0].log)
    assert one is not None
    assert one.rules_out(map_of(b"other"), now_ms=1 << 60)


def test_a_batch_that_is_kept_empty_is_nothing_to_look_at() -> None:
    log = segment(data_batch(0, [(b"a", b"1")]), data_batch(1, [(b"a", b"2")]))
    kept = clean([log], now_ms=NOW_MS, upper_bound_offset=1).segments[0]
    one = filter_of(kept.log)
    assert one is not None
    assert one.rules_out(map_of(b"other"), now_ms=NOW_MS)


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(data_batch(1, [(b"b", b"1")], producer=(5, 0, 0), transactional=True), id="a transaction"),
        pytest.param(marker_batch(1, COMMIT, producer_id=5), id="a marker"),
        pytest.param(data_batch(1, [(None, b"1")]), id="no key"),
        pytest.param(data_batch(1, [(b"b", None)]), id="a tombstone without a horizon"),
        pytest.param(legacy_message(1, b"b", b"1", magic=1), id="an old format"),
    ],
)
def test_there_is_none_of_a_segment_that_a_round_must_see(batch: bytes) -> None:
    assert filter_of(data_batch(0, [(b"a", b"1")]) + batch + data_batch(2, [(b"c", b"1")])) is None


def test_there_is_none_of_a_segment_with_very_many_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEYS", 3)
    assert filter_of(data_batch(0, [(b"%d" % key, b"1") for key in range(3)])) is not None
    assert filter_of(data_batch(0, [(b"%d" % key, b"1") for key in range(4)])) is None


@pytest.mark.parametrize("codec", range(5))
def test_of_a_segment_with_many_keys_it_is_made_at_a_second_look(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_DIGESTS", 120)
    log = segment(
        *(
            data_batch(at, [(b"%d" % key, None if key == 130 else b"1") for key in range(at, at + 50)], codec=codec)
            for at in range(0, 200, 50)
        )
    )
    new = clean([log], now_ms=NOW_MS, delete_retention_ms=1000, upper_bound_offset=1000).segments[0]
    keys = SegmentKeys()
    keys.look(new.log, where="a.log")
    assert (keys.are_too_many_to_hold, keys.key_filter(1000)) == (True, None)
    again = keys.for_second_look(1000)
    again.look(new.log, where="a.log")
    one = again.key_filter(1000)
    monkeypatch.undo()
    assert one == filter_of(new.log)
    assert one is not None
    assert one.due_ms == NOW_MS + 1000


def test_a_look_says_where_the_last_whole_batch_ends() -> None:
    batches = [data_batch(0, [(b"a", b"1")]), data_batch(1, [(b"b", b"1")])]
    for size in range(len(batches[0]), sum(map(len, batches))):
        assert SegmentKeys().look(b"".join(batches)[:size], where="a.log") == len(batches[0])


def test_it_is_the_same_out_of_a_file_and_any_other_file_is_none() -> None:
    one = filter_of_keys(b"a", b"b")
    data = b"".join(write_key_filter(one, SEGMENT_ID))
    again = read_key_filter(data, SEGMENT_ID)
    assert again is not None
    assert dataclasses.replace(again, bits=bytes(again.bits)) == dataclasses.replace(one, bits=bytes(one.bits))
    assert read_key_filter(data, bytes(16)) is None, "of another segment"
    assert all(read_key_filter(data[:size], SEGMENT_ID) is None for size in range(len(data)))
    for bit in range(len(data) * 8):
        spoiled = bytearray(data)
        spoiled[bit // 8] ^= 1 << bit % 8
        assert read_key_filter(bytes(spoiled), SEGMENT_ID) is None


def test_the_places_of_a_key_are_these() -> None:
    """Files outlive a release."""
    one = filter_of_keys(b"a", most_asked=10)
    assert one.probes == 11
    set_bits = [place for place in range(len(one.bits) * 8) if one.bits[place >> 3] >> (place & 7) & 1]
    assert (len(one.bits), set_bits) == (514, [204, 1004, 1687, 2253, 2704, 2962, 3038, 3210, 3255, 3341, 3357])
