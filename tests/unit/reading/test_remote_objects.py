"""Opening remote segments: keys, manifests, data keys.

One piece of work per key, which outlives those who asked for it (U2).

A cache bounded by bytes (S-124).
"""

from __future__ import annotations

import asyncio
import gc
import json
from dataclasses import replace
from threading import Event
from time import monotonic
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.faulty_store import FaultyStore
from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import settle
from tests.support.remote_builder import RemoteBuilder
from tests.support.remote_runs import RemoteRun, key_ring, load_run, segments_of
from tests.unit.reading.test_histories import source
from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.adapters.key_wrapping.service_keys import ServiceKeys
from tiersidecar.domain.data_keys import KeyContext, WrappedKey
from tiersidecar.domain.errors import (
    CorruptDataError,
    DataKeyError,
    KeyServiceError,
    ObjectNotFoundError,
    QuotaExceededError,
    StoreError,
)
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.index_blob import MOST_CHUNK_BYTES
from tiersidecar.formats.aiven.keys import CustomMetadata, write_custom_metadata
from tiersidecar.formats.aiven.transforms import DEFAULT_CHUNK_SIZE, ChunkIndex
from tiersidecar.ports.store import BytesBody
from tiersidecar.reading.remote_objects import ByteLru, ManifestCache, SingleFlight, recorded_keys


def first_segment(run: RemoteRun, partition: str) -> RemoteLogSegmentMetadata:
    return segments_of(run, run.partition(partition))[0]


async def test_recorded_keys_hold_after_the_configured_prefix_has_changed() -> None:
    """The manifest's too: the plugin would look for it under the new prefix, and not find it."""
    run = await load_run("prefix-custommeta")
    segment = first_segment(run, "epochs-0")
    assert recorded_keys(segment, "elsewhere/") == recorded_keys(segment, "tiered/some-prefix/")
    cache = ManifestCache(store=run.store, blocking=InlineBlocking(), key_prefix="elsewhere/")
    opened = await cache.open(segment)
    assert opened.keys.manifest.startswith("tiered/some-prefix/epochs-")


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(CustomMetadata(object_prefix="@cold/"), id="as a prefix"),
        pytest.param(CustomMetadata(object_prefix="@cold/", object_key="theirs"), id="as a prefix, with another path"),
        pytest.param(CustomMetadata(object_prefix="", object_key="@cold/theirs"), id="as a path"),
        pytest.param(CustomMetadata(object_prefix="@co", object_key="ld/theirs"), id="as both together"),
    ],
)
async def test_a_recorded_prefix_leads_to_no_place(said: CustomMetadata) -> None:
    """S-293: whose the objects in a place are is asked in the place that the segment names."""
    segment = replace(await RemoteBuilder().add(source(0, 35)), custom_metadata=write_custom_metadata(said))
    with pytest.raises(CorruptDataError, match="a prefix that looks like a place"):
        recorded_keys(segment, "tiered/")
    one = replace(segment, custom_metadata=write_custom_metadata(CustomMetadata(object_prefix="@own/x/")))
    assert recorded_keys(one, "@own/").manifest.startswith("@own/x/"), "without places a prefix may look so"


async def test_without_custom_metadata_the_configured_prefix_counts() -> None:
    run = await load_run("plain")
    segment = first_segment(run, "plain-0")
    cache = ManifestCache(store=run.store, blocking=InlineBlocking(), key_prefix="elsewhere/")
    with pytest.raises(ObjectNotFoundError, match="elsewhere/plain-"):
        await cache.open(segment)


async def test_a_manifest_is_fetched_once_and_anew_when_forgotten() -> None:
    run = await load_run("plain")
    store, segment = FaultyStore(run.store), first_segment(run, "plain-0")
    cache = ManifestCache(store=store, blocking=InlineBlocking())
    assert await cache.open(segment) is await cache.open(segment)
    assert len(store.fetched) == 1
    cache.forget(segment.remote_log_segment_id)
    await cache.open(segment)
    assert len(store.fetched) == 2


async def test_a_manifest_of_a_segment_of_another_size_is_refused() -> None:
    run = await load_run("plain")
    segment = first_segment(run, "plain-0")
    cache = ManifestCache(store=run.store, blocking=InlineBlocking())
    with pytest.raises(CorruptDataError, match="14414 bytes, the metadata say 14415"):
        await cache.open(replace(segment, segment_size_in_bytes=14415))


async def test_an_encrypted_segment_opens_with_its_key_and_not_without() -> None:
    run = await load_run("encrypted")
    segment = first_segment(run, "plain-0")
    opened = await ManifestCache(store=run.store, blocking=InlineBlocking(), key_ring=key_ring()).open(segment)
    assert opened.transform.cipher is not None
    with pytest.raises(DataKeyError, match="key1"):
        await ManifestCache(store=run.store, blocking=InlineBlocking()).open(segment)


