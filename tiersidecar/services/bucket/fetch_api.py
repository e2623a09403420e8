"""Fetch: record batches as they lie in the bucket, never opened, within the client's bounds and the service's own memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import Enum, auto
from itertools import groupby
from struct import Struct

import structlog
from kio.schema.errors import ErrorCode

from tiersidecar.domain.errors import OffsetOutOfRangeError, QuotaExceededError, TiersidecarError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.wire.cursor import Buffer, length_bytes, string_bytes
from tiersidecar.formats.wire.fetch import (
    FETCH_SESSION_ID_NOT_FOUND,
    FIRST_WITH_SESSIONS,
    NO_SESSION,
    FetchPartition,
    FetchRequest,
    FilledPartition,
    PartitionKey,
    TopicKey,
    is_flexible,
    read_fetch_request,
    write_partition,
    write_session_error,
)
from tiersidecar.ports.metrics.bucket import BUCKET_FETCHED_BYTES
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.reading.read_path import ReadPath
from tiersidecar.reading.remote_log_reader import FetchedBatches
from tiersidecar.services.bucket.answers import Asked, Turns, epoch_fault, error_of, read_for
from tiersidecar.services.bucket.memory_budget import MemoryBudget
from tiersidecar.services.bucket.picture import BucketPicture
from tiersidecar.services.bucket.places import Place, Places

log = structlog.get_logger(__name__)

_COPIED_BYTES = 1024 * 1024
"""An answer of no more is copied: waiting for its client it would hold a whole chunk."""
_PATIENCE_S = 0.5
"""Once there is data for the client, it does not wait longer than that for more of other partitions."""
_THROTTLE_MS = 100
"""For which a client stays away that found no memory left."""
_HEAD, _SESSION = Struct(">i"), Struct(">hi")


class FetchStep(Enum):
    """The next step for one partition."""

    READ = auto()
    NOTHING_YET = auto()
    OUT_OF_RANGE = auto()


def decide_fetch(offset: int, *, start: int, end: int, readable_to: int) -> FetchStep:
    """Decide.  ``start`` is inclusive; ``end`` and ``readable_to`` (the last stable offset for read_committed), exclusive."""
    if not start <= offset <= end:
        return FetchStep.OUT_OF_RANGE
    return FetchStep.READ if offset < readable_to else FetchStep.NOTHING_YET


@dataclass(slots=True)
class _Allowance:
    """The room left in a response, and until when a client waits that has something already."""

    left_bytes: int
    patient_until_s: float
    has_data: bool = False

    def of(self, wanted: FetchPartition) -> int:
        """Return bytes for one partition."""
        return max(min(wanted.max_bytes, self.left_bytes), 0)

    def take(self, size_bytes: int) -> None:
        """Count ``size_bytes`` as used."""
        self.left_bytes -= size_bytes
        self.has_data |= size_bytes > 0


class FetchApi:
    """No sessions (KIP-227): each response has session id 0, which means that none was made."""

    def __init__(
        self,
        *,
        places: Places,
        picture: BucketPicture,
        path: ReadPath,
        memory: MemoryBudget,
        telemetry: Telemetry,
        most_bytes: int,
        most_wait_s: float,
    ) -> None:
        self._places, self._picture, self._path = places, picture, path
        self._memory, self._telemetry = memory, telemetry
        self._most_bytes, self._most_wait_s = most_bytes, most_wait_s

    @asynccontextmanager
    async def answer(self, asked: Asked) -> AsyncIterator[list[Buffer]]:
        """Give the response's body, in pieces; what it takes is free again when the context ends.

        Raises:
            MalformedMessageError: the request is none.
        """
        fetch = read_fetch_request(memoryview(asked.body), asked.version)
        if fetch.session_id != NO_SESSION or fetch.is_incremental:
            yield [write_session_error(asked.version, 0, FETCH_SESSION_ID_NOT_FOUND)]
            return
        read_for(asked)
        async with AsyncExitStack() as stack:
            rows = await self._rows(asked, fetch, stack)
            self._telemetry.count(BUCKET_FETCHED_BYTES, sum(row.records_bytes for _, row in rows))
            yield _written(fetch.version, rows)

    async def _rows(
        self, asked: Asked, fetch: FetchRequest, stack: AsyncExitStack
    ) -> list[tuple[PartitionKey, FilledPartition]]:
        """Return a row for each partition; while there is nothing new, wait as long as the client does."""
        now_s = asyncio.get_running_loop().time
        waits = fetch.min_bytes > 0 and len(fetch.partitions) > 0
        deadline_s = now_s() + (min(max(fetch.max_wait_ms, 0) / 1000, self._most_wait_s) if waits else 0.0)
        most_bytes = min(max(fetch.max_bytes, 1), self._most_bytes)
        while True:
            # Not held while the client waits for news: most consumers do nothing else.
            async with AsyncExitStack() as attempt:
                taking = self._memory.taken(asked.user.name, most_bytes, max(deadline_s - now_s(), _PATIENCE_S))
                share = await attempt.enter_async_context(taking)
                if not share.has_room:
                    return [(key, FilledPartition(throttle_ms=_THROTTLE_MS)) for key in fetch.partitions]
                rows = await self._read_rows(asked, fetch, _Allowance(share.size_bytes, now_s() + _PATIENCE_S))
                self._memory.keep(share, sum(row.records_bytes for _, row in rows))
                if now_s() >= deadline_s or any(row.records_bytes or row.error_code for _, row in rows):
                    stack.push_async_exit(attempt.pop_all())
                    return rows
            await self._picture.wait_for_change(deadline_s - now_s())

    async def _read_rows(
        self, asked: Asked, fetch: FetchRequest, allowance: _Allowance
    ) -> list[tuple[PartitionKey, FilledPartition]]:
        rows, turns = list[tuple[PartitionKey, FilledPartition]](), Turns()
        for key, wanted in fetch.partitions.items():
            rows.append((key, await self._row(asked, fetch, key, wanted, allowance)))
            await turns.after(1)
        return rows

    async def _row(
        self, asked: Asked, fetch: FetchRequest, key: PartitionKey, wanted: FetchPartition, allowance: _Allowance
    ) -> FilledPartition:
        topic, number = key
        place = self._place(asked, topic, number)
        if isinstance(place, ErrorCode):
            return FilledPartition(error_code=place.value)
        fault = epoch_fault(wanted.current_leader_epoch, place.leader_epoch)
        if fault is not None:
            return FilledPartition(error_code=fault.value)
        if place.partition is None:
            step = decide_fetch(wanted.fetch_offset, start=0, end=0, readable_to=0)
            return _without_records(step, Offset(0), Offset(0), Offset(0), read_committed=fetch.is_read_committed)
        try:
            return await self._of_partition(fetch, place.partition, wanted, allowance)
        except QuotaExceededError as error:
            return FilledPartition(throttle_ms=error.retry_after_ms)
        except TiersidecarError as error:
            code = error_of(error)
            log.warning("bucket.fetch.failed", partition=str(place.partition), error=code.name, reason=str(error))
            return FilledPartition(error_code=code.value)

    def _place(self, asked: Asked, topic: TopicKey, number: int) -> Place | ErrorCode:
        if isinstance(topic, bytes):
            return self._places.find_by_id(asked.user, topic, number)
        return self._places.find(asked.user, topic, number)

    async def _of_partition(
        self, fetch: FetchRequest, partition: TopicIdPartition, wanted: FetchPartition, allowance: _Allowance
    ) -> FilledPartition:
        reader, read_committed = self._path.reader, fetch.is_read_committed
        bounds = await reader.bounds(partition)
        stable = await reader.last_stable_offset(partition) if read_committed else bounds.end
        step = decide_fetch(wanted.fetch_offset, start=bounds.start, end=bounds.end, readable_to=stable)
        is_late = allowance.has_data and asyncio.get_running_loop().time() > allowance.patient_until_s
        is_full = allowance.has_data and allowance.of(wanted) == 0
        if step is not FetchStep.READ or is_late or is_full:
            return _without_records(step, bounds.start, bounds.end, stable, read_committed=read_committed)
        fetched = await self._read(partition, wanted, allowance, read_committed=read_committed)
        allowance.take(fetched.size_bytes)
        aborted = tuple(
            (transaction.producer_id, transaction.first_offset) for transaction in fetched.aborted_transactions or ()
        )
        return FilledPartition(
            high_watermark=bounds.end,
            last_stable_offset=stable if read_committed else -1,
            log_start_offset=bounds.start,
            aborted=aborted if read_committed else None,
            records=_own_bytes(fetched),
        )

    async def _read(
        self,
        partition: TopicIdPartition,
        wanted: FetchPartition,
        allowance: _Allowance,
        *,
        read_committed: bool,
    ) -> FetchedBatches:
        """Read one partition; the first batch comes whatever its size, if nothing else does (KIP-74)."""
        try:
            return await self._path.reader.read_batches(
                partition,
                wanted.fetch_offset,
                max_bytes=allowance.of(wanted),
                min_one_message=not allowance.has_data,
                read_committed=read_committed,
            )
        except OffsetOutOfRangeError as error:
            if error.start <= wanted.fetch_offset < error.stop:
                raise  # in a hole: a client that learnt so would skip what comes behind
            return FetchedBatches(slices=(), next_offset=Offset(wanted.fetch_offset), aborted_transactions=None)


def _without_records(
    step: FetchStep, start: Offset, end: Offset, stable: Offset, *, read_committed: bool
) -> FilledPartition:
    is_out = step is FetchStep.OUT_OF_RANGE
    return FilledPartition(
        error_code=(ErrorCode.offset_out_of_range if is_out else ErrorCode.none).value,
        high_watermark=-1 if is_out else end,
        last_stable_offset=-1 if is_out or not read_committed else stable,
        log_start_offset=start,
        aborted=() if read_committed else None,
    )


def _own_bytes(fetched: FetchedBatches) -> Sequence[Buffer]:
    if fetched.size_bytes <= _COPIED_BYTES:
        return [bytes(one.buffer) for one in fetched.slices]
    return [one.buffer for one in fetched.slices]


def _written(version: int, rows: Sequence[tuple[PartitionKey, FilledPartition]]) -> list[Buffer]:
    """Return the response's body: rows by topic, in the request's order."""
    flexible = is_flexible(version)
    no_tags = b"\0" if flexible else b""
    throttle_ms = max((row.throttle_ms for _, row in rows), default=0)
    topics = [(topic, list(of_topic)) for topic, of_topic in groupby(rows, key=lambda row: row[0][0])]
    pieces: list[Buffer] = [_HEAD.pack(throttle_ms)]
    if version >= FIRST_WITH_SESSIONS:
        pieces.append(_SESSION.pack(ErrorCode.none.value, NO_SESSION))
    pieces.append(length_bytes(len(topics), flexible=flexible))
    for topic, of_topic in topics:
        pieces.append(topic if isinstance(topic, bytes) else string_bytes(topic, flexible=flexible))
        pieces.append(length_bytes(len(of_topic), flexible=flexible))
        pieces += _partitions(version, of_topic)
        pieces.append(no_tags)
    pieces.append(no_tags)
    return [piece for piece in pieces if len(piece)]


def _partitions(version: int, rows: Sequence[tuple[PartitionKey, FilledPartition]]) -> Iterator[Buffer]:
    for (_, number), row in rows:
        yield from write_partition(version, number, row)
