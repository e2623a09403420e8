"""The memory store behind a network, and what it may do wrong to the bytes that it gives back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from tests.simulation.chances import Chances
from tests.simulation.local_files import LocalFiles
from tests.simulation.network import FaultRates, Network, at_once
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.domain.errors import ObjectNotFoundError, ObjectTooLargeError, StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.clock import Ids
from tiersidecar.ports.store import Buffer, BytesBody, ObjectBody, StoredObject, Take, probe_store

_OF_SEGMENTS = (".log", ".indexes", ".rsm-manifest")


class BucketRules(Protocol):
    """The rules that learn what becomes of objects, before it does."""

    def put(self, key: str) -> None: ...

    def delete(self, keys: Sequence[str]) -> None: ...

    def fetched(self, key: str) -> None: ...


class Bucket:
    """The store itself: one for all sidecars.  ``late_keys`` were written when their writer had given up, or a second time: no
    process can be blamed for such an object.  ``spoiled`` were acknowledged, and are not there, or not as they were written.
    ``away`` is an outage."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.late_keys: set[str] = set()
        self.spoiled: set[str] = set()
        self.away = False
        self.rules: BucketRules | None = None

    def has(self, key: str) -> bool:
        """Return whether the object is there, or was said to be."""
        if key in self.spoiled:
            return True
        try:
            at_once(self.store.head_object(key))
        except ObjectNotFoundError:
            return False
        return True

    def all_keys(self) -> list[str]:
        """Return the keys of all objects, ascending."""
        return at_once(_keys(self.store))


async def _keys(store: MemoryStore) -> list[str]:
    return [stored.key async for stored in store.list_objects()]


