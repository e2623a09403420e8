"""Open transactions that hold something up: named, with how long, and said to hang once the broker should have ended them.

Copying goes up to the last stable offset: a transaction that the broker has open keeps what follows on its disk.  Of one that
the broker has lost, by its batches, readers of committed records wait for the marker at the border (docs/design/0011).
The coordinator ends each within ``transaction.max.timeout.ms``; one that is older hangs, and only an operator can end it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Protocol

import structlog

from tiersidecar.domain.errors import CorruptDataError, RetriableError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.segments import LocalSegment
from tiersidecar.formats.kafka.producer_state import ProducerState, read_open_producers
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.log_dirs import SegmentArtefacts
from tiersidecar.ports.metrics.copying import OPEN_TRANSACTION_SECONDS
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.tasks.partition_table import HeldUp, PartitionTable, TransactionWait

log = structlog.get_logger(__name__)

TRANSACTION_MAX_TIMEOUT_MS = 900_000
"""Kafka's default of ``transaction.max.timeout.ms``, where the broker does not show its own."""
_ASK_AGAIN_S = 300.0


class DescribeBroker(Protocol):
    async def describe_broker_configs(self, broker_id: BrokerId) -> dict[str, str | None]:
        """Return the settings of a broker (:class:`tiersidecar.ports.broker.DescribeConfigs`)."""


class ReadArtefacts(Protocol):
    async def read_artefacts(self, segment: LocalSegment) -> SegmentArtefacts:
        """Read the companions of a segment (:class:`tiersidecar.ports.log_dirs.LogDirs`)."""


