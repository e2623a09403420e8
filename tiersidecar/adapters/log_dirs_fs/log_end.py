"""Reading where the log of a stopped broker's replica ends, by its last batch."""

from __future__ import annotations

import os
from pathlib import Path

from tiersidecar.domain.errors import CorruptDataError, TruncatedDataError
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import LocalSegment
from tiersidecar.formats.kafka.record_batches import BATCH_HEADER_SIZE, read_batch_header


def read_log_end(active: LocalSegment) -> Offset:
    """Walk the batch headers of the last segment, and return the offset behind the last whole batch.

    Whatever is no batch ends the log, as a broker's recovery has it: a preallocated tail is zeros.  It blocks.

    Raises:
        OSError: the segment cannot be read.
    """
    end, position = active.base_offset, 0
    with Path(active.log_path).open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        while True:
            file.seek(position)
            try:
                header = read_batch_header(file.read(BATCH_HEADER_SIZE), where=active.log_path, position=position)
            except (CorruptDataError, TruncatedDataError):
                return end
            position += header.size_bytes
            if position > size_bytes or header.base_offset < end:
                return end
            end = header.next_offset
