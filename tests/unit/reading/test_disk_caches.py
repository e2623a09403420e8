"""Index files and chunks on disk: Kafka's names and rules, and nothing damaged is ever served.

Shown here: S-121, S-123, S-124, S-125, S-127, S-128, S-129, S-130, S-131; U22, U23.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support.faulty_store import FaultyStore, flip_bit
from tests.support.inline_blocking import InlineBlocking
from tests.support.local_batches import batches_between
from tests.support.manual_clock import ManualClock
from tests.support.remote_runs import RemoteRun, load_run, open_run, segments_of
from tiersidecar.domain.errors import CorruptDataError, StoreError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.reading.chunk_files import open_chunk_files_cache
from tiersidecar.reading.disk_cache import (
    CacheBound,
    DiskCache,
    DiskCacheSettings,
    IndexFilesCache,
    open_index_files_cache,
)
from tiersidecar.reading.index_blobs import IndexBlobReader, RemoteIndexCache
from tiersidecar.reading.read_path import ReadSettings
from tiersidecar.reading.remote_objects import ManifestCache


class Setting:
    """The index files cache over the plugin's transactions topic, and a count of what the store was asked."""

    def __init__(self, run: RemoteRun, directory: Path) -> None:
        self.run, self.directory, self.clock = run, directory, ManualClock()
        self.store = FaultyStore(run.store)
        self.segments = segments_of(run, run.partition("transactions-0"))

    @asynccontextmanager
    async def opened(self, bound: CacheBound | None = None, ttl_ms: int = 900_000) -> AsyncIterator[IndexFilesCache]:
        manifests = ManifestCache(store=self.store, blocking=InlineBlocking())
        inner = IndexBlobReader(store=self.store, blocking=InlineBlocking(), manifests=manifests)
        settings = DiskCacheSettings(directory=str(self.directory), bound=bound or CacheBound(), ttl_ms=ttl_ms)
        async with open_index_files_cache(inner, settings, blocking=InlineBlocking(), clock=self.clock) as cache:
            yield cache

    def names(self) -> set[str]:
        return {path.name for path in self.directory.iterdir()}

    def fetches(self) -> int:
        return len([key for key, _ in self.store.fetched if key.endswith(".indexes")])


@pytest.fixture
async def setting(tmp_path: Path) -> Setting:
    return Setting(await load_run("plain"), tmp_path / "remote-log-index-cache")


def files_of(segment: RemoteLogSegmentMetadata) -> set[str]:
    stem = f"{segment.start_offset}_{format_uuid(segment.remote_log_segment_id.uuid)}"
    return {f"{stem}.index", f"{stem}.timeindex", f"{stem}.txnindex", f"{stem}.crc32c"}


async def test_files_have_kafkas_names_and_the_brokers_bytes(setting: Setting) -> None:
    """S-121, and S-134: three files for each segment, as the final KIP has them; none is written anew as a log grows."""
    async with setting.opened() as cache:
        files = await cache.read_index_files(setting.segments[1])
        assert setting.names() == files_of(setting.segments[1])
        assert await cache.read_index_files(setting.segments[1]) == files
        fetched = setting.fetches()
        await cache.read_index_files(setting.segments[1])
        assert setting.fetches() == fetched


async def test_a_missing_transaction_index_is_an_empty_file(tmp_path: Path) -> None:
    """S-128."""
    run = await load_run("plain")
    setting = Setting(run, tmp_path / "cache")
    segment = segments_of(run, run.partition("plain-0"))[0]
    async with setting.opened() as cache:
        assert (await cache.read_index_files(segment)).transaction_index == b""
        assert setting.names() == files_of(segment)


async def test_a_restart_takes_over_whole_sets_and_removes_the_rest(setting: Setting) -> None:
    """T-75; S-129."""
    async with setting.opened() as cache:
        for segment in setting.segments[:2]:
            await cache.read_index_files(segment)
    incomplete = sorted(files_of(setting.segments[1]))[2]
    (setting.directory / incomplete).unlink()
    for stray in ("7_abc.index.tmp", "9_def.index.deleted", "notes.txt"):
        (setting.directory / stray).write_bytes(b"x")
    before = setting.fetches()
    async with setting.opened() as cache:
        await cache.read_index_files(setting.segments[0])
        assert setting.fetches() == before
        await cache.read_index_files(setting.segments[1])
        assert setting.fetches() > before
        await setting.clock.advance(60)
        assert setting.names() == files_of(setting.segments[0]) | files_of(setting.segments[1])


