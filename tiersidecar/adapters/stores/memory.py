"""A store in memory: for simulation and unit tests, under the same contract as the real ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from tiersidecar.domain.errors import ObjectExistsError, ObjectNotFoundError, ObjectTooLargeError, StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.clock import Clock, Ids
from tiersidecar.ports.store import ObjectBody, StoredObject, Take, probe_store, require_valid_key


@dataclass(frozen=True, slots=True)
class _Held:
    data: bytes
    modified_ms: int


class MemoryStore:
    """Objects of this process.  ``checksums``: whether it keeps a CRC32C like S3, or none like a file system."""

    def __init__(self, *, clock: Clock, ids: Ids, checksums: bool = True) -> None:
        self._clock, self._ids, self._checksums = clock, ids, checksums
        self._objects: dict[str, _Held] = {}

    @property
    def description(self) -> str:
        return "memory"

    @property
    def max_name_bytes(self) -> int | None:
        return None

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        require_valid_key("put", key)
        data = bytearray()
        for index in range(body.piece_count):
            await _take(memoryview(await body.piece(index)).cast("B"), body, data)
        if body.size_bytes not in (None, len(data)):
            raise StoreError(verb="put", key=key, reason=f"{len(data)} bytes came instead of {body.size_bytes}")
        if if_absent and key in self._objects:
            raise ObjectExistsError(verb="put", key=key, reason="it exists already")
        self._objects[key] = _Held(bytes(data), self._clock.now_ms())
        return self._describe(key)

    async def fetch_range(self, key: str, byte_range: ByteRange) -> bytes:
        data = self._held("fetch", key).data
        if byte_range.stop > len(data):
            raise StoreError(
                verb="fetch", key=key, reason=f"it has {len(data)} bytes, byte {byte_range.stop - 1} was asked"
            )
        return data[byte_range.start : byte_range.stop]

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        data = self._held("fetch", key).data
        if len(data) > max_bytes:
            raise ObjectTooLargeError(key=key, max_bytes=max_bytes)
        return data

    @property
    def is_local(self) -> bool:
        return False

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        take(memoryview(await self.fetch_range(key, byte_range)))

    async def feed_with_rests(self, key: str, byte_range: ByteRange, take: Take) -> None:
        await self.feed_range(key, byte_range, take)

    async def head_object(self, key: str) -> StoredObject:
        self._held("head", key)
        return self._describe(key)

    async def delete_objects(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._objects.pop(key, None)
        for key in keys:
            require_valid_key("delete", key)

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        # UTF-8 keeps the order of code points, so sorting the texts sorts the bytes.
        for key in sorted(key for key in self._objects if key.startswith(prefix) and key > start_after):
            if key in self._objects:
                yield self._describe(key)

    async def check_writable(self) -> None:
        await probe_store(self, ids=self._ids, prefix="")

    def _held(self, verb: str, key: str) -> _Held:
        require_valid_key(verb, key)
        held = self._objects.get(key)
        if held is None:
            raise ObjectNotFoundError(verb=verb, key=key, reason="no such object")
        return held

    def _describe(self, key: str) -> StoredObject:
        held = self._objects[key]
        checksum = crc32c(held.data) if self._checksums else None
        return StoredObject(key=key, size_bytes=len(held.data), modified_ms=held.modified_ms, crc32c=checksum)


async def _take(piece: memoryview, body: ObjectBody, data: bytearray) -> None:
    """Append ``piece`` to ``data`` as fast as ``body`` grants it."""
    while piece:
        count = await body.grant(len(piece))
        data += piece[:count]
        piece = piece[count:]
