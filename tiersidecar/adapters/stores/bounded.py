"""A store of which no request lasts for ever (U1).

The progress of an upload is watched through its body.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from tiersidecar.adapters.stores.wrapped_store import WrappedBody
from tiersidecar.domain.errors import RetriableError, SourceStalledError, StoreStalledError, TiersidecarError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.store import Buffer, ObjectBody, Store, StoredObject, Take


class UploadWatch:
    """Counts down to the time at which an upload is given up; times in seconds.

    It moves whenever a piece was read or a slice is handed on.  While the upload waits for its rate nothing counts, since
    the wait is our own.
    """

    def __init__(self, *, stall_s: float, deadline_s: float, now_s: Callable[[], float]) -> None:
        self._stall_s, self._deadline_s, self._now_s = stall_s, deadline_s, now_s
        self._began_s = self._moved_s = self._paced_since_s = now_s()
        self._paced_s = 0.0
        self._pacing = self._reading = 0

    @property
    def source_is_late(self) -> bool:
        """Return whether the upload has been waiting for a piece of the body."""
        return self._reading > 0 and not self._is_overdue

    @property
    def complaint(self) -> str:
        """Return what was wrong, once :meth:`left_s` has returned 0."""
        if self._is_overdue:
            return f"it took longer than {self._deadline_s:g} s"
        return f"nothing of it moved for {self._stall_s:g} s"

    def left_s(self) -> float:
        """Return the time until the upload is given up, if nothing moves from now on; 0 or less: now."""
        now_s = self._now_s()
        if self._pacing:
            return self._stall_s
        return min(self._moved_s + self._stall_s, self._due_s) - now_s

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Note that the store waits for a piece."""
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1
            self._moved_s = self._now_s()

    @contextmanager
    def pacing(self) -> Iterator[None]:
        """Note that a slice waits for the upload rate."""
        if not self._pacing:
            self._paced_since_s = self._now_s()
        self._pacing += 1
        try:
            yield
        finally:
            self._pacing -= 1
            self._moved_s = self._now_s()
            if not self._pacing:
                self._paced_s += self._moved_s - self._paced_since_s

    @property
    def _due_s(self) -> float:
        return self._began_s + self._paced_s + self._deadline_s

    @property
    def _is_overdue(self) -> bool:
        return self._now_s() >= self._due_s


class WatchedBody(WrappedBody):
    """A body that reports its progress to ``watch``."""

    def __init__(self, body: ObjectBody, watch: UploadWatch) -> None:
        super().__init__(body)
        self._watch = watch

    async def piece(self, index: int) -> Buffer:
        with self._watch.reading():
            return await super().piece(index)

    async def grant(self, wanted_bytes: int) -> int:
        with self._watch.pacing():
            return await super().grant(wanted_bytes)


T = TypeVar("T")

_log = structlog.get_logger(__name__)

