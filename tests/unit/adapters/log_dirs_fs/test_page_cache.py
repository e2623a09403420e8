"""Reading a segment leaves the page cache as it was (U14)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.inline_blocking import InlineBlocking
from tiersidecar.adapters.log_dirs_fs import segment_file
from tiersidecar.adapters.log_dirs_fs.segment_file import FOOTPRINT_SLICE_BYTES as SLICE_BYTES
from tiersidecar.adapters.log_dirs_fs.segment_file import OpenSegmentFile, PageCacheFootprint, resident_slices
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import LocalSegment

SLICES = 16
SIZE = SLICES * SLICE_BYTES - 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(os.urandom(SLICE_BYTES) * SLICES)
    os.truncate(path, SIZE)
    return path


@pytest.fixture
def fileno(path: Path) -> Iterator[int]:
    fileno = os.open(path, os.O_RDONLY)
    os.fsync(fileno)
    os.posix_fadvise(fileno, 0, 0, os.POSIX_FADV_DONTNEED)
    if any(resident(fileno)):
        pytest.fail("this file system keeps its pages whatever it is told: TMPDIR must lie on a disk")
    yield fileno
    os.close(fileno)


def resident(fileno: int) -> list[bool]:
    return resident_slices(fileno, SIZE)


def segment_of(path: Path) -> LocalSegment:
    return LocalSegment(
        directory=str(path.parent), base_offset=Offset(0), next_base_offset=Offset(1), size_bytes=SIZE, modified_ms=0
    )


async def read_whole(path: Path, at_once: int) -> None:
    file = OpenSegmentFile(segment_of(path), blocking=InlineBlocking())
    await file.open()
    buffer = memoryview(bytearray(at_once))
    for position in range(0, SIZE, at_once):
        file.let_go(position, await file.read_into(position, buffer[: SIZE - position]))
    await file.close()


@pytest.mark.parametrize(
    "at_once", [SLICE_BYTES, 4 * SLICE_BYTES, SLICE_BYTES * 5 // 2], ids=["slices", "chunks", "chunks of odd size"]
)
async def test_what_was_not_there_is_not_left_there(path: Path, fileno: int, at_once: int) -> None:
    await read_whole(path, at_once)
    assert not any(resident(fileno)), "every slice was let go of"


async def test_what_the_broker_has_there_stays(path: Path, fileno: int) -> None:
    """S-154; Consumers that lag a little read sealed segments from memory."""
    os.posix_fadvise(fileno, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead of the test's own
    for number in (8, 9):
        os.pread(fileno, SLICE_BYTES, number * SLICE_BYTES)
    before = resident(fileno)
    assert sum(before) in {2, 3}, "a large folio may reach into a neighbour"
    await read_whole(path, 4 * SLICE_BYTES)
    after = resident(fileno)
    assert [number for number in range(SLICES) if before[number] and not after[number]] == []
    assert sum(after) < 6


def test_a_large_file_is_asked_about_with_rests(fileno: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """U14: of 1 GiB at once it would take a core for 35 ms."""
    rests: list[float] = []
    monkeypatch.setattr(time, "sleep", rests.append)
    monkeypatch.setattr(segment_file, "_SLICES_AT_ONCE", 5)
    os.posix_fadvise(fileno, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(fileno, 100, SIZE - 100)
    assert resident(fileno) == [False] * (SLICES - 1) + [True]
    assert len(rests) == 3


async def test_what_is_read_with_rests_brings_in_no_more_than_a_turn_ahead(path: Path, fileno: int) -> None:
    """U14: what the kernel reads ahead, MiBs on some hosts, it brings in within one read."""
    file = OpenSegmentFile(segment_of(path), blocking=InlineBlocking())
    await file.open()
    buffer = memoryview(bytearray(SLICE_BYTES))
    seen: list[tuple[int, int]] = []
    read = await file.read_with_rests(SLICE_BYTES, buffer, lambda position, part: seen.append((position, len(part))))
    await file.close()
    assert [number for number, there in enumerate(resident(fileno)) if there] in ([1], [1, 2])
    assert read == SLICE_BYTES
    assert bytes(buffer) == path.read_bytes()[:SLICE_BYTES]
    assert [position for position, _ in seen] == [SLICE_BYTES + sum(n for _, n in seen[:at]) for at in range(len(seen))]
    assert len(seen) == 16


def test_an_empty_file_has_no_slices(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    with path.open("rb") as file:
        PageCacheFootprint(file.fileno(), 0).drop(0, 0)