class TransactionWaits:
    """Watches the partitions that are led; what is found stands on the partition table."""

    def __init__(
        self,
        *,
        table: PartitionTable,
        broker: DescribeBroker,
        broker_id: BrokerId,
        log_dirs: ReadArtefacts,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._table, self._broker, self._broker_id, self._log_dirs = table, broker, broker_id, log_dirs
        self._clock, self._telemetry = clock, telemetry
        self._limit_ms, self._asked_s = TRANSACTION_MAX_TIMEOUT_MS, float("-inf")
        self._looked: dict[TopicIdPartition, tuple[str, int, bool]] = {}
        self._said: set[tuple[TopicIdPartition, HeldUp, int, int]] = set()

    async def held(
        self, topic_id_partition: TopicIdPartition, segment: LocalSegment | None, last_stable_offset: int
    ) -> None:
        """Note that ``segment`` ends above the last stable offset, and so do all behind it; None: nothing is held back by it.

        A last stable offset also waits for replicas: only where the broker has a transaction open from there on is it one.
        """
        if segment is None:
            self._looked.pop(topic_id_partition, None)
            self._note(topic_id_partition, HeldUp.COPYING, ())
            return
        is_noted = self._table.record(topic_id_partition).transaction_waits is not None
        if self._looked.get(topic_id_partition) == (segment.log_path, last_stable_offset, is_noted):
            return  # asked at every look, for hours if need be, and the files say the same each time
        open_here = await self._open_at(segment, last_stable_offset)
        if open_here is None:
            return
        await self._learn_limit()
        self._note(topic_id_partition, HeldUp.COPYING, open_here)
        self._looked[topic_id_partition] = (
            segment.log_path,
            last_stable_offset,
            self._table.record(topic_id_partition).transaction_waits is not None,
        )

    async def lost(
        self, topic_id_partition: TopicIdPartition, next_offset: int, undecided: Sequence[ProducerState]
    ) -> None:
        """Note that a segment was copied that ends right before ``next_offset``; there ``undecided`` are open, and the broker
        does not have them.  Of one that is copied again, below what is remote, the border has nothing to fear."""
        if next_offset <= self._table.record(topic_id_partition).last_copied + 1:
            return
        if undecided:
            await self._learn_limit()
        self._note(topic_id_partition, HeldUp.READERS, undecided)

    def report(self) -> None:
        """Report how long the oldest of each partition lasts, and log once of each that it hangs."""
        now_ms = self._clock.now_ms()
        for topic_id_partition, record in self._table.records.items():
            if (waits := record.transaction_waits) is None:
                continue
            age_ms = max((now_ms - wait.since_ms for wait in waits), default=0)
            labels = {"topic": topic_id_partition.topic, "partition": str(topic_id_partition.partition)}
            self._telemetry.gauge(OPEN_TRANSACTION_SECONDS, max(age_ms, 0) / 1000, **labels)
            for wait in waits:
                if now_ms - wait.since_ms > self._limit_ms:
                    self._say_hanging(topic_id_partition, wait)
            if not waits:
                record.transaction_waits = None

    def _note(self, topic_id_partition: TopicIdPartition, held_up: HeldUp, states: Iterable[ProducerState]) -> None:
        record = self._table.record(topic_id_partition)
        known = record.transaction_waits or ()
        since_ms = {(one.held_up, one.producer_id, one.first_offset): one.since_ms for one in known}
        waits = [one for one in known if one.held_up is not held_up]
        for state in states:
            first_offset = state.current_transaction_first_offset
            waits.append(
                TransactionWait(
                    held_up=held_up,
                    producer_id=state.producer_id,
                    producer_epoch=state.epoch,
                    first_offset=first_offset,
                    since_ms=since_ms.get((held_up, state.producer_id, first_offset), self._clock.now_ms()),
                )
            )
            if (held_up, state.producer_id, first_offset) not in since_ms and held_up is HeldUp.READERS:
                log.warning(
                    "segment.transactions.undecided",
                    topic=topic_id_partition.topic,
                    partition=topic_id_partition.partition,
                    producer_id=state.producer_id,
                    producer_epoch=state.epoch,
                    first_offset=first_offset,
                )
        if waits or known:
            record.transaction_waits = tuple(waits)
        self._said &= {(topic_id_partition, wait.held_up, wait.producer_id, wait.first_offset) for wait in waits} | {
            key for key in self._said if key[0] != topic_id_partition
        }

    def _say_hanging(self, topic_id_partition: TopicIdPartition, wait: TransactionWait) -> None:
        key = (topic_id_partition, wait.held_up, wait.producer_id, wait.first_offset)
        if key in self._said:
            return
        self._said.add(key)
        log.warning(
            "transaction.hangs",
            topic=topic_id_partition.topic,
            partition=topic_id_partition.partition,
            waiting=wait.held_up.value,
            producer_id=wait.producer_id,
            producer_epoch=wait.producer_epoch,
            first_offset=wait.first_offset,
            since_ms=wait.since_ms,
            transaction_max_timeout_ms=self._limit_ms,
            advice="open for longer than transaction.max.timeout.ms: kafka-transactions.sh ends it (docs/operations/topics.md)",
        )

    async def _open_at(self, segment: LocalSegment, last_stable_offset: int) -> list[ProducerState] | None:
        """Return producers whose transaction begins at the last stable offset, by the broker's snapshot of the segment's end;
        None where that cannot be read, as of one that the broker is yet to write."""
        try:
            snapshot = (await self._log_dirs.read_artefacts(segment)).producer_snapshot
        except (CorruptDataError, RetriableError):
            return None  # what is wrong with it is shown when it is copied
        if snapshot is None:
            return None
        open_producers = read_open_producers(snapshot)
        return [
            producer for producer in open_producers if producer.current_transaction_first_offset == last_stable_offset
        ]

    async def _learn_limit(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._asked_s < _ASK_AGAIN_S:
            return
        self._asked_s = now_s
        try:
            shown = (await self._broker.describe_broker_configs(self._broker_id)).get("transaction.max.timeout.ms")
            self._limit_ms = int(shown or TRANSACTION_MAX_TIMEOUT_MS)
        except (RetriableError, ValueError):
            self._limit_ms = TRANSACTION_MAX_TIMEOUT_MS  # we may not see the broker's settings


def wait_sentence(waits: Iterable[TransactionWait]) -> str:
    """Return the waits as a sentence for the status page; empty where there are none."""
    return "; ".join(
        f"{wait.held_up.waiting} for the end of the transaction of producer {wait.producer_id} (epoch {wait.producer_epoch})"
        f" that is open from offset {wait.first_offset}, first seen {_iso(wait.since_ms)}"
        for wait in sorted(waits, key=lambda wait: wait.since_ms)
    )


def _iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms // 1000, UTC).isoformat().replace("+00:00", "Z")
