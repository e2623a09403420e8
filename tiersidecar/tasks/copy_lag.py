"""How far a partition has been copied, and what copying lags behind: counted anew at every look and every plan (U18).

What of a partition is still to be copied is known by the table alone: cheap, and asked at every look.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiersidecar.decide.copy import CopyLag, copied_offset_among, copy_lag, find_copied_offset, pending_segments
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_OFFSET, Lineage, Offset
from tiersidecar.domain.segments import LocalPartition, LocalSegment
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.metadata_log import MetadataView
from tiersidecar.ports.metrics.copying import COPY_LAG_BYTES, COPY_LAG_SECONDS, COPY_LAG_SEGMENTS
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.reading.pictured_segments import of_pictured
from tiersidecar.tasks.partition_table import PartitionTable


async def copied_offset_of(
    metadata: MetadataView, topic_id_partition: TopicIdPartition, lineage: Lineage, blocking: Blocking
) -> Offset:
    """The highest remote offset of this lineage, inclusive; -1 when there is none.

    Nearly always some look-ups.  Where an election has cut the last segment, all of them are looked at.

    Raises:
        MetadataNotReadyError: the metadata has not been replayed yet.
    """
    found = find_copied_offset(
        lineage,
        lambda epoch: metadata.highest_offset_for_epoch(topic_id_partition, epoch),
        lambda epoch, offset: metadata.remote_log_segment_metadata(topic_id_partition, epoch, offset),
    )
    if found is not None:
        return found
    return await of_pictured(
        metadata.picture(topic_id_partition), blocking, lambda segments: copied_offset_among(segments, lineage)
    )


def pending_copies(table: PartitionTable, local: LocalPartition, copied_offset: int) -> tuple[LocalSegment, ...]:
    """As the copy lane found remote log start and holes last.  Found anew where any of that, or a segment, is another: it is
    asked twice at every look, and of most partitions never changes."""
    record = table.record(local.topic_id_partition)
    asked = (local.segments, copied_offset, record.remote_log_start, record.copy_holes)
    if record.pending is None or record.pending[0] != asked:
        record.pending = (asked, pending_segments(*asked))
    return record.pending[1]


class CopyLagReport:
    """Sets the three gauges of a led partition, from the partition table as it is."""

    def __init__(self, *, table: PartitionTable, metadata: MetadataView, clock: Clock, telemetry: Telemetry) -> None:
        self._table, self._metadata, self._clock, self._telemetry = table, metadata, clock, telemetry
        self._known: dict[TopicIdPartition, CopyLag] = {}

    @property
    def known(self) -> Mapping[TopicIdPartition, CopyLag]:
        """What was last told, of the partitions that are led now."""
        for topic_id_partition in [
            topic_id_partition for topic_id_partition in self._known if not self._is_led(topic_id_partition)
        ]:
            del self._known[topic_id_partition]
        return self._known

    def report(self, partition: TieredPartition) -> None:
        """A partition whose directory cannot be read keeps what was last said of it.

        Nothing is said again where nothing waits, as nothing did: at thousands of partitions gauges cost more than the look.
        """
        topic_id_partition = partition.view.topic_id_partition
        local = self._table.local_partition(topic_id_partition)
        if local is None:
            return
        record = self._table.record(topic_id_partition)
        copied = self._copied_offset(local) if record.copied_offset is None else record.copied_offset
        lag = copy_lag(pending_copies(self._table, local, copied))
        self._known[topic_id_partition] = lag
        if lag.oldest_ms is None and lag == record.copy_lag_told:
            return
        record.copy_lag_told = lag
        labels = {"topic": topic_id_partition.topic, "partition": str(topic_id_partition.partition)}
        age_ms = 0 if lag.oldest_ms is None else max(self._clock.now_ms() - lag.oldest_ms, 0)
        self._telemetry.gauge(COPY_LAG_BYTES, lag.size_bytes, **labels)
        self._telemetry.gauge(COPY_LAG_SEGMENTS, lag.segments, **labels)
        self._telemetry.gauge(COPY_LAG_SECONDS, age_ms / 1000, **labels)

    def _copied_offset(self, local: LocalPartition) -> int:
        """What the metadata says of the live file's epochs, until the copy lane has found it: the store may be away."""
        highest = (
            self._metadata.highest_offset_for_epoch(local.topic_id_partition, entry.epoch)
            for entry in local.leader_epochs
        )
        return max((offset for offset in highest if offset is not None), default=NO_OFFSET)

    def _is_led(self, topic_id_partition: TopicIdPartition) -> bool:
        tiered = self._table.assignment.get(topic_id_partition)
        return tiered is not None and tiered.role is PartitionRole.LEADER
