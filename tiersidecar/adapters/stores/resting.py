"""A store that is read, and not asked on and on while it is away.

Clients of a gateway try again twice a second each, and each time what they want is looked up anew.  Of a store that serves
another cluster as well that is no help.  Only what says that the store is away counts: an object that is missing, archived or
cut off, or that we may not read, is an answer, and no reason to keep the other objects from clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tiersidecar.adapters.stores.wrapped_store import WrappedStore
from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.store import Buffer, Store, StoredObject

_FAILURES = 5
"""In a row, with no success between them, after which it counts as away."""
_FIRST_REST_S, _MOST_REST_S = 0.5, 8.0
_HUNG_S = 10.0
"""A read that is given up after so long has failed: a store behind a broken network answers nothing, not even an error, and
its readers have limits of their own."""


class RestingStore(WrappedStore):
    """Pass everything on to ``store``; once it is away, reads fail at once, but for one that tries after each rest.  Rests grow
    from half a second to eight, and end with the first success."""

    def __init__(self, store: Store, clock: Clock) -> None:
        super().__init__(store)
        self._clock = clock
        self._failures, self._rest_s, self._until_s, self._reason = 0, _FIRST_REST_S, 0.0, ""

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        with self._tried("fetch", key):
            return await self._store.fetch_range(key, byte_range)

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        with self._tried("fetch", key):
            return await self._store.fetch_object(key, max_bytes=max_bytes)

    async def feed_range(self, key: str, byte_range: ByteRange, take: Callable[[memoryview], bool]) -> None:
        with self._tried("fetch", key):
            await self._store.feed_range(key, byte_range, take)

    async def feed_with_rests(self, key: str, byte_range: ByteRange, take: Callable[[memoryview], bool]) -> None:
        with self._tried("fetch", key):
            await self._store.feed_with_rests(key, byte_range, take)

    async def head_object(self, key: str) -> StoredObject:
        with self._tried("head", key):
            return await self._store.head_object(key)

    @contextmanager
    def _tried(self, verb: str, key: str) -> Iterator[None]:
        is_trial, began_s = self._is_trial(verb, key), self._clock.monotonic_s()
        try:
            yield
        except StoreError as error:
            if error.is_away:
                self._failed(error.reason, is_trial=is_trial)
            else:
                self._worked()
            raise
        except asyncio.CancelledError:
            elapsed_s = self._clock.monotonic_s() - began_s
            if elapsed_s >= _HUNG_S:
                self._failed(f"no answer within {elapsed_s:.0f} s", is_trial=is_trial)
            raise
        self._worked()

    def _is_trial(self, verb: str, key: str) -> bool:
        """Return whether it is the one that is tried after a rest.

        Raises:
            StoreError: the store rests.
        """
        if self._failures < _FAILURES:
            return False
        now_s = self._clock.monotonic_s()
        if now_s < self._until_s:
            # The same words for the whole rest: a log that has each trouble once would take others for a new one.
            reason = f"it is away ({self._reason}), and asked again within {self._rest_s:g} s"
            raise StoreError(verb=verb, key=key, reason=reason, is_away=True)
        self._until_s = now_s + self._rest_s  # the others wait for what comes of this one
        return True

    def _worked(self) -> None:
        self._failures = 0

    def _failed(self, reason: str, *, is_trial: bool) -> None:
        """Begin to rest; requests that were under way then are no reason to rest longer."""
        self._failures, self._reason = self._failures + 1, reason
        if is_trial:
            self._rest_s = min(2 * self._rest_s, _MOST_REST_S)
        elif self._failures == _FAILURES:
            self._rest_s = _FIRST_REST_S
        else:
            return
        self._until_s = self._clock.monotonic_s() + self._rest_s
