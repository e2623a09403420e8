"""A store that notes when how many bytes left for it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence

from tiersidecar.adapters.stores.wrapped_body import WrappedBody
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.store import Buffer, ObjectBody, Store, StoredObject


class TimedStore:
    """Passes everything on to ``store``; ``sent`` gets (seconds, bytes) of every slice."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.sent: list[tuple[float, int]] = []

    @property
    def description(self) -> str:
        return self._store.description

    @property
    def mean_bytes_per_s(self) -> float:
        """Over the time from the first slice to the last."""
        return sum(size for _, size in self.sent[1:]) / (self.sent[-1][0] - self.sent[0][0])

    @property
    def most_bytes_in_a_second(self) -> int:
        """Wherever the second begins."""
        most = total = first = 0
        for at_s, size in self.sent:
            total += size
            while self.sent[first][0] <= at_s - 1:
                total -= self.sent[first][1]
                first += 1
            most = max(most, total)
        return most

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        return await self._store.put_object(key, _TimedBody(body, self.sent), if_absent=if_absent)

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        return await self._store.fetch_range(key, byte_range)

    async def fetch_object(self, key: str) -> bytes:
        return await self._store.fetch_object(key)

    @property
    def is_local(self) -> bool:
        return False

    async def feed_range(self, key: str, byte_range: ByteRange, take: Callable[[memoryview], bool]) -> None:
        take(memoryview(await self.fetch_range(key, byte_range)))

    async def head_object(self, key: str) -> StoredObject:
        return await self._store.head_object(key)

    async def delete_objects(self, keys: Sequence[str]) -> None:
        await self._store.delete_objects(keys)

    def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        return self._store.list_objects(prefix, start_after=start_after)

    async def check_writable(self) -> None:
        await self._store.check_writable()


class _TimedBody(WrappedBody):
    def __init__(self, body: ObjectBody, sent: list[tuple[float, int]]) -> None:
        super().__init__(body)
        self._sent = sent

    async def grant(self, wanted_bytes: int) -> int:
        count = await super().grant(wanted_bytes)
        self._sent.append((time.perf_counter(), count))
        return count