class NetworkStore:
    """``ports.store.Store`` of one process.  ``informs_of_reads``: the rules learn what was fetched.  ``is_local``: its
    objects are files of the machine that reads them; ``acts`` is called before objects of segments are deleted."""

    def __init__(
        self,
        bucket: Bucket,
        network: Network,
        chances: Chances,
        rates: FaultRates,
        ids: Ids,
        *,
        informs_of_reads: bool = True,
        is_local: bool = False,
        acts: Callable[[str], None] = lambda what: None,
    ) -> None:
        self._is_local, self._acts = is_local, acts
        self._files = LocalFiles(chances, rates, open_file=self._open_file, is_there=bucket.has, as_read=self._as_read)
        self._bucket, self._network, self._chances = bucket, network, chances
        self._informs_of_reads = informs_of_reads
        self.rates, self._ids = rates, ids

    @property
    def description(self) -> str:
        return "simulated"

    @property
    def max_name_bytes(self) -> int | None:
        return None

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        data = bytearray()
        for index in range(body.piece_count):
            piece = memoryview(await body.piece(index)).cast("B")
            while piece:
                count = await body.grant(len(piece))
                data += piece[:count]
                piece = piece[count:]
        if body.size_bytes not in (None, len(data)):
            raise StoreError(verb="put", key=key, reason=f"{len(data)} bytes came instead of {body.size_bytes}")
        sent = BytesBody(bytes(data))
        return await self._network.ask(
            f"put {_kind(key)}",
            lambda: self._put(key, sent, if_absent=if_absent),
            lambda reason: StoreError(verb="put", key=key, reason=reason),
            self.rates,
            late=lambda: self._bucket.late_keys.add(key),
        )

    def _put(self, key: str, sent: BytesBody, *, if_absent: bool) -> StoredObject:
        """Store it as it should be; sometimes nothing of it stays, or a bit of it is another one, and the answer is the same.

        Not where it comes a second time, after it may have been read back: what is proven, a store keeps (seed 800727).
        """
        stored = at_once(self._there("put", key).put_object(key, sent, if_absent=if_absent))
        self._bucket.spoiled.discard(key)
        if not key.endswith(_OF_SEGMENTS) or key in self._bucket.late_keys:
            return stored
        if not self._chances.strikes(f"lie about {_kind(key)}", self.rates.lie):
            return stored
        self._bucket.spoiled.add(key)
        data = bytearray(at_once(self._bucket.store.fetch_object(key, max_bytes=2**30)))
        at_once(self._bucket.store.delete_objects([key]))
        # One bit of other objects may be one that no reader uses: offset and time indexes, which readers make anew from the
        # batches, and the manifest's copy of the metadata (seed 229).
        if data and key.endswith(".log") and self._chances.draw("lie keeps something") < 0.5:
            data[int(self._chances.between("lie at", 0, len(data)))] ^= 1
            at_once(self._bucket.store.put_object(key, BytesBody(bytes(data))))
        return stored

    def _delete(self, keys: Sequence[str]) -> None:
        at_once(self._there("delete", *keys).delete_objects(keys))
        self._bucket.spoiled.difference_update(keys)

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        data = await self._fetch(key, byte_range)
        return self._as_read(key, data)

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        data = await self._fetch(key, None)
        if len(data) > max_bytes:
            raise ObjectTooLargeError(key=key, max_bytes=max_bytes)
        return self._as_read(key, data)

    @property
    def is_local(self) -> bool:
        return self._is_local

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        if self._is_local:
            await self._files.feed(key, byte_range, take)
        else:
            take(memoryview(await self.fetch_range(key, byte_range)))

    async def feed_with_rests(self, key: str, byte_range: ByteRange, take: Take) -> None:
        await self.feed_range(key, byte_range, take)

    async def _open_file(self, key: str) -> bytes:
        return await self._fetch(key, None)

    async def head_object(self, key: str) -> StoredObject:
        return await self._network.ask(
            "head",
            lambda: at_once(self._there("head", key).head_object(key)),
            lambda reason: StoreError(verb="head", key=key, reason=reason),
            self.rates,
        )

    async def delete_objects(self, keys: Sequence[str]) -> None:
        if any(key.endswith(_OF_SEGMENTS) for key in keys):
            self._acts(f"deletes {keys}")
        await self._network.ask(
            "delete",
            lambda: self._delete(keys),
            lambda reason: StoreError(verb="delete", key=", ".join(keys), reason=reason),
            self.rates,
        )

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        async for stored in self._bucket.store.list_objects(prefix, start_after=start_after):
            yield stored

    async def check_writable(self) -> None:
        await probe_store(self, ids=self._ids, prefix="")

    async def _fetch(self, key: str, byte_range: ByteRange | None) -> bytes:
        def read() -> bytes:
            store = self._there("fetch", key)
            return at_once(
                store.fetch_object(key, max_bytes=2**30) if byte_range is None else store.fetch_range(key, byte_range)
            )

        return await self._network.ask(
            f"fetch {_kind(key)}",
            read,
            lambda reason: StoreError(verb="fetch", key=key, reason=reason),
            self.rates,
        )

    def _there(self, verb: str, *keys: str) -> MemoryStore:
        """Return the store, about to do this."""
        if self._bucket.away:
            raise StoreError(verb=verb, key=", ".join(keys), reason="503 Service Unavailable")
        rules = self._bucket.rules
        if rules is not None and verb == "put":
            rules.put(*keys)
        elif rules is not None and verb == "delete":
            rules.delete(keys)
        elif rules is not None and verb == "fetch" and self._informs_of_reads:
            rules.fetched(*keys)
        return self._bucket.store

    def _as_read(self, key: str, data: bytes) -> bytes:
        """Return bytes as read: sometimes short, sometimes with a bit turned over: the next time it may be whole."""
        if not data or not self._chances.strikes(f"bad read of {_kind(key)}", self.rates.bad_read):
            return data
        at = int(self._chances.between("bad read at", 0, len(data)))
        if self._chances.draw("bad read is short") < 0.5:
            return data[:at]
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(self._chances.between("bad bit", 0, 8))
        return bytes(damaged)


def _kind(key: str) -> str:
    return key.rpartition(".")[2]
