"""ListOffsets over both tiers, as native tiered storage answers (S-149, T-48 to T-51, U17).

Of a topic that was made a moment ago nothing may be known here yet, and not every client asks again (librdkafka's
``query_watermark_offsets``).  It is waited for, and the broker asked once more: its first answer was about an unknown topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from tiersidecar.domain.errors import MetadataNotReadyError, OffsetBetweenTiersError, TiersidecarError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.mounts import MOUNTED_START
from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch, Offset
from tiersidecar.formats.wire.row_errors import is_any_listed
from tiersidecar.ports.broker import OffsetSpec
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.reading.lineage import LineageSource
from tiersidecar.reading.segment_lookup import OffsetBounds
from tiersidecar.reading.timestamp_lookup import TimestampAndOffset, TimestampLookup
from tiersidecar.services.gateway.exchange import Exchange, Rewrite, Rewritten, UpstreamClosedError
from tiersidecar.services.gateway.messages import (
    MOST_LOOKUP_BYTES,
    Opened,
    RowKey,
    changed_row,
    in_turns,
    is_any,
    read_exchange,
    write_rows,
)
from tiersidecar.services.gateway.new_partitions import NewPartitions, until_ready
from tiersidecar.services.gateway.tiered_partitions import Asker, BothTiers, check_gap

_CONSUMER = -1
"""``replica_id`` of those whose isolation level counts (ReplicaManager.fetchOffset)."""
_NO_TIMESTAMP = -1
_FIRST_WITH_TIMEOUT = 10
_NEW_WAIT_S = 2.0
_UNCHANGED = frozenset({OffsetSpec.LATEST, OffsetSpec.EARLIEST_LOCAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """A client's question about one partition, and the broker's answer."""

    partition: TopicIdPartition
    timestamp: int
    row: Any
    read_committed: bool = False


class ListOffsetsRewrite(Rewrite):
    """``services.gateway.exchange.Rewrite`` of ListOffsets.  The broker answers first, and so authorises."""

    reads_request = True
    most_request_bytes = MOST_LOOKUP_BYTES
    alone = True

    def __init__(
        self,
        *,
        tiers: BothTiers,
        timestamps: TimestampLookup,
        lineages: LineageSource,
        timeout_ms: int,
        blocking: Blocking,
        clock: Clock,
    ) -> None:
        self._tiered, self._reader, self._timestamps, self._lineages = tiers.tiered, tiers.reader, timestamps, lineages
        self._offsets, self._pending, self._timeout_ms = tiers.offsets, tiers.pending, timeout_ms
        self._blocking, self._clock, self._new = blocking, clock, NewPartitions(clock)

    def versions(self) -> range:
        """Return the API versions that it can rewrite; ApiVersions offers clients no others."""
        return range(1, 12)

    def prepare(self, exchange: Exchange) -> Rewritten:
        """Pass the request unchanged."""
        connection = exchange.connection
        connection.asker.asked_at, connection.asked_s = self._tiered.now(), self._clock.monotonic_s()
        return None

    async def rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten:
        """Return what the client gets instead of ``response``, a body that begins after the response header."""
        read_s = self._clock.monotonic_s()
        if not await is_any(is_any_listed, response, exchange.api_version, self._blocking):
            return None
        opened = await read_exchange(exchange, response, self._blocking)
        request = opened.request
        if request.replica_id >= 0 and not self._offsets.has_mounts:
            return None  # a follower finds its own way
        timeout_s = self._timeout_ms / 1000
        # As the broker takes it (ReplicaManager.fetchOffset): 0, which some clients send, is no limit of theirs.
        allowed_s = request.timeout.total_seconds() if exchange.api_version >= _FIRST_WITH_TIMEOUT else 0.0
        if allowed_s > 0:
            timeout_s = min(timeout_s, allowed_s)
        if exchange.connection.is_late(read_s, allowed_s):
            last, changed = opened, await self._read_late(opened, exchange.connection.asker)
        else:
            last, changed = await self._changed(exchange, opened, timeout_s)
        is_first = last is opened
        return None if is_first and not changed else [await write_rows(last.answered, changed, self._blocking)]

    async def _changed(
        self, exchange: Exchange, opened: Opened, timeout_s: float
    ) -> tuple[Opened, Mapping[RowKey, Any]]:
        """Return what the broker has answered last, and its rows that the client gets in another form."""
        asker, unready = exchange.connection.asker, list[RowKey]()
        until_s = asyncio.get_running_loop().time() + timeout_s

        async def one(key: RowKey, row: Any) -> Any:
            return await self._row(key, row, opened, until_s, asker, unready)

        changed = await in_turns(one, self._rows_to_change(opened))
        is_as_asked = not any(self._has_changed(key, asker) for key in unready)
        if is_as_asked and self._new.are_worth_waiting(unready) and await self._become_known(unready, asker, timeout_s):
            opened = await self._ask_again(exchange, timeout_s)
            unready.clear()
            changed = await in_turns(one, self._rows_to_change(opened))
        self._new.answered(self._rows_to_change(opened).keys() - set(unready))
        return opened, changed

    def _has_changed(self, key: RowKey, asker: Asker) -> bool:
        """Return whether it is of another topic or leader by now: of that the client has to hear."""
        before = None if asker.asked_at is None else asker.asked_at.find(*key)
        return before is not None and before != self._tiered.now().find(*key)

    async def _become_known(self, keys: Sequence[RowKey], asker: Asker, timeout_s: float) -> bool:
        """Return whether they did in time."""
        until_s = asyncio.get_running_loop().time() + min(timeout_s, _NEW_WAIT_S)
        waited = Asker(topic_ids=asker.topic_ids)

        async def known(key: RowKey) -> None:
            view = self._tiered.find(*key, waited)
            if view is not None:
                await self._reader.bounds(view.topic_id_partition)

        try:
            async with asyncio.timeout_at(until_s):
                for key in keys:
                    await until_ready(partial(known, key), clock=self._clock, until_s=until_s)
        except (TimeoutError, TiersidecarError):  # the store hangs, say: the client asks again
            return False
        return True

    async def _ask_again(self, exchange: Exchange, timeout_s: float) -> Opened:
        """
        Raises:
            UpstreamClosedError: the broker does not answer in time: the client's connection ends.
        """
        connection = exchange.connection
        connection.asker.asked_at, connection.asked_s = self._tiered.now(), self._clock.monotonic_s()
        body = bytes(exchange.request)
        try:
            answer = await exchange.upstream.ask(exchange.api_key, exchange.api_version, body, timeout_s=timeout_s)
        except TimeoutError as error:
            raise UpstreamClosedError("the broker does not answer ListOffsets") from error
        return await read_exchange(exchange, answer, self._blocking)

    def _rows_to_change(self, opened: Opened) -> dict[RowKey, Any]:
        """Return those of which the broker's word need not be the last."""
        unchanged = frozenset[int]() if self._offsets.has_mounts else _UNCHANGED
        return {
            key: row
            for key, row in opened.rows.items()
            if row.error_code is ErrorCode.none
            and (opened.asked[key].timestamp not in unchanged or row.offset >= MOUNTED_START)
        }

    async def _read_late(self, opened: Opened, asker: Asker) -> Mapping[RowKey, Any]:
        async def one(key: RowKey, row: Any) -> Any:
            return self._row_read_late(key, row, asker)

        return await in_turns(one, self._rows_to_change(opened))

    def _row_read_late(self, key: RowKey, row: Any, asker: Asker) -> Any:
        """Change nothing in it: the client may have lost its right to read, and the broker's answer is of long ago."""
        try:
            return _unless_seeded(row) if self._tiered.find(*key, asker) is None else _not_known(row)
        except TiersidecarError:
            return _not_known(row)

    async def _row(
        self, key: RowKey, row: Any, opened: Opened, until_s: float, asker: Asker, unready: list[RowKey]
    ) -> Any:
        """Return the row that the client gets; after each of its errors every client tries again.  Nothing is known yet of
        keys that are in ``unready`` afterwards."""
        try:
            view = self._tiered.find(*key, asker)
            if view is None:
                return _unless_seeded(row)
            is_isolated = opened.request.replica_id == _CONSUMER and getattr(opened.request, "isolation_level", 0)
            question = _Question(
                partition=view.topic_id_partition,
                timestamp=opened.asked[key].timestamp,
                row=row,
                read_committed=bool(is_isolated),
            )
            async with asyncio.timeout_at(until_s):
                answer = await self._answer(await self._as_of_mount(question))
            return _unless_seeded(answer if self._tiered.find(*key, asker) is not None else row)
        except TimeoutError:
            return _failed(row, ErrorCode.request_timed_out)
        except MetadataNotReadyError:
            unready.append(key)
            return _not_known(row)
        except TiersidecarError:
            # The store is away, the pool is full, or the leader is new: the broker's own answer would be wrong.
            return _not_known(row)

    async def _answer(self, question: _Question) -> Any:
        match question.timestamp:
            case OffsetSpec.EARLIEST:
                return await self._earliest(question)
            case OffsetSpec.LATEST_TIERED:
                return await self._latest_tiered(question)
            case OffsetSpec.EARLIEST_PENDING_UPLOAD:
                return await self._earliest_pending_upload(question)
            case OffsetSpec.MAX_TIMESTAMP:
                return await self._max_timestamp(question)
            case timestamp_ms if timestamp_ms >= 0:
                return await self._by_timestamp(question)
        return question.row

    async def _as_of_mount(self, question: _Question) -> _Question:
        """Return the question as if the broker's log were empty and began where the remote log ends, for a read-only mount."""
        if not self._offsets.is_mounted(question.partition):
            return question
        local = await self._offsets.current_of(question.partition)
        if question.timestamp in (OffsetSpec.EARLIEST, OffsetSpec.EARLIEST_LOCAL):
            return replace(question, row=await self._at(question, local.log_start_offset))
        if question.timestamp == OffsetSpec.LATEST:
            end = local.last_stable_offset if question.read_committed else local.high_watermark
            return replace(question, row=await self._at(question, end))
        return question

    async def _earliest(self, question: _Question) -> Any:
        """Return the earliest offset.  While only pins have the beginning of the log, it is unknown: a client would skip it."""
        bounds, local_start = await self._reader.bounds(question.partition), question.row.offset
        if local_start < bounds.log_start:
            return await self._at(question, await self._start_of_undeleted(question, bounds.log_start))
        if bounds.start < bounds.end:
            return question.row if bounds.start >= local_start else await self._at(question, bounds.start)
        if local_start <= max(bounds.log_start, 0):
            return question.row
        bounds = await self._reader.current_bounds(question.partition)
        if bounds.start < bounds.end or await self._pending.is_pending(question.partition, below=local_start):
            raise OffsetBetweenTiersError(
                subject=str(question.partition), offset=bounds.end, remote_end=bounds.end, local_start=local_start
            )
        return question.row

    async def _start_of_undeleted(self, question: _Question, log_start: Offset) -> Offset:
        """Return the log start for clients.  After a crash the broker's is that of a minute ago, below what was deleted, until
        the leader's sidecar has set it again.  A broker takes no more for deleted than it has."""
        known = await self._offsets.current_of(question.partition)
        return Offset(max(question.row.offset, min(log_start, known.high_watermark)))

    async def _latest_tiered(self, question: _Question) -> Any:
        end_offset = (await self._reader.bounds(question.partition)).end
        return await self._at(question, Offset(end_offset - 1)) if end_offset > 0 else question.row

    async def _earliest_pending_upload(self, question: _Question) -> Any:
        """Return the first offset that is not remote yet (KIP-1023); the log start while nothing is."""
        bounds = await self._reader.bounds(question.partition)
        if bounds.end > 0:
            return await self._at(question, bounds.end)
        return await self._at(question, (await self._offsets.current_of(question.partition)).log_start_offset)

    async def _by_timestamp(self, question: _Question) -> Any:
        """Return the first of both tiers.  Segments that the broker has as well are left to it (T-51), unless it finds nothing
        in a log whose beginning it lacks: it looks into the first file alone that has so late a record, also if all of those
        lie below its log's start (simulation, seed 10 of the questions).  What is found there counts below the leader's end
        alone, as in Kafka: after an unclean election more may count as remote for a moment."""
        # Before the search, which misses what is finished meanwhile.
        bounds, row = await self._reader.bounds(question.partition), question.row
        if _is_deleted(row, bounds):
            found = await self._timestamps.find(question.partition, question.timestamp)
            return _not_known(row) if found is None else _found(row, found)
        local = await self._offsets.current_of(question.partition)
        local_start = local.log_start_offset
        if row.offset >= 0:
            stop_offset: int | None = min(local_start, row.offset)
        else:
            stop_offset = None if local_start > 0 else local_start
        found = await self._timestamps.find(question.partition, question.timestamp, stop_offset=stop_offset)
        if found is not None and (row.offset < 0 or local.is_mounted):
            end = local.last_stable_offset if question.read_committed else local.high_watermark
            found = found if found.offset < end else None
        if found is not None and not 0 <= row.offset <= found.offset:
            return _found(row, found)
        await check_gap(question.partition, bounds, local_start, self._pending, self._reader)
        return row

    async def _max_timestamp(self, question: _Question) -> Any:
        """Return the largest timestamp of both tiers, and the first record that has it.  The broker does not report its own
        while that is not committed: whether an earlier one is the largest is unknown then."""
        bounds, row = await self._reader.bounds(question.partition), question.row
        if _is_deleted(row, bounds):
            return _not_known(row)
        local = await self._offsets.current_of(question.partition)
        if row.offset < 0 and local.log_start_offset < local.high_watermark:
            return row
        found = await self._timestamps.find_latest(
            question.partition, stop_offset=local.log_start_offset, at_least_ms=row.timestamp
        )
        await check_gap(question.partition, bounds, local.log_start_offset, self._pending, self._reader)
        if found is None or found.timestamp_ms < row.timestamp:
            return row
        if found.timestamp_ms == row.timestamp and found.offset >= row.offset >= 0:
            return row
        return _found(row, found)

    async def _at(self, question: _Question, offset: Offset) -> Any:
        lineage = await self._lineages.lineage(question.partition)
        epoch = lineage.epoch_for_offset(offset)
        return changed_row(
            question.row,
            timestamp=_NO_TIMESTAMP,
            offset=offset,
            leader_epoch=NO_EPOCH if epoch is None else epoch,
        )


def _is_deleted(row: Any, bounds: OffsetBounds) -> bool:
    """Return whether the broker has found a deleted record: it cannot be asked which comes next."""
    return 0 <= int(row.offset) < bounds.log_start


def _found(row: Any, found: TimestampAndOffset) -> Any:
    return changed_row(row, timestamp=found.timestamp_ms, offset=found.offset, leader_epoch=found.leader_epoch)


def _unless_seeded(row: Any) -> Any:
    """Return the row as it is, unless it is of a log seeded for a read-only mount of which nothing is known here: no client may
    begin, or commit, where no history ever comes."""
    return _not_known(row) if int(row.offset) >= MOUNTED_START else row


def _not_known(row: Any) -> Any:
    """Return an error after which every client asks again.  librdkafka does not after NOT_LEADER_OR_FOLLOWER, and if it asked
    for both ends takes the error of one for an empty log (``rd_kafka_query_watermark_offsets``)."""
    return _failed(row, ErrorCode.leader_not_available)


def _failed(row: Any, error_code: ErrorCode) -> Any:
    return changed_row(
        row, error_code=error_code, timestamp=_NO_TIMESTAMP, offset=Offset(-1), leader_epoch=LeaderEpoch(-1)
    )