async def opened_with(*, chunk: int, size: int, compression: bool = False, most: int = MOST_CHUNK_BYTES) -> ChunkIndex:
    """The chunks of a segment of ``size`` bytes whose manifest says that it has chunks of ``chunk``; only that is read."""
    builder = RemoteBuilder()
    metadata = replace(await builder.add(source(0, 35)), segment_size_in_bytes=size)
    key = recorded_keys(metadata, "").manifest
    document = json.loads(await builder.run.store.fetch_object(key, max_bytes=2**30))
    document["compression"] = compression
    document["chunkIndex"] = {
        "type": "fixed",
        "originalChunkSize": chunk,
        "originalFileSize": size,
        "transformedChunkSize": chunk,
        "finalTransformedChunkSize": size % chunk or chunk,
    }
    await builder.run.store.put_object(key, BytesBody(json.dumps(document).encode()))
    cache = ManifestCache(store=builder.run.store, blocking=InlineBlocking(), most_chunk_bytes=most)
    return (await cache.open(metadata)).chunk_index


LARGE = 2 * MOST_CHUNK_BYTES


@pytest.mark.parametrize(
    ("chunk", "most", "expected"),
    [
        pytest.param(MOST_CHUNK_BYTES, 1, MOST_CHUNK_BYTES, id="as large as may be opened: as they are"),
        pytest.param(MOST_CHUNK_BYTES + 1, 1, DEFAULT_CHUNK_SIZE, id="larger: cut as if we had written them"),
        pytest.param(MOST_CHUNK_BYTES + 1, MOST_CHUNK_BYTES + 1, MOST_CHUNK_BYTES + 1, id="larger ones are configured"),
    ],
)
async def test_what_was_not_transformed_may_be_cut_anywhere(chunk: int, most: int, expected: int) -> None:
    """A chunk is in memory whole: whoever writes manifests could have a reader fill its memory."""
    index = await opened_with(chunk=chunk, size=LARGE, most=most)
    assert (index.original_chunk_size, index.original_file_size) == (expected, LARGE)


async def test_of_transformed_chunks_those_that_are_too_large_are_refused_with_what_to_set() -> None:
    chunk = MOST_CHUNK_BYTES + 1
    reason = f"{chunk} bytes, and none of more than {MOST_CHUNK_BYTES} is opened: chunk.size must be"
    with pytest.raises(CorruptDataError, match=reason) as error:
        await opened_with(chunk=chunk, size=LARGE, compression=True)
    assert ".rsm-manifest" in str(error.value)
    assert (await opened_with(chunk=chunk, size=LARGE, compression=True, most=chunk)).original_chunk_size == chunk


async def test_a_single_chunk_is_as_large_as_its_segment_whatever_the_chunks_size() -> None:
    index = await opened_with(chunk=LARGE, size=MOST_CHUNK_BYTES, compression=True)
    assert index.original_file_size == MOST_CHUNK_BYTES


async def test_a_manifest_that_does_not_come_in_time_is_told_with_its_key() -> None:
    run = await load_run("plain")

    class Hanging(FaultyStore):
        async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
            await asyncio.Event().wait()
            raise AssertionError

    cache = ManifestCache(store=Hanging(run.store), blocking=InlineBlocking(), timeout_s=0.01)
    with pytest.raises(StoreError, match=r"rsm-manifest.*did not come within 0.01 s"):
        await cache.open(first_segment(run, "plain-0"))


async def test_what_is_kept_weighs_as_much_as_its_bytes_and_its_objects() -> None:
    """32 MiB of manifests must not be 300 MiB of Python objects."""
    builder = RemoteBuilder(chunk_size=100, compression=True)
    first = await builder.add(source(0, 35, {0: 0, 1: 10}))
    store = FaultyStore(builder.run.store)
    one = await ManifestCache(store=store, blocking=InlineBlocking()).open(first)
    sizes = one.chunk_index.transformed_sizes
    assert sizes is not None
    assert len(sizes) > 50
    assert one.held_bytes == 4096 + 48 * len(sizes) + 128 * 2
    (manifest,) = [key for key, _ in store.fetched]
    weight = one.held_bytes + len(await builder.run.store.fetch_object(manifest, max_bytes=2**30))
    for most, fetches in ((weight, 1), (weight - 1, 2)):
        store.fetched.clear()
        cache = ManifestCache(store=store, blocking=InlineBlocking(), max_bytes=most)
        for _ in range(2):
            await cache.open(first)
        assert len(store.fetched) == fetches


