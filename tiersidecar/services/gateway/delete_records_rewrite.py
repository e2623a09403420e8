"""DeleteRecords through the gateway: a user's delete, which moves the log start of both tiers (DESIGN.md section 5).

The broker is asked first, on the user's own connection: it authorises, and deletes what it has.  What it has accepted is
proposed (``remote_deletes``), and the sidecar of the partition's leader decides: the gateway itself has no right to delete, nor
to say a start.  Its client is told of success once the start that the leader's sidecar has said is read here.  Of a gateway
that dies before, or waits in vain, the client asks again.

A delete up to the high watermark (offset -1) is of the one at its moment, and asked for again it is another.  So a request
that has one goes to the broker up to 0 first, which deletes nothing, waits for nobody and tells what may be done.  What the
remote part needs is made sure of then, and what was accepted is asked for with numbers.  What fails before that is asked for
again without harm.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from tiersidecar.domain.errors import MetadataNotReadyError, TiersidecarError
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.wire.delete_records import deletes_asked, read_deletes, with_offsets
from tiersidecar.ports.broker import DescribePartitions
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.services.gateway.audit import NO_AUDIT_TOPIC, AuditTopic, audit_delete, audit_deletes
from tiersidecar.services.gateway.broker_offsets import BothTiers
from tiersidecar.services.gateway.exchange import (
    ConnectionState,
    DeleteAsked,
    Exchange,
    Rewrite,
    Rewritten,
    UpstreamClosedError,
)
from tiersidecar.services.gateway.messages import (
    Opened,
    RowKey,
    changed_row,
    in_turns,
    read_exchange,
    write_only,
    write_rows,
)
from tiersidecar.services.gateway.new_partitions import MOST_NEW
from tiersidecar.services.gateway.remote_deletes import (
    Proposer,
    RemoteDeletes,
    SaidState,
    asked_again,
    failed_row,
)

HIGH_WATERMARK = -1
UNKNOWN = "unknown"
"""The outcome of a delete whose client has gone before it was told, or that the broker has not answered in time."""
_ACCEPTED = frozenset({ErrorCode.none, ErrorCode.request_timed_out})
"""After its own time limit the leader has moved its start, only not every follower has."""
_MOST_EVENTS = 20
"""For deletes that the broker may have refused: who has no right may ask for thousands, and be gone."""
_BROKER_ANSWERS_S = 10.0
"""Beyond the time that a request lets it wait for followers."""
_LEAST_WAIT_S, _MOST_WAIT_S = 5.0, 20.0
"""A timeout of 0 asks the broker not to wait for followers, which is no wish to be told half of it.  The most is within the
client's own timeout for DeleteRecords; clients give up a request after 30 s by default."""


