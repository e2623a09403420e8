"""A store that is slow, fails, or returns short or damaged bytes: an error or a retry, never wrong bytes (S-152; U2, U23)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import pytest

from tests.support.faulty_store import Bend, FaultyStore, away, flip_bit
from tests.support.inline_blocking import InlineBlocking
from tests.support.local_batches import batches_between
from tests.support.manual_clock import ManualClock
from tests.support.remote_runs import RemoteRun, load_run, open_run, segments_of
from tiersidecar.domain.errors import (
    CorruptDataError,
    ObjectNotFoundError,
    OffsetOutOfRangeError,
    StoreError,
    TiersidecarError,
)
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.offsets import ByteRange, Lineage, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.reading.read_path import ReadPath, ReadSettings, open_read_path
from tiersidecar.reading.remote_objects import ManifestCache

END = 245


@dataclass(frozen=True, slots=True, kw_only=True)
class Bent:
    run: RemoteRun
    store: FaultyStore
    path: ReadPath
    partition: TopicIdPartition

    async def read(self, offset: int) -> bytes:
        async with aclosing(self.path.reader.stream_batches(self.partition, offset)) as parts:
            return b"".join([bytes(part.batches.buffer) async for part in parts])


@pytest.fixture(autouse=True, params=[False, True], ids=["far", "local"])
def is_local(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of a store that is local are read another way."""
    monkeypatch.setattr(FaultyStore, "is_local", request.param)


FAR_ALONE = pytest.mark.parametrize("is_local", [False], indirect=True, ids=["far"])
"""What is read where it lies is not kept."""


@asynccontextmanager
async def bent(
    bend: Bend | None = None, *, run_name: str = "plain", settings: ReadSettings | None = None
) -> AsyncIterator[Bent]:
    run = await load_run(run_name)
    store = FaultyStore(run.store, bend)
    async with open_run(run, store=store, settings=settings) as path:
        yield Bent(run=run, store=store, path=path, partition=run.partition("plain-0"))


def once(kind: str, damage: Callable[[bytes], bytes]) -> Bend:
    """Damage the first body of the objects of one kind, and leave the others."""
    seen: list[str] = []

    def bend(key: str, byte_range: ByteRange | None, data: bytes) -> bytes:
        if not key.endswith(kind) or seen:
            return data
        seen.append(key)
        return damage(data)

    return bend


def always(kind: str, damage: Callable[[bytes], bytes]) -> Bend:
    return lambda key, byte_range, data: damage(data) if key.endswith(kind) else data


KINDS = [".log", ".indexes", ".rsm-manifest"]


@pytest.mark.parametrize("run_name", ["plain", "compressed", "encrypted"])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_damaged_on_the_way_is_fetched_anew(run_name: str, kind: str) -> None:
    async with bent(once(kind, lambda data: flip_bit(data, 99)), run_name=run_name) as setting:
        assert await setting.read(33) == batches_between("plain-0", 33, END)


@pytest.mark.parametrize("run_name", ["plain", "compressed", "encrypted"])
@pytest.mark.parametrize("bit", [5, 70, 99, 130, 1000, 40_000])
async def test_what_is_damaged_at_rest_is_an_error_and_never_bytes(run_name: str, bit: int) -> None:
    damage = always(".log", lambda data: flip_bit(data, bit))
    async with bent(damage, run_name=run_name) as setting:
        with pytest.raises(CorruptDataError):
            await setting.read(0)


@pytest.mark.parametrize("run_name", ["plain", "compressed", "encrypted"])
@pytest.mark.parametrize("kind", [".log", ".indexes", ".rsm-manifest"])
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-1], id="a byte short"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data + b"\0", id="a byte long"),
    ],
)
async def test_a_body_of_the_wrong_size_is_an_error(run_name: str, kind: str, damage: Callable[[bytes], bytes]) -> None:
    async with bent(always(kind, damage), run_name=run_name) as setting:
        try:
            assert await setting.read(33) == batches_between("plain-0", 33, END)
        except (CorruptDataError, StoreError):
            return
        assert kind == ".indexes", "only the zeros after an index are no fault"