async def test_over_its_bound_it_drops_what_was_not_used_longest_and_removes_it_after_the_delay(
    setting: Setting,
) -> None:
    """T-76, S-124, S-130, S-173: first renamed, so that whoever has it open reads on; the bound may change meanwhile."""
    bound = CacheBound()
    async with setting.opened(bound) as cache:
        sizes = [(await cache.read_index_files(segment)).size_bytes for segment in setting.segments[:3]]
        await cache.read_index_files(setting.segments[0])
        bound.max_bytes = sizes[0] + sizes[2] + 2 * 4
        await setting.clock.advance(5)
        dropped = files_of(setting.segments[1])
        assert setting.names() & dropped == set()
        assert {f"{name}.deleted" for name in dropped} <= setting.names()
        await setting.clock.advance(16)
        assert setting.names() == files_of(setting.segments[0]) | files_of(setting.segments[2])


async def test_at_its_end_nothing_that_was_dropped_is_left(setting: Setting) -> None:
    """What was erased would lie there until the next start, which may never come."""
    first, second, third = setting.segments[:3]
    bound = CacheBound()
    async with setting.opened(bound) as cache:
        await cache.read_index_files(first)
        bound.max_bytes = sum(setting.directory.joinpath(name).stat().st_size for name in files_of(first)) + 100
        await cache.read_index_files(second)
        cache.discard(second.remote_log_segment_id)
        await cache.read_index_files(third)
        assert files_of(second) < setting.names(), "forgotten, and not removed yet"
        assert any(name.endswith(".deleted") for name in setting.names()), "dropped, and not removed yet"
    assert setting.names() == files_of(third)


T = TypeVar("T")


