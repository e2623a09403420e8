"""Each request to the store is charged once, whatever its size, and passed on as it is (U4)."""

from __future__ import annotations

import pytest

from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.reading.admission import CountedFetches, ReaderPool, UnlimitedQuota


class Store:
    """Answers with what it was asked."""

    def __init__(self, *, is_local: bool = False) -> None:
        self.is_local = is_local
        self.fails = False

    def _answer(self, *asked: object) -> bytes:
        if self.fails:
            raise StoreError(verb="fetch", key="k", reason="away")
        return repr(asked).encode()

    async def fetch_range(self, key: str, byte_range: ByteRange) -> bytes:
        return self._answer(key, byte_range)

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        return self._answer(key, max_bytes)

    async def feed_range(self, key: str, byte_range: ByteRange, take: object) -> None:
        assert callable(take)
        take(memoryview(self._answer(key, byte_range)))


class Charged(UnlimitedQuota):
    def __init__(self) -> None:
        self.amounts = list[int]()

    def record(self, amount: int) -> None:
        self.amounts.append(amount)


async def ask_each_way(fetches: CountedFetches) -> list[bytes]:
    fed = list[bytes]()

    def take(piece: memoryview) -> int:
        fed.append(bytes(piece))
        return len(piece)

    found = [
        bytes(await fetches.fetch_range("a", ByteRange(0, 1 << 30))),
        await fetches.fetch_object("b", max_bytes=7),
        await fetches.fetch_object("c", max_bytes=2**30),
    ]
    await fetches.feed_range("d", ByteRange(5, 6), take)
    return found + fed


async def test_whatever_is_asked_for_and_however_much_costs_one_each() -> None:
    charged = Charged()
    found = await ask_each_way(CountedFetches(Store(), charged))
    whole, part = ByteRange(0, 1 << 30), ByteRange(5, 6)
    assert found == [repr(asked).encode() for asked in (("a", whole), ("b", 7), ("c", 2**30), ("d", part))]
    assert charged.amounts == [1, 1, 1, 1]


async def test_a_request_that_fails_has_cost_as_much() -> None:
    store, charged = Store(), Charged()
    store.fails = True
    with pytest.raises(StoreError):
        await CountedFetches(store, charged).fetch_range("a", ByteRange(0, 1))
    assert charged.amounts == [1]


@pytest.mark.parametrize("is_local", [True, False])
def test_whether_objects_are_files_here_is_the_stores_to_say(*, is_local: bool) -> None:
    assert CountedFetches(Store(is_local=is_local), Charged()).is_local is is_local


async def test_without_a_quota_nothing_is_shed_however_much_was_read() -> None:
    pool = ReaderPool(running=1)
    pool.charge("orders", 1 << 60)
    async with pool.admit():
        pass
