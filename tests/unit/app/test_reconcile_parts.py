"""What reconcile reads of the store: whose a topic is, and what the last run saw."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.manual_clock import ManualClock
from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.adapters.stores.placed import Place, PlacedStore
from tiersidecar.app.reconcile_parts import UNREADABLE_OWNER, read_former_look, read_owners
from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.own_objects import LATEST_REPORT, MOST_OWNER_BYTES, MOST_REPORT_BYTES, OWNERS
from tiersidecar.ports.store import BytesBody, StoredObject

DEEP = b"[" * 60_000


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=ManualClock(), ids=SystemIds())


async def test_an_owner_object_that_cannot_be_read_is_there_and_no_clusters(store: MemoryStore) -> None:
    objects = {
        "good": b'{"cluster_id":"ours"}',
        "deep": DEEP,
        "large": b'{"cluster_id":"ours"}' + b" " * MOST_OWNER_BYTES,
    }
    for name, data in objects.items():
        await store.put_object(f"p/{OWNERS}{name}.json", BytesBody(data))
    owners, _ = await read_owners(store, ("p/",))
    assert owners == {"good": "ours", "deep": UNREADABLE_OWNER, "large": UNREADABLE_OWNER}


async def test_a_place_says_whose_a_topic_is_that_the_default_one_does_not_know(store: MemoryStore) -> None:
    """Another cluster's, with which the place is shared: nothing of it is an orphan of ours (S-293)."""
    places = PlacedStore(
        store, {"cold": Place(store=MemoryStore(clock=ManualClock(), ids=SystemIds()), key_prefix="c/")}
    )
    said = {f"p/{OWNERS}a.json": "ours", f"@cold/{OWNERS}a.json": "theirs", f"@cold/{OWNERS}b.json": "theirs"}
    for key, cluster in said.items():
        await places.put_object(key, BytesBody(f'{{"cluster_id":"{cluster}"}}'.encode()))
    assert await read_owners(places, ("p/", "@cold/")) == ({"a": "ours", "b": "theirs"}, {})


class Away(MemoryStore):
    is_away = True

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        if prefix:
            raise StoreError(verb="list", key=prefix, reason="no answer", is_away=self.is_away)
        async for stored in super().list_objects(prefix, start_after=start_after):
            yield stored


async def test_a_place_that_does_not_answer_is_told_and_any_other_trouble_ends_the_run(store: MemoryStore) -> None:
    cold = Away(clock=ManualClock(), ids=SystemIds())
    places = PlacedStore(store, {"cold": Place(store=cold, key_prefix="c/")})
    await store.put_object(f"p/{OWNERS}a.json", BytesBody(b'{"cluster_id":"ours"}'))
    owners, away = await read_owners(places, ("p/", "@cold/"))
    assert (owners, list(away)) == ({"a": "ours"}, ["@cold/"])
    assert "no answer" in away["@cold/"]
    with pytest.raises(StoreError):
        await read_owners(PlacedStore(cold, {}), ("p/",))
    cold.is_away = False
    with pytest.raises(StoreError):
        await read_owners(places, ("p/", "@cold/"))


@pytest.mark.parametrize(
    "summary",
    [
        pytest.param(DEEP, id="deeply nested"),
        pytest.param(bytes(MOST_REPORT_BYTES + 1), id="too large"),
        pytest.param(
            b'{"cluster_id":"c","metadata_topic":"__remote_log_metadata","run_id":"r","metadata_end":{"0":Infinity}}',
            id="an offset without end",
        ),
    ],
)
async def test_a_summary_that_no_run_has_put_says_nothing(store: MemoryStore, summary: bytes, tmp_path: Path) -> None:
    config = load(tmp_path, LEAST)
    await store.put_object(f"{config.store.key_prefix}{LATEST_REPORT}", BytesBody(summary))
    assert await read_former_look(store, config, "c") is None
