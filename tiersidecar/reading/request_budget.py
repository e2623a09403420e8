"""How many requests reads may make of the store: they cost money, whatever their size (U4)."""

from __future__ import annotations

from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.store import Buffer, FetchRange
from tiersidecar.reading.admission import FetchQuota


class CountedFetches:
    """Passes everything on to ``store``, and charges ``requests`` one for each."""

    def __init__(self, store: FetchRange, requests: FetchQuota) -> None:
        self._store, self._requests = store, requests

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        """See :class:`FetchRange`."""
        self._requests.record(1)
        return await self._store.fetch_range(key, byte_range)

    async def fetch_object(self, key: str) -> bytes:
        """See :class:`FetchRange`."""
        self._requests.record(1)
        return await self._store.fetch_object(key)
