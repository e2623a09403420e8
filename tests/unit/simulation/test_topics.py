"""Consumers of the simulated internal topics: a Fetch that is held keeps others waiting, as at a broker (design 0021)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from aiokafka import TopicPartition

from tests.simulation.topics import SimulatedConsumer, SimulatedTopic
from tests.simulation.virtual_time import VirtualTimeLoop
from tiersidecar.domain.ids import Uuid

HELD_S, LAG_S = 2.0, 0.01


class Stage:
    """A topic with two partitions, and a consumer of the first one."""

    def __init__(self, loop: VirtualTimeLoop, held_s: float) -> None:
        self.loop = loop
        self.topic = SimulatedTopic("t", Uuid(b"simulated-topic!"), 2, {})
        self.consumer = SimulatedConsumer({"t": self.topic}, loop, LAG_S, held_s)
        self.first, self.second = TopicPartition("t", 0), TopicPartition("t", 1)
        self.consumer.assign([self.first])

    def write(self, partition: int) -> None:
        self.topic.append(partition, key=None, value=b"v", timestamp_ms=0, now_s=self.loop.time())

    async def poll(self, timeout_ms: int = 500) -> tuple[list[int], float]:
        """Return of which partitions something came, and the seconds that it took."""
        began_s = self.loop.time()
        found = await self.consumer.getmany(timeout_ms=timeout_ms)
        return sorted(partition.partition for partition in found), round(self.loop.time() - began_s, 1)


@pytest.fixture
def loop() -> Iterator[VirtualTimeLoop]:
    loop = VirtualTimeLoop(100_000)
    yield loop
    loop.close()


def run(loop: VirtualTimeLoop, story: Coroutine[Any, Any, None]) -> None:
    loop.run_until_complete(loop.create_task(story))


def test_a_poll_ends_in_time_while_its_fetch_is_held(loop: VirtualTimeLoop) -> None:
    async def story() -> None:
        stage = Stage(loop, HELD_S)
        assert await stage.poll() == ([], 0.5)
        stage.write(0)
        assert await stage.poll() == ([0], 0.0), "a record ends the hold"

    run(loop, story())


@pytest.mark.parametrize(("held_s", "waits_s"), [(HELD_S, HELD_S), (0.0, 0.0)])
def test_what_is_assigned_later_waits_for_the_fetch_that_is_held(
    loop: VirtualTimeLoop, held_s: float, waits_s: float
) -> None:
    async def story() -> None:
        stage = Stage(loop, held_s)
        polling = asyncio.ensure_future(stage.poll(100))
        await asyncio.sleep(0)
        stage.write(1)
        await polling
        began_s = loop.time() - 0.1
        stage.consumer.assign([stage.first, stage.second])
        assert (await stage.poll(10_000))[0] == [1]
        assert loop.time() - began_s == pytest.approx(waits_s, abs=0.2 if held_s else 6)

    run(loop, story())


def test_what_was_fetched_from_elsewhere_is_thrown_away(loop: VirtualTimeLoop) -> None:
    async def story() -> None:
        stage = Stage(loop, HELD_S)
        await stage.poll(100)
        stage.write(0)
        stage.write(0)
        stage.consumer.seek(stage.first, 1)
        found = await stage.consumer.getmany(timeout_ms=500)
        assert [record.offset for record in found[stage.first]] == [1]

    run(loop, story())
