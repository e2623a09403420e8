"""A transactional producer that goes on while brokers die, and knows of each transaction what may become of it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from aiokafka import AIOKafkaProducer

from tests.support.background_thread import BackgroundThread
from tests.support.chaos.read_check import content_of
from tests.support.produce import ProducedRecord, draw_batch
from tests.support.read_service import Shape, shape_of

_STEP_TIMEOUT_S = 90.0


class Fate(StrEnum):
    """``DROPPED``: its commit was never asked for.  ``UNKNOWN``: it was, and no answer said what became of it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    DROPPED = "dropped"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Transaction:
    """``taken`` are records with their offsets, ``lost`` those whose batch was never acknowledged, and may be there or not."""

    taken: list[ProducedRecord]
    lost: list[ProducedRecord]
    fate: Fate = Fate.DROPPED


class KeepTransacting(BackgroundThread):
    """Transactions over partitions 0 to ``partitions - 1`` of ``topic``, from a thread of its own until it is stopped."""

    def __init__(
        self, client_settings: Mapping[str, str], topic: str, *, partitions: int, pause_s: float, seed: int
    ) -> None:
        super().__init__(f"keep transacting on {topic}", ends_within_s=_STEP_TIMEOUT_S * 2)
        self._client_settings, self._topic, self._partitions = client_settings, topic, partitions
        self._pause_s, self._draw = pause_s, random.Random(seed)
        self.transactions: list[Transaction] = []
        self.troubles: list[str] = []
        """Why a producer was given up, and another took its transactional id."""

    @property
    def fates(self) -> Counter[Fate]:
        return Counter(transaction.fate for transaction in self.transactions)

    def check(self, partition: int, found: Sequence[Shape], *, read_committed: bool) -> None:
        """``found`` is the whole partition, from its first offset to its end, read after :meth:`stop`.

        Raises:
            AssertionError: a record is missing, there twice, out of order, changed, or visible although it must not be.
        """
        offsets = [shape[0] for shape in found]
        assert offsets == sorted(set(offsets)), "records came twice, or out of order"
        unclaimed = {shape[0]: shape for shape in found}
        for transaction in self.transactions:
            self._check_one(transaction, partition, unclaimed, read_committed=read_committed)
        assert not unclaimed, f"{len(unclaimed)} records that were never sent: {list(unclaimed.values())[:3]}"

    def _check_one(
        self, transaction: Transaction, partition: int, unclaimed: dict[int, Shape], *, read_committed: bool
    ) -> None:
        taken = [record for record in transaction.taken if record.partition == partition]
        lost = [record for record in transaction.lost if record.partition == partition]
        seen = [record for record in taken if unclaimed.get(record.offset) == shape_of(record)]
        for record in seen:
            del unclaimed[record.offset]
        found_lost = _claim(lost, unclaimed)
        sight = f"of {len(taken)} records at {[r.offset for r in taken][:1]} {len(seen)} are there: {transaction.fate}"
        if not read_committed or transaction.fate is Fate.COMMITTED:
            assert len(seen) == len(taken), f"{self._topic}-{partition}: lost or changed; {sight}"
        elif transaction.fate is Fate.UNKNOWN:
            assert len(seen) in (0, len(taken)), f"{self._topic}-{partition}: half a transaction; {sight}"
        else:
            assert len(seen) + found_lost == 0, f"{self._topic}-{partition}: not committed, and visible; {sight}"

    def work(self) -> None:
        asyncio.run(self._keep_transacting())

    async def _keep_transacting(self) -> None:
        while not self.stopping.is_set():
            producer = AIOKafkaProducer(
                **self._client_settings,
                transactional_id=f"chaos-{self._topic}",
                transaction_timeout_ms=20_000,
                request_timeout_ms=30_000,
                metadata_max_age_ms=1_000,
                max_batch_size=8_192,
            )
            try:
                await asyncio.wait_for(producer.start(), _STEP_TIMEOUT_S)
                while not self.stopping.is_set():
                    await asyncio.wait_for(self._transact(producer), _STEP_TIMEOUT_S)
                    await asyncio.sleep(self._pause_s)
            except Exception as error:  # noqa: BLE001 - whatever it is, a new producer fences this one off
                self.troubles.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.5)
            finally:
                await asyncio.wait([asyncio.create_task(producer.stop())], timeout=10)

    async def _transact(self, producer: AIOKafkaProducer) -> None:
        await producer.begin_transaction()
        partitions = [self._draw.randrange(self._partitions) for _ in range(self._draw.randint(1, 4))]
        batches = [draw_batch(self._draw, producer, self._topic, partition, 700) for partition in partitions]
        transaction = Transaction(taken=[], lost=[record for batch in batches for record in batch.records])
        self.transactions.append(transaction)
        sent = [await producer.send_batch(one.builder, self._topic, partition=one.partition) for one in batches]
        for batch, acknowledged in zip(batches, sent, strict=True):
            first = (await acknowledged).offset
            transaction.taken += [replace(record, offset=first + record.offset) for record in batch.records]
            transaction.lost = transaction.lost[len(batch.records) :]
        if self._draw.random() < 0.3:
            await producer.abort_transaction()
            transaction.fate = Fate.ABORTED
            return
        transaction.fate = Fate.UNKNOWN
        await producer.commit_transaction()
        transaction.fate = Fate.COMMITTED


def _claim(lost: Sequence[ProducedRecord], unclaimed: dict[int, Shape]) -> int:
    """Take out of ``unclaimed`` what was never acknowledged and is there all the same."""
    if not lost:
        return 0
    by_content = {content_of(shape): offset for offset, shape in unclaimed.items()}
    offsets = [by_content[key] for record in lost if (key := content_of(shape_of(record))) in by_content]
    for offset in offsets:
        del unclaimed[offset]
    return len(offsets)
