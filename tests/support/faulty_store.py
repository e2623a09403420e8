"""A store whose reads a test bends: slow, short, damaged, failing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.store import Buffer, ObjectBody, Store, StoredObject, Take

Bend = Callable[[str, ByteRange | None, bytes], bytes]


class FaultyStore:
    """``ports.store.Store`` in front of another one.

    ``bend`` sees every fetched body (its range is None for a whole object) and returns, or raises, what the reader gets.
    While ``gate`` is not set, fetches of ``.log`` objects wait; ``log_fetch_begun`` shows that one does.
    ``fetched`` has what was asked for, in order.
    """

    is_local = False

    def __init__(self, inner: Store, bend: Bend | None = None) -> None:
        self._inner = inner
        self.bend = bend
        self.gate = asyncio.Event()
        self.gate.set()
        self.log_fetch_begun = asyncio.Event()
        self.fetched: list[tuple[str, ByteRange | None]] = []

    @property
    def description(self) -> str:
        return f"faulty {self._inner.description}"

    @property
    def max_name_bytes(self) -> int | None:
        return self._inner.max_name_bytes

    def log_fetches(self) -> list[tuple[str, ByteRange | None]]:
        """Return those of ``fetched`` that were of .log objects."""
        return [(key, byte_range) for key, byte_range in self.fetched if key.endswith(".log")]

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        self.fetched.append((key, byte_range))
        if key.endswith(".log"):
            self.log_fetch_begun.set()
            await self.gate.wait()
        data = bytes(await self._inner.fetch_range(key, byte_range))
        return data if self.bend is None else self.bend(key, byte_range, data)

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        self.fetched.append((key, None))
        data = await self._inner.fetch_object(key, max_bytes=max_bytes)
        return data if self.bend is None else self.bend(key, None, data)

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        take(memoryview(await self.fetch_range(key, byte_range)))

    async def feed_with_rests(self, key: str, byte_range: ByteRange, take: Take) -> None:
        await self.feed_range(key, byte_range, take)

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        return await self._inner.put_object(key, body, if_absent=if_absent)

    async def head_object(self, key: str) -> StoredObject:
        return await self._inner.head_object(key)

    async def delete_objects(self, keys: Sequence[str]) -> None:
        await self._inner.delete_objects(keys)

    def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        return self._inner.list_objects(prefix, start_after=start_after)

    async def check_writable(self) -> None:
        await self._inner.check_writable()


def away(key: str, byte_range: ByteRange | None, data: bytes) -> bytes:
    """Raise, for the store does not answer."""
    raise StoreError(verb="fetch", key=key, reason="connection reset")


def flip_bit(data: bytes, bit: int) -> bytes:
    """``data``, if there is any, with one bit turned over, counted on from the front once past the end."""
    damaged = bytearray(data)
    if data:
        damaged[bit // 8 % len(data)] ^= 1 << bit % 8
    return bytes(damaged)
