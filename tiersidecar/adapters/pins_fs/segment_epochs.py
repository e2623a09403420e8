"""Leader epochs as a segment's own batches tell them, for offsets that the broker's file has forgotten.  Blocks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tiersidecar.domain.epochs import EpochEntry, Lineage
from tiersidecar.domain.offsets import NO_EPOCH, Offset
from tiersidecar.formats.kafka.record_batches import BATCH_HEADER_SIZE, read_batch_header


@dataclass(frozen=True, slots=True)
class SegmentEpochs:
    """``entries`` has each epoch with the base offset of its first batch; ``next_offset`` is the one after the last record."""

    entries: tuple[EpochEntry, ...]
    next_offset: Offset


def read_segment_epochs(log_path: str, base_offset: int) -> SegmentEpochs:
    """Walk the batch headers of a .log, one small read each: no mapping, under which a truncation would end the process.

    Raises:
        OSError: it cannot be read.
        CorruptDataError: it does not hold batches, or ends within a header.
    """
    entries: list[tuple[int, int]] = []
    position, next_offset = 0, base_offset
    with Path(log_path).open("rb", buffering=0) as file:
        while head := os.pread(file.fileno(), BATCH_HEADER_SIZE, position):
            header = read_batch_header(head, where=log_path, position=position)
            epoch = header.partition_leader_epoch
            if epoch != NO_EPOCH and (not entries or entries[-1][0] != epoch):
                entries.append((epoch, header.base_offset))
            position, next_offset = position + header.size_bytes, header.last_offset + 1
    return SegmentEpochs(Lineage.of(entries).entries, Offset(next_offset))
