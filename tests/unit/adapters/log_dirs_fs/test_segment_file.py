"""An open segment: checked as a whole, readable after it is unlinked, honest when it changes.

Reading a segment leaves the page cache as it was (U14).
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.unit.adapters.log_dirs_fs.broker_files import GOLDEN, copy_golden_partition, sealed_segment
from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.adapters.log_dirs_fs import segment_file
from tiersidecar.adapters.log_dirs_fs.log_dirs import FilesystemLogDirs
from tiersidecar.adapters.log_dirs_fs.segment_file import FOOTPRINT_SLICE_BYTES as SLICE_BYTES
from tiersidecar.adapters.log_dirs_fs.segment_file import OpenSegmentFile, PageCacheFootprint, resident_slices
from tiersidecar.domain.errors import CorruptDataError, LogDirError, SegmentChangedError, SegmentNotReadyError
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import LocalSegment


@pytest.fixture
async def log_dirs(tmp_path: Path) -> AsyncIterator[FilesystemLogDirs]:
    async with ThreadBlocking(max_threads=2) as blocking:
        yield FilesystemLogDirs([str(tmp_path)], blocking=blocking, clock=ManualClock())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return copy_golden_partition("plain-0", tmp_path)


def log(directory: Path, base_offset: int = 0) -> Path:
    return directory / f"{base_offset:020d}.log"


@pytest.mark.parametrize("slice_bytes", [1024 * 1024, 1000, 61], ids=["one slice", "many slices", "slices of a header"])
async def test_a_scan_says_what_kafka_says(
    log_dirs: FilesystemLogDirs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slice_bytes: int
) -> None:
    monkeypatch.setattr(segment_file, "SLICE_BYTES", slice_bytes)
    rows = [json.loads(line) for line in (GOLDEN / "expected" / "segments-clean.jsonl").read_text().splitlines()]
    directory = copy_golden_partition("epochs-0", tmp_path)
    for row in rows:
        name, file = row["file"].split("/")
        if name != "epochs-0" or file == max(path.name for path in directory.glob("*.log")):
            continue
        segment = sealed_segment(directory, int(file.split(".")[0]))
        async with log_dirs.open_segment(segment) as opened:
            scan = await opened.scan()
        assert (scan.batch_count, scan.last_offset) == (row["batches"], row["lastOffset"])
        assert scan.max_timestamp_ms == row["maxTimestamp"]
        assert scan.crc32c == google_crc32c.value((directory / file).read_bytes())
        assert {entry.epoch for entry in scan.leader_epochs} == {batch["ple"] for batch in row["batchList"]}


async def test_it_stays_readable_after_the_broker_unlinks_it(log_dirs: FilesystemLogDirs, directory: Path) -> None:
    data = log(directory).read_bytes()
    async with log_dirs.open_segment(sealed_segment(directory, 0)) as opened:
        log(directory).rename(directory / f"{log(directory).name}.deleted")
        (directory / f"{log(directory).name}.deleted").unlink()
        buffer = memoryview(bytearray(len(data)))
        assert await opened.read_into(0, buffer) == len(data)
        assert buffer == data
        assert (await opened.scan()).crc32c == google_crc32c.value(data)
        assert os.pread(opened.fileno, 10, 0) == data[:10]


async def test_reads_are_short_only_at_the_end(log_dirs: FilesystemLogDirs, directory: Path) -> None:
    data = log(directory).read_bytes()
    async with log_dirs.open_segment(sealed_segment(directory, 0)) as opened:
        assert opened.size_bytes == len(data)
        buffer = memoryview(bytearray(100))
        assert await opened.read_into(len(data) - 30, buffer) == 30
        assert buffer[:30] == data[-30:]
        assert await opened.read_into(len(data) + 5, buffer) == 0
        assert await opened.read_into(7, buffer[:0]) == 0


async def test_something_is_made_of_what_was_read_in_the_thread_that_reads(
    log_dirs: FilesystemLogDirs, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it was looked at by then, and what is found wrong there is made into nothing."""
    monkeypatch.setattr(segment_file, "SLICE_BYTES", 40)
    data, seen, threads = log(directory).read_bytes(), bytearray(), set[int]()

    def look(position: int, part: memoryview) -> None:
        assert position == 7 + len(seen)
        seen.extend(part)
        threads.add(threading.get_ident())

    def make(part: memoryview) -> bytes:
        assert seen == part
        threads.add(threading.get_ident())
        return bytes(part) + b" made"

    def refuse(position: int, part: memoryview) -> None:
        raise CorruptDataError(where="a.log", position=position, reason="checksum")

    async with log_dirs.open_segment(sealed_segment(directory, 0)) as opened:
        buffer = memoryview(bytearray(100))
        assert await opened.read_and_make(7, buffer, look, make) == data[7:107] + b" made"
        assert len(threads) == 1
        assert threading.get_ident() not in threads
        with pytest.raises(CorruptDataError, match="checksum"):
            await opened.read_and_make(0, buffer, refuse, make)


