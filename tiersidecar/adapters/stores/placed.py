"""Several stores behind one: the place in a key says which one has the object (``domain/ids.py``).

Everything above knows keys alone.  Below a place, keys begin with its own ``key.prefix`` and name no place.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace

from tiersidecar.adapters.stores.resting import RestingStore
from tiersidecar.adapters.stores.wrapped_store import WrappedBody
from tiersidecar.domain.errors import StoreError, UnknownPlaceError
from tiersidecar.domain.ids import DEFAULT_PLACE, is_like_placed, place_of, place_prefix
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.store import PROBE_NAME, Buffer, ObjectBody, Store, StoredObject, Take


class PlaceStore(RestingStore):
    """The store of one place of several.  While it is away, its reads and deletes fail at once: waited for, they would take the
    slots of other places' reads and deletes.  An upload goes on until it fails, but shows like them whether the store hangs."""

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        async with self._watched(key):
            return await self._store.put_object(key, _MovingBody(body, self._moved), if_absent=if_absent)

    async def check_writable(self) -> None:
        async with self._watched(PROBE_NAME):
            await self._store.check_writable()

    async def delete_objects(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        async with self._tried("delete", keys[0]):
            await self._store.delete_objects(keys)


class _MovingBody(WrappedBody):
    """A body that calls ``moved`` when the store has taken what it was given before."""

    def __init__(self, body: ObjectBody, moved: Callable[[], None]) -> None:
        super().__init__(body)
        self._moved = moved

    async def piece(self, index: int) -> Buffer:
        self._moved()
        return await super().piece(index)

    async def grant(self, wanted_bytes: int) -> int:
        self._moved()
        return await super().grant(wanted_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A store, and what our keys in it begin with."""

    store: Store
    key_prefix: str


class PlacedStore:
    """Pass what is in a place on to its store, and all else to ``default``; with ``places`` empty every call is the same.

    Every verb raises :class:`~tiersidecar.domain.errors.UnknownPlaceError` for an object in a place that is not among them:
    ``default`` would say that it does not exist, and a deletion would succeed and leave it where it is.

    Errors of a place have the whole key, and name it.  ``key_prefix`` is that of the default place.
    """

    def __init__(self, default: Store, places: Mapping[str, Place], *, key_prefix: str = "") -> None:
        self._default, self._places = default, dict(sorted(places.items()))
        self._looks_placed = key_prefix if is_like_placed(key_prefix) else None

    @property
    def default(self) -> Store:
        """Return the store of what is in no place of a name."""
        return self._default

    @property
    def places(self) -> Mapping[str, Place]:
        """Return the others by name, ascending."""
        return self._places

    @property
    def description(self) -> str:
        others = (f"; place {name}: {place.store.description}" for name, place in self._places.items())
        return self._default.description + "".join(others)

    @property
    def max_name_bytes(self) -> int | None:
        limits = (store.max_name_bytes for store in self._stores())
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def is_local(self) -> bool:
        return all(store.is_local for store in self._stores())

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        place, store, below = self._at("put", key)
        with self._named(place):
            stored = await store.put_object(below, body, if_absent=if_absent)
        return replace(stored, key=key) if place else stored

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        place, store, below = self._at("fetch", key)
        with self._named(place):
            return await store.fetch_range(below, byte_range)

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        place, store, below = self._at("fetch", key)
        with self._named(place):
            return await store.fetch_object(below, max_bytes=max_bytes)

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        place, store, below = self._at("fetch", key)
        with self._named(place):
            if store.is_local and not self.is_local:  # ``take`` is not one that may run in another thread
                take(memoryview(await store.fetch_range(below, byte_range)))
                return
            await store.feed_range(below, byte_range, take)

    async def feed_with_rests(self, key: str, byte_range: ByteRange, take: Take) -> None:
        if not self.is_local:
            await self.feed_range(key, byte_range, take)
            return
        place, store, below = self._at("fetch", key)
        with self._named(place):
            await store.feed_with_rests(below, byte_range, take)

    async def head_object(self, key: str) -> StoredObject:
        place, store, below = self._at("head", key)
        with self._named(place):
            stored = await store.head_object(below)
        return replace(stored, key=key) if place else stored

    async def delete_objects(self, keys: Sequence[str]) -> None:
        by_place: dict[str, list[str]] = {}
        for key in keys:
            place, _, below = self._at("delete", key)
            by_place.setdefault(place, []).append(below)
        failed: StoreError | None = None
        for place, those in by_place.items():
            try:
                with self._named(place):
                    await self._store_of(place).delete_objects(those)
            except StoreError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        """List one place: the one that ``prefix`` begins with, else the default one, without what looks there like an object in
        another place, for no key would lead to it."""
        place, store, below = self._at("list", prefix)
        mark, own = place_prefix(place), self._places[place].key_prefix if place else ""
        if not start_after.startswith(mark):
            if start_after > mark:
                return
            start_after = mark
        after = own + start_after.removeprefix(mark) if start_after != mark else ""
        with self._named(place):
            async for stored in store.list_objects(below, start_after=after):
                if place:
                    yield replace(stored, key=mark + stored.key.removeprefix(own))
                elif not self._named_in(stored.key):
                    yield stored

    async def check_writable(self) -> None:
        """Probe the default place; each has a health of its own."""
        await self._default.check_writable()

    def _at(self, verb: str, key: str) -> tuple[str, Store, str]:
        """Return the place of ``key``, its store, and the key in it."""
        name = self._named_in(key)
        if not name:
            return DEFAULT_PLACE, self._default, key
        place = self._places.get(name)
        if place is None:
            raise UnknownPlaceError(verb=verb, key=key, place=name)
        return name, place.store, place.key_prefix + key.removeprefix(place_prefix(name))

    def _named_in(self, key: str) -> str:
        if self._looks_placed is not None and key.startswith(self._looks_placed):
            return DEFAULT_PLACE
        return place_of(key)

    def _store_of(self, place: str) -> Store:
        return self._places[place].store if place else self._default

    def _stores(self) -> list[Store]:
        return [self._default, *(place.store for place in self._places.values())]

    @contextmanager
    def _named(self, place: str) -> Iterator[None]:
        """Let errors of ``place`` say so."""
        try:
            yield
        except StoreError as error:
            if not place:
                raise
            raise self._with_place(error, place) from error

    def _with_place(self, error: StoreError, place: str) -> StoreError:
        one, named = self._places[place], copy(error)
        named.key = place_prefix(place) + error.key.removeprefix(one.key_prefix)
        named.reason = f"place {place} ({one.store.description}): {error.reason}"
        named.args = tuple(vars(named).values())
        return named


def stores_by_place(store: Store) -> Mapping[str, Store]:
    """Return the store of each place by its name, that of the default one under an empty name: each has a health of its own."""
    if not isinstance(store, PlacedStore):
        return {DEFAULT_PLACE: store}
    return {DEFAULT_PLACE: store.default, **{name: place.store for name, place in store.places.items()}}
