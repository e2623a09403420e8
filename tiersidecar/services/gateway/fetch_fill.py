"""Reading what one Fetch asks of the remote tier: several partitions at once, within its time and its bytes.

Aborted transactions whose markers lie past the remote tier come from the broker, asked as this very client (S-156).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

import structlog

from tiersidecar.decide.gateway_fill import OutOfRange, decide_grace, decide_grants, decide_returned
from tiersidecar.decide.reader_quotas import ColdReader
from tiersidecar.domain.errors import (
    BrokerRefusedError,
    HistoryChangedError,
    MetadataNotReadyError,
    OffsetOutOfRangeError,
    QuotaExceededError,
    TiersidecarError,
    UndecidedTransactionError,
)
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch, Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.wire.fetch import (
    FETCH_API_KEY,
    KAFKA_STORAGE_ERROR,
    NO_ERROR,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    FetchPartition,
    FetchRequest,
    FilledPartition,
    PartitionKey,
    read_fetch_response,
    write_single_fetch,
)
from tiersidecar.formats.wire.messages import MalformedMessageError, UnaskedAnswerError
from tiersidecar.ports.broker import LocalBatches
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.gateway import GATEWAY_FILLED_BYTES, GATEWAY_FILLS
from tiersidecar.ports.metrics.reading import FETCH_THROTTLE_SECONDS, READS_SHED
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.reading.border_walks import BorderWalks
from tiersidecar.reading.reader_limits import ColdReads
from tiersidecar.reading.remote_log_reader import FetchedBatches, RemoteLogReader
from tiersidecar.reading.segment_lookup import History
from tiersidecar.services.gateway.exchange import Exchange
from tiersidecar.services.gateway.out_of_range import Classified
from tiersidecar.services.gateway.remote_fills import FillWant, RemoteFills

_PROBE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Undecided:
    """A transaction is still open at the border, or the broker could not say: there is nothing to return yet."""


@dataclass(frozen=True, slots=True)
class NotLocal:
    """The broker does not have the border: the local log begins further on, and there is a hole."""


class BorderTransactions:
    """The transactions at the border of the tiers, for all clients of a gateway."""

    def __init__(self, reader: RemoteLogReader) -> None:
        self._reader = reader
        self._walks = BorderWalks()

    async def aborted_beyond(
        self, exchange: Exchange, key: PartitionKey, partition: TopicIdPartition, history: History
    ) -> tuple[AbortedTransaction, ...] | Undecided | NotLocal:
        """Return the aborted transactions that reach over the end of ``history``, which is that of the remote tier."""

        async def fetch(offset: int, max_bytes: int, last_epoch: LeaderEpoch) -> LocalBatches:
            return await _fetch(exchange, key, offset, max_bytes, last_epoch)

        open_at_end = await self._reader.open_at(partition, history.end)
        try:
            beyond = await self._walks.aborted_beyond(partition, history, open_at_end, fetch)
        except OffsetOutOfRangeError:
            return NotLocal()
        except UnaskedAnswerError:
            raise  # the answers on this connection can no longer be matched to requests
        except (TimeoutError, MalformedMessageError, ValueError, BrokerRefusedError, HistoryChangedError):
            return Undecided()
        return Undecided() if beyond is None else beyond


async def _fetch(
    exchange: Exchange, key: PartitionKey, offset: int, max_bytes: int, last_epoch: LeaderEpoch
) -> LocalBatches:
    """Fetch.  A broker that does not know ``last_epoch`` yet says that the offset is out of range: ask again without it."""
    try:
        return await _fetch_of(exchange, key, offset, max_bytes, last_epoch)
    except OffsetOutOfRangeError:
        if last_epoch == NO_EPOCH:
            raise
    await _fetch_of(exchange, key, offset, max_bytes, NO_EPOCH)
    raise HistoryChangedError(subject=f"partition {key[1]}", end_offset=Offset(offset))


async def _fetch_of(
    exchange: Exchange, key: PartitionKey, offset: int, max_bytes: int, last_epoch: LeaderEpoch
) -> LocalBatches:
    version = exchange.api_version
    body = write_single_fetch(
        version,
        key,
        offset,
        max_wait_ms=0,
        max_bytes=max_bytes,
        read_committed=True,
        last_fetched_epoch=last_epoch,
    )
    answer = await exchange.upstream.ask(FETCH_API_KEY, version, body, _PROBE_TIMEOUT_S)
    (row,) = read_fetch_response(answer, version).partitions
    if row.key != key:
        raise UnaskedAnswerError(f"Fetch: of {row.key} nothing was asked")
    if row.error_code == OFFSET_OUT_OF_RANGE:
        raise OffsetOutOfRangeError(subject=f"partition {key[1]}", offset=offset, start=-1, stop=-1)
    if row.error_code != NO_ERROR:
        raise BrokerRefusedError(api="Fetch", subject=f"partition {key[1]}", error=str(row.error_code))
    return LocalBatches(
        records=bytes(answer[row.records_start : row.records_start + row.records_bytes]),
        high_watermark=Offset(row.high_watermark),
        last_stable_offset=Offset(row.last_stable_offset),
        aborted=tuple((producer_id, Offset(first)) for producer_id, first in row.aborted or ()),
    )


log = structlog.get_logger(__name__)

_MOST_FILL_BYTES = 16 * 1024 * 1024
"""The most for one partition, whatever the client allows: a read goes on when its client is gone, its memory given back."""
_NOTHING = FetchedBatches(slices=(), next_offset=Offset(0), aborted_transactions=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FillRequest:
    """``classified`` are the partitions to be filled, all of which are in ``asked``; ``local_bytes`` is what the broker
    returned of others; ``wait_s`` how long the client waits for the first of them."""

    exchange: Exchange
    request: FetchRequest
    local_bytes: int
    asked: Mapping[PartitionKey, FetchPartition]
    classified: Mapping[PartitionKey, Classified]
    wait_s: float


class FetchFill:
    """Reads through :class:`RemoteFills`, which go on when the wait is over."""

    def __init__(
        self, *, fills: RemoteFills, reader: RemoteLogReader, cold: ColdReads, clock: Clock, telemetry: Telemetry
    ) -> None:
        self._fills, self._reader, self._clock, self._telemetry = fills, reader, clock, telemetry
        self._cold = cold
        self._border = BorderTransactions(reader)
        self._troubled: dict[TopicIdPartition, str] = {}

    def fill_at_once(self, wanted: FillRequest) -> dict[PartitionKey, FilledPartition] | None:
        """Fill as :meth:`fill` does if everything wanted has been read ahead; else do nothing and return None."""
        if self._cold.throttle_s(_reader_of(wanted)) > 0:
            return None
        taken_bytes, grants = _take_room(wanted)
        answers: dict[PartitionKey, FilledPartition] | None = None
        try:
            if taken_bytes and all(grants.values()):
                wants = [_want(wanted, key, grant) for key, grant in grants.items()]
                found = self._fills.take_ready(wants)
                if found is not None:
                    fetched = zip(grants, found, strict=True)
                    answers = self._returned(
                        wanted, grants, {key: self._fetched(wanted, key, one) for key, one in fetched}
                    )
        finally:
            self._keep_room(wanted, taken_bytes, answers or {})
        if answers is not None:
            self._charge(wanted, answers)
        return answers

    async def fill(self, wanted: FillRequest) -> dict[PartitionKey, FilledPartition]:
        """Return an answer for each of ``wanted.classified``: batches, none because they did not come in time, or an error that
        clients try again after."""
        if (throttle_s := self._cold.throttle_s(_reader_of(wanted))) > 0:
            return self._over_budget(wanted, throttle_s)
        taken_bytes, grants = _take_room(wanted)
        answers: dict[PartitionKey, FilledPartition] = {}
        try:
            read = await self._read_all(wanted, grants if taken_bytes else {})
            answers = self._returned(wanted, grants, read)
        finally:
            self._keep_room(wanted, taken_bytes, answers)
        self._charge(wanted, answers)
        return answers

    def _over_budget(self, wanted: FillRequest, throttle_s: float) -> dict[PartitionKey, FilledPartition]:
        """Answer each with nothing, and with how long the client is to stay away."""
        self._telemetry.count(READS_SHED, len(wanted.classified), reason="reader_quota")
        self._telemetry.count(FETCH_THROTTLE_SECONDS, throttle_s)
        for _ in wanted.classified:
            self._count("shed")
        throttle_ms = ceil(throttle_s * 1000)
        return {key: replace(self._filled(wanted, key, _NOTHING), throttle_ms=throttle_ms) for key in wanted.classified}

    def _charge(self, wanted: FillRequest, answers: Mapping[PartitionKey, FilledPartition]) -> None:
        """Charge the client for what it gets, once that is known: reads serve several clients, and run ahead of them."""
        reader = _reader_of(wanted)
        for key, answer in answers.items():
            partition = wanted.classified[key].partition
            if partition is None or answer.error_code:
                continue
            self._cold.answered(reader, partition.topic, answer.records_bytes)

    def _returned(
        self,
        wanted: FillRequest,
        grants: Mapping[PartitionKey, int],
        answers: dict[PartitionKey, FilledPartition],
    ) -> dict[PartitionKey, FilledPartition]:
        """Return the answers without the batches that are too many for the response."""
        sizes = [answers[key].records_bytes for key in grants]
        for key, returned in zip(grants, decide_returned(sizes, [*grants.values()], wanted.local_bytes), strict=True):
            if not returned and answers[key].records_bytes:
                answers[key] = self._filled(wanted, key, _NOTHING)
        return answers

    def _keep_room(
        self, wanted: FillRequest, taken_bytes: int, answers: Mapping[PartitionKey, FilledPartition]
    ) -> None:
        """Keep the room that ``answers`` need until the client has them, and give back the rest."""
        kept_bytes = sum(answer.records_bytes for answer in answers.values())
        wanted.exchange.upstream.give_memory_back(taken_bytes - min(kept_bytes, taken_bytes))
        if kept_bytes:
            self._telemetry.count(GATEWAY_FILLED_BYTES, kept_bytes)

    async def _read_all(
        self, wanted: FillRequest, grants: Mapping[PartitionKey, int]
    ) -> dict[PartitionKey, FilledPartition]:
        """Return what came in time of each of ``wanted.classified``; of those that are not in ``grants``, nothing."""
        reads: dict[PartitionKey, asyncio.Task[FetchedBatches]] = {}
        try:
            for key, grant in grants.items():
                if wanted.classified[key].verdict is OutOfRange.AT_END:
                    continue
                # With nothing local, a first batch is returned however large it is: each read may turn out to be the first.
                if grant > 0 or not wanted.local_bytes:
                    reads[key] = asyncio.create_task(self._read(wanted, key, grant), name=f"fill {key[1]}")
            await self._wait(reads, wanted.wait_s)
            return {key: self._answer(wanted, key, reads.get(key)) for key in wanted.classified}
        finally:
            for read in reads.values():
                read.cancel()
            await asyncio.gather(*reads.values(), return_exceptions=True)

    async def _wait(self, reads: Mapping[PartitionKey, asyncio.Task[FetchedBatches]], wait_s: float) -> None:
        began_s, pending, has_data = self._clock.monotonic_s(), set(reads.values()), False
        until_s = began_s + wait_s
        while pending:
            done, pending = await self._first_of(pending, until_s - self._clock.monotonic_s())
            if not done:
                return
            if not has_data and any(_has_batches(one) for one in done):
                has_data, now_s = True, self._clock.monotonic_s()
                until_s = min(until_s, now_s + decide_grace(now_s - began_s))

    async def _first_of(
        self, pending: set[asyncio.Task[FetchedBatches]], wait_s: float
    ) -> tuple[set[asyncio.Task[FetchedBatches]], set[asyncio.Task[FetchedBatches]]]:
        """Return those that have ended, none if the time came first; and the others."""
        waking = asyncio.ensure_future(self._clock.sleep(max(wait_s, 0.0)))
        try:
            await asyncio.wait((*pending, waking), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
        done = {one for one in pending if one.done()}
        return done, pending - done

    async def _read(self, wanted: FillRequest, key: PartitionKey, grant: int) -> FetchedBatches:
        classified, want = wanted.classified[key], _want(wanted, key, grant)
        assert classified.bounds is not None
        assert classified.offsets is not None
        if want.read_committed and want.offset >= await self._reader.last_stable_offset(want.partition):
            if classified.offsets.is_mounted:
                return _NOTHING  # what ends the transaction has not been copied yet
            history = classified.bounds.history
            beyond = await self._border.aborted_beyond(wanted.exchange, key, want.partition, history)
            if isinstance(beyond, Undecided):
                return _NOTHING
            if isinstance(beyond, NotLocal):
                bounds = classified.bounds
                raise OffsetOutOfRangeError(
                    subject=str(want.partition), offset=bounds.end, start=bounds.start, stop=bounds.end
                )
            want = replace(want, aborted_beyond=beyond, history=history)
        return await self._fills.read(want)

    def _answer(
        self, wanted: FillRequest, key: PartitionKey, read: asyncio.Task[FetchedBatches] | None
    ) -> FilledPartition:
        if wanted.classified[key].verdict is OutOfRange.AT_END:
            return self._fetched(wanted, key, _NOTHING)
        if read is None or not read.done() or read.cancelled():
            self._count("pending" if read is not None else "no_room")
            return self._filled(wanted, key, _NOTHING)
        error = read.exception()
        partition = wanted.classified[key].partition
        assert partition is not None
        match error:
            case None:
                return self._fetched(wanted, key, read.result())
            case QuotaExceededError():
                self._count("shed")
                return self._filled(wanted, key, _NOTHING)
            case OffsetOutOfRangeError() if error.start <= wanted.asked[key].fetch_offset < error.stop:
                # Within the remote tier, and no segment has it; or a transaction is open at a hole between the tiers.
                self._count("hole")
                self._note(partition, error)
                return FilledPartition(error_code=NOT_LEADER_OR_FOLLOWER)
            case UndecidedTransactionError():  # its end lies in a hole of the remote tier
                self._count("hole")
                self._note(partition, error)
                return FilledPartition(error_code=NOT_LEADER_OR_FOLLOWER)
            case HistoryChangedError() | MetadataNotReadyError() | OffsetOutOfRangeError():
                # It was there when it was classified: the next request is classified anew.
                self._count("not_ready")
                return FilledPartition(error_code=NOT_LEADER_OR_FOLLOWER)
            case TiersidecarError():
                self._count("failed")
                self._note(partition, error)
                return FilledPartition(error_code=KAFKA_STORAGE_ERROR)
        raise error

    def _fetched(self, wanted: FillRequest, key: PartitionKey, fetched: FetchedBatches) -> FilledPartition:
        partition = wanted.classified[key].partition
        if partition is not None:
            self._troubled.pop(partition, None)
        self._count("filled" if fetched.slices else "empty")
        return self._filled(wanted, key, fetched)

    def _filled(self, wanted: FillRequest, key: PartitionKey, fetched: FetchedBatches) -> FilledPartition:
        classified = wanted.classified[key]
        assert classified.bounds is not None
        assert classified.offsets is not None
        filled_end = fetched.next_offset if fetched.slices else 0
        aborted = None
        if wanted.request.is_read_committed:
            aborted = tuple(
                (transaction.producer_id, transaction.first_offset)
                for transaction in fetched.aborted_transactions or ()
            )
        return FilledPartition(
            high_watermark=max(classified.offsets.high_watermark, filled_end),
            last_stable_offset=max(classified.offsets.last_stable_offset, filled_end),
            log_start_offset=Offset(max(classified.bounds.start, classified.bounds.log_start)),
            aborted=aborted,
            records=[one.buffer for one in fetched.slices],
        )

    def _count(self, outcome: str) -> None:
        self._telemetry.count(GATEWAY_FILLS, outcome=outcome)

    def _note(self, partition: TopicIdPartition, error: TiersidecarError) -> None:
        """Log once per partition and trouble: clients ask many times a second."""
        reason = str(error)
        if self._troubled.get(partition) != reason:
            self._troubled[partition] = reason
            log.warning("gateway.fill.failed", topic=partition.topic, partition=partition.partition, reason=reason)


def _reader_of(wanted: FillRequest) -> ColdReader:
    exchange = wanted.exchange
    return ColdReader(principal=exchange.connection.login.principal, client_id=exchange.client_id or "")


def _take_room(wanted: FillRequest) -> tuple[int, dict[PartitionKey, int]]:
    """Return bytes of the response memory, 0 while there are none, and what they grant each of ``wanted.classified``."""
    keys = list(wanted.classified)
    limits = [0 if _has_nothing(wanted, key) else min(wanted.asked[key].max_bytes, _MOST_FILL_BYTES) for key in keys]
    grants = decide_grants(limits, wanted.request.max_bytes, wanted.local_bytes)
    taken_bytes = wanted.exchange.upstream.take_memory(max(sum(grants), 1))
    return taken_bytes, dict(zip(keys, decide_grants(grants, taken_bytes, 0), strict=True))


def _has_nothing(wanted: FillRequest, key: PartitionKey) -> bool:
    """Return whether the client waits there for more: room that is kept for it is taken from partitions behind it."""
    one = wanted.classified[key]
    if one.verdict is OutOfRange.AT_END:
        return True
    if one.offsets is None or not one.offsets.is_mounted or not wanted.request.is_read_committed:
        return False
    return wanted.asked[key].fetch_offset >= one.offsets.last_stable_offset


def _want(wanted: FillRequest, key: PartitionKey, grant: int) -> FillWant:
    partition = wanted.classified[key].partition
    assert partition is not None  # what is to be filled has one
    return FillWant(
        partition=partition,
        offset=wanted.asked[key].fetch_offset,
        max_bytes=grant,
        read_committed=wanted.request.is_read_committed,
    )


def _has_batches(read: asyncio.Task[FetchedBatches]) -> bool:
    return not read.cancelled() and read.exception() is None and bool(read.result().slices)
