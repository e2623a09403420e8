"""A broker that answers Fetch and ListOffsets from a golden partition directory, as Kafka's ``LocalLog.read`` does."""

from __future__ import annotations

from functools import cache

from tests.support.golden import CLEAN_LOG_DIR
from tests.support.local_batches import local_batches
from tiersidecar.domain.errors import OffsetOutOfRangeError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch, Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction, read_transaction_index
from tiersidecar.formats.kafka.records import read_records
from tiersidecar.ports.broker import Credentials, LocalBatches, OffsetAnswer


class ScriptedLocal:
    """``ports.broker.ReadLocal``.  ``log_start``, ``high_watermark`` and ``last_stable_offset`` are a test's to move;
    ``fetched`` are the offsets asked for."""

    def __init__(self, *, log_start: int, high_watermark: int, last_stable_offset: int | None = None) -> None:
        self.log_start = log_start
        self.high_watermark = high_watermark
        self.last_stable_offset = high_watermark if last_stable_offset is None else last_stable_offset
        self.fetched: list[int] = []
        self.callers: set[str | None] = set()

    async def fetch(
        self,
        credentials: Credentials,
        topic_id_partition: TopicIdPartition,
        offset: int,
        *,
        max_bytes: int,
        read_committed: bool = False,
        last_fetched_epoch: LeaderEpoch = NO_EPOCH,
    ) -> LocalBatches:
        self.fetched.append(offset)
        self.callers.add(credentials.username)
        if not self.log_start <= offset <= self.high_watermark:
            raise OffsetOutOfRangeError(
                subject=str(topic_id_partition), offset=offset, start=self.log_start, stop=self.high_watermark
            )
        stop = self.last_stable_offset if read_committed else self.high_watermark
        wanted = [
            batch
            for batch in local_batches(str(topic_id_partition))
            if batch.header.last_offset >= offset and batch.header.base_offset < stop
        ]
        data = b"".join(batch.data for batch in wanted)
        data = data[: max(max_bytes, len(wanted[0].data))] if wanted else b""
        size, upper = 0, offset
        for batch in wanted:
            size += len(batch.data)
            if size <= len(data):
                upper = batch.header.next_offset
        return LocalBatches(
            records=data,
            high_watermark=Offset(self.high_watermark),
            last_stable_offset=Offset(self.last_stable_offset),
            aborted=self._aborted(str(topic_id_partition), offset, upper) if read_committed and data else (),
        )

    async def find_offset(
        self, credentials: Credentials, topic_id_partition: TopicIdPartition, timestamp_ms: int
    ) -> OffsetAnswer:
        if timestamp_ms in {-1, -2}:
            offset = self.high_watermark if timestamp_ms == -1 else self.log_start
            return OffsetAnswer(offset=Offset(offset), timestamp_ms=-1, leader_epoch=LeaderEpoch(0))
        records = [
            record
            for batch in local_batches(str(topic_id_partition))
            for record in read_records(batch.data)
            if self.log_start <= record.offset < self.high_watermark
        ]
        least_ms = max(record.timestamp_ms for record in records) if timestamp_ms == -3 else timestamp_ms
        for record in records:
            if record.timestamp_ms >= least_ms:
                return OffsetAnswer(offset=record.offset, timestamp_ms=record.timestamp_ms, leader_epoch=LeaderEpoch(0))
        return OffsetAnswer(offset=Offset(-1), timestamp_ms=-1, leader_epoch=LeaderEpoch(-1))

    def _aborted(self, partition: str, offset: int, upper: int) -> tuple[tuple[int, Offset], ...]:
        """``LogSegment.collectAbortedTxns``, from the segment of ``offset`` on."""
        found = []
        for entry in _entries(partition):
            if entry.last_offset >= max(offset, self.log_start) and entry.first_offset < upper:
                found.append((entry.producer_id, entry.first_offset))
            if entry.last_offset >= offset and entry.last_stable_offset >= upper:
                break
        return tuple(found)


@cache
def _entries(partition: str) -> tuple[AbortedTransaction, ...]:
    return tuple(
        entry
        for path in sorted((CLEAN_LOG_DIR / partition).glob("*.txnindex"))
        for entry in read_transaction_index(path.read_bytes(), base_offset=Offset(int(path.stem)))
    )