class DeleteRecordsRewrite(Rewrite):
    """``services.gateway.exchange.Rewrite`` of DeleteRecords."""

    reads_request = True
    most_request_bytes = 16 * 1024
    """Some 1,300 partitions of one broker; whether it may delete them a broker tells only afterwards, and who may not, has the
    loop for some milliseconds."""
    alone = True

    def __init__(
        self,
        *,
        tiers: BothTiers,
        state: SaidState,
        proposer: Proposer,
        broker: DescribePartitions,
        blocking: Blocking,
        clock: Clock,
        audit: AuditTopic = NO_AUDIT_TOPIC,
    ) -> None:
        self._tiered, self._blocking, self._clock, self._audit = tiers.tiered, blocking, clock, audit
        self._remote = RemoteDeletes(tiers=tiers, state=state, proposer=proposer, broker=broker, clock=clock)

    def versions(self) -> range:
        """See :class:`Rewrite`."""
        return range(3)

    def prepare(self, exchange: Exchange) -> Rewritten:
        """As it is, but for one with deletes up to the high watermark of what may be tiered.

        Raises:
            MalformedMessageError: it names a partition twice: which offset the broker has taken, its answer does not tell.
        """
        deletes, connection = read_deletes(exchange.request, exchange.api_version), exchange.connection
        connection.deletes_told.clear()
        connection.asker.asked_at, connection.asked_s = self._tiered.now(), self._clock.monotonic_s()
        connection.deletes_asked = self._known_of(connection.asker.asked_at, deletes)
        connection.deletes_up_to_high_watermark = {
            key: offset
            for key, offset in deletes.items()
            if offset == HIGH_WATERMARK and self._tiered.may_be_tiered(*key)
        }
        if not connection.deletes_up_to_high_watermark:
            return None
        connection.deletes_told.update(deletes)  # up to 0 nothing is deleted
        return [with_offsets(exchange.request, exchange.api_version, dict.fromkeys(deletes, 0), timeout_ms=0)]

    def _known_of(self, known: Any, keys: Collection[RowKey]) -> dict[RowKey, DeleteAsked]:
        """Right before the broker is asked: what it answers is proof for this, and for nothing later."""
        try:
            found = self._remote.in_table(known, keys)
            # Of few the disk is looked at as well, whoever asks.
            looked_at = (
                {key: self._remote.on_disk(key, found.get(key)) for key in keys} if len(keys) <= MOST_NEW else {}
            )
        except MetadataNotReadyError:
            return {}
        return found | {key: asked for key, asked in looked_at.items() if asked is not None}

    def abandoned(self, exchange: Exchange) -> None:
        """Have it in the audit log all the same: a client that is gone before the answer may have deleted."""
        told, numbers = exchange.connection.deletes_told, exchange.connection.deletes_up_to_high_watermark
        asked = deletes_asked(exchange.request, exchange.api_version)
        left = [(*one[:2], numbers.get(one[:2], one[2])) for one in asked if one[:2] not in told]
        if len(left) > _MOST_EVENTS:
            audit_deletes(exchange, left, UNKNOWN, self._audit)
            return
        for topic, partition, offset in left:
            audit_delete(exchange, topic, partition, offset, UNKNOWN, self._audit)

    async def rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten:
        """See :class:`Rewrite`."""
        opened = await read_exchange(exchange, response, self._blocking)
        if not exchange.connection.deletes_up_to_high_watermark:
            changed = await self._carried_out(exchange, opened, exchange.connection.asked_s)
            return [await write_rows(opened.answered, changed, self._blocking)] if changed else None
        return await self._up_to_high_watermark(exchange, opened)

    async def _carried_out(self, exchange: Exchange, opened: Opened, since_s: float) -> dict[RowKey, Any]:
        """Have done remotely what the broker has accepted, for a client that waits since ``since_s``; gives the rows that
        change by it."""
        read_s, timeout_s = self._clock.monotonic_s(), _timeout_s(opened)
        is_late = exchange.connection.is_late(read_s, timeout_s)
        rows = {key: row for key, row in opened.rows.items() if row.error_code in _ACCEPTED}
        told = exchange.connection.deletes_told
        told.update(opened.rows.keys() - rows.keys())  # what the broker has refused
        # The broker's part is the client's time as well.
        wait_s = max(min(max(timeout_s, _LEAST_WAIT_S), _MOST_WAIT_S) - (read_s - since_s), _LEAST_WAIT_S)
        asking = self._remote.asking(exchange, wait_s)

        async def one(key: RowKey, row: Any) -> Any:
            offset = int(opened.asked[key].offset)
            new = asked_again(row) if is_late else await self._remote.carried_out(asking, key, row, offset)
            audit_delete(exchange, *key, offset, new.error_code.name, self._audit)
            told.add(key)
            return new

        return await in_turns(one, rows)

    # Up to the high watermark

    async def _up_to_high_watermark(self, exchange: Exchange, opened: Opened) -> Rewritten:
        """What the broker has answered is of the whole request up to 0: it says what may be done."""
        accepted = {key: row for key, row in opened.rows.items() if row.error_code in _ACCEPTED}
        since_s, is_late = exchange.connection.asked_s, exchange.connection.is_late(self._clock.monotonic_s(), 0.0)
        # For as long the broker reads nothing of this client (KIP-219): what is found out now would be old by then.
        if throttle_s := opened.answered.throttle_time.total_seconds():
            await self._clock.sleep(min(throttle_s, _MOST_WAIT_S))
        rows, offsets = await self._planned(exchange, opened, {} if is_late else accepted)
        rows |= {key: asked_again(row) for key, row in accepted.items() if is_late}
        if not offsets:
            return [await write_rows(opened.answered, rows, self._blocking)]
        if exchange.upstream.is_client_gone:
            raise UpstreamClosedError("the client has gone before anything was deleted for it")
        answered, asked_for = await self._asked_with_numbers(exchange, opened, offsets, since_s)
        return [await write_rows(answered, rows | asked_for, self._blocking)]

    async def _planned(
        self, exchange: Exchange, opened: Opened, accepted: Mapping[RowKey, Any]
    ) -> tuple[dict[RowKey, Any], dict[RowKey, int]]:
        """Return the rows of those that cannot be done now, and the offsets of those that can."""
        connection, moving = exchange.connection, exchange.connection.deletes_up_to_high_watermark
        before, offsets = connection.deletes_asked, dict[RowKey, int]()
        await self._note_accepted(connection, accepted)
        asking = self._remote.asking(exchange, _LEAST_WAIT_S)

        async def one(key: RowKey, row: Any) -> Any:
            now = connection.deletes_asked.get(key)
            try:
                self._remote.check_same(key, before.get(key), now)
                number = await self._remote.high_watermark(asking, key, now) if key in moving else None
            except (TiersidecarError, TimeoutError) as error:
                return failed_row(key, row, error)
            offsets[key] = int(opened.asked[key].offset) if number is None else number
            return row

        failed = await in_turns(one, accepted)
        moving.update((key, offset) for key, offset in offsets.items() if key in moving)
        return failed, offsets

    async def _note_accepted(self, connection: ConnectionState, keys: Collection[RowKey]) -> None:
        """As :meth:`_known_of`, of any number: the broker has said that they may be deleted."""
        connection.asker.asked_at = self._tiered.now()
        try:
            connection.deletes_asked = await self._remote.of_accepted(connection.asker.asked_at, keys)
        except MetadataNotReadyError:
            connection.deletes_asked = {}

    async def _asked_with_numbers(
        self, exchange: Exchange, opened: Opened, offsets: Mapping[RowKey, int], since_s: float
    ) -> tuple[Any, dict[RowKey, Any]]:
        """Return the broker's answer, whose rows are of no use, and those that the client gets, whatever happens."""
        connection = exchange.connection
        rows = {key: asked_again(opened.rows[key]) for key in offsets}
        wanted = {key: changed_row(opened.asked[key], offset=Offset(offset)) for key, offset in offsets.items()}
        body = await write_only(opened.request, wanted, self._blocking)
        connection.asked_s = self._clock.monotonic_s()
        connection.deletes_told.difference_update(offsets)
        try:
            answer = await exchange.upstream.ask(
                exchange.api_key, exchange.api_version, body, timeout_s=_timeout_s(opened) + _BROKER_ANSWERS_S
            )
        except TimeoutError:  # it may be carried out yet
            connection.deletes_told.update(offsets)
            for key, offset in offsets.items():
                audit_delete(exchange, *key, offset, UNKNOWN, self._audit)
            return opened.answered, rows
        asked = replace(exchange, request=memoryview(body))
        again = await read_exchange(asked, answer, self._blocking)
        rows |= again.rows
        rows |= await self._carried_out(asked, again, since_s)
        return replace(opened.answered, throttle_time=again.answered.throttle_time), rows


def _timeout_s(opened: Opened) -> float:
    """How long the client lets the broker wait for followers."""
    return max(float(opened.request.timeout.total_seconds()), 0.0)
