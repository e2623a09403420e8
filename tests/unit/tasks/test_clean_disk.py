"""What the cleaner lane has on the disk while it runs, in proportion to what was free before.

Shown here: S-250.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.clean_world import CleanWorld, live
from tests.support.compacted_logs import committed_records, table
from tests.unit.tasks.test_clean import PLACES, random_log


class Disk(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def world(tmp_path: Path) -> CleanWorld:
    return CleanWorld(scratch=tmp_path / "cleaned")


def used_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("seed", range(8))
async def test_at_no_moment_is_more_than_one_segment_or_a_third_of_the_free_disk_in_use(
    world: CleanWorld, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = random_log(seed, steps=60)
    largest = max(one.segment_size_in_bytes for one in await world.add(*log))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(10 * largest, 7 * largest, 3 * largest))
    used: list[int] = []

    async def look() -> None:
        used.append(used_bytes(world.scratch))

    for _ in log:
        await world.clean({f"clean.{place}": look for place in PLACES})
        assert used_bytes(world.scratch) == 0, "nothing is left behind"
        world.clock.jump(0.001)
    assert 0 < max(used) <= largest
    assert live(await world.table_read()) == live(table(committed_records(log)))


async def test_where_a_third_of_the_free_disk_is_less_than_a_segment_nothing_is_begun(
    world: CleanWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = max(one.segment_size_in_bytes for one in await world.add(*random_log(1)))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(10 * largest, 8 * largest, 3 * largest - 1))
    used: list[int] = []

    async def look() -> None:
        used.append(used_bytes(world.scratch))

    done = await world.clean({f"clean.{place}": look for place in PLACES})
    assert done.reason == f"a segment has {largest} bytes, and a third of the free disk is {largest - 1}"
    assert used == []
