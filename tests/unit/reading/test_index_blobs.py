"""Parts of index blobs, in as few requests as are worth it (S-034, S-128; U4)."""

from __future__ import annotations

import pytest

from tests.support.faulty_store import FaultyStore
from tests.support.golden import CLEAN_LOG_DIR
from tests.support.inline_blocking import InlineBlocking
from tests.support.remote_builder import RemoteBuilder, SegmentSource
from tests.support.remote_runs import key_ring, load_run, open_run, segments_of
from tests.unit.reading.test_histories import between
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import ByteRange, Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction, write_transaction_index
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
    merged = merged_ranges([ByteRange(*one) for one in ranges], gap_bytes=5, most_bytes=100)
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
        # Entries of aborted transactions are fetched twice, for nothing else tells a wrong bit in them.
        requests = 2 if files.transaction_index and name != "encrypted" else 1
        assert len([key for key, _ in store.fetched if key.endswith(".indexes")]) == requests
        stem = CLEAN_LOG_DIR / "transactions-0" / f"{segment.start_offset:020d}"
        assert files.offset_index == stem.with_suffix(".index").read_bytes()
        assert files.time_index == stem.with_suffix(".timeindex").read_bytes()
        assert files.transaction_index == stem.with_suffix(".txnindex").read_bytes()
        assert [tuple(entry) for entry in await reader.read_leader_epochs(segment)] == [(0, 0)]
        assert await reader.read_producer_snapshot(segment)


@pytest.mark.parametrize("which", [0, 1])
async def test_no_bit_of_a_transaction_index_can_turn_on_the_way_and_show_what_was_aborted(which: int) -> None:
    """Simulation, cluster seed 684: a wrong bit was kept in the cache for as long as the process lived."""
    builder = RemoteBuilder()
    entry = AbortedTransaction(5, Offset(3), Offset(30), Offset(31))
    segment = await builder.add(
        SegmentSource(batches=between(0, 35), start_offset=0, end_offset=34, aborted_transactions=[entry])
    )
    stored, turned = write_transaction_index([entry]), [0]

    def damage(key: str, byte_range: ByteRange | None, data: bytes) -> bytes:
        if not key.endswith(".indexes") or stored not in data:
            return data
        reads.append(key)
        if len(reads) - 1 != which:
            return data
        wrong = bytearray(stored)
        wrong[turned[0] // 8] ^= 1 << turned[0] % 8
        return data.replace(stored, bytes(wrong))

    for bit in range(8 * len(stored)):
        reads: list[str] = []
        turned[0] = bit
        async with open_run(builder.run, store=FaultyStore(builder.run.store, damage)) as path:
            assert (await path.indexes.indexes(segment)).aborted_transactions == (entry,), bit
        assert len(reads) > 2


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


_OLDER = {0: 0, 3: 9, 12: 20}
"""The epochs of a segment from offset 20 on, with those before it."""


@pytest.mark.parametrize("which", [0, 1])
async def test_no_bit_of_an_earlier_epoch_can_turn_on_the_way_and_be_believed(which: int) -> None:
    """The metadata have those of the segment's own range alone: a lineage would lack an epoch until it is built anew."""
    builder = RemoteBuilder()
    segment = await builder.add(SegmentSource(batches=between(20, 35), start_offset=20, end_offset=34, epochs=_OLDER))
    stored, turned = b"0\n3\n0 0\n3 9\n12 20\n", [0]

    def damage(key: str, byte_range: ByteRange | None, data: bytes) -> bytes:
        if stored not in data:
            return data
        reads.append(key)
        wrong = bytearray(stored)
        wrong[turned[0] // 8] ^= 1 << turned[0] % 8
        return data.replace(stored, bytes(wrong)) if len(reads) - 1 == which else data

    store = FaultyStore(builder.run.store, damage)
    for bit in range(8 * len(stored)):
        reads: list[str] = []
        turned[0] = bit
        reader = IndexBlobReader(
            store=store, blocking=InlineBlocking(), manifests=ManifestCache(store=store, blocking=InlineBlocking())
        )
        assert dict(await reader.read_leader_epochs(segment)) == _OLDER, bit
        assert len(reads) >= 2, bit


@pytest.mark.parametrize(
    ("epochs", "encrypted", "reads"),
    [
        pytest.param({0: 20}, False, 1, id="all of them are in the metadata"),
        pytest.param(_OLDER, False, 2, id="earlier ones are not"),
        pytest.param(_OLDER, True, 1, id="encrypted, where no bit can turn unseen"),
    ],
)
async def test_epochs_are_fetched_twice_only_where_nothing_else_tells_a_wrong_bit(
    epochs: dict[int, int], encrypted: bool, reads: int
) -> None:
    builder = RemoteBuilder(encrypted=encrypted)
    segment = await builder.add(SegmentSource(batches=between(20, 35), start_offset=20, end_offset=34, epochs=epochs))
    store = FaultyStore(builder.run.store)
    manifests = ManifestCache(store=store, blocking=InlineBlocking(), key_ring=key_ring())
    reader = IndexBlobReader(store=store, blocking=InlineBlocking(), manifests=manifests)
    assert dict(await reader.read_leader_epochs(segment)) == epochs
    assert len([key for key, _ in store.fetched if key.endswith(".indexes")]) == reads


async def test_epochs_that_are_others_at_each_read_are_refused() -> None:
    builder = RemoteBuilder()
    segment = await builder.add(SegmentSource(batches=between(20, 35), start_offset=20, end_offset=34, epochs=_OLDER))
    starts = iter(range(10, 19))

    def damage(key: str, byte_range: ByteRange | None, data: bytes) -> bytes:
        return data.replace(b"\n3 9\n12 20\n", b"\n3 9\n12 20\n".replace(b"9", b"%d" % (next(starts) - 10)))

    store = FaultyStore(builder.run.store, damage)
    manifests = ManifestCache(store=store, blocking=InlineBlocking())
    reader = IndexBlobReader(store=store, blocking=InlineBlocking(), manifests=manifests)
    with pytest.raises(CorruptDataError, match="each of 4 reads gave others"):
        await reader.read_leader_epochs(segment)
