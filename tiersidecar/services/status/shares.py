"""Limits of the work that unauthenticated callers may cause in the status service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tiersidecar.domain.errors import QuotaExceededError

_MOST_REST_S = 2.0
_RETRY_AFTER_MS = 1000


class Share:
    """Let ``at_once`` requests work, and ``waiting`` wait; a place rests, after each, ``rest`` times as long as it worked.

    So requests, however many, take no more than a part of the time.
    """

    def __init__(self, *, at_once: int, waiting: int, rest: float) -> None:
        self._places, self._waiting, self._rest = asyncio.Semaphore(at_once), waiting, rest

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place, and hold it.

        Raises:
            QuotaExceededError: too many wait.
        """
        if self._waiting == 0:
            raise QuotaExceededError(what="the number of requests at once", retry_after_ms=_RETRY_AFTER_MS)
        self._waiting -= 1
        try:
            await self._places.acquire()
        finally:
            self._waiting += 1
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        try:
            yield
        finally:
            rest_s = min((now_s() - began_s) * self._rest, _MOST_REST_S)
            asyncio.get_running_loop().call_later(rest_s, self._places.release)
