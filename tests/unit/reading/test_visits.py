"""A visit to a .log that lies here lasts for several steps, if the reader keeps up (U3, U22)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from tests.support.faulty_store import FaultyStore, flip_bit
from tests.support.manual_clock import ManualClock, settle
from tests.support.remote_runs import open_run
from tests.unit.reading.test_part_reads import Remote, read, remote
from tiersidecar.domain.errors import CorruptDataError, StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.store import Store, Take
from tiersidecar.reading import local_cut
from tiersidecar.reading.read_path import ReadPath, ReadSettings
from tiersidecar.reading.remote_log_reader import RemoteBatches

BATCH, COUNT = 4000, 300
FIRST, STEP, VISIT = 16 * 1024, 64 * 1024, 256 * 1024


class FileStore(FaultyStore):
    """Hands over pieces of ``piece_bytes``: between two of them, ``in_threads`` or not, others have their turn.

    ``fails_at`` is the byte of the .log from which on nothing can be read.  A piece takes ``piece_s`` of ``clock``.  A
    request does not come back before ``comes_back`` is set.  Without ``hears_the_end`` it hands over more than it may.
    """

    is_local = True

    def __init__(self, inner: Store, *, piece_bytes: int = STEP, in_threads: bool = False) -> None:
        super().__init__(inner)
        self.piece_bytes, self.in_threads = piece_bytes, in_threads
        self.fails_at: int | None = None
        self.read_bytes = 0
        self.clock: ManualClock | None = None
        self.piece_s, self.most_pieces = 0.0, 0
        self.hears_the_end = True
        self.readers = set[asyncio.Task[object] | None]()
        self.comes_back = asyncio.Event()
        self.comes_back.set()

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        data = memoryview(await self.fetch_range(key, byte_range))
        position = pieces = 0
        self.readers.add(asyncio.current_task())
        while position < len(data):
            await settle(50)
            if self.fails_at is not None and byte_range.start + position >= self.fails_at:
                raise StoreError(verb="fetch", key=key, reason="Input/output error")
            piece = data[position : position + self.piece_bytes]
            self.read_bytes += len(piece)
            pieces += 1
            self.most_pieces = max(self.most_pieces, pieces)
            if self.clock is not None:
                self.clock.stand_still(self.piece_s)
            taken_bytes = await asyncio.to_thread(take, piece) if self.in_threads else take(piece)
            if not taken_bytes and self.hears_the_end:
                break
            position += taken_bytes or len(piece)
        await self.comes_back.wait()


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"_FIRST_STEP_BYTES": FIRST, "_STEP_BYTES": STEP, "_VISIT_BYTES": VISIT, "_FURTHER_BYTES": FIRST}
    for name, size_bytes in sizes.items():
        monkeypatch.setattr(local_cut, name, size_bytes)


async def made_of(*, batch_size: int = BATCH, piece_bytes: int = STEP, in_threads: bool = False) -> Remote:
    made = await remote(batch_size, count=COUNT * BATCH // batch_size)
    store = FileStore(made.builder.run.store, piece_bytes=piece_bytes, in_threads=in_threads)
    return Remote(builder=made.builder, store=store, log=made.log)


def stream_of(path: ReadPath, made: Remote) -> AsyncGenerator[RemoteBatches, None]:
    return path.reader.stream_batches(made.builder.partition, 0)


def visits_of(made: Remote) -> int:
    return len(made.store.log_fetches())


@pytest.mark.parametrize("in_threads", [False, True], ids=["on the loop", "in threads"])
@pytest.mark.parametrize("piece_bytes", [1000, 5000, STEP - 1, STEP, 3 * STEP])
@pytest.mark.parametrize("batch_size", [900, 4096, 5000, 70_000])
async def test_however_pieces_steps_and_batches_lie_each_batch_comes_once(
    batch_size: int, piece_bytes: int, *, in_threads: bool
) -> None:
    made = await made_of(batch_size=batch_size, piece_bytes=piece_bytes, in_threads=in_threads)
    async with open_run(made.builder.run, store=made.store) as path, aclosing(stream_of(path, made)) as parts:
        found, next_offset = bytearray(), 0
        async for part in parts:
            assert part.batches.base_offset == next_offset
            next_offset = part.batches.next_offset
            found += part.batches.buffer
    assert found == made.log


async def test_a_reader_that_keeps_up_gets_several_steps_of_one_visit() -> None:
    made = await made_of()
    async with open_run(made.builder.run, store=made.store) as path, aclosing(stream_of(path, made)) as parts:
        sizes = [len(part.batches) async for part in parts]
    assert sum(sizes) == len(made.log)
    assert max(sizes) <= STEP, "a step is no larger for it"
    assert visits_of(made) <= 3 + len(made.log) // VISIT, "the first step, the second, and then 256 KiB each"


async def test_a_reader_that_stops_asking_has_two_steps_waiting_and_then_goes_on() -> None:
    made = await made_of()
    assert isinstance(made.store, FileStore)
    async with open_run(made.builder.run, store=made.store) as path, aclosing(stream_of(path, made)) as parts:
        found = bytearray()
        for _ in range(4):
            found += (await anext(parts)).batches.buffer
        before = made.store.read_bytes
        await settle(2000)
        assert before <= made.store.read_bytes <= len(found) + 2 * STEP + 4 * BATCH, "tails of batches are read twice"
        async for part in parts:
            found += part.batches.buffer
    assert found == made.log


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        pytest.param(ReadSettings(read_ahead_total_bytes=STEP), 1, id="the window of all has room for one step"),
        pytest.param(ReadSettings(read_ahead_bytes=STEP), 1, id="its own window has room for one step"),
        pytest.param(ReadSettings(read_ahead_bytes=STEP - 1), 0, id="its own window has room for less than a step"),
        pytest.param(ReadSettings(read_ahead_bytes=0), 0, id="no reader may read ahead"),
    ],
)
async def test_no_more_steps_wait_than_there_is_room_for(settings: ReadSettings, steps: int) -> None:
    made = await made_of()
    assert isinstance(made.store, FileStore)
    async with (
        open_run(made.builder.run, store=made.store, settings=settings) as path,
        aclosing(stream_of(path, made)) as parts,
    ):
        found = bytearray()
        for _ in range(3):
            found += (await anext(parts)).batches.buffer
        await settle(2000)
        assert steps * (STEP - BATCH) <= made.store.read_bytes - len(found) <= steps * STEP + 3 * BATCH
        async for part in parts:
            found += part.batches.buffer
    assert found == made.log


async def test_what_was_read_before_the_store_failed_comes_first() -> None:
    made = await made_of()
    assert isinstance(made.store, FileStore)
    made.store.fails_at = 5 * STEP
    found = bytearray()

    async def read(path: ReadPath) -> None:
        async with aclosing(stream_of(path, made)) as parts:
            async for part in parts:
                found.extend(part.batches.buffer)

    async with open_run(made.builder.run, store=made.store) as path:
        with pytest.raises(StoreError, match="Input/output error"):
            await read(path)
        assert len(found) > 4 * STEP
        assert found == made.log[: len(found)]
        made.store.fails_at = None
        async with aclosing(stream_of(path, made)) as parts:
            assert b"".join([bytes(part.batches.buffer) async for part in parts]) == made.log
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("next of")]


@pytest.mark.parametrize("heals", [True, False], ids=["and then as it was", "and stays so"])
async def test_a_batch_that_is_damaged_in_the_middle_of_a_visit_is_read_once_more(*, heals: bool) -> None:
    made, times = await made_of(), 0

    def bend(key: str, byte_range: ByteRange | None, data: bytes) -> bytes:
        nonlocal times
        if not key.endswith(".log") or byte_range is None or not byte_range.start <= 5 * STEP < byte_range.stop:
            return data
        times += 1
        if heals and times > 1:
            return data
        return flip_bit(data, (5 * STEP + 3000 - byte_range.start) * 8)

    made.store.bend = bend
    found = bytearray()
    async with open_run(made.builder.run, store=made.store) as path, aclosing(stream_of(path, made)) as parts:
        try:
            async for part in parts:
                found += part.batches.buffer
        except CorruptDataError:
            assert not heals
            assert 4 * STEP < len(found) <= 5 * STEP, "all steps before it"
            assert found == made.log[: len(found)]
        else:
            assert heals
            assert found == made.log


@pytest.mark.parametrize(
    ("piece_s", "most_pieces"),
    [
        pytest.param(0.001, VISIT // STEP + 1, id="a quick disk: the tails of steps are read twice"),
        pytest.param(0.15, 1, id="a slow disk"),
        pytest.param(0.06, 2, id="a disk in between"),
    ],
)
async def test_a_visit_lasts_for_several_steps_only_if_they_take_no_time(piece_s: float, most_pieces: int) -> None:
    """A request to the store has a minute, and others wait for its place."""
    made, clock = await made_of(), ManualClock()
    assert isinstance(made.store, FileStore)
    made.store.clock, made.store.piece_s = clock, piece_s
    async with (
        open_run(made.builder.run, store=made.store, clock=clock) as path,
        aclosing(stream_of(path, made)) as parts,
    ):
        assert b"".join([bytes(part.batches.buffer) async for part in parts]) == made.log
    assert made.store.most_pieces == most_pieces


async def test_a_reader_that_leaves_does_not_wait_for_the_visit_before_which_hangs_on_its_way_back() -> None:
    made = await made_of()
    assert isinstance(made.store, FileStore)
    made.store.comes_back.clear()
    async with open_run(made.builder.run, store=made.store) as path, asyncio.timeout(10):
        async with aclosing(stream_of(path, made)) as parts:
            for _ in range(3):
                await anext(parts)
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("next of")]


async def test_what_a_store_hands_over_after_the_end_of_a_visit_is_not_looked_at() -> None:
    """The next visit has the cutter then."""
    made, clock = await made_of(batch_size=4096), ManualClock()
    assert isinstance(made.store, FileStore)
    made.store.hears_the_end, made.store.clock, made.store.piece_s = False, clock, 0.15
    async with (
        open_run(made.builder.run, store=made.store, clock=clock) as path,
        aclosing(stream_of(path, made)) as parts,
    ):
        assert b"".join([bytes(part.batches.buffer) async for part in parts]) == made.log


async def test_steps_that_wait_already_leave_the_loop_its_turns() -> None:
    """A client that takes all at once would keep the loop from small reads for the whole visit."""
    made, turns = await made_of(), 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with open_run(made.builder.run, store=made.store) as path, aclosing(stream_of(path, made)) as parts:
        for _ in range(3):
            await anext(parts)
        await settle(500)
        counting = asyncio.create_task(count_turns())
        await settle(1)
        for _ in range(2):
            before = turns
            await anext(parts)
            assert turns - before >= 2
        counting.cancel()


@pytest.mark.parametrize("max_bytes", [1, BATCH, 5 * STEP])
async def test_a_bounded_read_is_read_by_the_task_that_asks(max_bytes: int) -> None:
    """Another one would take turns of the loop, which a crowd makes long."""
    made = await made_of()
    assert isinstance(made.store, FileStore)
    async with open_run(made.builder.run, store=made.store) as path:
        assert await read(path, made, 0, max_bytes) == made.log[: max(max_bytes // BATCH, 1) * BATCH]
        assert made.store.readers == {asyncio.current_task()}


async def test_a_bounded_read_of_a_batch_that_is_far_larger_fetches_no_more_than_a_step_at_once() -> None:
    made = await made_of(batch_size=600_000)
    async with open_run(made.builder.run, store=made.store) as path:
        assert await read(path, made, 0, 1) == made.log[:600_000]
    assert max(len(range_) for _, range_ in made.store.log_fetches() if range_ is not None) <= STEP


@pytest.mark.parametrize("parts_taken", range(8))
async def test_a_reader_that_leaves_in_the_middle_of_a_visit_leaves_nothing_behind(parts_taken: int) -> None:
    made = await made_of(in_threads=True)
    async with open_run(made.builder.run, store=made.store) as path:
        async with aclosing(stream_of(path, made)) as parts:
            for _ in range(parts_taken):
                await anext(parts)
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("next of")]
        async with aclosing(stream_of(path, made)) as parts:
            assert b"".join([bytes(part.batches.buffer) async for part in parts]) == made.log