_LISTED_AT_ONCE = 500
"""Objects of a listing that one time limit is for: a page of a store has a thousand.  To watch one takes a quarter of a
millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """``stall_s``: how long nothing of an upload may move.  ``upload_s``: a whole upload, not counting its waits for the
    upload rate.  ``request_s``: any other request.

    A request that is given up is cancelled and has ``cancel_s`` to end; then it is left alone, since a thread in a dead
    mount cannot be stopped.  With ``max_left_alone`` such requests, new ones fail at once.
    """

    stall_s: float = 120.0
    upload_s: float = 3600.0
    request_s: float = 60.0
    cancel_s: float = 15.0
    max_left_alone: int = 8


class BoundedStore:
    """Pass everything on to ``store``, and give up what takes too long.

    Every verb raises :class:`~tiersidecar.domain.errors.StoreStalledError` then, and a put
    :class:`~tiersidecar.domain.errors.SourceStalledError` where it is the body that does not come.
    """

    def __init__(self, store: Store, *, limits: StoreLimits, clock: Clock) -> None:
        self._store, self._limits, self._clock = store, limits, clock
        self._left_alone: set[asyncio.Future[Any]] = set()

    @property
    def left_alone(self) -> int:
        """Return how many requests were given up and have not ended: what they were to do may still happen."""
        return len(self._left_alone)

    @property
    def description(self) -> str:
        return self._store.description

    @property
    def max_name_bytes(self) -> int | None:
        return self._store.max_name_bytes

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        limits = self._limits
        watch = UploadWatch(stall_s=limits.stall_s, deadline_s=limits.upload_s, now_s=self._clock.monotonic_s)
        put = self._store.put_object(key, WatchedBody(body, watch), if_absent=if_absent)
        return await self._run("put", key, put, watch)

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        return await self._run("fetch", key, self._store.fetch_range(key, byte_range), self._one_request())

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        return await self._run("fetch", key, self._store.fetch_object(key, max_bytes=max_bytes), self._one_request())

    @property
    def is_local(self) -> bool:
        return self._store.is_local

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        await self._run("fetch", key, self._store.feed_range(key, byte_range, take), self._one_request())

    async def feed_with_rests(self, key: str, byte_range: ByteRange, take: Take) -> None:
        await self._run("fetch", key, self._store.feed_with_rests(key, byte_range, take), self._one_request())

    async def head_object(self, key: str) -> StoredObject:
        return await self._run("head", key, self._store.head_object(key), self._one_request())

    async def delete_objects(self, keys: Sequence[str]) -> None:
        await self._run("delete", ", ".join(keys[:3]), self._store.delete_objects(keys), self._one_request())

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        listing = self._store.list_objects(prefix, start_after=start_after)
        goes_on = True
        while goes_on:
            found: list[StoredObject] = []
            error: TiersidecarError | None = None
            try:
                goes_on = await self._run("list", prefix, _take_some(listing, found), self._one_request())
            except TiersidecarError as failed:  # what came before it is there all the same
                error = failed
            for stored in found:
                yield stored
            if error is not None:
                raise error

    async def check_writable(self) -> None:
        await self._run("use", "", self._store.check_writable(), self._one_request())

    def _one_request(self) -> UploadWatch:
        limit_s = self._limits.request_s
        return UploadWatch(stall_s=limit_s, deadline_s=limit_s, now_s=self._clock.monotonic_s)

    async def _run(self, verb: str, key: str, request: Coroutine[Any, Any, T], watch: UploadWatch) -> T:
        if len(self._left_alone) >= self._limits.max_left_alone:
            request.close()
            reason = f"{len(self._left_alone)} earlier requests still hang"
            raise StoreStalledError(verb=verb, key=key, reason=reason)
        running = asyncio.ensure_future(request)
        try:
            while not running.done() and (left_s := watch.left_s()) > 0:
                await self._wait(running, left_s)
        except asyncio.CancelledError:
            await self._end(verb, key, running)
            raise
        if running.done():
            return running.result()
        error = self._error(verb, key, watch)
        await self._end(verb, key, running)
        raise error

    def _error(self, verb: str, key: str, watch: UploadWatch) -> RetriableError:
        if watch.source_is_late:
            return SourceStalledError(key=key, waited_s=self._limits.stall_s)
        return StoreStalledError(verb=verb, key=key, reason=watch.complaint)

    async def _wait(self, running: asyncio.Future[T], at_most_s: float) -> None:
        """Return when ``running`` is done, after ``at_most_s`` at the latest."""
        sleeping = asyncio.ensure_future(self._clock.sleep(at_most_s))
        try:
            await asyncio.wait((running, sleeping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()

    async def _end(self, verb: str, key: str, running: asyncio.Future[T]) -> None:
        """Cancel, and wait for the end, but not for ever; a second cancellation leaves it alone at once."""
        running.cancel()
        try:
            await self._wait(running, self._limits.cancel_s)
        finally:
            if running.done():
                running.cancelled() or running.exception()  # read, so that asyncio is silent: the caller's error says more
            else:
                _log.error("store.request.left_alone", store=self.description, verb=verb, key=key)
                self._left_alone.add(running)
                running.add_done_callback(self._ended_after_all)

    def _ended_after_all(self, running: asyncio.Future[Any]) -> None:
        self._left_alone.discard(running)
        running.cancelled() or running.exception()
        _log.info("store.request.ended_late", store=self.description, left_alone=len(self._left_alone))


async def _take_some(listing: AsyncIterator[StoredObject], found: list[StoredObject]) -> bool:
    """Fill ``found``; return whether there may be more.  Each object as a request of its own, watched by two tasks, would take
    longer than all else that is done with a long listing."""
    async for stored in listing:
        found.append(stored)
        if len(found) == _LISTED_AT_ONCE:
            return True
    return False
