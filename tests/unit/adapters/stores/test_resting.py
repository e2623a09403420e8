"""A store that is away is not asked on and on (issue 21, a read-only mount)."""

from __future__ import annotations

import asyncio
from collections.abc import Set

import pytest

from tests.support.manual_clock import ManualClock, settle
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.adapters.stores.resting import RestingStore
from tiersidecar.domain.errors import ObjectNotFoundError, StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.store import BytesBody, StoredObject, Take


class Backend(MemoryStore):
    is_away, asked = False, 0
    refused: Set[str] = frozenset()
    gate: asyncio.Event | None = None
    """Until it is set, requests are under way."""
    hangs, heads = False, 0
    """It answers no request, the small ones neither."""

    def __init__(self, *, clock: ManualClock, ids: SystemIds) -> None:
        super().__init__(clock=clock, ids=ids)
        self.comes_back = asyncio.Event()
        """Until it is set, a file that was handed over is still open."""
        self.comes_back.set()

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        await super().feed_range(key, byte_range, take)
        await self.comes_back.wait()

    async def head_object(self, key: str) -> StoredObject:
        self.heads += 1
        if self.hangs:
            await asyncio.Event().wait()
        return await super().head_object(key)

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.gate is not None:
            await self.gate.wait()
        if self.is_away:
            raise StoreError(verb="fetch", key=key, reason="connection refused", is_away=True)
        if key in self.refused:
            raise StoreError(verb="fetch", key=key, reason="InvalidObjectState")
        return await super().fetch_object(key, max_bytes=max_bytes)


class Stage:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.backend = Backend(clock=self.clock, ids=SystemIds())
        self.store = RestingStore(self.backend, self.clock)

    async def fails(self, *, says: str) -> int:
        """A read fails with this reason; how often the backend has been asked by now."""
        with pytest.raises(StoreError, match=says):
            await self.store.fetch_object("k", max_bytes=10)
        return self.backend.asked


async def away() -> Stage:
    stage = Stage()
    await stage.store.put_object("k", BytesBody(b"data"))
    stage.backend.is_away = True
    for asked in range(1, 6):
        assert await stage.fails(says="connection refused") == asked
    return stage


async def test_after_five_failures_it_rests_and_one_tries_after_each_rest() -> None:
    stage, asked = await away(), 5
    for rest_s in (0.5, 1.0, 2.0, 4.0, 8.0, 8.0):
        says = rf"it is away \(connection refused\), and asked again within {rest_s:g} s"
        for _ in range(100):
            assert await stage.fails(says=says) == asked
        await stage.clock.advance(rest_s - 0.1)
        assert await stage.fails(says=says) == asked, "no sooner, and told once"
        await stage.clock.advance(0.2)
        asked += 1
        assert await stage.fails(says="connection refused") == asked


async def test_all_verbs_that_read_rest() -> None:
    stage = await away()
    whole = ByteRange(0, 4)
    with pytest.raises(StoreError, match="it is away"):
        await stage.store.fetch_range("k", whole)
    with pytest.raises(StoreError, match="it is away"):
        await stage.store.head_object("k")
    with pytest.raises(StoreError, match="it is away"):
        await stage.store.feed_range("k", whole, len)
    with pytest.raises(StoreError, match="it is away"):
        await stage.store.feed_with_rests("k", whole, len)


async def test_one_success_ends_it() -> None:
    stage = await away()
    stage.backend.is_away = False
    await stage.clock.advance(0.6)
    for _ in range(3):
        assert await stage.store.fetch_object("k", max_bytes=10) == b"data"
    stage.backend.is_away = True
    assert await stage.fails(says="connection refused") == 9, "it is not away after a single failure"


@pytest.mark.parametrize("verb", ["feed_range", "feed_with_rests"])
async def test_with_the_first_piece_of_a_file_it_is_back(verb: str) -> None:
    """A reader of a local file asks for the next part before the request for the last one has come back."""
    stage = await away()
    stage.backend.is_away = False
    await stage.clock.advance(0.6)
    stage.backend.comes_back.clear()
    pieces = list[memoryview]()

    def take(piece: memoryview) -> int:
        pieces.append(piece)
        return 0

    feeding = asyncio.create_task(getattr(stage.store, verb)("k", ByteRange(0, 4), take))
    await settle()
    assert pieces == [b"data"]
    assert not feeding.done()
    assert await stage.store.fetch_object("k", max_bytes=10) == b"data"
    stage.backend.comes_back.set()
    await feeding


async def test_objects_that_are_missing_are_no_failures() -> None:
    stage = Stage()
    for _ in range(20):
        with pytest.raises(ObjectNotFoundError):
            await stage.store.fetch_object("none", max_bytes=10)
    assert stage.backend.asked == 20


async def test_an_object_that_cannot_be_read_does_not_keep_the_others_from_anybody() -> None:
    """Archived, cut off, or not for our rights: the store answered."""
    stage = Stage()
    await stage.store.put_object("k", BytesBody(b"data"))
    stage.backend.refused = {"archived"}
    for _ in range(20):
        with pytest.raises(StoreError, match="InvalidObjectState"):
            await stage.store.fetch_object("archived", max_bytes=10)
    assert await stage.store.fetch_object("k", max_bytes=10) == b"data"


