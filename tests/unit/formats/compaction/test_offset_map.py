"""The offset map: bounded, and right for as long as it is not full."""

from __future__ import annotations

import pytest

from tests.support.compacted_logs import LogSegment, data_batch, marker_batch
from tiersidecar.domain.errors import OffsetMapTooSmallError
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.compaction.offset_map import OffsetMap, OffsetMapBuilder, bytes_for
from tiersidecar.formats.kafka.indexes import AbortedTransaction


def test_the_last_offset_of_a_key_counts() -> None:
    offset_map = OffsetMap(24 * 100)
    for offset in range(1000):
        offset_map.put(b"key-%d" % (offset % 70), offset)
    assert [offset_map.get(b"key-%d" % key) for key in range(70)] == [
        max(offset for offset in range(1000) if offset % 70 == key) for key in range(70)
    ]
    assert offset_map.get(b"other") == -1
    assert len(offset_map) == 70


def test_it_is_full_at_its_load_factor_and_takes_no_more_memory() -> None:
    offset_map = OffsetMap(24 * 1000)
    for key in range(900):
        assert not offset_map.is_full
        offset_map.put(b"%d" % key, key)
    assert offset_map.is_full
    assert len(offset_map) == 900
    assert all(offset_map.get(b"%d" % key) == key for key in range(900))
    assert offset_map.size_bytes == 24 * 1000


def test_every_slot_can_be_found() -> None:
    """Past the digest's windows the probing is linear, up to the last slot."""
    offset_map = OffsetMap(24 * 40, load_factor=1.0)
    for key in range(40):
        offset_map.put(b"%d" % key, key)
    assert [offset_map.get(b"%d" % key) for key in range(40)] == list(range(40))
    assert offset_map.get(b"40") == -1
    with pytest.raises(ValueError, match="no slot left"):
        offset_map.put(b"40", 40)


def test_offset_zero_and_the_empty_key_are_found() -> None:
    offset_map = OffsetMap(24 * 10)
    offset_map.put(b"", 0)
    assert offset_map.get(b"") == 0


def test_a_map_that_holds_no_key_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no key"):
        OffsetMap(24)


def built(
    batches: list[bytes], *, keys: int = 100, first_dirty: int = 0, aborted: tuple[AbortedTransaction, ...] = ()
) -> tuple[bool, OffsetMap]:
    offset_map = OffsetMap(-(-keys * 24 * 10 // 9) + 24)
    builder = OffsetMapBuilder(offset_map, first_dirty_offset=first_dirty, aborted=aborted)
    log = b"".join(batches)
    segment = LogSegment(base_offset=0, next_base_offset=50, log=log)
    return builder.add(segment.log, next_base_offset=segment.next_base_offset, where="log"), offset_map


def test_markers_aborted_records_null_keys_and_clean_records_are_not_in_it() -> None:
    batches = [
        data_batch(0, [(b"clean", b"1"), (b"both", b"1")]),
        data_batch(2, [(None, b"no key"), (b"both", b"2")]),
        data_batch(4, [(b"aborted", b"1")], producer=(7, 0, 0), transactional=True),
        marker_batch(5, 0, producer_id=7),
        data_batch(6, [(b"committed", b"1")], producer=(7, 0, 1), transactional=True),
        marker_batch(7, 1, producer_id=7),
    ]
    aborted = (AbortedTransaction(7, Offset(4), Offset(5), Offset(6)),)
    took_all, offset_map = built(batches, first_dirty=2, aborted=aborted)
    assert took_all
    assert {key: offset_map.get(key) for key in (b"clean", b"both", b"aborted", b"committed")} == {
        b"clean": -1,
        b"both": 3,
        b"aborted": -1,
        b"committed": 6,
    }
    assert len(offset_map) == 2
    assert offset_map.latest_offset == 49, "the segment's last offset, though no batch has it"


@pytest.mark.parametrize("in_a_batch", [1, 7], ids=["a batch of one record", "a batch that takes several maps"])
def test_a_builder_that_gets_further_maps_takes_all_keys(in_a_batch: int) -> None:
    records = [(b"key-%d" % (number % 20), b"v") for number in range(42)]
    batches = [data_batch(at, records[at : at + in_a_batch]) for at in range(0, len(records), in_a_batch)]
    maps = [OffsetMap(bytes_for(3))]

    def another() -> OffsetMap:
        maps.append(OffsetMap(bytes_for(3)))
        return maps[-1]

    builder = OffsetMapBuilder(maps[0], first_dirty_offset=0, another_map=another)
    assert builder.add(b"".join(batches), next_base_offset=42, where="log")
    lasts = {key: max(one.get(key) for one in maps) for key, _ in records}
    assert lasts == {key: offset for offset, (key, _) in enumerate(records)}
    assert len(maps) > 3
    assert maps[-1].latest_offset == 41


def test_an_abort_that_ended_below_the_dirty_part_hides_nothing_of_it() -> None:
    batches = [
        data_batch(6, [(b"a", None)], producer=(7, 0, 1), transactional=True),
        marker_batch(7, 1, producer_id=7),
        data_batch(8, [(b"b", b"1")], producer=(8, 0, 1), transactional=True),
        marker_batch(9, 0, producer_id=8),
    ]
    below, across = (
        AbortedTransaction(7, Offset(4), Offset(5), Offset(6)),
        AbortedTransaction(8, Offset(3), Offset(9), Offset(9)),
    )
    took_all, offset_map = built(batches, first_dirty=6, aborted=(below, across))
    assert took_all
    assert offset_map.get(b"a") == 6
    assert offset_map.get(b"b") == -1, "that one began below it, and ends in it"


def test_it_stops_with_the_last_whole_batch_when_it_is_full() -> None:
    batches = [data_batch(0, [(b"a", b"1"), (b"b", b"1")]), data_batch(2, [(b"c", b"1"), (b"d", b"1")])]
    took_all, offset_map = built(batches, keys=3)
    assert not took_all
    assert offset_map.latest_offset == 1


def test_one_batch_with_more_keys_than_it_holds_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(OffsetMapTooSmallError, match=r"larger dedupe\.buffer\.size"):
        built([data_batch(0, [(b"%d" % key, b"1") for key in range(5)])], keys=3)
