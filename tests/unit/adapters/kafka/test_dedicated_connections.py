"""Requests that wait at the broker hold up nothing: a broker answers a connection's requests in their order."""

from __future__ import annotations

import asyncio

from tests.unit.adapters.kafka.scripted_peer import scripted_peer
from tests.unit.adapters.kafka.test_routes import PARTITION, Cluster, offset_of
from tiersidecar.adapters.kafka.broker import KafkaBroker, open_broker
from tiersidecar.domain.offsets import Offset


class Waiting(Cluster):
    """Answers DeleteRecords only once ``may_answer``, and on its connection nothing else before that, as Kafka does."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_answer = asyncio.Semaphore(0), asyncio.Event()

    async def before_deleting(self) -> None:
        self.asked.release()
        await self.may_answer.wait()


async def trimmed(broker: KafkaBroker) -> int:
    return (await broker.delete_records({PARTITION: Offset(7)}))[PARTITION].low_watermark


async def test_a_trim_that_waits_for_followers_holds_up_no_other_request() -> None:
    """Seen on real brokers: leadership moved during DeleteRecords, and the sidecar was blind for the 24 s of its timeout."""
    cluster = Waiting()
    async with scripted_peer(cluster.script) as peer, open_broker(peer.address) as broker, asyncio.TaskGroup() as tasks:
        trims = [tasks.create_task(trimmed(broker)) for _ in range(2)]
        for _ in trims:
            await cluster.asked.acquire()
        assert await offset_of(broker) == (42, None)
        assert not any(trim.done() for trim in trims)
        cluster.may_answer.set()
    assert [trim.result() for trim in trims] == [7, 7]
    assert peer.connections == 3


async def test_a_connection_is_used_again_for_the_next_trim() -> None:
    cluster = Waiting()
    cluster.may_answer.set()
    async with scripted_peer(cluster.script) as peer, open_broker(peer.address) as broker:
        assert [await trimmed(broker), await trimmed(broker)] == [7, 7]
    assert peer.connections == 2


async def test_trims_beyond_the_width_wait_for_their_turn() -> None:
    cluster = Waiting()
    async with scripted_peer(cluster.script) as peer, open_broker(peer.address) as broker, asyncio.TaskGroup() as tasks:
        trims = [tasks.create_task(trimmed(broker)) for _ in range(9)]
        for _ in range(4):
            await cluster.asked.acquire()
        assert await offset_of(broker) == (42, None)
        assert peer.connections == 1 + 4
        cluster.may_answer.set()
    assert [trim.result() for trim in trims] == [7] * 9
    assert peer.connections == 1 + 4


async def test_a_trim_that_is_given_up_leaves_no_connection_that_waits_on() -> None:
    """The next one would stand behind it."""
    cluster = Waiting()
    async with scripted_peer(cluster.script) as peer, open_broker(peer.address) as broker:
        trim = asyncio.create_task(trimmed(broker))
        await cluster.asked.acquire()
        trim.cancel()
        await asyncio.wait([trim])
        cluster.may_answer.set()
        assert await trimmed(broker) == 7
    assert peer.connections == 3
