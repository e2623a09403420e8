"""A store that notes when how many bytes left for it."""

from __future__ import annotations

import time

from tiersidecar.adapters.stores.wrapped_store import WrappedBody, WrappedStore
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.store import ObjectBody, Store, StoredObject, Take


class TimedStore(WrappedStore):
    """Passes everything on to ``store``; ``sent`` gets (seconds, bytes) of every slice."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.sent: list[tuple[float, int]] = []

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
        return await super().put_object(key, _TimedBody(body, self.sent), if_absent=if_absent)

    @property
    def is_local(self) -> bool:
        return False

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        take(memoryview(await self.fetch_range(key, byte_range)))


class _TimedBody(WrappedBody):
    def __init__(self, body: ObjectBody, sent: list[tuple[float, int]]) -> None:
        super().__init__(body)
        self._sent = sent

    async def grant(self, wanted_bytes: int) -> int:
        count = await super().grant(wanted_bytes)
        self._sent.append((time.perf_counter(), count))
        return count
