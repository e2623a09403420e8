"""The watch over memory: what it stops, whatever bodies began when, and in whichever event loop."""

from __future__ import annotations

import asyncio

import pytest

from tiersidecar.adapters.stores import watched_bodies
from tiersidecar.adapters.stores.watched_bodies import WatchedBodies

MIB = 1 << 20


class Memory:
    """What the process is said to have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mib = 0
        monkeypatch.setattr(watched_bodies, "anonymous_bytes", lambda: self.mib * MIB)
        monkeypatch.setattr(watched_bodies, "LOOK_S", 0.001)


async def endless() -> None:
    await asyncio.Event().wait()


async def looked() -> None:
    """Return after a look at the memory."""
    await asyncio.sleep(0.02)


async def is_stopped(reading: asyncio.Task[None]) -> bool:
    done, _ = await asyncio.wait([reading], timeout=0.2)
    reading.cancel()
    await asyncio.wait([reading])
    return bool(done)


async def test_a_body_that_begins_beside_an_endless_one_is_not_allowed_more(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, watch = Memory(monkeypatch), WatchedBodies(slack_bytes=100 * MIB)
    first = asyncio.create_task(watch.collect(endless(), 10))
    await looked()
    memory.mib = 90
    await looked()
    second = asyncio.create_task(watch.collect(endless(), 10))
    await looked()
    memory.mib = 110
    assert await is_stopped(first)
    assert await is_stopped(second), "else it takes 90 MiB more, and the next one that much more again"


async def test_memory_that_is_given_back_meanwhile_does_not_count_for_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, watch = Memory(monkeypatch), WatchedBodies(slack_bytes=100 * MIB)
    memory.mib = 1000
    reading = asyncio.create_task(watch.collect(endless(), 10))
    await looked()
    memory.mib = 0
    await looked()
    memory.mib = 200
    assert await is_stopped(reading)


def test_a_second_event_loop_is_watched_though_the_first_ended_right_after_a_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory, watch = Memory(monkeypatch), WatchedBodies(slack_bytes=100 * MIB)

    async def short() -> int:
        return 1

    async def second() -> bool:
        reading = asyncio.create_task(watch.collect(endless(), 10))
        await looked()
        memory.mib = 200
        return await is_stopped(reading)

    assert asyncio.run(watch.collect(short(), 10)) == 1
    assert asyncio.run(second())
