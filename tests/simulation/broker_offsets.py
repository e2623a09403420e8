"""A broker's answers about offsets, timestamps and epochs in a replica that leads, as Kafka's ``UnifiedLog`` does."""

from __future__ import annotations

from collections.abc import Iterator

from kio.schema.errors import ErrorCode

from tests.simulation.cluster import SimulatedPartition
from tests.simulation.offset_wire import OffsetQuestion, OffsetReply
from tests.simulation.records import Batch
from tests.simulation.replica_log import ReplicaLog
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.ports.broker import OffsetSpec


def answer_offset(partition: SimulatedPartition, broker_id: int, question: OffsetQuestion) -> OffsetReply:
    """Answer a question, at the leader alone, and only if the asker knows no other leader epoch."""
    if partition.leader != broker_id:
        return OffsetReply(error=ErrorCode.not_leader_or_follower)
    if question.current_epoch not in (-1, partition.epoch):
        is_old = question.current_epoch < partition.epoch
        return OffsetReply(error=ErrorCode.fenced_leader_epoch if is_old else ErrorCode.unknown_leader_epoch)
    log = partition.leader_log
    if question.api_key is ApiKey.OFFSET_FOR_LEADER_EPOCH:
        return epoch_end(log, question.subject)
    stop = partition.last_stable_offset(log) if question.read_committed else log.high_watermark
    match question.subject:
        case OffsetSpec.LATEST:
            return OffsetReply(offset=stop, leader_epoch=partition.epoch)
        case OffsetSpec.EARLIEST | OffsetSpec.EARLIEST_LOCAL:
            at_start = [one.epoch for one in log.epochs if one.start_offset <= log.log_start_offset]
            return OffsetReply(offset=log.log_start_offset, leader_epoch=at_start[-1] if at_start else -1)
        case OffsetSpec.MAX_TIMESTAMP:
            # Also of a record below the log start, whose segment is still there.
            latest = max(_records(log, log.segments[0]), key=lambda record: record.timestamp_ms, default=None)
            return latest if latest is not None and latest.offset < stop else OffsetReply()
        case timestamp_ms if timestamp_ms >= 0:
            found = _first_at(log, timestamp_ms)
            return found if found is not None and found.offset < stop else OffsetReply()
    return OffsetReply()  # LATEST_TIERED and EARLIEST_PENDING_UPLOAD, without remote storage


def _first_at(log: ReplicaLog, timestamp_ms: int) -> OffsetReply | None:
    """Return the record of the first segment that has so late a one, from the log start on; the others are not looked at."""
    ends = [*log.segments[1:], log.log_end_offset]
    for base, end in zip(log.segments, ends, strict=True):
        inside = [record for record in _records(log, base) if record.offset < end]
        if any(record.timestamp_ms >= timestamp_ms for record in inside):
            wanted = (record for record in inside if record.offset >= log.log_start_offset)
            return next((record for record in wanted if record.timestamp_ms >= timestamp_ms), None)
    return None


def _records(log: ReplicaLog, start: int) -> Iterator[OffsetReply]:
    """Yield all that the files hold, from ``start`` on."""
    for batch in log.batches[log.position_of(start) :]:
        yield from records_of(batch)


def records_of(batch: Batch) -> Iterator[OffsetReply]:
    """Yield each record as ListOffsets returns it."""
    for at, timestamp_ms in enumerate(batch.timestamps_ms):
        yield OffsetReply(timestamp_ms=timestamp_ms, offset=batch.base_offset + at, leader_epoch=batch.leader_epoch)


def epoch_end(log: ReplicaLog, epoch: int) -> OffsetReply:
    """Return the end of an epoch as ``LeaderEpochFileCache.endOffsetFor`` does."""
    if not log.epochs or epoch > log.epochs[-1].epoch:
        return OffsetReply()
    if epoch == log.epochs[-1].epoch:
        return OffsetReply(offset=log.log_end_offset, leader_epoch=epoch)
    following = next(one for one in log.epochs if one.epoch > epoch)
    before = [one.epoch for one in log.epochs if one.epoch <= epoch]
    return OffsetReply(offset=following.start_offset, leader_epoch=before[-1] if before else epoch)


def diverges(log: ReplicaLog, last_fetched_epoch: int, offset: int) -> bool:
    """Return whether the log is another one right before ``offset`` than a reader's, or it cannot be known:
    ``Partition.readRecords``."""
    if last_fetched_epoch < 0:
        return False
    end = epoch_end(log, last_fetched_epoch)
    return end.leader_epoch < last_fetched_epoch or end.offset < offset
