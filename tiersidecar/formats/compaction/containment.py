"""Whether a remote log has every record of a local one: record by record, where two cleaners have left other records of it.

Both logs were one: a cleaner takes records out, and adds or changes none.  So the local log may be given up where each of its
records is in the remote one, whatever else is there.  Records count as the same if offset, leader epoch, producer, time, key,
value and headers are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.formats.kafka.record_batches import RecordBatchHeader
from tiersidecar.formats.kafka.records import MAX_OPENED_BYTES, Record, iter_records, read_records

HeldBatch = tuple[RecordBatchHeader, bytes]
"""A whole batch whose checksum is right, behind its header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacking:
    """The first record, at ``offset``, because of which the local log has to stay, and the reason."""

    offset: int
    reason: str


def first_lacking(
    local: Iterable[HeldBatch], remote: Sequence[HeldBatch], *, start_offset: int, where: str
) -> Lacking | None:
    """Return the first record of ``local`` from ``start_offset`` on that keeps it, None where nothing does.

    ``remote`` has every remote batch that shares an offset with one of ``local``; both ascend.  A tombstone keeps the local log
    even if the remote one has it: a reader that has the value needs it, for as long as the broker's own cleaner leaves it.

    Raises:
        CorruptDataError: a remote record is another than the local one of its offset.
    """
    place = 0
    for header, batch in local:
        while place < len(remote) and remote[place][0].last_offset < header.base_offset:
            place += 1
        if not header.record_count:
            continue  # it is left for its producer's last sequence alone
        end = place  # of a segment of tiny batches, to look at all that follow would take hours
        while end < len(remote) and remote[end][0].base_offset <= header.last_offset:
            end += 1
        if lacking := _lacking_of(header, batch, remote[place:end], start_offset, where):
            return lacking
    return None


def is_tombstone(record: Record) -> bool:
    """Return whether the record says that its key is deleted."""
    return record.value is None and record.key is not None and not record.is_control


def _lacking_of(
    header: RecordBatchHeader, batch: bytes, near: Sequence[HeldBatch], start_offset: int, where: str
) -> Lacking | None:
    # One by one: as objects, the records of one batch may take hundreds of times its size.
    for one in iter_records(batch, where=where, max_bytes=MAX_OPENED_BYTES):
        if one.offset >= start_offset and is_tombstone(one):
            return Lacking(offset=one.offset, reason="a tombstone that the broker's cleaner has not removed yet")
    if any(_is_same_batch(header, other) for other, _ in near):
        return None
    held = {one.offset: (other, one) for other, data in near for one in read_records(data, where=where)}
    for one in iter_records(batch, where=where, max_bytes=MAX_OPENED_BYTES):
        if one.offset < start_offset:
            continue
        found = held.get(one.offset)
        if found is None:
            return Lacking(offset=one.offset, reason="a record that the remote log does not have, or no longer has")
        if _identity(header, one) != _identity(*found):
            raise CorruptDataError(
                where=where,
                position=0,
                reason=f"its record at offset {one.offset} is not the broker's: nothing is trimmed",
            )
    return None


def _is_same_batch(header: RecordBatchHeader, other: RecordBatchHeader) -> bool:
    """Return whether they have the same bytes: what no checksum covers is compared."""
    return (header.base_offset, header.batch_length, header.partition_leader_epoch, header.magic, header.crc) == (
        other.base_offset,
        other.batch_length,
        other.partition_leader_epoch,
        other.magic,
        other.crc,
    )


def _identity(header: RecordBatchHeader, record: Record) -> tuple[object, ...]:
    return (
        header.partition_leader_epoch,
        header.producer_id,
        header.producer_epoch,
        header.is_transactional,
        record,
    )
