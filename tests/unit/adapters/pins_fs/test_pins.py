"""Pins of several log dirs: what is found at a start, and what a disk may do to it."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.adapters.pins_fs.real_segments import copy_log_dir, name_of, read_partition
from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.adapters.pins_fs.pins import FilesystemPins
from tiersidecar.domain.errors import PinError, SegmentChangedError


@pytest.fixture
async def blocking() -> AsyncIterator[ThreadBlocking]:
    async with ThreadBlocking(max_threads=4) as threads:
        yield threads


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return copy_log_dir(tmp_path)


async def prepared(log_dir: Path, blocking: ThreadBlocking) -> FilesystemPins:
    pins = FilesystemPins([str(log_dir)], blocking=blocking)
    assert await pins.prepare() == {}
    return pins


async def test_a_new_process_finds_what_the_last_one_pinned(log_dir: Path, blocking: ThreadBlocking) -> None:
    pins, local = await prepared(log_dir, blocking), read_partition(log_dir)
    made = [await pins.pin(local, segment) for segment in local.sealed_segments]
    view = await FilesystemPins([str(log_dir)], blocking=blocking).scan(sweep=True)
    assert view.pins == tuple(made)
    assert view.faults == {}


async def test_both_places_are_read_whatever_is_used_now(log_dir: Path, blocking: ThreadBlocking) -> None:
    def not_beside(source: str, target: str) -> None:
        if ".tiersidecar-pins/" in target:
            raise OSError(errno.EXDEV, "Invalid cross-device link", source, None, target)
        os.link(source, target)

    local = read_partition(log_dir)
    inside = FilesystemPins([str(log_dir)], blocking=blocking, link=not_beside)
    assert await inside.prepare() == {}
    first = await inside.pin(local, local.segments[0])
    assert first.segment.directory == str(log_dir)
    second = await (await prepared(log_dir, blocking)).pin(local, local.segments[1])
    assert second.segment.directory == f"{log_dir}.tiersidecar-pins"
    found = (await inside.scan(sweep=True)).pins
    assert {pin.base_offset for pin in found} == {first.base_offset, second.base_offset}
    for pin in found:
        await inside.unpin(pin)
    assert (await inside.scan(sweep=True)).pins == ()


async def test_leftovers_are_swept_and_only_when_asked(log_dir: Path, blocking: ThreadBlocking) -> None:
    pins, local = await prepared(log_dir, blocking), read_partition(log_dir)
    leftover = Path(
        f"{log_dir}.tiersidecar-pins", name_of(local, local.segments[0]).prefix + "00000000000000000000.index"
    )
    leftover.touch()
    await pins.scan(sweep=False)
    assert leftover.exists()
    assert (await pins.scan(sweep=True)).pins == ()
    assert not leftover.exists()


async def test_without_a_place_nothing_is_pinned(log_dir: Path, blocking: ThreadBlocking) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", source, None, target)

    pins, local = FilesystemPins([str(log_dir)], blocking=blocking, link=refuse), read_partition(log_dir)
    assert "fs.protected_hardlinks" in (await pins.prepare())[str(log_dir)]
    with pytest.raises(PinError, match="no place"):
        await pins.pin(local, local.segments[0])


async def test_a_segment_that_is_gone_is_said_to_be(log_dir: Path, blocking: ThreadBlocking) -> None:
    pins, local = await prepared(log_dir, blocking), read_partition(log_dir)
    Path(local.segments[0].log_path).unlink()
    with pytest.raises(SegmentChangedError, match="gone"):
        await pins.pin(local, local.segments[0])


async def test_a_full_disk_is_explained(log_dir: Path, blocking: ThreadBlocking) -> None:
    full = False

    def link(source: str, target: str) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device", source, None, target)
        os.link(source, target)

    pins, local = FilesystemPins([str(log_dir)], blocking=blocking, link=link), read_partition(log_dir)
    await pins.prepare()
    full = True
    with pytest.raises(PinError, match="disk is full"):
        await pins.pin(local, local.segments[0])


async def test_an_unreadable_directory_of_pins_is_a_fault(log_dir: Path, blocking: ThreadBlocking) -> None:
    Path(f"{log_dir}.tiersidecar-pins").write_bytes(b"")
    view = await FilesystemPins([str(log_dir)], blocking=blocking).scan(sweep=True)
    assert list(view.faults) == [str(log_dir)]


async def test_a_disk_that_hangs_holds_up_nothing_and_is_asked_once(log_dir: Path, tmp_path: Path) -> None:
    released, asked = threading.Event(), 0

    class HangingBlocking(ThreadBlocking):
        async def run(self, function, *arguments):  # type: ignore[no-untyped-def]
            nonlocal asked
            asked += 1
            await super().run(released.wait)
            return await super().run(function, *arguments)

    async with HangingBlocking(max_threads=2) as blocking:
        pins = FilesystemPins([str(log_dir)], blocking=blocking, scan_timeout_s=0.01)
        for _ in range(3):
            assert "hangs" in (await pins.scan(sweep=True)).faults[str(log_dir)]
            assert await pins.disk_spaces() == {}
        assert asked == 2, "one scan and one measurement"
        released.set()
        await asyncio.wait(pins._asked.values())
        assert (await pins.scan(sweep=True)).faults == {}


async def test_disks(log_dir: Path, blocking: ThreadBlocking, tmp_path: Path) -> None:
    spaces = await FilesystemPins([str(log_dir), "/nowhere"], blocking=blocking).disk_spaces()
    assert list(spaces) == [str(log_dir)]
    space = spaces[str(log_dir)]
    assert 0 < space.free_bytes < space.size_bytes
    assert space.device == tmp_path.stat().st_dev


async def test_disks_are_measured_for_several_askers_at_once(log_dir: Path, blocking: ThreadBlocking) -> None:
    """Found by make chaos: the pin keeper and the disk watch shared one measurement, and the daemon died of it."""
    pins = FilesystemPins([str(log_dir)], blocking=blocking)
    spaces = await asyncio.gather(pins.disk_spaces(), pins.disk_spaces(), pins.disk_spaces())
    assert [list(space) for space in spaces] == [[str(log_dir)]] * 3