async def test_a_flipped_bit_is_found_and_placed(log_dirs: FilesystemLogDirs, directory: Path) -> None:
    """Issue: a corrupt segment names the thing."""
    damaged = bytearray(log(directory).read_bytes())
    damaged[-20] ^= 1
    log(directory).write_bytes(damaged)
    async with log_dirs.open_segment(sealed_segment(directory, 0)) as opened:
        with pytest.raises(CorruptDataError, match="checksum") as raised:
            await opened.scan()
    assert raised.value.where == str(log(directory))
    assert 0 < raised.value.position < len(damaged)


async def test_a_file_that_ends_within_a_batch_is_not_ready(log_dirs: FilesystemLogDirs, directory: Path) -> None:
    os.truncate(log(directory), log(directory).stat().st_size - 5)
    async with log_dirs.open_segment(sealed_segment(directory, 0)) as opened:
        with pytest.raises(SegmentNotReadyError, match="the last 5 are not there"):
            await opened.scan()


async def test_a_segment_that_is_gone_is_changed(log_dirs: FilesystemLogDirs, directory: Path) -> None:
    segment = sealed_segment(directory, 0)
    log(directory).unlink()
    with pytest.raises(SegmentChangedError, match=f"{log(directory)}.*gone"):
        async with log_dirs.open_segment(segment):
            pass


async def test_a_sealed_segment_of_another_size_than_listed_is_changed(
    log_dirs: FilesystemLogDirs, directory: Path
) -> None:
    """Truncated and rolled again since: what was decided on the listing does not hold."""
    segment = sealed_segment(directory, 0)
    os.truncate(log(directory), 100)
    with pytest.raises(SegmentChangedError, match="has 100 bytes"):
        async with log_dirs.open_segment(segment):
            pass


async def test_the_active_segment_may_have_grown_since_it_was_listed(
    log_dirs: FilesystemLogDirs, directory: Path
) -> None:
    segment = replace(sealed_segment(directory, 0), next_base_offset=None, size_bytes=17)
    async with log_dirs.open_segment(segment) as opened:
        assert opened.size_bytes == log(directory).stat().st_size


async def test_a_truncation_while_it_is_open_shows(log_dirs: FilesystemLogDirs, directory: Path) -> None:
    """The pin is no snapshot: the inode is the same."""
    async with log_dirs.open_segment(sealed_segment(directory, 0)) as opened:
        before = await opened.fingerprint()
        assert await opened.fingerprint() == before
        os.truncate(log(directory), 100)
        after = await opened.fingerprint()
        assert after.inode == before.inode
        assert (before.size_bytes, after.size_bytes) == (opened.size_bytes, 100)
        with pytest.raises(SegmentChangedError, match="ends at byte 100"):
            await opened.scan()


async def test_a_directory_in_its_place_is_a_fault_of_the_log_dir(log_dirs: FilesystemLogDirs, directory: Path) -> None:
    segment = sealed_segment(directory, 0)
    log(directory).unlink()
    log(directory).mkdir()
    segment = replace(segment, next_base_offset=None)
    async with log_dirs.open_segment(segment) as opened:
        with pytest.raises(LogDirError, match="Is a directory"):
            await opened.read_into(0, memoryview(bytearray(1)))


async def test_it_is_closed_whatever_happens(log_dirs: FilesystemLogDirs, directory: Path) -> None:
    segment = sealed_segment(directory, 0)
    filenos: list[int] = []

    async def fail_while_open() -> None:
        async with log_dirs.open_segment(segment) as opened:
            filenos.append(opened.fileno)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_while_open()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(*filenos)


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
