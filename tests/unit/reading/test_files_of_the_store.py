"""Golden segments in a filesystem store, read with threads: the broker's batches from any offset (S-143, S-145; T-48)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.support.local_batches import batches_between
from tests.support.remote_runs import load_run, open_run, segments_of
from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.adapters.stores.bounded import BoundedStore, StoreLimits
from tiersidecar.adapters.stores.filesystem import open_filesystem_store
from tiersidecar.domain.errors import CorruptDataError, StoreError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.ports.store import BytesBody, Store
from tiersidecar.reading.read_path import ReadPath

RUNS = ["plain", "encrypted"]
WINDOW = 40


@pytest.fixture
async def blocking() -> AsyncIterator[ThreadBlocking]:
    async with ThreadBlocking(max_threads=4) as blocking:
        yield blocking


@pytest.fixture
async def store(tmp_path: Path, blocking: ThreadBlocking) -> AsyncIterator[Store]:
    clock = SystemClock()
    async with open_filesystem_store(root=str(tmp_path), blocking=blocking, clock=clock, ids=SystemIds()) as files:
        yield BoundedStore(files, limits=StoreLimits(), clock=clock)


async def stream(path: ReadPath, partition: TopicIdPartition, offset: int, stop: int | None = None) -> bytes:
    async with aclosing(path.reader.stream_batches(partition, offset, stop_offset=stop)) as parts:
        return b"".join([bytes(part.batches.buffer) async for part in parts])


def batched(offsets: Sequence[int]) -> Iterator[Sequence[int]]:
    """As many as are read at once without one being shed."""
    return (offsets[first : first + 50] for first in range(0, len(offsets), 50))


@pytest.mark.parametrize("name", RUNS)
async def test_from_any_offset_it_has_the_brokers_batches(name: str, store: Store, blocking: ThreadBlocking) -> None:
    run = await load_run(name)
    async for stored in run.store.list_objects():
        await store.put_object(stored.key, BytesBody(await run.store.fetch_object(stored.key, max_bytes=2**30)))
    async with open_run(run, store=store, blocking=blocking, clock=SystemClock()) as path:
        for partition in run.partitions:
            bounds = await path.reader.bounds(partition)
            # Whole from the first offset, a window from each later one: what comes after it is the same read again.
            stops = {offset: min(offset + WINDOW, bounds.end) for offset in range(bounds.start, bounds.end, 7)}
            stops[bounds.start] = bounds.end
            for some in batched(list(stops)):
                streams = await asyncio.gather(*(stream(path, partition, offset, stops[offset]) for offset in some))
                for offset, found in zip(some, streams, strict=True):
                    assert found == batches_between(str(partition), offset, stops[offset])


async def test_a_log_that_is_cut_off_or_damaged_at_rest_is_an_error(
    tmp_path: Path, store: Store, blocking: ThreadBlocking
) -> None:
    run = await load_run("plain")
    async for stored in run.store.list_objects():
        await store.put_object(stored.key, BytesBody(await run.store.fetch_object(stored.key, max_bytes=2**30)))
    log = next(tmp_path.glob("**/plain-*/0/*.log"))
    whole = log.read_bytes()
    partition = next(one for one in run.partitions if str(one) == "plain-0")
    async with open_run(run, store=store, blocking=blocking, clock=SystemClock()) as path:
        log.write_bytes(whole[:-1])
        with pytest.raises(StoreError, match="it ends 1 bytes before the end"):
            await stream(path, partition, segments_of(run, partition)[0].start_offset)
        log.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(CorruptDataError):
            await stream(path, partition, segments_of(run, partition)[0].start_offset)
