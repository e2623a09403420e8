"""A store that counts: every request by verb and outcome, and the bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from tiersidecar.adapters.stores.wrapped_store import WrappedStore
from tiersidecar.domain.errors import ObjectExistsError, ObjectNotFoundError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.metrics.process import STORE_BYTES, STORE_OPERATIONS
from tiersidecar.ports.store import Buffer, ObjectBody, Store, StoredObject, Take
from tiersidecar.ports.telemetry import Telemetry

_Feed = Callable[[str, ByteRange, Take], Awaitable[None]]


class MeteredStore(WrappedStore):
    """Pass everything on to ``store``, and count it.

    Verbs: put, fetch, head, delete, list.  Outcomes: ok, not_found, exists, cancelled, error.  A listing counts once,
    however long it is, and a delete of many keys once.  Bytes are those of objects put and fetched whole or in part;
    those of a failed request are not known.
    """

    def __init__(self, store: Store, telemetry: Telemetry) -> None:
        super().__init__(store)
        self._telemetry = telemetry

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        with self._counted("put"):
            stored = await self._store.put_object(key, body, if_absent=if_absent)
        self._telemetry.count(STORE_BYTES, stored.size_bytes, verb="put")
        return stored

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        with self._counted("fetch"):
            data = await self._store.fetch_range(key, byte_range)
        self._telemetry.count(STORE_BYTES, len(data), verb="fetch")
        return data

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        with self._counted("fetch"):
            data = await self._store.fetch_object(key, max_bytes=max_bytes)
        self._telemetry.count(STORE_BYTES, len(data), verb="fetch")
        return data

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        await self._feed(self._store.feed_range, key, byte_range, take)

    async def feed_with_rests(self, key: str, byte_range: ByteRange, take: Take) -> None:
        await self._feed(self._store.feed_with_rests, key, byte_range, take)

    async def head_object(self, key: str) -> StoredObject:
        with self._counted("head"):
            return await self._store.head_object(key)

    async def delete_objects(self, keys: Sequence[str]) -> None:
        with self._counted("delete"):
            await self._store.delete_objects(keys)

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        with self._counted("list"):
            async for stored in self._store.list_objects(prefix, start_after=start_after):
                yield stored

    async def _feed(self, feed: _Feed, key: str, byte_range: ByteRange, take: Take) -> None:
        handed_bytes = 0

        def counted(piece: memoryview) -> int:
            nonlocal handed_bytes
            handed_bytes += len(piece)
            return take(piece)

        with self._counted("fetch"):
            await feed(key, byte_range, counted)
        self._telemetry.count(STORE_BYTES, handed_bytes, verb="fetch")

    @contextmanager
    def _counted(self, verb: str) -> Iterator[None]:
        outcome = "error"
        try:
            yield
            outcome = "ok"
        except ObjectNotFoundError:
            outcome = "not_found"
            raise
        except ObjectExistsError:
            outcome = "exists"
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except GeneratorExit:
            outcome = "ok"  # a reader that has seen enough of a listing
            raise
        finally:
            self._telemetry.count(STORE_OPERATIONS, verb=verb, outcome=outcome)