@pytest.mark.parametrize("seed", range(40))
async def test_whatever_bit_of_the_small_objects_is_damaged_no_wrong_byte_comes_out(seed: int) -> None:
    for kind in (".indexes", ".rsm-manifest"):
        damage = always(kind, lambda data: flip_bit(data, seed * 7919))
        async with bent(damage) as setting:
            try:
                found = await setting.read(40)
            except TiersidecarError:
                continue
            assert found == batches_between("plain-0", 40, END)


async def test_a_store_that_is_away_is_a_retriable_error_and_the_next_read_finds_it_back() -> None:
    async with bent(away) as setting:
        with pytest.raises(StoreError):
            await setting.read(0)
        setting.store.bend = None
        assert await setting.read(0) == batches_between("plain-0", 0, END)


async def test_a_fetch_that_hangs_ends_with_its_time_limit() -> None:
    async with bent(settings=ReadSettings(fetch_timeout_s=0.01)) as setting:
        setting.store.gate.clear()
        with pytest.raises(StoreError, match=r"within 0\.01 s"):
            await setting.read(0)


HANGS = [
    pytest.param("fetch_object", ".rsm-manifest", id="a manifest"),
    pytest.param("fetch_range", ".indexes", id="its indexes"),
    pytest.param("fetch_range", ".log", id="a chunk"),
]