async def test_an_object_that_cannot_be_read_ends_a_rest_as_one_that_can() -> None:
    stage = await away()
    stage.backend.is_away, stage.backend.refused = False, {"archived"}
    await stage.clock.advance(0.6)
    with pytest.raises(StoreError, match="InvalidObjectState"):
        await stage.store.fetch_object("archived", max_bytes=10)
    assert await stage.store.fetch_object("k", max_bytes=10) == b"data"


async def test_many_that_fail_at_once_are_one_reason_to_rest() -> None:
    """They were under way when the store went: the next try is after half a second still."""
    stage = Stage()
    stage.backend.is_away, stage.backend.gate = True, asyncio.Event()
    failing = [asyncio.create_task(stage.store.fetch_object("k", max_bytes=10)) for _ in range(100)]
    await settle()
    stage.backend.gate.set()
    failed = await asyncio.gather(*failing, return_exceptions=True)
    assert stage.backend.asked == len(failed) == 100
    await stage.clock.advance(0.6)
    assert await stage.fails(says="connection refused") == 101


async def given_up_after(stage: Stage, elapsed_s: float) -> None:
    """A read that the store does not answer, and whose reader has a limit of its own."""
    reading = asyncio.create_task(stage.store.fetch_object("k", max_bytes=10))
    await settle()
    await stage.clock.advance(elapsed_s)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_a_store_that_hangs_is_away_though_it_never_fails() -> None:
    stage = Stage()
    stage.backend.gate = asyncio.Event()
    for _ in range(5):
        await given_up_after(stage, 60)
    assert await stage.fails(says="it is away .no answer within 60 s") == 5
    await stage.clock.advance(0.6)
    await given_up_after(stage, 60)
    assert await stage.fails(says="asked again within 1 s") == 6, "a rest is longer after each try"


async def test_readers_that_leave_soon_say_nothing_of_the_store() -> None:
    stage = Stage()
    stage.backend.gate = asyncio.Event()
    for _ in range(20):
        await given_up_after(stage, 5)
    assert stage.backend.asked == 20


async def hanging(stage: Stage, count: int) -> list[asyncio.Task[bytes]]:
    """Reads that a store which hangs does not answer."""
    stage.backend.hangs = True
    reading = [asyncio.create_task(stage.store.fetch_object("k", max_bytes=10)) for _ in range(count)]
    await settle()
    return reading


@pytest.mark.parametrize("count", [1, 16])
async def test_what_is_out_fails_after_ten_seconds_if_the_store_hangs(count: int) -> None:
    """So long, and no longer, callers keep the places that readers of other stores wait for."""
    stage = Stage()
    reading = await hanging(stage, count)
    await stage.clock.advance(9.9)
    assert not any(read.done() for read in reading)
    await stage.clock.advance(0.2)
    errors = await asyncio.gather(*reading, return_exceptions=True)
    assert [isinstance(error, StoreError) and error.is_away for error in errors] == [True] * count
    assert stage.backend.heads == 1
    assert await stage.fails(says="it is away .no answer within 10 s.") == count


async def test_of_a_store_that_hangs_one_trial_is_out_at_a_time() -> None:
    stage = Stage()
    reading = await hanging(stage, 5)
    await stage.clock.advance(10.1)
    await asyncio.gather(*reading, return_exceptions=True)
    asked = stage.backend.asked
    for rest_s in (0.5, 1, 2, 4):
        await stage.clock.advance(rest_s + 0.1)
        [trial] = await hanging(stage, 1)
        asked += 1
        for _ in range(19):
            assert await stage.fails(says="it is away") == asked
            await stage.clock.advance(0.5)
        await stage.clock.advance(0.6)
        with pytest.raises(StoreError, match="no answer within 10 s"):
            await trial
    assert await stage.fails(says="asked again within 8 s") == asked


async def test_once_it_answers_again_one_trial_ends_it() -> None:
    stage = Stage()
    await stage.store.put_object("k", BytesBody(b"data"))
    reading = await hanging(stage, 5)
    await stage.clock.advance(10.1)
    await asyncio.gather(*reading, return_exceptions=True)
    stage.backend.hangs = False
    await stage.clock.advance(0.5)
    assert [await stage.store.fetch_object("k", max_bytes=10) for _ in range(3)] == [b"data"] * 3


async def test_a_store_that_is_only_slow_is_not_given_up() -> None:
    """Large reads over a slow line all end late, and small ones do not."""
    stage = Stage()
    await stage.store.put_object("k", BytesBody(b"data"))
    stage.backend.gate = asyncio.Event()
    reading = [asyncio.create_task(stage.store.fetch_object("k", max_bytes=10)) for _ in range(16)]
    await settle()
    await stage.clock.advance(50)
    stage.backend.gate.set()
    assert await asyncio.gather(*reading) == [b"data"] * 16
    assert 5 < stage.backend.heads <= 10


async def test_while_it_answers_nobody_asks_it() -> None:
    stage = Stage()
    await stage.store.put_object("k", BytesBody(b"data"))
    stage.backend.gate = asyncio.Event()
    reading = asyncio.create_task(stage.store.fetch_object("k", max_bytes=10))
    for _ in range(30):
        await settle()
        await stage.clock.advance(1)
        await stage.store.fetch_range("k", ByteRange(0, 4))
    assert (stage.backend.heads, reading.done()) == (0, False)
    stage.backend.gate.set()
    assert await reading == b"data"
