"""Few chunks are made at once, in memory that is used again, and no disk that hangs keeps the others waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.support.manual_clock import settle
from tiersidecar.ports.store import Buffer
from tiersidecar.tasks import chunk_making
from tiersidecar.tasks.chunk_making import ChunkMaker

T = TypeVar("T")


class HeldFile:
    """A file of the bytes 0, 1, 2 and so on, whose reads wait until they are let go."""

    def __init__(self, size_bytes: int = 200) -> None:
        self.data = bytes(range(size_bytes))
        self.reading, self.go = 0, asyncio.Event()
        self.buffers: list[object] = []

    async def read_and_make(
        self,
        position: int,
        buffer: memoryview,
        look: Callable[[int, memoryview], None],
        make: Callable[[memoryview], T],
    ) -> T:
        self.reading += 1
        self.buffers.append(buffer.obj)
        try:
            await self.go.wait()
            part = self.data[position : position + len(buffer)]
            buffer[: len(part)] = part
            look(position, buffer[: len(part)])
            return make(buffer[: len(part)])
        finally:
            self.reading -= 1


def unseen(position: int, part: memoryview) -> None:
    return None


def upper(part: memoryview) -> bytes:
    return bytes(part)[::-1]


def made(maker: ChunkMaker, file: HeldFile, position: int = 0, size: int = 10) -> asyncio.Future[Buffer]:
    return asyncio.ensure_future(maker.make(file, position, size, look=unseen, transform=upper))


async def test_it_is_looked_at_and_transformed() -> None:
    file, seen = HeldFile(), list[tuple[int, bytes]]()
    file.go.set()
    maker = ChunkMaker()
    piece = await maker.make(
        file, 195, 10, look=lambda position, part: seen.append((position, bytes(part))), transform=upper
    )
    assert bytes(piece) == bytes([199, 198, 197, 196, 195]), "as many as the file has"
    assert seen == [(195, bytes([195, 196, 197, 198, 199]))]


async def test_no_more_at_once_than_said_and_in_order() -> None:
    maker, file = ChunkMaker(most_at_once=2), HeldFile()
    pieces = [made(maker, file, position) for position in range(0, 50, 10)]
    await settle(50)
    assert file.reading == 2
    file.go.set()
    assert [bytes(await piece)[-1] for piece in pieces] == [0, 10, 20, 30, 40]
    assert len({id(buffer) for buffer in file.buffers}) == 2, "memory for two chunks is enough"


async def test_a_larger_chunk_gets_a_larger_buffer() -> None:
    maker, file = ChunkMaker(most_at_once=1), HeldFile()
    file.go.set()
    for size in (10, 30, 20):
        assert len(await made(maker, file, 0, size)) == size


async def test_memory_for_a_chunk_too_large_for_any_cache_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk.size of 256 MiB would else hold that much for each core, with nothing to copy."""
    monkeypatch.setattr(chunk_making, "_MOST_KEPT_BYTES", 20)
    maker, file = ChunkMaker(most_at_once=1), HeldFile()
    file.go.set()
    for size in (21, 21, 20, 20):
        await made(maker, file, 0, size)
    first, second, third, fourth = file.buffers
    assert first is not second
    assert third is fourth


@pytest.mark.parametrize("end", ["cancelled", "an error"])
async def test_a_place_is_free_again_however_a_chunk_ends(end: str) -> None:
    maker, file, broken = ChunkMaker(most_at_once=1), HeldFile(), HeldFile()

    def fail(part: memoryview) -> bytes:
        raise ValueError("broke")

    first = asyncio.ensure_future(maker.make(broken, 0, 10, look=unseen, transform=fail))
    second = made(maker, file)
    file.go.set()
    await settle(20)
    assert not second.done()
    if end == "cancelled":
        first.cancel()
    broken.go.set()
    await asyncio.wait([first])
    assert first.cancelled() or isinstance(first.exception(), ValueError)
    assert bytes(await second) == file.data[:10][::-1]


async def test_a_disk_that_hangs_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_making, "_MOST_HELD_S", 0.01)
    maker, dead, file = ChunkMaker(most_at_once=1), HeldFile(), HeldFile()
    hanging = [made(maker, dead) for _ in range(3)]
    file.go.set()
    async with asyncio.timeout(10):
        for position in (0, 10):
            assert bytes(await made(maker, file, position))[-1] == position
    assert dead.reading == 3
    dead.go.set()
    await asyncio.gather(*hanging)
    monkeypatch.setattr(chunk_making, "_MOST_HELD_S", 10.0)
    file.go.clear()
    pieces = [made(maker, file) for _ in range(2)]
    await settle(5)
    assert file.reading == 1, "no place was given back twice"
    file.go.set()
    await asyncio.gather(*pieces)
