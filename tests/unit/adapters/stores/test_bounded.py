"""Nothing hangs: every verb of a store that stalls is given up in time (U1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from tests.support.manual_clock import ManualClock, settle
from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.stores.bounded import BoundedStore, StoreLimits
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.adapters.stores.paced import PacedStore, UploadPace
from tiersidecar.domain.errors import SourceStalledError, StoreStalledError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.store import Buffer, BytesBody, ObjectBody, Store, StoredObject, Take
from tiersidecar.testing.store_contract import PiecesBody, StoreContract

LIMITS = StoreLimits(stall_s=120, upload_s=3600, request_s=60, cancel_s=15, max_left_alone=2)


class TestBoundedStoreKeepsTheContract(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        inner = MemoryStore(clock=SystemClock(), ids=SystemIds())
        return PacedStore(BoundedStore(inner, limits=LIMITS, clock=SystemClock()), UploadPace(None, SystemClock()))


class StallingStore:
    """Never answers; deaf to a cancellation while ``is_deaf``, as a thread in a dead mount is."""

    description = "stalling"
    max_name_bytes: int | None = None

    def __init__(self) -> None:
        self.is_deaf = False
        self.release = asyncio.Event()
        self.cancelled = 0

    async def _stall(self) -> Any:
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                if not self.is_deaf:
                    raise

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        for index in range(body.piece_count):
            rest = len(await body.piece(index))
            while rest:
                rest -= await body.grant(rest)
        return await self._stall()  # type: ignore[no-any-return]

    async def fetch_range(self, key: str, byte_range: ByteRange) -> bytes:
        return await self._stall()  # type: ignore[no-any-return]

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        return await self._stall()  # type: ignore[no-any-return]

    is_local = True

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        await self._stall()

    async def feed_with_rests(self, key: str, byte_range: ByteRange, take: Take) -> None:
        await self._stall()

    async def head_object(self, key: str) -> StoredObject:
        return await self._stall()  # type: ignore[no-any-return]

    async def delete_objects(self, keys: Sequence[str]) -> None:
        await self._stall()

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        yield await self._stall()

    async def check_writable(self) -> None:
        await self._stall()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def inner() -> StallingStore:
    return StallingStore()


@pytest.fixture
def store(inner: StallingStore, clock: ManualClock) -> BoundedStore:
    return BoundedStore(inner, limits=LIMITS, clock=clock)


async def listed(store: Store) -> list[StoredObject]:
    return [stored async for stored in store.list_objects("a/")]


VERBS: dict[str, tuple[Callable[[Store], Awaitable[Any]], float]] = {
    "put": (lambda store: store.put_object("k", BytesBody(b"x")), 120),
    "fetch a range": (lambda store: store.fetch_range("k", ByteRange(0, 1)), 60),
    "feed a range": (lambda store: store.feed_range("k", ByteRange(0, 1), len), 60),
    "feed a range with rests": (lambda store: store.feed_with_rests("k", ByteRange(0, 1), len), 60),
    "fetch an object": (lambda store: store.fetch_object("k", max_bytes=2**30), 60),
    "head": (lambda store: store.head_object("k"), 60),
    "delete": (lambda store: store.delete_objects(["k"]), 60),
    "list": (listed, 60),
    "probe": (lambda store: store.check_writable(), 60),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_a_request_that_stalls_is_cancelled_in_time(
    store: BoundedStore, inner: StallingStore, clock: ManualClock, verb: str
) -> None:
    request, limit_s = VERBS[verb]
    task = asyncio.ensure_future(request(store))
    await clock.advance(limit_s - 1)
    assert not task.done()
    await clock.advance(2)
    with pytest.raises(StoreStalledError):
        await task
    assert inner.cancelled == 1


@pytest.mark.parametrize("verb", VERBS)
async def test_a_request_that_cannot_be_stopped_is_left_alone(
    store: BoundedStore, inner: StallingStore, clock: ManualClock, verb: str
) -> None:
    """A thread in a dead mount: the caller goes on without it, and it is let go when it ends after all."""
    inner.is_deaf = True
    request, limit_s = VERBS[verb]
    task = asyncio.ensure_future(request(store))
    await clock.advance(limit_s + 14)
    assert not task.done()
    await clock.advance(2)
    with pytest.raises(StoreStalledError):
        await task
    assert store.left_alone == 1
    inner.release.set()
    await settle()
    assert store.left_alone == 0


async def test_requests_left_alone_do_not_pile_up(
    store: BoundedStore, inner: StallingStore, clock: ManualClock
) -> None:
    """Threads are few, and the third request would take another one."""
    inner.is_deaf = True
    for _ in range(2):
        task = asyncio.ensure_future(store.head_object("k"))
        await clock.advance(80)
        with pytest.raises(StoreStalledError):
            await task
    with pytest.raises(StoreStalledError, match="2 earlier requests still hang"):
        await store.head_object("k")
    inner.release.set()
    await settle()
    task = asyncio.ensure_future(store.head_object("k"))
    await settle()
    assert task.done(), "it is asked again"
    await task


class SlowListing(StallingStore):
    """Lists ``count`` objects, and then stalls."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.all_listed, self.tasks = count, asyncio.Event(), set[object]()

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        for number in range(self.count):
            self.tasks.add(asyncio.current_task())
            yield StoredObject(key=f"{number:04}", size_bytes=1, modified_ms=0)
        self.all_listed.set()
        await self._stall()


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1000])
async def test_what_a_listing_gave_before_it_stalled_is_there(clock: ManualClock, count: int) -> None:
    inner = SlowListing(count)
    store = BoundedStore(inner, limits=LIMITS, clock=clock)
    seen: list[str] = []

    async def list_all() -> None:
        async for stored in store.list_objects("a/"):
            seen.append(stored.key)

    task = asyncio.ensure_future(list_all())
    await inner.all_listed.wait()  # the clock stands still meanwhile
    await settle()
    await clock.advance(80)
    with pytest.raises(StoreStalledError):
        await task
    assert seen == [f"{number:04}" for number in range(count)]


