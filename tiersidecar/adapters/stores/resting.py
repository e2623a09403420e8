"""A store that is read, and not asked on and on while it is away.

Clients of a gateway try again twice a second each, and each time what they want is looked up anew.  Of a store that serves
another cluster as well that is no help.  Only what says that the store is away counts: an object that is missing, archived or
cut off, or that we may not read, is an answer, and no reason to keep the other objects from clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tiersidecar.adapters.stores.wrapped_store import WrappedStore
from tiersidecar.domain.errors import StoreError, StoreStalledError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.store import Buffer, Store, StoredObject, Take

_FAILURES = 5
"""In a row, with no success between them, after which it counts as away."""
_FIRST_REST_S, _MOST_REST_S = 0.5, 8.0
_HUNG_S = 10.0
"""A read that is given up after so long has failed: a store behind a broken network answers nothing, not even an error, and
its readers have limits of their own."""
_QUIET_S = 5.0
"""With requests out and no answer for so long, the store is asked whether it is there; if it says nothing until they have been
out for ``_HUNG_S``, it is away."""


@dataclass(eq=False, slots=True)
class _Request:
    """One that is out.  ``limit`` ends it; None where it has limits of its own."""

    key: str
    began_s: float
    limit: asyncio.Timeout | None


class RestingStore(WrappedStore):
    """Pass everything on to ``store``; once it is away, reads fail at once, but for one that tries after each rest, alone until
    it has ended.  Rests grow from half a second to eight, and end with the first success.

    It is away after five failures in a row, or where it hangs: then what is out fails too, after ten seconds, and ``when_hung``
    is called with the reason."""

    def __init__(self, store: Store, clock: Clock) -> None:
        super().__init__(store)
        self._clock = clock
        self._failures, self._rest_s, self._until_s, self._reason = 0, _FIRST_REST_S, 0.0, ""
        self._out: set[_Request] = set()
        self._trial: _Request | None = None
        self._watch: asyncio.Task[None] | None = None
        self._answered_s = clock.monotonic_s()
        self.when_hung: Callable[[str], None] = lambda reason: None

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        async with self._tried("fetch", key):
            return await self._store.fetch_range(key, byte_range)

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        async with self._tried("fetch", key):
            return await self._store.fetch_object(key, max_bytes=max_bytes)

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        async with self._tried("fetch", key):
            await self._store.feed_range(key, byte_range, self._answering(take))

    async def feed_with_rests(self, key: str, byte_range: ByteRange, take: Take) -> None:
        async with self._tried("fetch", key):
            await self._store.feed_with_rests(key, byte_range, self._answering(take))

    async def head_object(self, key: str) -> StoredObject:
        async with self._tried("head", key):
            return await self._store.head_object(key)

    def _answering(self, take: Take) -> Take:
        """Return ``take``, of which each piece is an answer: the reader may go on with the next request before this one has
        ended.  It may run in the thread that reads."""

        def answered(piece: memoryview) -> int:
            self._worked()
            return take(piece)

        return answered

    @asynccontextmanager
    async def _tried(self, verb: str, key: str) -> AsyncIterator[None]:
        """Let one request through; ``key`` is that of an object."""
        limit = asyncio.timeout(None)
        request = self._begin(verb, key, limit)
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise StoreStalledError(verb=verb, key=key, reason=self._reason) from None
        except StoreError as error:
            if error.is_away:
                self._failed(error.reason, is_trial=request is self._trial)
            else:
                self._worked()
            raise
        except asyncio.CancelledError:
            elapsed_s = self._clock.monotonic_s() - request.began_s
            if elapsed_s >= _HUNG_S:
                self._failed(f"no answer within {elapsed_s:.0f} s", is_trial=request is self._trial)
            raise
        else:
            self._worked()
        finally:
            self._out.discard(request)
            if request is self._trial:
                self._trial = None

    def _begin(self, verb: str, key: str, limit: asyncio.Timeout) -> _Request:
        """Return the request that may go out now; after a rest it is the only one, until it has ended.

        Raises:
            StoreError: the store rests.
        """
        now_s = self._clock.monotonic_s()
        request = _Request(key=key, began_s=now_s, limit=limit)
        if self._failures >= _FAILURES:
            if self._trial is not None or now_s < self._until_s:
                # The same words for the whole rest: a log that has each trouble once would take others for a new one.
                reason = f"it is away ({self._reason}), and asked again within {self._rest_s:g} s"
                raise StoreError(verb=verb, key=key, reason=reason, is_away=True)
            self._until_s, self._trial = now_s + self._rest_s, request
        self._add(request)
        return request

    @asynccontextmanager
    async def _watched(self, key: str) -> AsyncIterator[None]:
        """Find out whether the store hangs while a request is out that is neither refused nor ended here."""
        request = _Request(key=key, began_s=self._clock.monotonic_s(), limit=None)
        self._add(request)
        try:
            yield
            self._worked()
        finally:
            self._out.discard(request)

    def _moved(self) -> None:
        """Note that the store takes what is sent to it."""
        self._answered_s = self._clock.monotonic_s()

    def _add(self, request: _Request) -> None:
        self._out.add(request)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._watch_out(), name=f"watch of {self.description}")

    async def _watch_out(self) -> None:
        """Find out while requests are out whether the store hangs: asked for something small, one that is only slow answers."""
        while self._out:
            oldest = min(self._out, key=lambda request: request.began_s)
            quiet_s = self._clock.monotonic_s() - max(oldest.began_s, self._answered_s)
            if quiet_s < _QUIET_S:
                await self._clock.sleep(_QUIET_S - quiet_s)
            elif await self._answers(oldest.key):
                self._answered_s = self._clock.monotonic_s()
            else:
                self._end_all(f"no answer within {_HUNG_S:g} s")

    async def _answers(self, key: str) -> bool:
        """Return whether it has answered this, or what was out before, in time."""
        answered_s = self._answered_s
        asking = asyncio.ensure_future(self._store.head_object(key))
        late = asyncio.ensure_future(self._clock.sleep(_HUNG_S - _QUIET_S))
        try:
            await asyncio.wait((asking, late), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                return self._answered_s > answered_s or not self._out
            error = asking.exception()
            return not (isinstance(error, StoreError) and error.is_away)
        finally:
            asking.cancel()
            late.cancel()

    def _end_all(self, reason: str) -> None:
        """Begin to rest, and end what is out: it would keep its callers, and the places that they have, for a minute."""
        self._failures = max(self._failures, _FAILURES - 1)
        self._failed(reason, is_trial=self._trial is not None)
        now_s = asyncio.get_running_loop().time()
        for request in self._out:
            if request.limit is not None:
                request.limit.reschedule(now_s)
        self._out.clear()
        self.when_hung(reason)

    def _worked(self) -> None:
        self._failures, self._answered_s = 0, self._clock.monotonic_s()

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
