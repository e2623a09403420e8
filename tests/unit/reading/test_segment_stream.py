"""A segment read whole and anew: its companions first, each part at its pace, and an end at the first fault (U14)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import pytest

from tests.support.faulty_store import FaultyStore
from tests.support.inline_blocking import InlineBlocking
from tests.support.remote_builder import RemoteBuilder
from tests.support.remote_runs import key_ring, segments_of
from tests.unit.reading.test_histories import source
from tests.unit.reading.test_part_reads import remote
from tiersidecar.domain.errors import CorruptDataError, ObjectNotFoundError, StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.ports.store import BytesBody, StoredObject, Take
from tiersidecar.reading.remote_objects import recorded_keys
from tiersidecar.reading.segment_stream import SegmentStream

CHUNK = 1000


class Store(FaultyStore):
    """Also says by which verb a .log was read."""

    def __init__(self, inner: FaultyStore, *, is_local: bool) -> None:
        super().__init__(inner)
        self.is_local = is_local
        self.fed = list[tuple[str, ByteRange]]()

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        self.fed.append(("at once", byte_range))
        await self._feed(key, byte_range, take)

    async def feed_with_rests(self, key: str, byte_range: ByteRange, take: Take) -> None:
        self.fed.append(("with rests", byte_range))
        await self._feed(key, byte_range, take)

    async def _feed(self, key: str, byte_range: ByteRange, take: Take) -> None:
        """In two pieces; the second one only to who wants it."""
        data = memoryview(await self.fetch_range(key, byte_range))
        half = len(data) // 2
        if not half or take(data[:half]):
            take(data[half:])

    async def head_object(self, key: str) -> StoredObject:
        self.fetched.append((f"size of {key}", None))
        return await super().head_object(key)


class Pace:
    """Grants ``most`` bytes at a time; ``asked`` is how many were wanted."""

    def __init__(self, bytes_per_s: int | None = None, most: int = 1 << 30) -> None:
        self.bytes_per_s, self.most, self.asked = bytes_per_s, most, list[int]()

    async def grant(self, wanted_bytes: int) -> int:
        self.asked.append(wanted_bytes)
        return min(wanted_bytes, self.most)


class World:
    def __init__(self, builder: RemoteBuilder, metadata: RemoteLogSegmentMetadata, log: bytes, *, local: bool) -> None:
        self.metadata, self.log, self.keys = metadata, log, recorded_keys(metadata, "")
        self.store = Store(FaultyStore(builder.run.store), is_local=local)
        self.stream = SegmentStream(store=self.store, blocking=InlineBlocking(), key_ring=key_ring())
        self.seen = b""

    def look(self, part: memoryview) -> None:
        self.seen += bytes(part)

    async def read(self, pace: Pace, look: Callable[[memoryview], None] | None = None) -> list[int]:
        async with aclosing(self.stream.feed_log(self.metadata, look or self.look, pace)) as parts:
            return [count async for count in parts]


async def world(*, local: bool = False, batches: int = 35, **layout: bool) -> World:
    builder = RemoteBuilder(chunk_size=CHUNK, **layout)
    offsets = source(0, batches)
    metadata = await builder.add(offsets)
    return World(builder, metadata, b"".join(batch.data for batch in offsets.batches), local=local)


HERE = pytest.mark.parametrize("local", [False, True], ids=["far", "here"])


@HERE
@pytest.mark.parametrize("layout", [{}, {"compression": True}, {"encrypted": True}], ids=str)
async def test_all_of_the_log_is_shown_in_order_and_each_part_is_told(local: bool, layout: dict[str, bool]) -> None:
    it = await world(local=local, **layout)
    counts = await it.read(Pace())
    assert it.seen == it.log
    assert sum(counts) == len(it.log)


@HERE
async def test_each_time_all_is_read_anew(local: bool) -> None:
    """What is proven by it stands in the store, and not in a cache."""
    it = await world(local=local)
    await it.read(Pace())
    first = list(it.store.fetched)
    it.store.fetched.clear()
    await it.read(Pace())
    assert it.store.fetched == first
    assert it.seen == 2 * it.log


@HERE
async def test_what_could_not_be_replaced_is_read_before_the_first_byte_of_the_log(local: bool) -> None:
    it = await world(local=local)
    await it.read(Pace())
    asked = [key for key, _ in it.store.fetched]
    assert asked[:2] == [it.keys.manifest, f"size of {it.keys.indexes}"]
    before = asked[: asked.index(it.keys.log)]
    assert before.count(it.keys.indexes) == 2, "leader epochs, and producers"


@HERE
@pytest.mark.parametrize("kind", ["manifest", "indexes", "log"])
async def test_a_segment_that_lacks_an_object_is_not_shown_to_its_end(local: bool, kind: str) -> None:
    it = await world(local=local)
    await it.store.delete_objects([getattr(it.keys, kind)])
    with pytest.raises(ObjectNotFoundError):
        await it.read(Pace())
    assert it.seen == b""


@HERE
async def test_indexes_of_another_size_than_the_manifests_are_told_though_what_is_read_of_them_is_there(
    local: bool,
) -> None:
    it = await world(local=local)
    data = await it.store.fetch_object(it.keys.indexes, max_bytes=2**30)
    await it.store.put_object(it.keys.indexes, BytesBody(data + b"x"))
    reason = f"{it.keys.indexes} is corrupt at byte 0: it has {len(data) + 1} bytes, the manifest says {len(data)}"
    with pytest.raises(CorruptDataError, match=reason):
        await it.read(Pace())
    assert it.seen == b""


@pytest.mark.parametrize("which", ["leader epochs", "producers"])
async def test_companions_that_do_not_open_are_told_before_the_log_is_read(which: str) -> None:
    it = await world()
    reads = [0]

    def damage(key: str, byte_range: ByteRange | None, data: bytes) -> bytes:
        if key != it.keys.indexes:
            return data
        is_epochs = data.startswith(b"0\n")
        reads[0] += 1
        return b"\xff" * len(data) if is_epochs == (which == "leader epochs") else data

    it.store.bend = damage
    with pytest.raises(CorruptDataError):
        await it.read(Pace())
    assert (it.seen, reads[0] > 0) == (b"", True)


class StopError(Exception):
    """A fault that whoever looks has found."""


@HERE
async def test_what_is_found_wrong_by_who_looks_ends_it_as_it_is(local: bool) -> None:
    it = await world(local=local)

    def find(part: memoryview) -> None:
        it.look(part)
        raise StopError

    with pytest.raises(StopError):
        await it.read(Pace(), find)
    assert len(it.seen) == (len(it.log) // 2 if local else CHUNK), "nothing more was shown"


@pytest.mark.parametrize(
    ("bytes_per_s", "verb", "part_bytes"),
    [
        pytest.param(None, "at once", 4 * 1024 * 1024, id="no limit"),
        pytest.param(1 << 40, "with rests", 4 * 1024 * 1024, id="a rate above what is read at once"),
        pytest.param(16_000, "with rests", 1000, id="a sixteenth of a second's worth"),
        pytest.param(15, "with rests", 1, id="next to nothing"),
    ],
)
async def test_of_a_log_that_lies_here_so_much_is_read_at_once(
    bytes_per_s: int | None, verb: str, part_bytes: int
) -> None:
    it = await world(local=True, batches=3)
    counts = await it.read(Pace(bytes_per_s))
    size = len(it.log)
    ranges = [(start, min(start + part_bytes, size)) for start in range(0, size, part_bytes)]
    assert it.store.fed == [(verb, ByteRange(*range_)) for range_ in ranges]
    assert counts == [stop - start for start, stop in ranges]
    assert it.seen == it.log


async def test_of_a_log_that_lies_here_a_part_is_read_when_all_of_it_may_move() -> None:
    it = await world(local=True)
    pace = Pace(16_000, most=300)
    counts = await it.read(pace)
    assert pace.asked[:5] == [1000, 700, 400, 100, 1000]
    assert counts[:2] == [1000, 1000]


async def test_of_a_chunk_as_much_is_shown_as_may_move() -> None:
    it = await world()
    pace = Pace(16_000, most=300)
    counts = await it.read(pace)
    assert pace.asked[:5] == [1000, 700, 400, 100, 1000]
    assert counts[:5] == [300, 300, 300, 100, 300]
    assert it.seen == it.log


async def test_of_a_large_chunk_256_kib_are_looked_at_in_one_go() -> None:
    large = await remote(16 * 1024, count=40)
    (metadata,) = segments_of(large.builder.run, large.builder.partition)
    it = World(large.builder, metadata, large.log, local=False)
    pace, looked_at = Pace(), list[int]()
    chunk, step = 512 * 1024, 256 * 1024
    expected = [step, step, len(large.log) - chunk]

    assert await it.read(pace, lambda part: looked_at.append(len(part))) == expected
    assert looked_at == expected


async def test_a_request_for_a_file_that_hangs_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    it = await world(local=True)
    monkeypatch.setattr("tiersidecar.reading.segment_stream.FETCH_TIMEOUT_S", 0.05)

    async def hang(key: str, byte_range: ByteRange, take: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(it.store, "feed_range", hang)
    with pytest.raises(StoreError, match=r"did not come within 0\.05 s") as error:
        await it.read(Pace())
    assert it.keys.log in str(error.value)
