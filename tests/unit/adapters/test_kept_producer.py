"""What the producer of the internal topics asks of aiokafka (see ``tests/integration`` for what comes of it)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tiersidecar.adapters.kafka_clients import KeptProducer


class SlowLeader:
    """In place of aiokafka's producer: an answer takes some turns of the loop."""

    def __init__(self) -> None:
        self.under_way, self.most, self.offset = dict[int, int](), dict[int, int](), 0

    async def send_batch(self, batch: Any, topic: str, *, partition: int) -> asyncio.Future[Any]:
        count = self.under_way[partition] = self.under_way.get(partition, 0) + 1
        self.most[partition] = max(count, self.most.get(partition, 0))
        return asyncio.ensure_future(self._written(partition))

    async def _written(self, partition: int) -> Any:
        for _ in range(5):
            await asyncio.sleep(0)
        self.under_way[partition] -= 1
        self.offset += 1
        return SimpleNamespace(offset=self.offset)


async def test_batches_of_a_partition_go_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several that wait for a partition, aiokafka lets all but one time out: while the leader changes, say."""
    producer, leader = KeptProducer("localhost:9092", {}, client_id="c"), SlowLeader()

    async def started() -> Any:
        return leader

    monkeypatch.setattr(producer, "_started", started)
    sent = [producer.send_batch("t", partition=at % 2, values=[b"v"], timestamp_ms=0) for at in range(8)]
    assert sorted(await asyncio.gather(*sent)) == list(range(1, 9))
    assert leader.most == {0: 1, 1: 1}
