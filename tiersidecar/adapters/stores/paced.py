"""A store whose uploads share one byte rate: ``upload.rate.limit.bytes.per.second`` (S-169, U14)."""

from __future__ import annotations

import asyncio

from tiersidecar.adapters.stores.wrapped_store import WrappedBody, WrappedStore
from tiersidecar.decide.pace import TokenBucket
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.store import ObjectBody, Store, StoredObject

_LEAST_WAIT_S = 0.001


class UploadPace:
    """One bucket for all uploads; slices go first come, first served, so that no upload gets ahead of the others."""

    def __init__(self, bytes_per_s: int | None, clock: Clock) -> None:
        self._bucket, self._clock = TokenBucket(bytes_per_s), clock
        self._turn = asyncio.Lock()

    @property
    def bytes_per_s(self) -> int | None:
        """Return the rate in force; None: no limit.  A new one counts from the next slice on."""
        return self._bucket.bytes_per_s

    @bytes_per_s.setter
    def bytes_per_s(self, rate: int | None) -> None:
        self._bucket.bytes_per_s = rate

    async def grant(self, wanted_bytes: int) -> int:
        """Wait until some of ``wanted_bytes`` may go, and return how many."""
        if self._bucket.bytes_per_s is None and not self._turn.locked():
            return wanted_bytes
        async with self._turn:
            while not (count := self._bucket.take(wanted_bytes, self._clock.monotonic_s())):
                await self._clock.sleep(max(self._bucket.wait_s(wanted_bytes), _LEAST_WAIT_S))
            return count


class PacedStore(WrappedStore):
    """Pass everything on to ``store``; what a put hands on waits for ``pace``."""

    def __init__(self, store: Store, pace: UploadPace) -> None:
        super().__init__(store)
        self._pace = pace

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        return await super().put_object(key, _PacedBody(body, self._pace), if_absent=if_absent)


class _PacedBody(WrappedBody):
    def __init__(self, body: ObjectBody, pace: UploadPace) -> None:
        super().__init__(body)
        self._pace = pace

    async def grant(self, wanted_bytes: int) -> int:
        return await self._pace.grant(await super().grant(wanted_bytes))
