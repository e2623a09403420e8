"""Reading in turns gives the bytes of the file, rests between them without Python's lock, and names faults as Python does."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.native.conftest import PYTHON
from tiersidecar.adapters.stores.temporary_file import TemporaryFile
from tiersidecar.domain.errors import CorruptDataError, LogDirError, SegmentChangedError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.formats import native
from tiersidecar.ports.store import SourceFile

KIB, MIB = 1024, 1024 * 1024


def read(
    fileno: int,
    position: int,
    buffer: bytearray | memoryview,
    turn_bytes: int,
    rest_us: int = 0,
    *,
    first: bool = False,
) -> int:
    assert native.core.walks is not None
    return native.core.walks.read_in_turns(fileno, position, memoryview(buffer), turn_bytes, rest_us, first)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000000.log"


@pytest.fixture
def fileno(path: Path) -> Iterator[int]:
    path.write_bytes(os.urandom(300 * KIB + 7))
    opened = os.open(path, os.O_RDONLY)
    yield opened
    os.close(opened)


@given(st.integers(0, 310 * KIB), st.integers(0, 310 * KIB), st.integers(0, 99 * KIB))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_range_in_turns_of_any_size(path: Path, fileno: int, position: int, size: int, turn_bytes: int) -> None:
    buffer = bytearray(b"\xff" * size)
    expected = path.read_bytes()[position : position + size]
    assert read(fileno, position, buffer, turn_bytes or size) == len(expected)
    assert buffer == expected + b"\xff" * (size - len(expected)), "what is behind the end of the file is left alone"


@pytest.mark.parametrize("turn_bytes", [4096, 64 * KIB, MIB], ids=lambda size: f"turns of {size} bytes")
@pytest.mark.parametrize("cached", [range(0), range(100 * KIB), range(120 * KIB, 200 * KIB)], ids=str)
def test_what_is_not_in_the_page_cache_is_read_from_the_disk(
    path: Path, fileno: int, cached: range, turn_bytes: int
) -> None:
    data = path.read_bytes()
    os.fsync(fileno)
    os.posix_fadvise(fileno, 0, 0, os.POSIX_FADV_RANDOM)
    os.posix_fadvise(fileno, 0, 0, os.POSIX_FADV_DONTNEED)
    os.pread(fileno, len(cached), cached.start)
    buffer = bytearray(len(data))
    assert read(fileno, 0, buffer, turn_bytes) == len(data)
    assert buffer == data


@pytest.mark.parametrize(("first", "rests"), [(False, 4), (True, 5)], ids=["between turns", "before the first too"])
def test_it_rests(fileno: int, first: bool, rests: int) -> None:
    began_s = time.monotonic()
    assert read(fileno, 0, bytearray(300 * KIB), 64 * KIB, 3000, first=first) == 300 * KIB
    assert time.monotonic() - began_s >= rests * 0.003


def test_the_interpreter_is_free_while_it_reads_and_rests(fileno: int) -> None:
    reading = threading.Thread(target=read, args=(fileno, 0, bytearray(300 * KIB), 100 * KIB, 200_000))
    reading.start()
    assert reading.is_alive(), "this line had to wait for the lock"
    reading.join()


def test_an_error_of_the_system_has_its_number(tmp_path: Path, fileno: int) -> None:
    opened = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(IsADirectoryError) as raised:
            read(opened, 0, bytearray(10), 10)
    finally:
        os.close(opened)
    assert (raised.value.errno, raised.value.strerror) == (errno.EISDIR, "Is a directory")
    with pytest.raises(ValueError, match="closed"):
        read(-1, 0, bytearray(10), 10)
    with pytest.raises(BufferError):
        read(fileno, 0, memoryview(b"read-only"), 1)


@pytest.fixture(params=["native", "python"])
def core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        monkeypatch.setattr(native, "core", PYTHON)
    return str(request.param)


@pytest.mark.parametrize("granted", [1000, 320 * KIB, 1280 * KIB, 16 * MIB], ids=lambda size: f"{size} bytes granted")
def test_a_copy_with_rests_shows_all_bytes_once_and_in_order(core: str, tmp_path: Path, granted: int) -> None:
    source, data, seen = source_of(tmp_path, min(40 * granted, 9 * MIB + 77))
    copy = copied(tmp_path, source, granted)
    assert copy.read_bytes() == data == bytes(seen)
    os.close(source.fileno)


def test_a_part_that_is_found_wrong_is_not_written(core: str, tmp_path: Path) -> None:
    """Nor what comes after it."""
    source, data, _ = source_of(tmp_path, 3 * MIB)

    def refuse(position: int, part: memoryview) -> None:
        if position + len(part) > 2 * MIB:
            raise CorruptDataError(where=source.path, position=position, reason="checksum")

    with pytest.raises(CorruptDataError):
        copied(tmp_path, replace(source, look=refuse), 320 * KIB)
    assert data.startswith((tmp_path / "aside/log").read_bytes())
    assert (tmp_path / "aside/log").stat().st_size <= 2 * MIB
    os.close(source.fileno)


def test_a_source_that_ends_early_is_a_changed_segment(core: str, tmp_path: Path) -> None:
    source, _, _ = source_of(tmp_path, 2 * MIB)
    os.truncate(source.path, MIB + 5)
    with pytest.raises(SegmentChangedError, match=f"it ends at byte {MIB + 5} of {2 * MIB}"):
        copied(tmp_path, source, 320 * KIB)
    os.close(source.fileno)


def test_a_source_that_cannot_be_read_is_no_fault_of_the_store(core: str, tmp_path: Path) -> None:
    source, _, _ = source_of(tmp_path, 2 * MIB)
    directory = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(LogDirError, match="Is a directory"):
        copied(tmp_path, replace(source, fileno=directory), 320 * KIB)
    os.close(source.fileno)
    os.close(directory)


def source_of(directory: Path, size_bytes: int) -> tuple[SourceFile, bytes, bytearray]:
    """Return a file of that size, its bytes, and what is seen of them."""
    path, data, seen = directory / "source.log", os.urandom(size_bytes), bytearray()
    path.write_bytes(data)

    def look(position: int, part: memoryview) -> None:
        assert position == len(seen)
        seen.extend(part)

    fileno = os.open(path, os.O_RDONLY)
    return SourceFile(fileno=fileno, path=str(path), byte_range=ByteRange(0, size_bytes), look=look), data, seen


def copied(directory: Path, source: SourceFile, granted: int) -> Path:
    copy = TemporaryFile(directory=directory / "aside", name="log")
    size_bytes = len(source.byte_range)
    copy.open(size_bytes)
    copy.take_small_steps()
    while copy.written_bytes < size_bytes:
        copy.copy_with_rests(source, granted)
    copy.make_durable()
    return directory / "aside/log"