async def test_a_manifest_that_says_nothing_of_its_segment_weighs_without_it() -> None:
    builder = RemoteBuilder(chunk_size=1 << 20)
    metadata = await builder.add(source(0, 35))
    opened = await ManifestCache(store=builder.run.store, blocking=InlineBlocking()).open(metadata)
    assert opened.held_bytes == 4096 + 128
    document = json.loads(await builder.run.store.fetch_object(opened.keys.manifest, max_bytes=2**30))
    del document["remoteLogSegmentMetadata"]
    await builder.run.store.put_object(opened.keys.manifest, BytesBody(json.dumps(document).encode()))
    opened = await ManifestCache(store=builder.run.store, blocking=InlineBlocking()).open(metadata)
    assert opened.held_bytes == 4096


@pytest.mark.parametrize("content", [b"", b"{}", b"x" * (64 * 1024 * 1024)], ids=["empty", "of nothing", "of 64 MiB"])
async def test_what_is_no_manifest_is_told_with_its_key(content: bytes) -> None:
    builder = RemoteBuilder()
    metadata = await builder.add(source(0, 35))
    key = recorded_keys(metadata, "").manifest
    await builder.run.store.put_object(key, BytesBody(content))
    with pytest.raises(CorruptDataError) as error:
        await ManifestCache(store=builder.run.store, blocking=InlineBlocking()).open(metadata)
    assert key in str(error.value)


async def test_custom_metadata_of_another_plugin_are_told_with_their_segment() -> None:
    run = await load_run("plain")
    segment = first_segment(run, "plain-0")
    with pytest.raises(CorruptDataError, match="custom metadata of") as error:
        recorded_keys(replace(segment, custom_metadata=b"\xff\xff"), "")
    assert str(segment.remote_log_segment_id) in str(error.value)


class Work:
    """Counts its runs and waits to be let go."""

    def __init__(self, result: str | Exception = "done") -> None:
        self.result, self.runs, self.gate = result, 0, asyncio.Event()

    async def __call__(self) -> str:
        self.runs += 1
        await self.gate.wait()
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


async def test_those_who_ask_meanwhile_share_one_run() -> None:
    flights: SingleFlight[str, str] = SingleFlight("test")
    work = Work()
    waiting = [asyncio.create_task(flights.run("a", work)) for _ in range(5)]
    await settle()
    work.gate.set()
    assert await asyncio.gather(*waiting) == ["done"] * 5
    assert work.runs == 1
    assert len(flights) == 0


async def test_a_caller_that_leaves_leaves_the_work_to_the_others() -> None:
    flights: SingleFlight[str, str] = SingleFlight("test")
    work = Work()
    leaving, staying = (asyncio.create_task(flights.run("a", work)) for _ in range(2))
    await settle()
    leaving.cancel()
    await settle()
    assert leaving.cancelled()
    work.gate.set()
    assert await staying == "done"


async def test_work_that_everyone_left_goes_on_to_its_end() -> None:
    flights: SingleFlight[str, str] = SingleFlight("test")
    work = Work()
    leaving = asyncio.create_task(flights.run("a", work))
    await settle()
    leaving.cancel()
    await settle()
    assert len(flights) == 1
    work.gate.set()
    await settle()
    assert len(flights) == 0


async def test_a_failure_reaches_all_who_wait_and_is_not_kept() -> None:
    flights: SingleFlight[str, str] = SingleFlight("test")
    work = Work(StoreError(verb="fetch", key="k", reason="away"))
    waiting = [asyncio.create_task(flights.run("a", work)) for _ in range(2)]
    work.gate.set()
    assert [type(one) for one in await asyncio.gather(*waiting, return_exceptions=True)] == [StoreError] * 2
    assert await flights.run("a", lambda: Work.__call__(open_work())) == "done"


def open_work() -> Work:
    work = Work()
    work.gate.set()
    return work


async def test_callers_that_give_up_early_cannot_pile_up_work() -> None:
    """Rule 8: bounded."""
    flights: SingleFlight[int, str] = SingleFlight("chunk", max_flights=2)
    work = Work()
    leaving = [asyncio.create_task(flights.run(n, work)) for n in range(2)]
    await settle()
    for one in leaving:
        one.cancel()
    await settle()
    with pytest.raises(QuotaExceededError, match="chunk in flight") as shed:
        await flights.run(3, work)
    assert shed.value.retry_after_ms == 1000
    await flights.aclose()
    assert len(flights) == 0


