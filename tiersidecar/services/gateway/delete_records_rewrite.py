"""DeleteRecords through the gateway: a user's delete, which moves the log start of both tiers (DESIGN.md section 5).

It goes in two steps.  Deletes of what may be tiered go to the broker up to 0 first, on the user's own connection: that deletes
nothing, and the broker says what may be done.  Then what the remote part needs is made ready, and offset -1 becomes the high
watermark of now.  What fails until then, or whose client has gone, has deleted nothing, and can be asked for again without
harm; a -1 that is asked for again is of more records.

What was accepted is asked for again then, with its offset.  What the broker has deleted is proposed (``remote_deletes``), and
the sidecar of the partition's leader decides: the gateway itself has no right to delete, nor to say a start.  Its client is
told of success once the start that the leader's sidecar has said is read here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kio.schema.errors import ErrorCode

from tiersidecar.domain.errors import TiersidecarError
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.wire.delete_records import read_deletes, with_offsets
from tiersidecar.formats.wire.row_errors import is_any_deleted
from tiersidecar.ports.broker import DescribePartitions
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.services.gateway.audit import NO_AUDIT_TOPIC, AuditTopic, audit_delete, audit_deletes
from tiersidecar.services.gateway.broker_offsets import BothTiers
from tiersidecar.services.gateway.exchange import (
    Exchange,
    Rewrite,
    Rewritten,
    UpstreamClosedError,
)
from tiersidecar.services.gateway.messages import (
    Opened,
    RowKey,
    all_at_once,
    changed_row,
    is_any,
    read_exchange,
    write_only,
    write_rows,
)
from tiersidecar.services.gateway.remote_deletes import (
    Proposer,
    RemoteDeletes,
    SaidState,
    ToDelete,
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
_AT_ONCE = 32
"""Partitions of a request that are looked at before others have their turn of the loop: for each a small file is read."""
_FRESH_S = 2.0
"""How old what was made sure of may be when the broker is asked."""
_MOST_BROKER_WAIT_S, _BROKER_ANSWERS_S = 60.0, 10.0
"""How long a client may let the broker wait for followers, and how much later it has to have answered."""
_LEAST_WAIT_S, _MOST_WAIT_S = 5.0, 20.0
"""A timeout of 0 asks the broker not to wait for followers, which is no wish to be told half of it.  The most is within the
client's own timeout for DeleteRecords; clients give up a request after 30 s by default."""


