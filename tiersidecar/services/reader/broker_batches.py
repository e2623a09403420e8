"""A broker's answer to a Fetch of the read service, as batches of a partition's one log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tiersidecar.domain.errors import TruncatedDataError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.record_batches import RecordBatchHeader, check_batch, read_batch_header
from tiersidecar.ports.broker import LocalBatches
from tiersidecar.reading.batch_cutter import BatchSlice
from tiersidecar.reading.remote_log_reader import RemoteBatches


class BrokerPart(NamedTuple):
    """Batches, and the leader epoch of the last one."""

    part: RemoteBatches
    last_epoch: LeaderEpoch


def part_of(
    fetched: LocalBatches, partition: TopicIdPartition, offset: int, stop: int, read_committed: bool
) -> BrokerPart | None:
    """Return the whole batches of ``fetched`` from ``offset`` on that begin below ``stop`` (exclusive), each checked; None when
    there are none.

    Raises:
        CorruptDataError: a batch is damaged.
    """
    headers, begin, end = list[RecordBatchHeader](), 0, 0
    view = memoryview(fetched.records)
    while end < len(view):
        try:
            header = read_batch_header(view[end:], where=f"Fetch of {partition}", position=end)
        except TruncatedDataError:
            break
        if end + header.size_bytes > len(view) or header.base_offset >= stop:
            break
        check_batch(view[end:], header, where=f"Fetch of {partition}", position=end)
        end += header.size_bytes
        if header.last_offset < offset:
            begin = end
        else:
            headers.append(header)
    if not headers:
        return None
    part = RemoteBatches(
        batches=BatchSlice(view[begin:end], headers[0].base_offset, headers[-1].next_offset),
        aborted_transactions=_aborted_in(headers, fetched.aborted) if read_committed else None,
    )
    return BrokerPart(part, LeaderEpoch(headers[-1].partition_leader_epoch))


def _aborted_in(
    headers: Sequence[RecordBatchHeader], aborted: Sequence[tuple[int, Offset]]
) -> tuple[AbortedTransaction, ...]:
    """Return transactions as a consumer sees them: each reaches from its first record to its producer's next marker, or past
    these batches."""
    end_offset, found = headers[-1].next_offset, list[AbortedTransaction]()
    for producer_id, first in aborted:
        markers = (
            header.base_offset
            for header in headers
            if header.is_control and header.producer_id == producer_id and header.base_offset > first
        )
        found.append(AbortedTransaction(producer_id, first, next(markers, Offset(end_offset - 1)), end_offset))
    return tuple(found)
