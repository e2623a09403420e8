"""Checks that a broker's own transaction index goes on where the restored log ends.

A replica that was made anew after a trim, or moved, never saw how a transaction began: where that ends in an abort marker, its
index has no entry, or one that begins too late, and its readers would be given aborted records as committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiersidecar.adapters.os_errors import explain_os_error
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import LocalPartition, LocalSegment
from tiersidecar.formats.kafka.indexes import read_transaction_index
from tiersidecar.formats.kafka.producer_state import read_open_producers
from tiersidecar.formats.kafka.record_batches import RecordBatchHeader, iter_batch_headers
from tiersidecar.formats.kafka.records import ControlKind, read_control_marker, read_records

_PART_BYTES = 4 * 1024 * 1024
_SHOWN = 5


def seam_fault(local: LocalPartition, local_start: Offset, producers: bytes) -> str:
    """Return why the log from ``local_start`` on cannot follow one that ends with these producers; empty if it can.  It
    blocks."""
    if not producers:
        return ""
    open_from = {one.producer_id: one.current_transaction_first_offset for one in read_open_producers(producers)}
    for segment in local.segments:
        if not open_from:
            return ""
        if segment.base_offset < local_start:
            continue
        try:
            if fault := _ends_in(segment, open_from):
                return fault
        except OSError as error:
            return explain_os_error(error)
        except CorruptDataError as error:
            return str(error)
    if not open_from:
        return ""
    shown = ", ".join(f"{one} from offset {first}" for one, first in list(open_from.items())[:_SHOWN])
    return f"transactions of producers {shown} are open to the end of the log: wait until they have ended"


def _ends_in(segment: LocalSegment, open_from: dict[int, int]) -> str:
    """Take out of ``open_from`` the transactions that end in this segment, and return what its index lacks of them."""
    path = Path(segment.path_of(f"{segment.base_offset:020d}.txnindex"))
    data = path.read_bytes() if path.exists() else b""
    known = {one.last_offset: one for one in read_transaction_index(data, base_offset=Offset(0), where=str(path))}
    for header, batch in _control_batches(segment):
        first = open_from.get(header.producer_id)
        if first is None:
            continue
        for record in read_records(batch, where=segment.log_path, position=0):
            marker = read_control_marker(record, where=segment.log_path)
            if marker is None:
                continue
            del open_from[header.producer_id]
            entry = known.get(header.base_offset)
            if marker.kind is ControlKind.ABORT and (entry is None or entry.first_offset > first):
                return (
                    f"a transaction that begins at offset {first} was aborted at {header.base_offset}, which the transaction "
                    "index of this replica does not know: it was rebuilt or moved meanwhile. Let the sidecar copy and trim "
                    "beyond that offset, and plan again"
                )
            break
    return ""


def _control_batches(segment: LocalSegment) -> Iterator[tuple[RecordBatchHeader, memoryview]]:
    """Yield control batches as far as there are whole ones: what follows in an active segment may be zeros, or half written."""
    tail = b""
    with Path(segment.log_path).open("rb") as file:
        while part := file.read(_PART_BYTES):
            view = memoryview(tail + part)
            whole = 0
            try:
                for _, header in iter_batch_headers(view, where=segment.log_path):
                    start, whole = whole, whole + header.size_bytes
                    if header.is_control:
                        yield header, view[start:whole]
            except CorruptDataError:
                if segment.next_base_offset is None:
                    return
                raise
            tail = bytes(view[whole:])
