"""Batches that were read in one go, in parts that single reads may return (S-146, S-147)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.local_batches import LocalBatch, local_batches
from tiersidecar.reading.batch_cutter import BatchSlice
from tiersidecar.services.gateway.remote_fills import parts_of

BATCHES = local_batches("plain-0")
LARGEST = max(len(batch.data) for batch in BATCHES)


def sliced(batches: tuple[LocalBatch, ...], borders: set[int]) -> list[BatchSlice]:
    """As if the borders of chunks had been before the batches of these numbers."""
    slices, run = list[BatchSlice](), list[LocalBatch]()
    for number, batch in enumerate(batches):
        if run and number in borders:
            slices.append(one_slice(run))
            run = []
        run.append(batch)
    return [*slices, one_slice(run)]


def one_slice(run: list[LocalBatch]) -> BatchSlice:
    data = b"".join(batch.data for batch in run)
    return BatchSlice(memoryview(data), run[0].header.base_offset, run[-1].header.next_offset)


@given(st.integers(1, 3 * LARGEST), st.sets(st.integers(1, len(BATCHES))))
def test_each_part_has_as_many_batches_as_one_read_of_that_size_and_none_is_lost(
    max_bytes: int, borders: set[int]
) -> None:
    expected, taken = list[list[LocalBatch]](), 0
    for batch in BATCHES:
        if not expected or taken + len(batch.data) > max_bytes:
            expected.append([])
            taken = 0
        expected[-1].append(batch)
        taken += len(batch.data)
    parts = list(parts_of(sliced(BATCHES, borders), max_bytes))
    assert [b"".join(bytes(one.buffer) for one in part) for part in parts] == [
        b"".join(batch.data for batch in run) for run in expected
    ]
    ends = [(run[0].header.base_offset, run[-1].header.next_offset) for run in expected]
    assert [(part[0].base_offset, part[-1].next_offset) for part in parts] == ends
    for part in parts:
        assert [one.next_offset for one in part[:-1]] == [one.base_offset for one in part[1:]]


@pytest.mark.parametrize("max_bytes", [1, LARGEST, 10 * LARGEST])
def test_nothing_has_no_parts(max_bytes: int) -> None:
    assert list(parts_of([], max_bytes)) == []
