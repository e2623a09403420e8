"""Small reads at random offsets fetch what they need and not a chunk; who reads on fetches chunks (U4, U19; S-143, S-146)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.support.batches import batch_bytes
from tests.support.faulty_store import FaultyStore, flip_bit
from tests.support.local_batches import LocalBatch
from tests.support.remote_builder import RemoteBuilder, SegmentSource
from tests.support.remote_runs import open_run
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.formats.kafka.record_batches import read_batch_header
from tiersidecar.reading.read_path import ReadPath

CHUNK = 512 * 1024
BATCH = 4 * 1024
BATCHES = 300
WANTED = 8 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    builder: RemoteBuilder
    store: FaultyStore
    log: bytes

    @property
    def fetched_bytes(self) -> int:
        ranges = [byte_range for _, byte_range in self.store.log_fetches()]
        return sum(len(range_) for range_ in ranges if range_ is not None)


async def remote(batch_size: int = BATCH, *, count: int = BATCHES, **layout: bool) -> Remote:
    """One segment of ``count`` batches of one record each, so that a batch's number is its offset."""
    batches = []
    for number in range(count):
        data = batch_bytes(number, bytes([number % 251]) * (batch_size - 61))
        batches.append(LocalBatch(read_batch_header(data, where="made", position=0), data))
    builder = RemoteBuilder(chunk_size=CHUNK, **layout)
    await builder.add(SegmentSource(batches=batches, start_offset=0, end_offset=count - 1))
    return Remote(builder=builder, store=FaultyStore(builder.run.store), log=b"".join(batch.data for batch in batches))


async def read(path: ReadPath, made: Remote, offset: int, max_bytes: int = WANTED) -> bytes:
    fetched = await path.reader.read_batches(made.builder.partition, offset, max_bytes=max_bytes)
    return b"".join(bytes(one.buffer) for one in fetched.slices)


async def test_a_small_read_at_a_random_offset_fetches_a_small_part_of_its_chunk() -> None:
    made = await remote()
    async with open_run(made.builder.run, store=made.store) as path:
        assert await read(path, made, 150) == made.log[150 * BATCH :][:WANTED]
        assert len(made.store.log_fetches()) == 1
        assert made.fetched_bytes <= WANTED + 64 * 1024


@pytest.mark.parametrize("layout", [{}, {"compression": True}, {"encrypted": True}], ids=str)
async def test_from_every_offset_it_is_the_same_bytes(layout: dict[str, bool]) -> None:
    made = await remote(**layout)
    async with open_run(made.builder.run, store=made.store) as path:
        for number in range(BATCHES):
            offset = number * 101 % BATCHES
            assert await read(path, made, offset) == made.log[offset * BATCH :][:WANTED]


async def test_who_reads_on_in_small_steps_fetches_each_chunk_once_and_little_besides() -> None:
    made = await remote()
    async with open_run(made.builder.run, store=made.store) as path:
        found = b""
        while len(found) < len(made.log):
            found += await read(path, made, len(found) // BATCH)
        assert found == made.log
        assert made.fetched_bytes <= len(made.log) + WANTED + 64 * 1024


async def test_who_comes_back_finds_the_chunk_in_the_cache_afterwards() -> None:
    """U2: an answer that came too late for its client is fetched once more at most."""
    made = await remote()
    async with open_run(made.builder.run, store=made.store) as path:
        for _ in range(5):
            assert await read(path, made, 150) == made.log[150 * BATCH :][:WANTED]
        assert len(made.store.log_fetches()) == 2


async def test_a_batch_larger_than_the_part_comes_whole() -> None:
    large = 100 * 1024
    made = await remote(large, count=12)
    async with open_run(made.builder.run, store=made.store) as path:
        for offset in (7, 2, 11, 4):
            assert await read(path, made, offset, max_bytes=100) == made.log[offset * large :][:large]


async def test_damage_in_a_part_is_fetched_anew_and_an_error_when_it_stays() -> None:
    made = await remote()
    broken: list[ByteRange] = []

    def once(key: str, byte_range: ByteRange | None, data: bytes) -> bytes:
        if not key.endswith(".log") or byte_range is None or broken:
            return data
        broken.append(byte_range)
        return flip_bit(data, 8 * 100)

    def at_rest(key: str, byte_range: ByteRange | None, data: bytes) -> bytes:
        bad = 290 * BATCH + 100
        if not key.endswith(".log") or byte_range is None or not byte_range.start <= bad < byte_range.stop:
            return data
        return flip_bit(data, 8 * (bad - byte_range.start))

    made.store.bend = once
    async with open_run(made.builder.run, store=made.store) as path:
        assert await read(path, made, 150) == made.log[150 * BATCH :][:WANTED]
        assert broken
        made.store.bend = at_rest
        with pytest.raises(CorruptDataError):
            await read(path, made, 290)


async def test_a_part_that_is_short_is_never_taken_for_the_whole() -> None:
    made = await remote()
    made.store.bend = lambda key, byte_range, data: data[:-1] if key.endswith(".log") else data
    async with open_run(made.builder.run, store=made.store) as path:
        with pytest.raises(CorruptDataError):
            await read(path, made, 150)
