"""Aborted transactions whose markers lie past the remote tier, as the broker tells them to this very client (S-156)."""

from __future__ import annotations

from dataclasses import dataclass

from tiersidecar.domain.errors import BrokerRefusedError, HistoryChangedError, OffsetOutOfRangeError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch, Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.wire.fetch_requests import FETCH_API_KEY, PartitionKey, write_single_fetch
from tiersidecar.formats.wire.fetch_responses import NO_ERROR, OFFSET_OUT_OF_RANGE, read_fetch_response
from tiersidecar.formats.wire.messages import MalformedMessageError, UnaskedAnswerError
from tiersidecar.ports.broker import LocalBatches
from tiersidecar.reading.border_walks import BorderWalks
from tiersidecar.reading.remote_log_reader import RemoteLogReader
from tiersidecar.reading.segment_lookup import History
from tiersidecar.services.gateway.exchange import Exchange

_PROBE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Undecided:
    """A transaction is still open at the border, or the broker could not tell: there is nothing to return yet."""


@dataclass(frozen=True, slots=True)
class NotLocal:
    """The broker does not have the border: the local log begins further on, and there is a hole."""


class BorderTransactions:
    """Of all clients of a gateway."""

    def __init__(self, reader: RemoteLogReader) -> None:
        self._reader = reader
        self._walks = BorderWalks()

    async def aborted_beyond(
        self, exchange: Exchange, key: PartitionKey, partition: TopicIdPartition, history: History
    ) -> tuple[AbortedTransaction, ...] | Undecided | NotLocal:
        """The aborted transactions that reach over the end of ``history``, which is that of the remote tier."""

        async def fetch(offset: int, max_bytes: int, last_epoch: LeaderEpoch) -> LocalBatches:
            return await _fetch(exchange, key, offset, max_bytes, last_epoch)

        open_at_end = await self._reader.open_at(partition, history.end)
        try:
            beyond = await self._walks.aborted_beyond(partition, history, open_at_end, fetch)
        except OffsetOutOfRangeError:
            return NotLocal()
        except UnaskedAnswerError:
            raise  # the answers on this connection cannot be told apart any more
        except (TimeoutError, MalformedMessageError, ValueError, BrokerRefusedError, HistoryChangedError):
            return Undecided()
        return Undecided() if beyond is None else beyond


async def _fetch(
    exchange: Exchange, key: PartitionKey, offset: int, max_bytes: int, last_epoch: LeaderEpoch
) -> LocalBatches:
    """A broker that does not know ``last_epoch`` yet says that the offset is out of range: it is asked again without."""
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
