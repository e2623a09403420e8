"""Ask the batches for leader epochs that the broker's file has forgotten, and that its log has again.

A broker that deletes records writes the epochs of the new start at once, and the start itself once a minute: killed between, it
begins at the old start, with no epoch for what lies below the new one.  Batches of format 2 say theirs themselves.
"""

from __future__ import annotations

import structlog

from tiersidecar.domain.offsets import EpochEntry, Lineage
from tiersidecar.domain.segments import LocalPartition
from tiersidecar.ports.log_dirs import LogDirs
from tiersidecar.tasks.partition_table import PartitionTable

log = structlog.get_logger(__name__)


class BatchEpochs:
    """Puts the epochs of sealed segments below the first known epoch on the partition table."""

    def __init__(self, *, table: PartitionTable, log_dirs: LogDirs) -> None:
        self._table, self._log_dirs = table, log_dirs

    async def ask(self, local: LocalPartition, lineage: Lineage) -> bool:
        """Return whether an epoch came to light that ``lineage`` lacks.

        Raises:
            CorruptDataError: a batch fails its checks.
            SegmentChangedError: a segment is gone.
            SegmentNotReadyError: a segment ends within a batch.
        """
        topic_id_partition = local.topic_id_partition
        found = await self._epochs_of_batches(local, lineage)
        if not found or found[0].start_offset >= lineage.entries[0].start_offset:
            return False
        if self._table.record(topic_id_partition).batch_epochs == found:
            return False
        self._table.record(topic_id_partition).batch_epochs = found
        log.warning(
            "leader_epochs.from_batches",
            topic=topic_id_partition.topic,
            partition=topic_id_partition.partition,
            leader_epochs=[entry.epoch for entry in found],
            start_offset=found[0].start_offset,
            known_from=lineage.entries[0].start_offset,
        )
        return True

    async def _epochs_of_batches(self, local: LocalPartition, lineage: Lineage) -> tuple[EpochEntry, ...]:
        """Return epochs ascending, up to the first that ``lineage`` knows; none where they do not ascend, which no log of a
        broker does."""
        first_known, read = lineage.entries[0], list[EpochEntry]()
        for segment in local.sealed_segments:
            if segment.pinned or segment.base_offset >= first_known.start_offset:
                continue
            async with self._log_dirs.open_segment(segment) as file:
                scan = await file.scan()
            read.extend(scan.leader_epochs)
            if any(entry.epoch >= first_known.epoch for entry in scan.leader_epochs):
                break
        below = [entry for entry in read if entry.start_offset < first_known.start_offset]
        epochs = [*(entry.epoch for entry in below), first_known.epoch]
        return Lineage.of(below).entries if epochs == sorted(epochs) else ()