@dataclass(slots=True, kw_only=True)
class _Planned:
    """Of a request: ``failed`` are the rows of what cannot be done now, ``offsets`` those of what can, as looked at after
    ``looked_s``.  ``tiered`` is what of that is more than the broker's."""

    failed: dict[RowKey, Any] = field(default_factory=dict)
    offsets: dict[RowKey, int] = field(default_factory=dict)
    tiered: dict[RowKey, ToDelete] = field(default_factory=dict)
    looked_s: float = 0.0


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
        """Up to 0, and without waiting, what may be tiered; what may not is the broker's alone, and goes as it is.

        Raises:
            MalformedMessageError: it names a partition twice: which offset the broker has taken, its answer does not tell.
        """
        deletes, connection = read_deletes(exchange.request, exchange.api_version), exchange.connection
        connection.asked_s = self._clock.monotonic_s()
        tiered = {topic for topic in {topic for topic, _ in deletes} if self._tiered.may_be_tiered(topic)}
        first = {key for key in deletes if key[0] in tiered}
        connection.deletes_under_way = {key: offset for key, offset in deletes.items() if key not in first}
        if not first:
            return None
        timeout_ms = None if connection.deletes_under_way else 0
        return [with_offsets(exchange.request, exchange.api_version, dict.fromkeys(first, 0), timeout_ms=timeout_ms)]

    def abandoned(self, exchange: Exchange) -> None:
        """Have it in the audit log all the same: a client that is gone before the answer may have deleted."""
        left = [(*key, offset) for key, offset in exchange.connection.deletes_under_way.items()]
        exchange.connection.deletes_under_way = {}
        if len(left) > _MOST_EVENTS:
            audit_deletes(exchange, left, UNKNOWN, self._audit)
            return
        for topic, partition, offset in left:
            audit_delete(exchange, topic, partition, offset, UNKNOWN, self._audit)

    async def rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten:
        """See :class:`Rewrite`."""
        connection = exchange.connection
        if not await is_any(is_any_deleted, response, exchange.api_version, self._blocking):
            connection.deletes_under_way = {}
            return None
        opened = await read_exchange(exchange, response, self._blocking)
        since_s = connection.asked_s
        done, connection.deletes_under_way = connection.deletes_under_way, {}
        for key in done.keys() & _accepted(opened).keys():
            audit_delete(exchange, *key, done[key], opened.rows[key].error_code.name, self._audit)
        first = {key: row for key, row in _accepted(opened).items() if key not in done}
        if not first:
            return None
        planned = await self._planned(exchange, opened, first, _timeout_s(opened) if done else 0.0)
        if not planned.offsets:
            return [await write_rows(opened.answered, planned.failed, self._blocking)]
        if exchange.upstream.is_client_gone:
            raise UpstreamClosedError("the client has gone before anything was deleted for it")
        answered, rows = await self._carried_out(exchange, opened, planned, since_s)
        return [await write_rows(answered, planned.failed | rows, self._blocking)]

    async def _planned(
        self, exchange: Exchange, opened: Opened, rows: Mapping[RowKey, Any], allowed_s: float
    ) -> _Planned:
        """Return what becomes of ``rows``, which the broker has accepted up to 0 and had ``allowed_s`` for.

        All that may take time comes first, for all of them: then the high watermarks are read, and then it is made sure that
        they are of what was made ready.
        """
        if exchange.connection.is_late(self._clock.monotonic_s(), allowed_s):
            return _Planned(failed={key: asked_again(row) for key, row in rows.items()})
        # For as long the broker reads nothing of this client (KIP-219): what is found out now would be old by then.
        throttle_s = opened.answered.throttle_time.total_seconds()
        if throttle_s > _MOST_WAIT_S:
            return _Planned(failed={key: asked_again(row) for key, row in rows.items()})
        if throttle_s:
            await self._clock.sleep(throttle_s)
        planned = await self._made_ready(exchange, opened, rows)
        whole = [key for key in planned.tiered if opened.asked[key].offset == HIGH_WATERMARK]
        planned.looked_s = self._clock.monotonic_s()
        marks = await self._remote.high_watermarks([planned.tiered[key].topic_id_partition for key in whole])
        for number, key in enumerate(rows.keys() - planned.failed.keys()):
            offset, to_delete = int(opened.asked[key].offset), planned.tiered.get(key)
            try:
                if to_delete is not None:
                    self._remote.check_same(key, to_delete)
                    offset = marks[to_delete.topic_id_partition] if offset == HIGH_WATERMARK else offset
                planned.offsets[key] = offset
            except TiersidecarError as error:
                planned.failed[key] = failed_row(key, rows[key], error)
            except KeyError:  # its leader does not tell its high watermark
                planned.failed[key] = asked_again(rows[key])
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        return planned

    async def _made_ready(self, exchange: Exchange, opened: Opened, rows: Mapping[RowKey, Any]) -> _Planned:
        planned, asking = _Planned(), self._remote.asking(exchange, _wait_s(opened))

        async def one(key: RowKey, row: Any) -> Any:
            try:
                to_delete = await self._remote.made_ready(asking, key, int(opened.asked[key].offset))
            except (TiersidecarError, TimeoutError) as error:
                return failed_row(key, row, error)
            if to_delete is not None:
                planned.tiered[key] = to_delete
            return row

        planned.failed |= await all_at_once(one, rows)
        return planned

    async def _carried_out(
        self, exchange: Exchange, opened: Opened, planned: _Planned, since_s: float
    ) -> tuple[Any, dict[RowKey, Any]]:
        """Ask the broker for what is planned, and have done remotely what it accepts; the client waits since ``since_s``.
        Return the broker's answer, whose rows are of no use, and those that the client gets."""
        connection, offsets = exchange.connection, planned.offsets
        rows = {key: asked_again(opened.rows[key]) for key in offsets}  # unless it is answered otherwise
        wanted = {key: changed_row(opened.asked[key], offset=Offset(offset)) for key, offset in offsets.items()}
        body = await write_only(opened.request, wanted, self._blocking)
        connection.asked_s, connection.deletes_under_way = self._clock.monotonic_s(), dict(offsets)
        if connection.asked_s - planned.looked_s > _FRESH_S:  # this process stood still
            connection.deletes_under_way = {}
            return opened.answered, rows
        broker_s = min(_timeout_s(opened), _MOST_BROKER_WAIT_S) + _BROKER_ANSWERS_S
        try:
            answer = await exchange.upstream.ask(exchange.api_key, exchange.api_version, body, timeout_s=broker_s)
        except TimeoutError:
            self.abandoned(exchange)  # it may be carried out yet
            return opened.answered, rows
        again = await read_exchange(replace(exchange, request=memoryview(body)), answer, self._blocking)
        read_s = self._clock.monotonic_s()
        is_late = connection.is_late(read_s, _timeout_s(opened))
        under_way, accepted = dict(offsets), _accepted(again)
        connection.deletes_under_way = under_way
        for key in offsets.keys() - accepted.keys():
            del under_way[key]  # refused
        # The broker's part is the client's time as well.
        asking = self._remote.asking(exchange, max(_wait_s(opened) - (read_s - since_s), _LEAST_WAIT_S))

        async def one(key: RowKey, row: Any) -> Any:
            new, to_delete = row, planned.tiered.get(key)
            if is_late:
                new = asked_again(row)
            elif to_delete is not None:
                new = await self._remote.carried_out(asking, to_delete, row, offsets[key])
            audit_delete(exchange, *key, offsets[key], new.error_code.name, self._audit)
            under_way.pop(key, None)
            return new

        rows |= again.rows
        rows |= await all_at_once(one, accepted)
        return replace(opened.answered, throttle_time=again.answered.throttle_time), rows


def _accepted(opened: Opened) -> dict[RowKey, Any]:
    return {key: row for key, row in opened.rows.items() if row.error_code in _ACCEPTED}


def _wait_s(opened: Opened) -> float:
    return min(max(_timeout_s(opened), _LEAST_WAIT_S), _MOST_WAIT_S)


def _timeout_s(opened: Opened) -> float:
    """How long the client lets the broker wait for followers."""
    return max(float(opened.request.timeout.total_seconds()), 0.0)
