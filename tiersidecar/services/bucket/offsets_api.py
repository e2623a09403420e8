"""ListOffsets and OffsetForLeaderEpoch, by what the bucket holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from tiersidecar.domain.errors import TiersidecarError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_EPOCH, NO_OFFSET, LeaderEpoch, Lineage, Offset
from tiersidecar.formats.wire.cursor import Buffer
from tiersidecar.reading.lineage import LineageSource
from tiersidecar.reading.read_path import ReadPath
from tiersidecar.services.bucket.answers import Asked, Turns, epoch_fault, error_of, items, made, read_for
from tiersidecar.services.bucket.places import Place, Places
from tiersidecar.services.gateway.leader_epoch_rewrite import epoch_end

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(-1, -7, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBounds:
    """A partition's log: ``start`` inclusive, ``end`` and ``last_stable`` exclusive."""

    start: Offset
    end: Offset
    last_stable: Offset


def decide_offset(timestamp: int, bounds: LogBounds, *, read_committed: bool) -> Offset | None:
    """Return the offset that one of Kafka's special timestamps stands for; None for a real time, and for the largest one.

    Nothing is local and nothing waits for an upload, so both of these begin where the log ends.
    """
    match timestamp:
        case -1:
            return min(bounds.last_stable, bounds.end) if read_committed else bounds.end
        case -2:
            return bounds.start
        case -4 | -6:
            return bounds.end
        case -5:
            return Offset(bounds.end - 1) if bounds.end > bounds.start else NO_OFFSET
        case _:
            return None


def decide_epoch_end(lineage: Lineage, leader_epoch: int, end: Offset) -> tuple[LeaderEpoch, Offset]:
    """Return the largest epoch up to ``leader_epoch``, and the end (exclusive) of what it wrote; -1 and -1 for an epoch
    that the bucket does not know yet, or for none (``LeaderEpochFileCache.endOffsetFor``)."""
    if leader_epoch == NO_EPOCH:
        return NO_EPOCH, NO_OFFSET
    found = epoch_end(lineage, leader_epoch)
    if found is not None:
        return found[0], Offset(min(found[1], end))
    return (LeaderEpoch(leader_epoch), end) if leader_epoch == lineage.latest_epoch else (NO_EPOCH, NO_OFFSET)


_Row = Callable[[Any, str, Any, Place], Awaitable[Any]]


class OffsetsApi:
    """Both APIs have topics by name, and a row for each partition."""

    def __init__(self, places: Places, path: ReadPath, lineages: LineageSource) -> None:
        self._places, self._path, self._lineages = places, path, lineages

    async def list_offsets(self, asked: Asked) -> list[Buffer]:
        """Return the body of a ListOffsets response."""
        request = asked.message()
        read_committed = getattr(request, "isolation_level", 0) == 1
        named = Counter((topic.name, one.partition_index) for topic in request.topics for one in topic.partitions)
        twice = {place for place, count in named.items() if count > 1}

        async def row(row_type: Any, topic: str, wanted: Any, place: Place) -> Any:
            if (topic, wanted.partition_index) in twice:
                # As brokers: a request may not ask for thousands of reads of one partition.
                return _row_of(row_type, wanted.partition_index, error_code=ErrorCode.invalid_request)
            return await self._offset(row_type, wanted, place, read_committed=read_committed)

        return await self._answer(asked, request, "name", row)

    async def offsets_for_leader_epochs(self, asked: Asked) -> list[Buffer]:
        """Return the body of an OffsetForLeaderEpoch response."""
        return await self._answer(asked, asked.message(), "topic", self._epoch_end)

    async def _answer(self, asked: Asked, request: Any, name: str, row: _Row) -> list[Buffer]:
        read_for(asked)
        topic_type = items(asked.response_type, "topics")
        row_type = items(topic_type, "partitions")
        topics, turns, count = list[Any](), Turns(), 0
        for topic in request.topics:
            rows = list[Any]()
            for partition in topic.partitions:
                rows.append(await self._row(asked, row_type, str(getattr(topic, name)), partition, row))
                await turns.after(1)
            count += len(rows) + 1
            topics.append(made(topic_type, **{name: getattr(topic, name)}, partitions=tuple(rows)))
        return await asked.answered_in_rows(count, topics=tuple(topics))

    async def _row(self, asked: Asked, row_type: Any, topic: str, wanted: Any, row: _Row) -> Any:
        number = wanted.partition_index if hasattr(wanted, "partition_index") else wanted.partition
        place = self._places.find(asked.user, topic, number)
        if isinstance(place, ErrorCode):
            return _row_of(row_type, number, error_code=place)
        fault = epoch_fault(getattr(wanted, "current_leader_epoch", -1), place.leader_epoch)
        if fault is not None:
            return _row_of(row_type, number, error_code=fault)
        try:
            return await row(row_type, topic, wanted, place)
        except TiersidecarError as error:
            return _row_of(row_type, number, error_code=error_of(error))

    async def _offset(self, row_type: Any, wanted: Any, place: Place, *, read_committed: bool) -> Any:
        number = wanted.partition_index
        if place.partition is None:
            empty = LogBounds(start=Offset(0), end=Offset(0), last_stable=Offset(0))
            offset = decide_offset(wanted.timestamp, empty, read_committed=read_committed)
            return _row_of(row_type, number, offset=NO_OFFSET if offset is None else offset)
        bounds = await self._path.reader.bounds(place.partition)
        stable = await self._path.reader.last_stable_offset(place.partition) if read_committed else bounds.end
        log = LogBounds(start=bounds.start, end=bounds.end, last_stable=stable)
        offset = decide_offset(wanted.timestamp, log, read_committed=read_committed)
        if offset is None:
            return await self._by_time(row_type, wanted, place.partition, before=log.last_stable)
        epoch = bounds.lineage.epoch_for_offset(offset)
        return _row_of(row_type, number, offset=offset, leader_epoch=NO_EPOCH if epoch is None else epoch)

    async def _by_time(self, row_type: Any, wanted: Any, partition: TopicIdPartition, *, before: Offset) -> Any:
        """Look up a record by time.  One at or past ``before`` is not there yet for this reader."""
        if wanted.timestamp == MAX_TIMESTAMP:
            found = await self._path.timestamps.find_latest(partition)
        elif wanted.timestamp < 0:
            return _row_of(row_type, wanted.partition_index, error_code=ErrorCode.invalid_request)
        else:
            found = await self._path.timestamps.find(partition, wanted.timestamp)
        if found is None or found.offset >= before:
            return _row_of(row_type, wanted.partition_index)
        return _row_of(
            row_type,
            wanted.partition_index,
            offset=found.offset,
            timestamp=found.timestamp_ms,
            leader_epoch=found.leader_epoch,
        )

    async def _epoch_end(self, row_type: Any, _topic: str, wanted: Any, place: Place) -> Any:
        if place.partition is None:
            return _row_of(row_type, wanted.partition)
        end = (await self._path.reader.bounds(place.partition)).end
        lineage = await self._lineages.lineage(place.partition)
        epoch, end_offset = decide_epoch_end(lineage, wanted.leader_epoch, end)
        return _row_of(row_type, wanted.partition, leader_epoch=epoch, end_offset=end_offset)


def _row_of(row_type: Any, number: int, **values: object) -> Any:
    """Return a row without what is not given: all of that is -1."""
    return made(row_type, partition_index=number, partition=number, **values)
