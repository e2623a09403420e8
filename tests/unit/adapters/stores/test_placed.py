"""One store of several places: every verb goes where the key says, and what is nowhere is refused (S-193, S-293)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.manual_clock import ManualClock
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.adapters.stores.placed import Place, PlacedStore, PlaceStore, stores_by_place
from tiersidecar.domain.errors import ObjectExistsError, ObjectNotFoundError, StoreError, UnknownPlaceError
from tiersidecar.domain.ids import place_of
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.store import BytesBody, ObjectBody, StoredObject, Take
from tiersidecar.testing.store_contract import PiecesBody, StoreContract


class Named(MemoryStore):
    """``trouble`` is the answer to every fetch and delete."""

    def __init__(self, description: str, *, is_local: bool = True) -> None:
        super().__init__(clock=ManualClock(), ids=SystemIds())
        self._description, self._is_local = description, is_local
        self.trouble: StoreError | None = None
        self.asked = 0

    @property
    def description(self) -> str:
        return self._description

    @property
    def is_local(self) -> bool:
        return self._is_local

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        """As a local store does."""
        await asyncio.to_thread(lambda: asyncio.run(MemoryStore.feed_range(self, key, byte_range, take)))

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        return await super().fetch_object(key, max_bytes=max_bytes)

    async def delete_objects(self, keys: Any) -> None:
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        await super().delete_objects(keys)


class Stage:
    def __init__(self, *, key_prefix: str = "") -> None:
        self.hot, self.cold, self.far = Named("hot"), Named("cold"), Named("far")
        self.store = PlacedStore(
            self.hot,
            {"cold": Place(store=self.cold, key_prefix="our/"), "far": Place(store=self.far, key_prefix="")},
            key_prefix=key_prefix,
        )

    async def put(self, *keys: str) -> None:
        for key in keys:
            await self.store.put_object(key, BytesBody(key.encode()))

    async def keys_in(self, store: MemoryStore) -> list[str]:
        return [stored.key async for stored in store.list_objects()]

    async def listed(self, prefix: str, *, start_after: str = "") -> list[str]:
        return [stored.key async for stored in self.store.list_objects(prefix, start_after=start_after)]


@pytest.fixture
def stage() -> Stage:
    return Stage()


class TestPlacedStore(StoreContract):
    """What is in no place of a name."""

    @pytest.fixture
    async def store(self) -> PlacedStore:
        return Stage().store


async def test_an_object_goes_where_its_key_says_under_the_prefix_of_that_place(stage: Stage) -> None:
    await stage.put("a", "@cold/b", "@far/c")
    assert await stage.keys_in(stage.hot) == ["a"]
    assert await stage.keys_in(stage.cold) == ["our/b"]
    assert await stage.keys_in(stage.far) == ["c"]
    assert await stage.store.fetch_object("@cold/b", max_bytes=9) == b"@cold/b"
    assert await stage.store.fetch_range("@cold/b", ByteRange(1, 5)) == b"cold"
    assert (await stage.store.head_object("@cold/b")).key == "@cold/b"
    with pytest.raises(ObjectExistsError, match="place cold"):
        await stage.store.put_object("@cold/b", BytesBody(b""), if_absent=True)


async def test_a_listing_is_of_one_place(stage: Stage) -> None:
    await stage.put("a", "a/b", "@cold/a", "@cold/b/1", "@cold/b/2", "@far/b/3")
    await stage.cold.put_object("not ours", BytesBody(b""))
    assert await stage.listed("") == ["a", "a/b"]
    assert await stage.listed("@cold/") == ["@cold/a", "@cold/b/1", "@cold/b/2"]
    assert await stage.listed("@cold/b/") == ["@cold/b/1", "@cold/b/2"]
    assert await stage.listed("@cold/", start_after="@cold/b/1") == ["@cold/b/2"]
    assert await stage.listed("@cold/", start_after="@a") == ["@cold/a", "@cold/b/1", "@cold/b/2"]
    assert await stage.listed("@cold/", start_after="a") == []


async def test_what_looks_like_an_object_in_another_place_is_not_listed_in_the_default_one(stage: Stage) -> None:
    await stage.hot.put_object("@cold/x", BytesBody(b""))
    await stage.put("@Cold/y", "z")
    assert await stage.listed("") == ["@Cold/y", "z"]


async def test_a_delete_of_several_places_tries_all_before_it_fails(stage: Stage) -> None:
    await stage.put("a", "@cold/b", "@far/c")
    stage.cold.trouble = StoreError(verb="delete", key="our/b", reason="access denied")
    with pytest.raises(StoreError, match=r"'@cold/b': place cold \(cold\): access denied"):
        await stage.store.delete_objects(["@cold/b", "a", "@far/c"])
    assert [await stage.keys_in(one) for one in (stage.hot, stage.cold, stage.far)] == [[], ["our/b"], []]


VERBS: list[Any] = [
    pytest.param(lambda store, key: store.put_object(key, BytesBody(b"")), id="put"),
    pytest.param(lambda store, key: store.fetch_object(key, max_bytes=1), id="fetch"),
    pytest.param(lambda store, key: store.fetch_range(key, ByteRange(0, 1)), id="fetch a range"),
    pytest.param(lambda store, key: store.feed_range(key, ByteRange(0, 1), len), id="feed"),
    pytest.param(lambda store, key: store.feed_with_rests(key, ByteRange(0, 1), len), id="feed with rests"),
    pytest.param(lambda store, key: store.head_object(key), id="head"),
    pytest.param(lambda store, key: store.delete_objects(["a", key]), id="delete"),
    pytest.param(lambda store, key: anext(store.list_objects(key)), id="list"),
]


@pytest.mark.parametrize("ask", VERBS)
@pytest.mark.parametrize("has_places", [True, False])
async def test_no_verb_takes_a_place_that_is_not_configured_for_an_object_that_is_not_there(
    ask: Callable[[PlacedStore, str], Awaitable[Any]], has_places: bool
) -> None:
    """A delete least of all: it would succeed, and leave the object where it is."""
    stage = Stage()
    store = stage.store if has_places else PlacedStore(stage.hot, {})
    await stage.put("a")
    with pytest.raises(UnknownPlaceError, match="'gone', which the configuration does not name"):
        await ask(store, "@gone/b")
    assert await stage.keys_in(stage.hot) == ["a"]


@pytest.mark.parametrize("prefix", ["@mine/", "@"])
async def test_a_prefix_that_looks_like_a_place_goes_on_as_before_where_there_are_none(prefix: str) -> None:
    hot = Named("hot")
    store = PlacedStore(hot, {}, key_prefix=prefix)
    await store.put_object(key := f"{prefix}orders-x/a", BytesBody(b"x"))
    assert [stored.key async for stored in store.list_objects(prefix)] == [key]
    assert [stored.key async for stored in hot.list_objects()] == [key]


async def test_errors_of_a_place_say_which_it_is_and_keep_their_kind(stage: Stage) -> None:
    with pytest.raises(ObjectNotFoundError, match=r"'@cold/b': place cold \(cold\)") as raised:
        await stage.store.fetch_object("@cold/b", max_bytes=1)
    assert place_of(raised.value.key) == "cold"
    with pytest.raises(ObjectNotFoundError) as raised:
        await stage.store.fetch_object("b", max_bytes=1)
    assert "place" not in str(raised.value)


async def test_a_place_that_is_away_is_not_asked_on_and_on_and_the_others_are(stage: Stage) -> None:
    cold = PlaceStore(stage.cold, ManualClock())
    store = PlacedStore(stage.hot, {"cold": Place(store=cold, key_prefix="")})
    stage.cold.trouble = StoreError(verb="fetch", key="b", reason="connection refused", is_away=True)
    for _ in range(20):
        with pytest.raises(StoreError, match="connection refused"):
            await store.fetch_object("@cold/b", max_bytes=1)
    with pytest.raises(StoreError, match="it is away"):
        await store.delete_objects(["@cold/b"])
    assert stage.cold.asked == 5
    with pytest.raises(ObjectNotFoundError):
        await store.fetch_object("b", max_bytes=1)


async def test_a_local_place_beside_one_that_is_not_shows_its_bytes_on_the_callers_thread() -> None:
    local, far, seen = Named("local"), Named("far", is_local=False), list[bytes]()
    store = PlacedStore(far, {"near": Place(store=local, key_prefix="")})

    def take(part: memoryview) -> int:
        assert threading.current_thread() is threading.main_thread()
        seen.append(bytes(part))
        return len(part)

    await store.put_object("@near/a", BytesBody(b"abc"))
    assert not store.is_local
    await store.feed_range("@near/a", ByteRange(0, 2), take)
    await store.feed_with_rests("@near/a", ByteRange(2, 3), take)
    assert seen == [b"ab", b"c"]


def test_it_tells_all_places_and_each_has_a_store_to_be_probed(stage: Stage) -> None:
    assert stage.store.description == "hot; place cold: cold; place far: far"
    assert dict(stores_by_place(stage.store)) == {"": stage.hot, "cold": stage.cold, "far": stage.far}
    assert dict(stores_by_place(stage.hot)) == {"": stage.hot}


keys = st.builds(
    "".join, st.tuples(st.sampled_from(["", "@cold/", "@far/"]), st.sampled_from(["a", "b", "a/b", "b/c", "ß"]))
)
steps = st.lists(st.tuples(st.sampled_from(["put", "delete", "head", "list"]), keys), max_size=30)


@settings(max_examples=60)
@given(steps)
async def test_places_together_behave_like_one_store_by_whole_keys(done: list[tuple[str, str]]) -> None:
    stage, model = Stage(), dict[str, bytes]()
    for number, (verb, key) in enumerate(done):
        match verb:
            case "put":
                model[key] = str(number).encode()
                await stage.store.put_object(key, BytesBody(model[key]))
            case "delete":
                model.pop(key, None)
                await stage.store.delete_objects([key])
            case "head":
                try:
                    found = (await stage.store.head_object(key)).size_bytes
                except ObjectNotFoundError:
                    found = -1
                assert found == (len(model[key]) if key in model else -1)
            case _:
                expected = sorted(one for one in model if one.startswith(key) and place_of(one) == place_of(key))
                assert await stage.listed(key) == expected
    assert {key: await stage.store.fetch_object(key, max_bytes=9) for key in model} == model


class Hanging(Named):
    """It takes no upload to its end, and says nothing of a blob either while ``is_mute``."""

    is_mute = True

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        for index in range(body.piece_count):
            await body.grant(len(await body.piece(index)))
        await asyncio.Event().wait()
        raise AssertionError

    async def check_writable(self) -> None:
        await asyncio.Event().wait()

    async def head_object(self, key: str) -> StoredObject:
        if self.is_mute:
            await asyncio.Event().wait()
        return await super().head_object(key)


class SlowBody(PiecesBody):
    """A body of which each piece is sent ``takes_s`` after the one before."""

    def __init__(self, pieces: int, clock: ManualClock, takes_s: float) -> None:
        super().__init__([b"x"] * pieces)
        self._clock, self._takes_s = clock, takes_s

    async def grant(self, wanted_bytes: int) -> int:
        await self._clock.sleep(self._takes_s)
        return await super().grant(wanted_bytes)


class HungStage:
    """A place whose store hangs; ``told`` has why it is away, and ``seconds`` when that was noticed."""

    def __init__(self) -> None:
        self.clock, self.backend = ManualClock(), Hanging("cold")
        self.store, self.told = PlaceStore(self.backend, self.clock), list[str]()
        self.store.when_hung = self.told.append

    async def seconds(self, request: Coroutine[Any, Any, Any], *, most: int) -> int:
        task = asyncio.create_task(request)
        passed = 0
        while passed < most and not self.told:
            await self.clock.advance(1)
            passed += 1
        task.cancel()
        await asyncio.wait([task])
        return passed


@pytest.mark.parametrize("is_probe", [False, True])
async def test_that_a_place_hangs_shows_after_ten_seconds_of_an_upload_too(is_probe: bool) -> None:
    """The metric went by the upload's own end, minutes later."""
    stage = HungStage()
    request = stage.store.check_writable() if is_probe else stage.store.put_object("a", BytesBody(b"a"))
    assert await stage.seconds(request, most=60) == 10
    assert stage.told == ["no answer within 10 s"]


async def test_an_upload_that_moves_or_whose_store_answers_small_requests_does_not_hang() -> None:
    stage = HungStage()
    assert await stage.seconds(stage.store.put_object("a", SlowBody(20, stage.clock, 3)), most=60) == 60
    stage.backend.is_mute = False
    assert await stage.seconds(stage.store.put_object("a", BytesBody(b"a")), most=60) == 60
    assert stage.told == []