class SlowDisk:
    """ports.clock.Blocking whose calls end, and are only then told to be cancelled, as in threads."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def run(self, function: Callable[..., T], *args: object) -> T:
        result = function(*args)
        self.begun.set()
        await self.may_end.wait()
        return result


async def test_what_is_being_dropped_when_it_ends_is_not_left(tmp_path: Path) -> None:
    disk = SlowDisk()
    cache = DiskCache(DiskCacheSettings(directory=str(tmp_path)), blocking=disk, clock=ManualClock())
    await cache.list_files()
    await cache.put("erased", {"erased": b"key"})
    cache.discard("erased")
    disk.may_end.clear()
    disk.begun.clear()
    tidying = asyncio.create_task(cache.tidy())
    await disk.begun.wait()
    tidying.cancel()
    disk.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await tidying
    await cache.finish()
    assert list(tmp_path.iterdir()) == []


async def test_what_is_idle_for_too_long_goes(setting: Setting) -> None:
    """S-125: and -1 keeps it for ever."""
    async with setting.opened() as cache:
        await cache.read_index_files(setting.segments[0])
        await setting.clock.advance(600)
        await cache.read_index_files(setting.segments[1])
        await setting.clock.advance(600)
        assert setting.names() == files_of(setting.segments[1])
    async with setting.opened(ttl_ms=-1) as cache:
        await setting.clock.advance(10_000)
        assert setting.names() == files_of(setting.segments[1])


async def test_damaged_files_are_fetched_anew(setting: Setting) -> None:
    """S-127, T-75, S-133 (an entry that is damaged is found out); U23: torn, cut, missing or nonsense."""
    segment = setting.segments[0]
    async with setting.opened() as files:
        good = await RemoteIndexCache(files, blocking=InlineBlocking()).indexes(segment)
        for name in sorted(files_of(segment)):
            path = setting.directory / name
            whole = path.read_bytes()
            flipped = [flip_bit(whole, bit) for bit in range(0, len(whole) * 8, 5)]
            for damaged in (b"", whole[:-1], whole + b"\1", None, *flipped):
                path.unlink()
                if damaged is not None:
                    path.write_bytes(damaged)
                assert await RemoteIndexCache(files, blocking=InlineBlocking()).indexes(segment) == good
                assert path.read_bytes() == whole


async def test_a_disk_that_takes_nothing_is_no_error_of_the_readers(setting: Setting) -> None:
    async with setting.opened() as cache:
        setting.directory.rmdir()
        setting.directory.write_bytes(b"in the way")
        assert (await cache.read_index_files(setting.segments[0])).offset_index


async def test_a_disk_that_gives_nothing_is_no_error_of_the_readers(setting: Setting) -> None:
    """A failing cache disk (EIO; here: a directory where a file was) failed every read that the store could have served."""
    async with setting.opened() as cache:
        files = await cache.read_index_files(setting.segments[1])
        for name in files_of(setting.segments[1]):
            (setting.directory / name).unlink()
            (setting.directory / name).mkdir()
        for _ in range(2):
            assert await cache.read_index_files(setting.segments[1]) == files


async def test_chunks_outlive_the_process_and_are_checked_when_read(tmp_path: Path) -> None:
    run = await load_run("encrypted")
    partition = run.partition("plain-0")
    store, settings = FaultyStore(run.store), DiskCacheSettings(directory=str(tmp_path / "chunks"), ttl_ms=-1)

    async def read_all() -> bytes:
        async with (
            open_chunk_files_cache(settings, blocking=InlineBlocking(), clock=ManualClock()) as layer,
            open_run(run, store=store, chunk_layers=[layer]) as path,
        ):
            fetched = await path.reader.read_batches(partition, 0, max_bytes=1 << 20)
            return b"".join(bytes(one.buffer) for one in fetched.slices)

    expected = batches_between("plain-0", 0, 245)
    assert await read_all() == expected
    first = len(store.log_fetches())
    assert await read_all() == expected
    assert len(store.log_fetches()) == first, "all chunks came from the disk"
    for number, path in enumerate(sorted((tmp_path / "chunks").iterdir())):
        path.write_bytes(flip_bit(path.read_bytes(), 997 * number + 3))
    assert await read_all() == expected
    assert len(store.log_fetches()) == 2 * first, "none of the damaged ones did"


async def test_a_damaged_chunk_never_leaves_the_disk(tmp_path: Path) -> None:
    """Not even to be found out by the checks of the batches in it."""
    run = await load_run("plain")
    settings = DiskCacheSettings(directory=str(tmp_path), ttl_ms=-1)
    async with (
        open_chunk_files_cache(settings, blocking=InlineBlocking(), clock=ManualClock()) as layer,
        open_run(run, chunk_layers=[layer], settings=ReadSettings(chunk_cache_bytes=0)) as path,
    ):
        segment = await path.manifests.open(segments_of(run, run.partition("plain-0"))[0])
        whole = await path.chunks.get_chunk(segment, 0)
        (file,) = tmp_path.iterdir()
        for bit in range(0, len(whole) * 8, 997):
            file.write_bytes(flip_bit(file.read_bytes(), bit))
            assert await path.chunks.get_chunk(segment, 0) == whole


async def test_chunks_on_disk_are_bounded(tmp_path: Path) -> None:
    run = await load_run("plain")
    settings = DiskCacheSettings(directory=str(tmp_path), bound=CacheBound(40_000), ttl_ms=-1)
    clock = ManualClock()
    async with (
        open_chunk_files_cache(settings, blocking=InlineBlocking(), clock=clock) as layer,
        open_run(run, chunk_layers=[layer]) as path,
    ):
        await path.reader.read_batches(run.partition("plain-0"), 0, max_bytes=1 << 20)
        await clock.advance(60)
        assert 0 < sum(path.stat().st_size for path in tmp_path.iterdir()) <= 40_000


async def test_a_corrupt_index_from_the_store_is_an_error_and_nothing_of_it_is_kept(setting: Setting) -> None:
    """T-75, U23."""
    setting.store.bend = lambda key, byte_range, data: data[:-3] + b"\xff" if key.endswith(".indexes") else data
    async with setting.opened() as files:
        indexes = RemoteIndexCache(files, blocking=InlineBlocking())
        with pytest.raises((CorruptDataError, StoreError)):
            await indexes.indexes(setting.segments[0])
        assert setting.names() == set()
        setting.store.bend = None
        assert (await indexes.indexes(setting.segments[0])).offset_index


async def test_what_is_not_there_may_be_dropped_and_readers_meanwhile_never_find_a_closed_file(
    setting: Setting,
) -> None:
    """T-76, S-131 (KAFKA-17184)."""
    async with setting.opened() as files:
        wanted = {segment: await files.read_index_files(segment) for segment in setting.segments}
        files.discard(setting.segments[0].remote_log_segment_id)
        files.discard(setting.segments[0].remote_log_segment_id)

        async def read(segment: RemoteLogSegmentMetadata) -> None:
            for _ in range(30):
                assert await files.read_index_files(segment) == wanted[segment]
                await asyncio.sleep(0)

        async def drop() -> None:
            for number in range(60):
                files.discard(setting.segments[number % len(setting.segments)].remote_log_segment_id)
                await asyncio.sleep(0)

        await asyncio.gather(*map(read, setting.segments), drop())


def test_kafkas_defaults() -> None:
    """S-124, S-125, S-130: 1 GiB, 15 minutes, and files stay a while after they were dropped."""
    settings = DiskCacheSettings(directory="unused")
    assert (settings.bound.max_bytes, settings.ttl_ms) == (1 << 30, 900_000)
    assert settings.file_delete_delay_ms == 10_000
