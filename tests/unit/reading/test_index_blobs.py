"""Parts of index blobs, in as few requests as are worth it (S-034, S-128; U4)."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.faulty_store import FaultyStore
from tests.support.golden import CLEAN_LOG_DIR
from tests.support.inline_blocking import InlineBlocking
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.remote_builder import RemoteBuilder, SegmentSource
from tests.support.remote_runs import key_ring, load_run, open_run, segments_of
from tests.unit.reading.test_histories import between
from tiersidecar.domain.errors import CorruptDataError, StoreError
from tiersidecar.domain.offsets import ByteRange, Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction, write_transaction_index
from tiersidecar.formats.kafka.producer_state import ProducerState
from tiersidecar.ports.metrics.reading import READ_STORE_BYTES, READ_STORE_REQUESTS
from tiersidecar.reading.index_blobs import IndexBlobReader, IndexFiles, merged_ranges
from tiersidecar.reading.remote_objects import ManifestCache, recorded_keys


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
    merged = merged_ranges([ByteRange(*range_) for range_ in ranges], gap_bytes=5, most_bytes=100)
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


def reader_of(store: FaultyStore, telemetry: RecordedTelemetry | None = None, **limits: float) -> IndexBlobReader:
    manifests = ManifestCache(store=store, blocking=InlineBlocking(), key_ring=key_ring())
    return IndexBlobReader(
        store=store,
        blocking=InlineBlocking(),
        manifests=manifests,
        telemetry=telemetry or RecordedTelemetry(),
        **limits,
    )


def index_ranges(store: FaultyStore) -> list[ByteRange]:
    return [one for key, one in store.fetched if key.endswith(".indexes") and one is not None]


@pytest.mark.parametrize("encrypted", [False, True])
async def test_parts_that_lie_far_apart_are_requests_of_their_own_and_counted(*, encrypted: bool) -> None:
    """Between the time index and the transaction index lie the producers: 2,000 of them are more than a second GET costs."""
    builder = RemoteBuilder(encrypted=encrypted)
    entry = AbortedTransaction(5, Offset(3), Offset(30), Offset(31))
    producers = [ProducerState(producer_id=number) for number in range(2000)]
    segment = await builder.add(
        SegmentSource(
            batches=between(0, 35), start_offset=0, end_offset=34, aborted_transactions=[entry], producers=producers
        )
    )
    store, telemetry = FaultyStore(builder.run.store), RecordedTelemetry()
    files = await reader_of(store, telemetry).read_index_files(segment)
    assert files.transaction_index == write_transaction_index([entry])
    assert files.offset_index
    assert files.time_index
    ranges = index_ranges(store)
    # Once more the transaction index, where no seal tells a wrong bit in it.
    assert len(ranges) == (2 if encrypted else 3)
    assert telemetry.value(READ_STORE_REQUESTS, kind="index") == len(ranges)
    assert telemetry.value(READ_STORE_BYTES) == sum(map(len, ranges))
    assert sum(map(len, ranges)) < 10_000, "the producers were not fetched"
    assert len(await reader_of(store).read_producer_snapshot(segment)) == 2000


def test_the_size_of_index_files_is_that_of_all_three() -> None:
    files = IndexFiles(offset_index=b"o" * 8, time_index=b"t" * 12, transaction_index=b"a" * 34)
    assert files.size_bytes == 54


async def test_what_was_preallocated_is_not_kept_and_an_entry_that_ends_in_zeros_is() -> None:
    """A broker that was killed leaves an index of 10 MiB, of which a few bytes are entries."""
    builder = RemoteBuilder()
    segment = await builder.add(SegmentSource(batches=between(0, 35), start_offset=0, end_offset=34))
    whole = await reader_of(FaultyStore(builder.run.store)).read_index_files(segment)
    assert len(whole.offset_index) >= 16
    assert len(whole.time_index) >= 24
    stored = whole.offset_index + whole.time_index

    async def read_as(offsets: bytes, times: bytes) -> IndexFiles:
        assert (len(offsets), len(times)) == (len(whole.offset_index), len(whole.time_index))
        bent = FaultyStore(builder.run.store, lambda key, _, data: data.replace(stored, offsets + times))
        return await reader_of(bent).read_index_files(segment)

    zeros_o, zeros_t = bytes(len(whole.offset_index) - 8), bytes(len(whole.time_index) - 12)
    one_o, one_t = b"\0\0\0\1\0\0\0\0", b"\0\0\0\1" + bytes(8)
    files = await read_as(one_o + zeros_o, one_t + zeros_t)
    assert (files.offset_index, files.time_index) == (one_o, one_t)
    files = await read_as(bytes(8) + zeros_o, bytes(12) + zeros_t)
    assert (files.offset_index, files.time_index) == (b"", b"")


@pytest.mark.parametrize("kind", ["epochs", "producers", "indexes"])
async def test_companions_that_are_spoiled_are_told_with_their_object(kind: str) -> None:
    builder = RemoteBuilder()
    segment = await builder.add(SegmentSource(batches=between(0, 35), start_offset=0, end_offset=34))

    def spoil(key: str, byte_range: ByteRange | None, data: bytes) -> bytes:
        if not key.endswith(".indexes"):
            return data
        return data[:-1] if kind == "indexes" else b"\xff" * len(data)

    store = FaultyStore(builder.run.store, spoil)
    reader = reader_of(store)
    read = {
        "epochs": reader.read_leader_epochs,
        "producers": reader.read_producer_snapshot,
        "indexes": reader.read_index_files,
    }[kind]
    told = {
        "epochs": "leader epochs in",
        "producers": "producer snapshot in",
        "indexes": "bytes of its indexes are there",
    }
    with pytest.raises(CorruptDataError, match=told[kind]) as error:
        await read(segment)
    key = recorded_keys(segment, "").indexes
    assert key in str(error.value)
    assert len(index_ranges(store)) == 2, "fetched anew once, and no oftener"
    assert len([one for one, _ in store.fetched if one.endswith(".rsm-manifest")]) == 2, "the manifest too"


async def test_what_hangs_has_a_time_limit() -> None:
    class Hanging(FaultyStore):
        async def fetch_range(self, key: str, byte_range: ByteRange) -> bytes:
            await asyncio.Event().wait()
            raise AssertionError

    builder = RemoteBuilder()
    segment = await builder.add(SegmentSource(batches=between(0, 35), start_offset=0, end_offset=34))
    with pytest.raises(StoreError, match=r"\.indexes.*did not come within 0\.05 s"):
        await reader_of(Hanging(builder.run.store), timeout_s=0.05).read_index_files(segment)


async def test_of_many_epochs_that_differ_the_first_eight_are_told() -> None:
    epochs = {number: 20 + number for number in range(12)}
    builder = RemoteBuilder()
    segment = await builder.add(SegmentSource(batches=between(20, 35), start_offset=20, end_offset=34, epochs=epochs))
    bent = FaultyStore(builder.run.store, lambda key, _, data: data.replace(b"\n11 31\n", b"\n11 32\n"))
    with pytest.raises(CorruptDataError) as error:
        await reader_of(bent).read_leader_epochs(segment)
    told = ", ".join(f"epoch {number} from {20 + number}" for number in range(8))
    assert f"it has {told}, 4 more for the segment, the metadata {told}, 4 more" in str(error.value)


async def test_a_manifest_that_was_damaged_is_forgotten_with_its_segment() -> None:
    builder = RemoteBuilder()
    segment = await builder.add(SegmentSource(batches=between(0, 35), start_offset=0, end_offset=34))
    store = FaultyStore(builder.run.store)
    reader = reader_of(store)
    for _ in range(2):
        await reader.read_index_files(segment)
    assert len([one for one, _ in store.fetched if one.endswith(".rsm-manifest")]) == 1
    reader.discard(segment.remote_log_segment_id)
    await reader.read_index_files(segment)
    assert len([one for one, _ in store.fetched if one.endswith(".rsm-manifest")]) == 2
