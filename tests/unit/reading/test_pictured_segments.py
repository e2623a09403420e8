"""Where a partition has many segments they are made in a thread, and the loop goes on (U24)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import pytest

from tests.support.segments import remote_segment
from tiersidecar.domain.metadata_cache_rows import SegmentPicture
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.reading.lineage import of_pictured, pictured_segments

T = TypeVar("T")


class Picture:
    """So many segments of ten offsets."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def segments(self, from_offset: int = 0) -> tuple[RemoteLogSegmentMetadata, ...]:
        every = (remote_segment(10 * number, 10 * number + 9) for number in range(self.count))
        return tuple(one for one in every if one.end_offset >= from_offset)


class Threads:
    def __init__(self) -> None:
        self.runs = 0

    async def run(self, function: Callable[..., T], *args: object) -> T:
        self.runs += 1
        return function(*args)


@pytest.mark.parametrize(("count", "runs"), [(0, 0), (256, 0), (257, 1)])
@pytest.mark.parametrize("from_offset", [0, 15])
async def test_more_than_256_segments_are_no_work_of_the_loops(count: int, runs: int, from_offset: int) -> None:
    picture, threads = Picture(count), Threads()
    expected = picture.segments(from_offset)
    made = cast("SegmentPicture", picture)
    assert await pictured_segments(made, threads, from_offset=from_offset) == expected
    assert threads.runs == runs
    threads.runs = 0
    assert await of_pictured(made, threads, len, from_offset=from_offset) == len(expected)
    assert threads.runs == runs


async def test_all_of_them_are_made_where_nothing_else_is_said() -> None:
    for count in (3, 300):
        picture = cast("SegmentPicture", Picture(count))
        assert len(await pictured_segments(picture, Threads())) == count
        assert await of_pictured(picture, Threads(), len) == count
