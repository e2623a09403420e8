"""Aborted transactions whose markers lie past the remote tier, as the broker tells them to this very client (S-156)."""

from __future__ import annotations

from dataclasses import dataclass

from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.wire.fetch_requests import FETCH_API_KEY, PartitionKey, write_single_fetch
from tiersidecar.formats.wire.fetch_responses import NO_ERROR, OFFSET_OUT_OF_RANGE, read_fetch_response
from tiersidecar.formats.wire.messages import MalformedMessageError, UnaskedAnswerError
from tiersidecar.services.gateway.exchange import Exchange

_PROBE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Undecided:
    """A transaction is still open at the border, or the broker could not tell: there is nothing to return yet."""


@dataclass(frozen=True, slots=True)
class NotLocal:
    """The broker does not have the border: the local log begins further on, and there is a hole."""


async def aborted_beyond(
    exchange: Exchange, partition: PartitionKey, end_offset: int
) -> tuple[AbortedTransaction, ...] | Undecided | NotLocal:
    """The aborted transactions that reach over ``end_offset``, the end (exclusive) of the remote tier.

    One Fetch of the batch there tells them all: the broker lists each aborted transaction that reaches into what it returns,
    and goes on searching as long as one is missing, because no earlier marker has a last stable offset past the border.
    """
    body = write_single_fetch(
        exchange.api_version, partition, end_offset, max_wait_ms=0, max_bytes=1, read_committed=True
    )
    try:
        answer = await exchange.upstream.ask(FETCH_API_KEY, exchange.api_version, body, _PROBE_TIMEOUT_S)
        (row,) = read_fetch_response(answer, exchange.api_version).partitions
    except (TimeoutError, MalformedMessageError, ValueError):
        return Undecided()
    if row.key != partition:
        raise UnaskedAnswerError(f"Fetch: of {row.key} nothing was asked")
    if row.error_code == OFFSET_OUT_OF_RANGE:
        return NotLocal()
    if row.error_code != NO_ERROR or row.last_stable_offset <= end_offset:
        return Undecided()
    stable = Offset(row.last_stable_offset)
    return tuple(
        AbortedTransaction(producer_id, Offset(first), Offset(stable - 1), stable)
        for producer_id, first in row.aborted or ()
    )
