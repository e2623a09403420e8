"""Where reads have begun and ended: who goes on there is told from one at a random offset (S-143; U4, U19)."""

from __future__ import annotations

import pytest

from tests.support.segments import TOPIC_ID_PARTITION
from tiersidecar.domain.ids import RemoteLogSegmentId, Uuid
from tiersidecar.reading.segment_reader import BegunReads, EndedReads

BLOCK = 16 * 1024


def segment_id(number: int) -> RemoteLogSegmentId:
    return RemoteLogSegmentId(topic_id_partition=TOPIC_ID_PARTITION, uuid=Uuid(number.to_bytes(16, "big")))


@pytest.mark.parametrize(
    ("position", "reads_on"),
    [
        pytest.param(10 * BLOCK, True, id="at the very byte"),
        pytest.param(11 * BLOCK - 1, True, id="within the same 16 KiB"),
        pytest.param(10 * BLOCK - 1, True, id="from the index entry before it"),
        pytest.param(9 * BLOCK, True, id="from 16 KiB before it"),
        pytest.param(9 * BLOCK - 1, False, id="from further before"),
        pytest.param(11 * BLOCK, False, id="behind it: nobody was there"),
        pytest.param(0, False, id="elsewhere"),
    ],
)
def test_who_begins_where_another_read_was_reads_on(position: int, *, reads_on: bool) -> None:
    begun = BegunReads()
    begun.add(segment_id(1), 10 * BLOCK)
    assert begun.reads_on(segment_id(1), position) is reads_on


def test_a_read_of_another_segment_is_another_read() -> None:
    begun = BegunReads()
    begun.add(segment_id(1), 10 * BLOCK)
    assert not begun.reads_on(segment_id(2), 10 * BLOCK)


def test_of_begun_reads_the_last_512_places_are_remembered() -> None:
    """The more there are, the more reads at random offsets are taken for others that go on."""
    begun = BegunReads()
    for number in range(512):
        begun.add(segment_id(number), 0)
    assert all(begun.reads_on(segment_id(number), 0) for number in range(512))
    begun.add(segment_id(0), 0)
    begun.add(segment_id(512), 0)
    assert [begun.reads_on(segment_id(number), 0) for number in (0, 1, 2, 512)] == [True, False, True, True]


def test_of_ended_reads_the_last_1024_places_are_remembered() -> None:
    ended = EndedReads()
    for number in range(1024):
        ended.add(segment_id(number), 7, 100 + number)
    assert [ended.position_of(segment_id(number), 7) for number in (0, 1023)] == [100, 1123]
    ended.add(segment_id(1024), 7, 1)
    assert [ended.position_of(segment_id(number), 7) for number in (0, 1, 1024)] == [None, 101, 1]


def test_where_a_read_has_ended_counts_for_that_offset_alone_and_the_last_word_counts() -> None:
    ended = EndedReads()
    ended.add(segment_id(1), 7, 100)
    ended.add(segment_id(1), 7, 90)
    assert [ended.position_of(segment_id(1), offset) for offset in (6, 7, 8)] == [None, 90, None]


def test_a_segment_that_was_found_broken_takes_no_other_with_it() -> None:
    ended = EndedReads()
    for number in (1, 2):
        ended.add(segment_id(number), 7, 100)
        ended.add(segment_id(number), 9, 120)
    ended.forget(segment_id(1))
    found = [ended.position_of(segment_id(number), offset) for number in (1, 2) for offset in (7, 9)]
    assert found == [None, None, 100, 120]