async def test_it_tells_what_is_in_flight() -> None:
    flights: SingleFlight[str, str] = SingleFlight("test")
    work = Work()
    waiting = asyncio.create_task(flights.run("a", work))
    await settle()
    assert [flights.has(key) for key in "ab"] == [True, False]
    work.gate.set()
    await waiting
    assert not flights.has("a")


@pytest.mark.parametrize("ends", ["fails", "is cancelled"])
async def test_work_that_ends_badly_when_everyone_has_left_is_no_error_of_the_loops(ends: str) -> None:
    """asyncio would say so in the log, once for each reader that gave up."""
    told = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    flights: SingleFlight[str, str] = SingleFlight("test")
    work = Work(StoreError(verb="fetch", key="k", reason="away"))
    leaving = asyncio.create_task(flights.run("a", work))
    await settle()
    leaving.cancel()
    await settle()
    if ends == "fails":
        work.gate.set()
        await settle()
    else:
        await flights.aclose()
    del leaving, work
    gc.collect()
    await settle()
    assert (told, len(flights)) == ([], 0)


def test_what_was_not_asked_for_longest_goes_first() -> None:
    cache: ByteLru[str, int] = ByteLru(30)
    for name in "abc":
        assert cache.put(name, ord(name), 10) == []
    assert cache.get("a") == ord("a")
    assert cache.put("d", ord("d"), 10) == [("b", ord("b"))]
    assert cache.keys() == ["c", "a", "d"]


def test_a_value_larger_than_the_whole_drives_out_nothing() -> None:
    cache: ByteLru[str, int] = ByteLru(30)
    cache.put("a", 1, 20)
    assert cache.put("b", 2, 31) == [("b", 2)]
    assert cache.keys() == ["a"]


def test_a_value_as_large_as_the_whole_is_kept() -> None:
    cache: ByteLru[str, int] = ByteLru(30)
    assert cache.put("a", 1, 30) == []
    assert cache.put("b", 2, 1) == [("a", 1)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 12), st.booleans())), st.integers(0, 40))
def test_it_is_a_map_that_drops_no_more_than_its_bound_asks_for(steps: list[tuple[str, int, bool]], most: int) -> None:
    cache: ByteLru[str, int] = ByteLru(most)
    model: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for turn, (key, size, is_removal) in enumerate(steps):
        if is_removal:
            assert cache.discard(key) == model.pop(key, None)
            sizes.pop(key, None)
        else:
            model[key], sizes[key] = turn, size
            for dropped, value in cache.put(key, turn, size):
                assert sum(sizes.values()) > most, "nothing had to go"
                assert model.pop(dropped) == value
                del sizes[dropped]
        assert cache.size_bytes == sum(sizes.values()) <= most
        assert dict(zip(cache.keys(), map(cache.get, cache.keys()), strict=True)) == model
        assert len(cache) == len(model)


class HangingKms:
    """``KeyWrapping`` that answers nothing before ``ended`` once it ``hangs``."""

    def __init__(self) -> None:
        self.hangs, self.ended, self.is_full, self.asked = False, Event(), Event(), 0

    def wrap(self, data_key: bytes, context: KeyContext) -> WrappedKey:
        return WrappedKey("k", data_key)

    def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        if not self.hangs:
            return wrapped.data
        self.asked += 1
        if self.asked == 4:
            self.is_full.set()
        self.ended.wait(30)
        raise KeyServiceError(service="KMS", verb="unwrap", reason="no answer")


async def test_a_key_service_that_hangs_takes_no_threads_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen manifests took all threads of the process: pins and checks waited as well."""
    kms = HangingKms()
    # As another process has them: it asks for every key.
    writing = ServiceKeys("kms", kms, keep_s=60, now_s=monotonic)
    reading = ServiceKeys("kms", kms, keep_s=60, now_s=monotonic)
    monkeypatch.setattr("tests.support.remote_builder.key_ring", lambda: writing)
    builder = RemoteBuilder(encrypted=True)
    for _ in range(16):
        await builder.add(source(0, 100))
    kms.hangs = True
    segments = segments_of(builder.run, builder.partition)
    async with ThreadBlocking(max_threads=16) as blocking:
        cache = ManifestCache(store=builder.run.store, blocking=blocking, key_ring=reading)
        opening = [asyncio.create_task(cache.open(segment)) for segment in segments]
        await asyncio.to_thread(kms.is_full.wait, 10)
        assert await asyncio.wait_for(blocking.run(len, "pin"), timeout=5) == 3
        kms.ended.set()
        outcomes = await asyncio.gather(*opening, return_exceptions=True)
        await cache.aclose()
    assert [type(one) for one in outcomes] == [KeyServiceError] * 16
    assert kms.asked == 4, "the others heard at once that it is away"