@FAR_ALONE
@pytest.mark.parametrize(("verb", "kind"), HANGS)
@pytest.mark.parametrize("max_bytes", [100, 1 << 20], ids=["a part", "all"])
async def test_every_request_to_the_store_has_a_time_limit_and_the_object_is_named(
    verb: str, kind: str, max_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 8: a read that waits for ever holds a place of the pool for ever."""
    run = await load_run("plain")
    store = FaultyStore(run.store)
    answer = getattr(store, verb)

    async def hang(key: str, *arguments: object, **options: object) -> object:
        if key.endswith(kind):
            await asyncio.Event().wait()
        return await answer(key, *arguments, **options)

    monkeypatch.setattr(store, verb, hang)
    manifests = ManifestCache(store=store, blocking=InlineBlocking(), timeout_s=0.01)
    lineages = FixedLineage(Lineage.of([(0, 0)]))
    async with open_read_path(
        store=store,
        metadata=run.metadata,
        manifests=manifests,
        lineages=lineages,
        log_starts=run.log_starts,
        blocking=InlineBlocking(),
        clock=ManualClock(),
        settings=ReadSettings(fetch_timeout_s=0.01),
    ) as path:
        with pytest.raises(StoreError, match=r"did not come within 0\.01 s") as error:
            await path.reader.read_batches(run.partition("plain-0"), 33, max_bytes=max_bytes)
    assert kind in str(error.value)


class FixedLineage:
    """``reading.lineage.LineageSource``"""

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage

    async def lineage(self, topic_id_partition: TopicIdPartition, *, max_age_s: float = 30.0) -> Lineage:
        return self._lineage

    async def refresh(self, topic_id_partition: TopicIdPartition) -> Lineage:
        return self._lineage

    def last(self, topic_id_partition: TopicIdPartition) -> Lineage | None:
        return self._lineage

    def log_end_offset(self, topic_id_partition: TopicIdPartition) -> Offset:
        return Offset(END)


SPOILED = [
    pytest.param(".rsm-manifest", lambda data: b"{" + data, ".rsm-manifest", id="the manifest"),
    pytest.param(".log", lambda data: flip_bit(data, 1000), ".log", id="the .log"),
    pytest.param(".indexes", lambda data: data[:-1], ".indexes", id="indexes that are cut off"),
    pytest.param(
        ".indexes", lambda data: b"\xff" * len(data), r"leader epochs in .*\.indexes", id="indexes that are nonsense"
    ),
]


@pytest.mark.parametrize("run_name", ["plain", "compressed"])
@pytest.mark.parametrize(("kind", "damage", "named"), SPOILED)
async def test_what_is_spoiled_at_rest_is_named(
    run_name: str, kind: str, damage: Callable[[bytes], bytes], named: str
) -> None:
    """An operator must know which object to look at."""
    async with bent(always(kind, damage), run_name=run_name) as setting:
        with pytest.raises(CorruptDataError, match=named):
            await setting.read(33)


async def test_an_object_that_is_missing_though_its_segment_is_finished_is_an_error() -> None:
    async with bent() as setting:
        key = next(key for key, _ in await log_keys(setting) if "000070-" in key)
        await setting.run.store.delete_objects([key])
        with pytest.raises(ObjectNotFoundError):
            await setting.read(60)


async def log_keys(setting: Bent) -> list[tuple[str, int]]:
    listed = setting.run.store.list_objects()
    return [(one.key, one.size_bytes) async for one in listed if one.key.endswith(".log")]


async def test_a_segment_deleted_under_the_readers_hands_is_out_of_range_not_a_missing_object() -> None:
    """S-235."""
    async with bent() as setting:
        segment = segments_of(setting.run, setting.partition)[0]

        def delete(key: str, byte_range: ByteRange | None, data: bytes) -> bytes:
            if key.endswith(".log") and "000000-" in key:
                raise ObjectNotFoundError(verb="fetch", key=key, reason="deleted")
            return data

        setting.store.bend = delete
        update = RemoteLogSegmentMetadataUpdate(
            remote_log_segment_id=segment.remote_log_segment_id,
            broker_id=BrokerId(1),
            event_timestamp_ms=0,
            state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
        )
        setting.store.gate.clear()
        read = asyncio.create_task(setting.read(0))
        await setting.store.log_fetch_begun.wait()
        await setting.run.metadata.publish(update)
        setting.store.gate.set()
        with pytest.raises(OffsetOutOfRangeError) as error:
            await read
        assert error.value.start == 35


@FAR_ALONE
async def test_a_hundred_readers_of_one_chunk_fetch_it_once() -> None:
    async with bent() as setting:
        setting.store.gate.clear()
        reads = [
            asyncio.create_task(setting.path.reader.read_batches(setting.partition, n % 30, max_bytes=100))
            for n in range(100)
        ]
        await setting.store.log_fetch_begun.wait()
        setting.store.gate.set()
        for fetched in await asyncio.gather(*reads):
            assert fetched.slices
        assert len(setting.store.log_fetches()) == 1
        assert len([key for key, _ in setting.store.fetched if key.endswith(".indexes")]) <= 3


@FAR_ALONE
async def test_a_cancelled_read_leaves_its_chunk_in_the_cache() -> None:
    """U2: the retry hits."""
    async with bent() as setting:
        setting.store.gate.clear()
        read = asyncio.create_task(setting.path.reader.read_batches(setting.partition, 0, max_bytes=100))
        await setting.store.log_fetch_begun.wait()
        read.cancel()
        with pytest.raises(asyncio.CancelledError):
            await read
        setting.store.gate.set()
        assert (await setting.path.reader.read_batches(setting.partition, 0, max_bytes=100)).slices
        assert len(setting.store.log_fetches()) == 1


@FAR_ALONE
async def test_who_reads_on_from_segment_to_segment_asks_for_no_index() -> None:
    """U4: seven segments, and one look at leader epochs, which are fetched twice: they have no checksum."""
    async with bent() as setting:
        assert await setting.read(0) == batches_between("plain-0", 0, END)
        assert len([key for key, _ in setting.store.fetched if key.endswith(".indexes")]) <= 2
        before = len(setting.store.fetched)
        await setting.read(33)
        assert [key.endswith(".indexes") for key, _ in setting.store.fetched[before:]] == [True]
