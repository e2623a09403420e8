"""The layers that chunks come through: store, disk, memory; each keeps what it may, and passes the rest on (U2, U4, U22)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.faulty_store import FaultyStore
from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock, settle
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.remote_builder import RemoteBuilder
from tests.support.remote_runs import key_ring
from tests.unit.reading.test_histories import source
from tiersidecar.domain.errors import CorruptDataError, StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.metrics.reading import READ_CACHE_BYTES, READ_STORE_BYTES, READ_STORE_REQUESTS
from tiersidecar.ports.store import Take
from tiersidecar.reading.chunk_files import open_chunk_files_cache
from tiersidecar.reading.chunk_manager import ChunkManager, MemoryChunkCache, StoreChunkManager
from tiersidecar.reading.disk_cache import DiskCacheSettings
from tiersidecar.reading.remote_objects import ManifestCache, RemoteSegment

CHUNK = 1000


class Made:
    """A segment of several chunks of 1000 bytes, its .log, and the store in front of it."""

    def __init__(self, builder: RemoteBuilder, segment: RemoteSegment, log: bytes) -> None:
        self.segment, self.log = segment, log
        self.store = FaultyStore(builder.run.store)

    def chunk(self, index: int) -> bytes:
        return self.log[index * CHUNK : (index + 1) * CHUNK]


async def made(**layout: bool) -> Made:
    builder = RemoteBuilder(chunk_size=CHUNK, **layout)
    offsets = source(0, 35)
    metadata = await builder.add(offsets)
    manifests = ManifestCache(store=builder.run.store, blocking=InlineBlocking(), key_ring=key_ring())
    log = b"".join(batch.data for batch in offsets.batches)
    assert len(log) > 3 * CHUNK
    return Made(builder, await manifests.open(metadata), log)


class Inner:
    """The layer below: gives what is in the .log, and notes what it was asked."""

    def __init__(self, made: Made, *, local: bool = False) -> None:
        self._made, self._local = made, local
        self.asked = list[tuple[object, ...]]()
        self.gate = asyncio.Event()
        self.gate.set()

    async def get_chunk(self, segment: RemoteSegment, index: int) -> bytes:
        self.asked.append(("chunk", segment.id, index))
        await self.gate.wait()
        return self._made.chunk(index)

    async def get_part(self, segment: RemoteSegment, part: ByteRange) -> memoryview:
        self.asked.append(("part", segment.id, part))
        return memoryview(self._made.log)[part.start : part.stop]

    def is_local(self, segment: RemoteSegment) -> bool:
        assert segment is self._made.segment
        return self._local

    async def feed(self, segment: RemoteSegment, byte_range: ByteRange, take: Take) -> None:
        self.asked.append(("feed", segment.id, byte_range))
        take(memoryview(self._made.log)[byte_range.start : byte_range.stop])

    def discard(self, segment: RemoteSegment, index: int) -> None:
        self.asked.append(("discard", segment.id, index))

    async def aclose(self) -> None:
        self.asked.append(("close",))


@asynccontextmanager
async def layer_over(
    kind: str, inner: Inner, directory: Path, telemetry: RecordedTelemetry
) -> AsyncIterator[ChunkManager]:
    if kind == "memory":
        yield MemoryChunkCache(inner, max_bytes=1 << 20, telemetry=telemetry)
        return
    settings = DiskCacheSettings(directory=str(directory), ttl_ms=-1)
    async with open_chunk_files_cache(
        settings, blocking=InlineBlocking(), clock=ManualClock(), telemetry=telemetry
    ) as layer:
        yield layer(inner)


LAYERS = pytest.mark.parametrize("kind", ["memory", "disk"])


@LAYERS
async def test_a_chunk_is_asked_for_once_and_what_came_from_the_cache_is_counted_by_its_tier(
    kind: str, tmp_path: Path
) -> None:
    it, telemetry = await made(), RecordedTelemetry()
    inner = Inner(it)
    async with layer_over(kind, inner, tmp_path, telemetry) as layer:
        for _ in range(3):
            assert [bytes(await layer.get_chunk(it.segment, index)) for index in (1, 2)] == [it.chunk(1), it.chunk(2)]
        assert inner.asked == [("chunk", it.segment.id, 1), ("chunk", it.segment.id, 2)]
        assert telemetry.by_label(READ_CACHE_BYTES, "tier") == {kind: 4 * CHUNK}


@LAYERS
async def test_a_chunk_that_a_reader_found_broken_is_forgotten_in_every_layer(kind: str, tmp_path: Path) -> None:
    it = await made()
    inner = Inner(it)
    async with layer_over(kind, inner, tmp_path, RecordedTelemetry()) as layer:
        for index in (0, 1):
            await layer.get_chunk(it.segment, index)
        layer.discard(it.segment, 1)
        inner.asked.remove(("discard", it.segment.id, 1))
        inner.asked.clear()
        for index in (0, 1):
            await layer.get_chunk(it.segment, index)
        assert inner.asked == [("chunk", it.segment.id, 1)]


@LAYERS
async def test_a_part_comes_from_its_chunk_where_that_is_kept_and_else_alone(kind: str, tmp_path: Path) -> None:
    it, part = await made(), ByteRange(CHUNK + 100, CHUNK + 150)
    inner = Inner(it)
    async with layer_over(kind, inner, tmp_path, RecordedTelemetry()) as layer:
        assert bytes(await layer.get_part(it.segment, part)) == it.log[part.start : part.stop]
        await layer.get_chunk(it.segment, 1)
        assert bytes(await layer.get_part(it.segment, part)) == it.log[part.start : 2 * CHUNK], (
            "to the end of the chunk"
        )
        other = ByteRange(2 * CHUNK, 2 * CHUNK + 1)
        assert bytes(await layer.get_part(it.segment, other)) == it.log[2 * CHUNK : 2 * CHUNK + 1]
        assert inner.asked == [
            ("part", it.segment.id, part),
            ("chunk", it.segment.id, 1),
            ("part", it.segment.id, other),
        ]


@LAYERS
async def test_what_is_fed_is_passed_on_and_so_is_the_end(kind: str, tmp_path: Path) -> None:
    it, fed = await made(), list[bytes]()
    inner = Inner(it)

    def take(piece: memoryview) -> int:
        fed.append(bytes(piece))
        return len(piece)

    async with layer_over(kind, inner, tmp_path, RecordedTelemetry()) as layer:
        await layer.feed(it.segment, ByteRange(5, 25), take)
        await layer.aclose()
    assert fed == [it.log[5:25]]
    assert inner.asked == [("feed", it.segment.id, ByteRange(5, 25)), ("close",)]


@pytest.mark.parametrize("local", [True, False])
async def test_a_log_that_lies_here_is_read_where_it_lies_unless_chunks_of_it_are_kept_on_disk(
    tmp_path: Path, *, local: bool
) -> None:
    it = await made()
    async with layer_over("memory", Inner(it, local=local), tmp_path, RecordedTelemetry()) as layer:
        assert layer.is_local(it.segment) is local
    async with layer_over("disk", Inner(it, local=local), tmp_path, RecordedTelemetry()) as layer:
        assert not layer.is_local(it.segment), "who has these files made has a store that is slower than they are"


async def test_a_part_of_a_chunk_that_is_on_its_way_waits_for_it() -> None:
    it = await made()
    inner = Inner(it)
    layer = MemoryChunkCache(inner, max_bytes=1 << 20)
    inner.gate.clear()
    whole = asyncio.create_task(layer.get_chunk(it.segment, 1))
    await settle()
    part = asyncio.create_task(layer.get_part(it.segment, ByteRange(CHUNK + 10, CHUNK + 20)))
    await settle()
    inner.gate.set()
    assert bytes(await part) == it.chunk(1)[10:]
    assert bytes(await whole) == it.chunk(1)
    assert inner.asked == [("chunk", it.segment.id, 1)]


def store_chunks(
    it: Made, telemetry: RecordedTelemetry, *, parallel: int = 2, timeout_s: float = 600
) -> StoreChunkManager:
    return StoreChunkManager(
        store=it.store,
        blocking=InlineBlocking(),
        max_parallel=parallel,
        timeout_s=timeout_s,
        telemetry=telemetry,
    )


@pytest.mark.parametrize("layout", [{}, {"compression": True}, {"encrypted": True}], ids=str)
async def test_a_part_is_fetched_alone_where_nothing_was_transformed(layout: dict[str, bool]) -> None:
    it = await made(**layout)
    chunks = store_chunks(it, RecordedTelemetry())
    part = await chunks.get_part(it.segment, ByteRange(CHUNK + 10, CHUNK + 20))
    assert bytes(part) == (it.chunk(1)[10:] if layout else it.chunk(1)[10:20])
    ((_, asked),) = it.store.log_fetches()
    assert (asked == ByteRange(CHUNK + 10, CHUNK + 20)) is not bool(layout)


@pytest.mark.parametrize("layout", [{}, {"compression": True}], ids=str)
async def test_a_chunk_that_does_not_open_is_fetched_once_more_and_no_oftener(layout: dict[str, bool]) -> None:
    it = await made(**layout)
    chunks = store_chunks(it, RecordedTelemetry())
    left = [1]

    def cut(key: str, byte_range: ByteRange | None, data: bytes) -> bytes:
        left[0] -= 1
        return data[:-1] if left[0] >= 0 else data

    it.store.bend = cut
    assert bytes(await chunks.get_chunk(it.segment, 1)) == it.chunk(1)
    it.store.fetched.clear()
    left[0] = 5
    with pytest.raises(CorruptDataError, match="chunk 1 of") as error:
        await chunks.get_chunk(it.segment, 1)
    assert it.segment.keys.log in str(error.value)
    assert len(it.store.fetched) == 2


async def test_a_part_of_which_less_came_is_an_error_that_says_where() -> None:
    it = await made()
    it.store.bend = lambda key, byte_range, data: data[:-3]
    with pytest.raises(CorruptDataError, match=f"at byte {CHUNK}: 7 bytes came of 10") as error:
        await store_chunks(it, RecordedTelemetry()).get_part(it.segment, ByteRange(CHUNK, CHUNK + 10))
    assert it.segment.keys.log in str(error.value)


@pytest.mark.parametrize(
    ("layout", "store_is_local", "is_local"),
    [
        pytest.param({}, True, True, id="as the broker had it, here"),
        pytest.param({}, False, False, id="elsewhere"),
        pytest.param({"compression": True}, True, False, id="compressed"),
        pytest.param({"encrypted": True}, True, False, id="encrypted"),
    ],
)
async def test_which_log_is_read_where_it_lies(
    layout: dict[str, bool], monkeypatch: pytest.MonkeyPatch, *, store_is_local: bool, is_local: bool
) -> None:
    it = await made(**layout)
    monkeypatch.setattr(it.store, "is_local", store_is_local, raising=False)
    assert store_chunks(it, RecordedTelemetry()).is_local(it.segment) is is_local


async def test_what_is_fed_is_a_request_of_so_many_bytes_and_no_more_run_at_once_than_may() -> None:
    it, telemetry = await made(), RecordedTelemetry()
    chunks, fed = store_chunks(it, telemetry), list[bytes]()

    def take(piece: memoryview) -> int:
        fed.append(bytes(piece))
        return len(piece)

    it.store.gate.clear()
    feeding = [asyncio.create_task(chunks.feed(it.segment, ByteRange(start, start + 7), take)) for start in (0, 7, 14)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(it.store.fetched) == 2
    it.store.gate.set()
    await asyncio.gather(*feeding)
    assert sorted(fed) == sorted([it.log[0:7], it.log[7:14], it.log[14:21]])
    assert telemetry.value(READ_STORE_REQUESTS, kind="chunk") == 3
    assert telemetry.value(READ_STORE_BYTES) == 21


async def test_what_is_fed_has_a_time_limit_and_its_key_is_told() -> None:
    it = await made()
    it.store.gate.clear()
    with pytest.raises(StoreError, match=r"did not come within 0\.05 s") as error:
        await store_chunks(it, RecordedTelemetry(), timeout_s=0.05).feed(it.segment, ByteRange(0, 7), len)
    assert it.segment.keys.log in str(error.value)


async def test_a_chunk_that_came_with_its_neighbours_keeps_none_of_them_in_memory() -> None:
    it = await made()
    chunks = StoreChunkManager(store=it.store, blocking=InlineBlocking(), merged_bytes=3 * CHUNK)
    found = await asyncio.gather(*(chunks.get_chunk(it.segment, index) for index in range(3)))
    assert len(it.store.log_fetches()) == 1
    assert [bytes(one) for one in found] == [it.chunk(index) for index in range(3)]
    assert all(memoryview(one).nbytes == memoryview(memoryview(one).obj).nbytes for one in found)
