"""A store that passes everything on, for one that changes a single verb; and a body with something between it and the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.store import Buffer, ObjectBody, SourceFile, Store, StoredObject, Take


class WrappedStore:
    """Passes every verb on to ``store``."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def description(self) -> str:
        return self._store.description

    @property
    def max_name_bytes(self) -> int | None:
        return self._store.max_name_bytes

    @property
    def is_local(self) -> bool:
        return self._store.is_local

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        return await self._store.put_object(key, body, if_absent=if_absent)

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        return await self._store.fetch_range(key, byte_range)

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        return await self._store.fetch_object(key, max_bytes=max_bytes)

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        await self._store.feed_range(key, byte_range, take)

    async def feed_with_rests(self, key: str, byte_range: ByteRange, take: Take) -> None:
        await self._store.feed_with_rests(key, byte_range, take)

    async def head_object(self, key: str) -> StoredObject:
        return await self._store.head_object(key)

    async def delete_objects(self, keys: Sequence[str]) -> None:
        await self._store.delete_objects(keys)

    def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        return self._store.list_objects(prefix, start_after=start_after)

    async def check_writable(self) -> None:
        await self._store.check_writable()


class WrappedBody:
    """Passes everything on to ``body``: a wrapper only defines what it does otherwise."""

    def __init__(self, body: ObjectBody) -> None:
        self._body = body

    @property
    def size_bytes(self) -> int | None:
        return self._body.size_bytes

    @property
    def piece_count(self) -> int:
        return self._body.piece_count

    @property
    def source_file(self) -> SourceFile | None:
        return self._body.source_file

    async def piece(self, index: int) -> Buffer:
        return await self._body.piece(index)

    async def grant(self, wanted_bytes: int) -> int:
        return await self._body.grant(wanted_bytes)
