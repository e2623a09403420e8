"""Every request is counted once, by verb and outcome."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.adapters.stores.metered import MeteredStore
from tiersidecar.domain.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.metrics.process import STORE_BYTES, STORE_OPERATIONS
from tiersidecar.ports.store import BytesBody
from tiersidecar.ports.telemetry import Metric, NoTelemetry
from tiersidecar.testing.store_contract import FailingBody


class CountingTelemetry(NoTelemetry):
    def __init__(self) -> None:
        self.operations: Counter[tuple[str, str]] = Counter()
        self.bytes: Counter[str] = Counter()

    def count(self, metric: Metric, amount: float = 1, **labels: str) -> None:
        if metric is STORE_OPERATIONS:
            self.operations[labels["verb"], labels["outcome"]] += int(amount)
        elif metric is STORE_BYTES:
            self.bytes[labels["verb"]] += int(amount)


@pytest.fixture
def telemetry() -> CountingTelemetry:
    return CountingTelemetry()


@pytest.fixture
def store(telemetry: CountingTelemetry) -> MeteredStore:
    return MeteredStore(MemoryStore(clock=SystemClock(), ids=SystemIds()), telemetry)


async def test_requests_that_succeed_count_with_their_bytes(store: MeteredStore, telemetry: CountingTelemetry) -> None:
    await store.put_object("a", BytesBody(b"0123456789"))
    await store.fetch_object("a", max_bytes=2**30)
    await store.fetch_range("a", ByteRange(2, 5))
    await store.head_object("a")
    assert [stored.key async for stored in store.list_objects()] == ["a"]
    await store.delete_objects(["a", "b"])
    assert telemetry.operations == {
        ("put", "ok"): 1,
        ("fetch", "ok"): 2,
        ("head", "ok"): 1,
        ("list", "ok"): 1,
        ("delete", "ok"): 1,
    }
    assert telemetry.bytes == {"put": 10, "fetch": 13}


async def test_requests_that_fail_count_by_what_became_of_them(
    store: MeteredStore, telemetry: CountingTelemetry
) -> None:
    await store.put_object("a", BytesBody(b"x"))
    with pytest.raises(ObjectNotFoundError):
        await store.fetch_object("b", max_bytes=2**30)
    with pytest.raises(ObjectExistsError):
        await store.put_object("a", BytesBody(b"y"), if_absent=True)
    with pytest.raises(StoreError):
        await store.fetch_range("a", ByteRange(0, 9))
    stalling = FailingBody([b"x"])
    put = asyncio.create_task(store.put_object("c", stalling))
    await stalling.stalled.wait()
    put.cancel()
    with pytest.raises(asyncio.CancelledError):
        await put
    assert telemetry.operations == {
        ("put", "ok"): 1,
        ("fetch", "not_found"): 1,
        ("put", "exists"): 1,
        ("fetch", "error"): 1,
        ("put", "cancelled"): 1,
    }
    assert telemetry.bytes == {"put": 1}


async def test_a_listing_left_early_is_no_error(store: MeteredStore, telemetry: CountingTelemetry) -> None:
    for key in "abc":
        await store.put_object(key, BytesBody(b"x"))
    listing = store.list_objects()
    assert (await anext(listing)).key == "a"
    await listing.aclose()  # type: ignore[attr-defined]
    assert telemetry.operations["list", "ok"] == 1
