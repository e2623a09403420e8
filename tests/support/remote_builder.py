"""Remote segments made by our own layout from any bytes, put into memory: histories that no broker left behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.support.local_batches import LocalBatch
from tests.support.manual_clock import ManualClock
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.remote_runs import FixedLogStarts, RemoteRun, key_ring
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.aiven.index_blob import IndexArtefacts, IndexKind
from tiersidecar.formats.aiven.layout import new_segment_encryption, plan_objects
from tiersidecar.formats.kafka.indexes import AbortedTransaction, rebuild_indexes, write_transaction_index
from tiersidecar.formats.kafka.log_dir_files import write_leader_epochs
from tiersidecar.formats.kafka.producer_state import ProducerState, write_producer_snapshot
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.ports.store import BytesBody

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSource:
    """The parts of one remote segment.  ``epochs`` is its epoch blob: epoch to start offset."""

    batches: Sequence[LocalBatch]
    start_offset: int
    end_offset: int
    epochs: Mapping[int, int] = field(default_factory=lambda: {0: 0})
    aborted_transactions: Sequence[AbortedTransaction] = ()
    producers: Sequence[ProducerState] = ()
    state: RemoteLogSegmentState = FINISHED


class RemoteBuilder:
    """Uploads segments of one partition, and publishes their events."""

    def __init__(
        self, *, chunk_size: int = 4096, compression: bool = False, encrypted: bool = False, index_interval: int = 1000
    ) -> None:
        self.partition = TopicIdPartition(topic_id=Uuid(b"built-topic-id-0"), topic="built", partition=0)
        self._chunk_size, self._compression, self._encrypted = chunk_size, compression, encrypted
        self._index_interval = index_interval
        self._ids = SystemIds()
        self.event_timestamp_ms = 0
        """Time of the events that are published from now on."""
        self.run = RemoteRun(
            store=MemoryStore(clock=ManualClock(), ids=self._ids),
            metadata=MemoryMetadataLog(),
            partitions=(self.partition,),
            key_prefix="",
            log_starts=FixedLogStarts(),
        )

    async def add(self, source: SegmentSource) -> RemoteLogSegmentMetadata:
        """Add one segment, up to its state, and return it."""
        data = b"".join(batch.data for batch in source.batches)
        metadata = self._metadata(source, data)
        encryption = new_segment_encryption(key_ring(), self._ids.random_bytes) if self._encrypted else None
        layout = plan_objects(
            metadata=metadata, chunk_size=self._chunk_size, compression=self._compression, encryption=encryption
        )
        chunks = [data[at : at + self._chunk_size] for at in range(0, len(data), self._chunk_size)]
        stored = [bytes(layout.transform.transform(chunk, self._ids.random_bytes(12))) for chunk in chunks]
        blob = layout.index_blob(self._artefacts(source, data), [self._ids.random_bytes(12) for _ in IndexKind])
        manifest = layout.manifest(layout.chunk_index([len(one) for one in stored]), blob.indexes)
        for key, body in zip(layout.keys.in_upload_order, (b"".join(stored), blob.data, manifest), strict=True):
            await self.run.store.put_object(key, BytesBody(body))
        await self.run.metadata.assign([self.partition])
        await self.run.metadata.publish(metadata)
        await self.move(metadata, source.state)
        return metadata

    async def move(self, metadata: RemoteLogSegmentMetadata, state: RemoteLogSegmentState) -> None:
        """Publish ``state`` of a segment; STARTED it is already."""
        if state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            return
        update = RemoteLogSegmentMetadataUpdate(
            remote_log_segment_id=metadata.remote_log_segment_id,
            broker_id=BrokerId(1),
            event_timestamp_ms=self.event_timestamp_ms,
            state=state,
        )
        await self.run.metadata.publish(update)

    def _metadata(self, source: SegmentSource, data: bytes) -> RemoteLogSegmentMetadata:
        blob = Lineage(_entries(source.epochs))
        return RemoteLogSegmentMetadata(
            remote_log_segment_id=RemoteLogSegmentId(topic_id_partition=self.partition, uuid=self._ids.random_uuid()),
            start_offset=Offset(source.start_offset),
            end_offset=Offset(source.end_offset),
            max_timestamp_ms=max((batch.header.max_timestamp for batch in source.batches), default=-1),
            broker_id=BrokerId(1),
            event_timestamp_ms=self.event_timestamp_ms,
            segment_size_in_bytes=len(data),
            segment_leader_epochs=blob.entries_in_range(source.start_offset, source.end_offset + 1),
            txn_index_empty=not source.aborted_transactions,
        )

    def _artefacts(self, source: SegmentSource, data: bytes) -> IndexArtefacts:
        offsets, times = rebuild_indexes(
            iter_batch_headers(data),
            base_offset=Offset(source.start_offset),
            index_interval_bytes=self._index_interval,
        )
        return IndexArtefacts(
            offset_index=offsets.write(),
            time_index=times.write(),
            producer_snapshot=write_producer_snapshot(source.producers),
            leader_epochs=write_leader_epochs(_entries(source.epochs)),
            transaction_index=write_transaction_index(source.aborted_transactions) or None,
        )


def _entries(epochs: Mapping[int, int]) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(LeaderEpoch(epoch), Offset(start)) for epoch, start in sorted(epochs.items()))
