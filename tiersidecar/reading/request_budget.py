"""How many requests reads may make of the store: they cost money, whatever their size (U4)."""

from __future__ import annotations

from collections.abc import Callable

from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.store import Buffer, ReadStore
from tiersidecar.reading.admission import FetchQuota


class CountedFetches:
    """Passes everything on to ``store``, and charges ``requests`` one for each."""

    def __init__(self, store: ReadStore, requests: FetchQuota) -> None:
        self._store, self._requests = store, requests

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        """See :class:`FetchRange`."""
        self._requests.record(1)
        return await self._store.fetch_range(key, byte_range)

    async def fetch_object(self, key: str, *, max_bytes: int | None = None) -> bytes:
        """See :class:`FetchRange`."""
        self._requests.record(1)
        return await self._store.fetch_object(key, max_bytes=max_bytes)

    @property
    def is_local(self) -> bool:
        """See :class:`FeedRange`."""
        return self._store.is_local

    async def feed_range(self, key: str, byte_range: ByteRange, take: Callable[[memoryview], bool]) -> None:
        """See :class:`FeedRange`."""
        self._requests.record(1)
        await self._store.feed_range(key, byte_range, take)
