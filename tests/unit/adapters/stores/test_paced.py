"""All uploads share one rate, in fair turns, and it can change while they run (U14)."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.manual_clock import ManualClock, settle
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.adapters.stores.paced import PacedStore, UploadPace
from tiersidecar.testing.store_contract import PiecesBody

MIB = 1024 * 1024
CHUNK = bytes(MIB)


class TimedBody(PiecesBody):
    """Notes when its bytes were granted."""

    clock: ManualClock

    def __init__(self, clock: ManualClock, chunks: int) -> None:
        super().__init__([CHUNK] * chunks)
        self.clock, self.done_s = clock, 0.0

    async def piece(self, index: int) -> bytes:
        self.done_s = self.clock.monotonic_s()
        return CHUNK


async def test_uploads_together_go_at_the_rate_of_one() -> None:
    clock = ManualClock()
    store = PacedStore(MemoryStore(clock=clock, ids=SystemIds()), UploadPace(10 * MIB, clock))
    bodies = [TimedBody(clock, 25) for _ in range(4)]
    puts = [asyncio.ensure_future(store.put_object(f"k{n}", body)) for n, body in enumerate(bodies)]
    await clock.advance(9.5)
    assert not any(put.done() for put in puts)
    await clock.advance(0.8)
    assert all(put.done() for put in puts), "100 MiB at 10 MiB/s take 10 s"
    ends = [body.done_s for body in bodies]
    assert max(ends) - min(ends) < 0.5, "none got ahead of the others"


@pytest.mark.parametrize("rate", [None, 100 * MIB], ids=["lifted", "raised"])
async def test_a_new_rate_counts_for_uploads_under_way(rate: int | None) -> None:
    clock = ManualClock()
    pace = UploadPace(MIB, clock)
    store = PacedStore(MemoryStore(clock=clock, ids=SystemIds()), pace)
    put = asyncio.ensure_future(store.put_object("k", PiecesBody([CHUNK] * 50)))
    await clock.advance(10)
    assert not put.done()
    pace.bytes_per_s = rate
    await clock.advance(1)
    await settle(500)
    assert put.done()
