"""Ranges leave no key out and list none twice, whatever the bounds are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.manual_clock import ManualClock
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.ports.store import BytesBody, Store
from tiersidecar.reconcile.listing import ranges_between
from tiersidecar.spark.objects_by_segment import _batches

KEYS = st.text(alphabet="ab/-.0é", min_size=1, max_size=5).filter(
    lambda key: not any(part in {"", ".", ".."} for part in key.split("/"))
)


@settings(max_examples=50, deadline=None)
@given(
    keys=st.sets(KEYS, max_size=30),
    bounds=st.lists(KEYS, max_size=8),
    prefixes=st.lists(st.sampled_from(["", "a", "ab", "b"])),
)
async def test_every_key_under_a_prefix_once(keys: set[str], bounds: list[str], prefixes: list[str]) -> None:
    store = MemoryStore(clock=ManualClock(), ids=SystemIds())
    for key in keys:
        await store.put_object(key, BytesBody(key.encode()))

    @asynccontextmanager
    async def opened() -> AsyncIterator[Store]:
        yield store

    found = [
        row["key"] async for batch in _batches(opened, ranges_between(prefixes, bounds)) for row in batch.to_pylist()
    ]
    assert sorted(found) == sorted(key for key in keys if any(key.startswith(prefix) for prefix in prefixes))
