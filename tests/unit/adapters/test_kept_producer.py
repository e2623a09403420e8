"""Batches of one partition are given to aiokafka one by one, which gives up those that wait there."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

from tiersidecar.adapters.kafka_clients import KeptProducer

NOW_MS = 1_700_000_000_000


class Answers:
    """In the place of aiokafka's producer: each batch gets its answer when the test gives it."""

    def __init__(self) -> None:
        self.given: list[tuple[int, asyncio.Future[Any]]] = []

    async def send_batch(self, batch: object, topic: str, *, partition: int) -> asyncio.Future[Any]:
        self.given.append((partition, asyncio.get_running_loop().create_future()))
        return self.given[-1][1]

    def sending_until(self, until_s: float | None) -> AbstractContextManager[None]:
        return nullcontext()

    def answer(self, number: int, offset: int) -> None:
        self.given[number][1].set_result(SimpleNamespace(offset=offset))


class Producer(KeptProducer):
    def __init__(self) -> None:
        super().__init__("localhost:9092", {}, client_id="test")
        self.answers = Answers()

    async def _started(self) -> Any:
        return self.answers


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_batch_waits_for_the_answer_to_the_one_before_of_its_partition_alone() -> None:
    """A leader that died is gone for nine seconds, and the third batch of its partition failed after fifteen."""
    producer = Producer()
    sends = [
        asyncio.create_task(producer.send_batch("events", partition=partition, values=[b"one"], timestamp_ms=NOW_MS))
        for partition in (3, 3, 3, 4)
    ]
    await settle()
    assert [partition for partition, _ in producer.answers.given] == [3, 4]
    producer.answers.answer(0, 70)
    await settle()
    assert [partition for partition, _ in producer.answers.given] == [3, 4, 3]
    producer.answers.answer(2, 71)
    producer.answers.answer(1, 5)
    await settle()
    producer.answers.answer(3, 72)
    assert await asyncio.gather(*sends) == [70, 71, 72, 5]


async def test_a_batch_that_is_given_up_lets_the_next_one_begin() -> None:
    producer = Producer()
    first, second = (
        asyncio.create_task(producer.send_batch("events", partition=3, values=[b"one"], timestamp_ms=NOW_MS))
        for _ in range(2)
    )
    await settle()
    producer.answers.given[0][1].set_exception(OSError("the broker is gone"))
    await asyncio.wait([first])
    assert first.exception() is not None
    await settle()
    producer.answers.answer(1, 8)
    assert await second == 8
