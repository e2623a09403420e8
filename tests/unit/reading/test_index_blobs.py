"""Parts of index blobs, in as few requests as are worth it (S-034, S-128; U4)."""

from __future__ import annotations

import pytest

from tests.support.faulty_store import FaultyStore
from tests.support.golden import CLEAN_LOG_DIR
from tests.support.inline_blocking import InlineBlocking
from tests.support.remote_builder import RemoteBuilder, SegmentSource
from tests.support.remote_runs import key_ring, load_run, segments_of
from tests.unit.reading.test_histories import between
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.reading.index_blobs import IndexBlobReader, merged_ranges
from tiersidecar.reading.manifests import ManifestCache


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        pytest.param([(0, 10), (10, 20)], [(0, 20)], id="neighbours are one request"),
        pytest.param([(0, 10), (15, 20)], [(0, 20)], id="a small gap is fetched along"),
        pytest.param([(0, 10), (16, 20)], [(0, 10), (16, 20)], id="a large gap parts them"),
        pytest.param([(30, 40), (0, 10)], [(0, 10), (30, 40)], id="in any order"),
        pytest.param([(0, 50), (10, 20)], [(0, 50)], id="one within another"),
        pytest.param([], [], id="nothing"),
    ],
)
def test_merged_ranges(ranges: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    merged = merged_ranges([ByteRange(*one) for one in ranges], gap_bytes=5)
    assert merged == [ByteRange(*one) for one in expected]


@pytest.mark.parametrize("name", ["plain", "compressed", "encrypted"])
async def test_the_parts_are_the_brokers_files(name: str) -> None:
    run = await load_run(name)
    store = FaultyStore(run.store)
    manifests = ManifestCache(store=store, blocking=InlineBlocking(), key_ring=key_ring())
    reader = IndexBlobReader(store=store, blocking=InlineBlocking(), manifests=manifests)
    for segment in segments_of(run, run.partition("transactions-0")):
        store.fetched.clear()
        files = await reader.read_index_files(segment)
        assert len([key for key, _ in store.fetched if key.endswith(".indexes")]) == 1
        stem = CLEAN_LOG_DIR / "transactions-0" / f"{segment.start_offset:020d}"
        assert files.offset_index == stem.with_suffix(".index").read_bytes()
        assert files.time_index == stem.with_suffix(".timeindex").read_bytes()
        assert files.transaction_index == stem.with_suffix(".txnindex").read_bytes()
        assert [tuple(entry) for entry in await reader.read_leader_epochs(segment)] == [(0, 0)]
        assert await reader.read_producer_snapshot(segment)


async def test_epochs_that_are_not_the_metadatas_are_refused() -> None:
    """They have no checksum, and decide what is history: what may be read, and what may be deleted."""
    builder = RemoteBuilder()
    segment = await builder.add(SegmentSource(batches=between(0, 35), start_offset=0, end_offset=34))

    def damage(key: str, byte_range: ByteRange | None, data: bytes) -> bytes:
        return data.replace(b"\n0 0\n", b"\n1 0\n")

    store = FaultyStore(builder.run.store, damage)
    manifests = ManifestCache(store=store, blocking=InlineBlocking())
    reader = IndexBlobReader(store=store, blocking=InlineBlocking(), manifests=manifests)
    with pytest.raises(CorruptDataError, match="epoch 1 from 0 for the segment, the metadata epoch 0 from 0"):
        await reader.read_leader_epochs(segment)