async def test_a_long_listing_is_not_a_task_for_each_object(clock: ManualClock) -> None:
    """They took longer than all that ``recover`` and ``mount`` do with a listing."""
    inner = SlowListing(1000)
    inner.release.set()
    listed = [stored async for stored in BoundedStore(inner, limits=LIMITS, clock=clock).list_objects()]
    assert len(listed) == 1000
    assert len(inner.tasks) < 20


async def test_a_caller_that_is_cancelled_takes_the_request_with_it(
    store: BoundedStore, inner: StallingStore, clock: ManualClock
) -> None:
    task = asyncio.ensure_future(store.put_object("k", BytesBody(b"x")))
    await settle()
    task.cancel()
    await settle()
    assert task.cancelled()
    assert inner.cancelled == 1


class SlowBody(PiecesBody):
    """Each piece takes ``seconds``."""

    clock: ManualClock
    seconds: float

    async def piece(self, index: int) -> Buffer:
        await self.clock.sleep(self.seconds)
        return await PiecesBody.piece(self, index)


class SlowlyGrantedBody(SlowBody):
    async def piece(self, index: int) -> Buffer:
        return await PiecesBody.piece(self, index)

    async def grant(self, wanted_bytes: int) -> int:
        await self.clock.sleep(self.seconds)
        return wanted_bytes


def slow(kind: type[SlowBody], clock: ManualClock, pieces: int, seconds: float) -> SlowBody:
    body = kind([b"x"] * pieces)
    body.clock, body.seconds = clock, seconds
    return body


async def test_an_upload_that_moves_slowly_goes_on(clock: ManualClock) -> None:
    store = BoundedStore(MemoryStore(clock=clock, ids=SystemIds()), limits=LIMITS, clock=clock)
    task = asyncio.ensure_future(store.put_object("k", slow(SlowBody, clock, 30, 119)))
    await clock.advance(3580)
    assert (await task).size_bytes == 30


async def test_an_upload_that_moves_but_never_ends_is_given_up(clock: ManualClock) -> None:
    store = BoundedStore(MemoryStore(clock=clock, ids=SystemIds()), limits=LIMITS, clock=clock)
    task = asyncio.ensure_future(store.put_object("k", slow(SlowBody, clock, 300, 119)))
    await clock.advance(3601)
    with pytest.raises(StoreStalledError, match="longer than 3600 s"):
        await task


async def test_waiting_for_the_upload_rate_is_no_stall(clock: ManualClock) -> None:
    store = BoundedStore(MemoryStore(clock=clock, ids=SystemIds()), limits=LIMITS, clock=clock)
    task = asyncio.ensure_future(store.put_object("k", slow(SlowlyGrantedBody, clock, 10, 1000)))
    await clock.advance(10_001)
    assert (await task).size_bytes == 10


async def test_a_body_that_does_not_come_is_not_the_stores_fault(clock: ManualClock) -> None:
    """The disk of a log dir hangs: the gate of the store stays open."""
    store = BoundedStore(MemoryStore(clock=clock, ids=SystemIds()), limits=LIMITS, clock=clock)
    task = asyncio.ensure_future(store.put_object("k", slow(SlowBody, clock, 1, 10_000)))
    await clock.advance(121)
    with pytest.raises(SourceStalledError, match="has made no progress for 120 s"):
        await task
