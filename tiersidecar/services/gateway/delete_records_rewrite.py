"""DeleteRecords through the gateway: a user's delete, which moves the log start of both tiers (docs/design/0006).

It goes in two steps.  Deletes of what may be tiered go to the broker up to 0 first, on the user's own connection: that deletes
nothing, and the broker says what may be done.  Then what the remote part needs is made ready, and offset -1 becomes the high
watermark of now.  What fails until then, or whose client has gone, has deleted nothing, and can be asked for again without
harm; a -1 that is asked for again is of more records.

What is not tiered is the broker's alone, and goes as it is with the first step: one request, which takes no longer, and whose
answer looks no different, whatever of it is tiered, to a client that may know of none of it.

What was accepted is asked for again then, with its offset.  What the broker has deleted is proposed (``remote_deletes``), and
the sidecar of the partition's leader decides: the gateway itself has no right to delete, nor to publish a start offset.  The
client gets success once this gateway has read the start offset that the leader's sidecar published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import structlog
from kio.schema.errors import ErrorCode

from tiersidecar.domain.errors import MetadataNotReadyError, TiersidecarError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.wire.delete_records import read_deletes, up_to_0
from tiersidecar.formats.wire.row_errors import is_any_deleted
from tiersidecar.ports.broker import DescribePartitions
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.services.gateway.audit import NO_AUDIT_TOPIC, AuditTopic, audit_delete, audit_deletes
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
    write_answer,
    write_only,
)
from tiersidecar.services.gateway.remote_deletes import (
    Proposer,
    RemoteDeletes,
    SaidState,
    ToDelete,
    asked_again,
    failed_row,
)
from tiersidecar.services.gateway.tiered_partitions import BothTiers, Moment

log = structlog.get_logger(__name__)

HIGH_WATERMARK = -1
UNKNOWN = "unknown"
"""The outcome of a delete whose client disconnected before the answer, or that the broker did not answer in time."""
_ACCEPTED = frozenset({ErrorCode.none, ErrorCode.request_timed_out})
"""After its own time limit the leader has moved its start, only not every follower has."""
_MOST_EVENTS = 20
"""For deletes that the broker may have refused: a client without the right may ask for thousands, and be gone."""
_AT_ONCE = 32
"""Partitions of a request that are looked at before others have their turn of the loop: for each a small file is read."""
_TRIES, _TRY_AGAIN_S = 3, 0.1
_FRESH_S = 2.0
"""How old what was made sure of may be when the broker is asked."""
_WITH_OTHERS_S = 2.0
"""How long the first step may take where it carries deletes of what is not tiered, whose followers the broker waits for."""
_AT_ONCE_S = 0.5
"""An answer that takes no longer is of what is found on the broker's disk then, though it was not known when it was asked."""
_MOST_BROKER_WAIT_S, _BROKER_ANSWERS_S = 60.0, 10.0
"""How long a client may let the broker wait for followers, and how much later it has to have answered."""
_LEAST_WAIT_S, _MOST_WAIT_S = 5.0, 20.0
"""A timeout of 0 asks the broker not to wait for followers; it does not ask for half an answer.  The most is within the
client's own timeout for DeleteRecords; clients give up a request after 30 s by default."""


@dataclass(slots=True, kw_only=True)
class _Planned:
    """The plan for a request: ``failed`` are the rows of what cannot be done now, ``offsets`` those of what can, as seen at
    ``looked_s``.  ``tiered`` is the part of it that concerns more than the broker's log."""

    failed: dict[RowKey, Any] = field(default_factory=dict)
    offsets: dict[RowKey, int] = field(default_factory=dict)
    tiered: dict[RowKey, ToDelete] = field(default_factory=dict)
    looked_s: float = 0.0


class SecondSteps:
    """Those of all connections: the broker may have deleted, and what is remote is to follow."""

    def __init__(self) -> None:
        self.are_over = False
        self._number, self._none = 0, asyncio.Event()
        self._none.set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count the body as one."""
        self._number += 1
        self._none.clear()
        try:
            yield
        finally:
            self._number -= 1
            if not self._number:
                self._none.set()

    async def end(self) -> None:
        """Begin no more deletes, and return when the last one has ended and its answer is about to go out."""
        self.are_over = True
        await self._none.wait()
        await asyncio.sleep(_ANSWERING_S)


_ANSWERING_S = 0.1


class DeleteRecordsRewrite(Rewrite):
    """``services.gateway.exchange.Rewrite`` of DeleteRecords."""

    reads_request = True
    most_request_bytes = 16 * 1024
    """Some 1,300 partitions of one broker.  The broker checks the right to delete only afterwards, so a client without it
    costs the event loop some milliseconds."""
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
        second_steps: SecondSteps,
        audit: AuditTopic = NO_AUDIT_TOPIC,
    ) -> None:
        self._second_steps = second_steps
        self._tiered, self._blocking, self._clock, self._audit = tiers.tiered, blocking, clock, audit
        self._remote = RemoteDeletes(tiers=tiers, state=state, proposer=proposer, broker=broker, clock=clock)

    def versions(self) -> range:
        """Return the API versions that it can rewrite; ApiVersions offers clients no others."""
        return range(3)

    def prepare(self, exchange: Exchange) -> Rewritten:
        """Return the first step: of what may be tiered up to 0, of the rest as it is.

        Raises:
            MalformedMessageError: it names a partition twice: the answer does not say which offset the broker has taken.
        """
        deletes, connection = read_deletes(exchange.request, exchange.api_version), exchange.connection
        tiered = {topic for topic in {topic for topic, _ in deletes} if self._tiered.may_be_tiered(topic)}
        connection.asked_s, connection.asker.asked_at = self._clock.monotonic_s(), self._tiered.now()
        connection.deletes_under_way = {key: offset for key, offset in deletes.items() if key[0] not in tiered}
        return [up_to_0(exchange.request, exchange.api_version, tiered)] if tiered else None

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
        """Return what the client gets instead of ``response``, a body that begins after the response header."""
        connection = exchange.connection
        asked_at, connection.asker.asked_at = connection.asker.asked_at, None
        if not await is_any(is_any_deleted, response, exchange.api_version, self._blocking):
            connection.deletes_under_way = {}
            return None
        opened = await read_exchange(exchange, response, self._blocking)
        done, connection.deletes_under_way = connection.deletes_under_way, {}
        accepted = _accepted(opened)
        for key, offset in done.items():
            if key in accepted:
                audit_delete(exchange, *key, offset, accepted[key].error_code.name, self._audit)
        tiered = {key: row for key, row in accepted.items() if key not in done}
        if not tiered:
            return None
        since_s = connection.asked_s
        planned = await self._planned(exchange, opened, tiered, asked_at)
        answered, rows = opened.answered, planned.failed
        if planned.offsets:
            with self._second_steps.one():
                answered, carried_out = await self._carried_out(exchange, opened, planned, since_s)
            rows |= carried_out
        return [await write_answer(opened.request, answered, {**opened.rows, **rows}, self._blocking)]

    async def _planned(
        self, exchange: Exchange, opened: Opened, rows: Mapping[RowKey, Any], asked_at: Moment | None
    ) -> _Planned:
        """Return what becomes of the deletes ``rows`` that the broker has accepted up to 0.

        What its answer is of is noted at once, high watermarks too.  All that may take time comes then, for all together.  In
        the end it is made sure that nothing has become another since.  ``asked_at`` is what was known when it was asked: if its
        answer was not read at once, because the broker waited for followers of something else or this process stood still,
        what is of another topic or leader since then is not deleted.
        """
        noted = await self._noted(rows)
        now_s, connection = self._clock.monotonic_s(), exchange.connection
        took_s, is_alone = now_s - connection.asked_s, len(rows) == len(_accepted(opened))
        if connection.is_late(now_s, 0.0) or (took_s > _WITH_OTHERS_S and not is_alone):
            return _none_of(rows, "the broker's answer was read too late")
        if took_s > _AT_ONCE_S:
            noted = {key: one for key, one in noted.items() if _is_of(one, key, asked_at)}
        whole = [noted[key].topic_id_partition for key in noted if opened.asked[key].offset == HIGH_WATERMARK]
        marks = await self._marks(whole)
        throttle_s = float(opened.answered.throttle_time.total_seconds())
        if throttle_s > _MOST_WAIT_S:
            return _none_of(rows, f"the client is over its quota for {throttle_s:.0f} s")
        if throttle_s:  # for so long the broker reads nothing of this client (KIP-219)
            await self._clock.sleep(throttle_s)
        planned = await self._made_ready(exchange, opened, rows, noted)
        planned.looked_s = self._clock.monotonic_s()
        same = await self._noted(noted)
        for key in rows.keys() - planned.failed.keys():
            to_delete, offset = noted.get(key), int(opened.asked[key].offset)
            if to_delete is not None and offset == HIGH_WATERMARK:
                offset = marks.get(to_delete.topic_id_partition, HIGH_WATERMARK)
            if to_delete is None or same.get(key) != to_delete or offset == HIGH_WATERMARK:
                planned.failed[key] = asked_again(rows[key])
            else:
                planned.offsets[key] = offset
        return planned

    async def _marks(self, partitions: Collection[TopicIdPartition]) -> dict[TopicIdPartition, Offset]:
        """Return the high watermarks of now; right after an election a leader may have to be asked once more."""
        marks = dict[TopicIdPartition, Offset]()
        for _ in range(_TRIES):
            marks |= await self._remote.high_watermarks(set(partitions) - marks.keys())
            if marks.keys() >= set(partitions):
                break
            await self._clock.sleep(_TRY_AGAIN_S)
        return marks

    async def _noted(self, keys: Collection[RowKey]) -> dict[RowKey, ToDelete]:
        """Return what deletes of ``keys`` are of now, of those that are known; the broker has said that they may be known."""
        noted = dict[RowKey, ToDelete]()
        for number, key in enumerate(keys, 1):
            try:
                to_delete = self._remote.known(key)
            except MetadataNotReadyError:
                break  # the state topic has not been read yet: nothing is known
            if to_delete is not None:
                noted[key] = to_delete
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return noted

    async def _made_ready(
        self, exchange: Exchange, opened: Opened, rows: Mapping[RowKey, Any], noted: Mapping[RowKey, ToDelete]
    ) -> _Planned:
        planned, asking = _Planned(), self._remote.asking(exchange, _wait_s(opened))

        async def one(key: RowKey, row: Any) -> Any:
            offset, to_delete = int(opened.asked[key].offset), noted.get(key)
            try:
                if to_delete is None:  # nothing says what it was of when the client asked
                    raise MetadataNotReadyError(subject=f"{key[0]}-{key[1]}")
                is_tiered = await self._remote.is_made_ready(asking, key, offset, to_delete)
            except (TiersidecarError, TimeoutError) as error:
                return failed_row(key, row, error)
            if is_tiered:
                planned.tiered[key] = to_delete
            return row

        planned.failed |= await all_at_once(one, rows)
        return planned

    async def _asked(self, exchange: Exchange, opened: Opened, body: bytes) -> Opened | None:
        """Ask the broker for ``body``, of some rows of the request; None where it does not answer in time."""
        broker_s = min(_timeout_s(opened), _MOST_BROKER_WAIT_S) + _BROKER_ANSWERS_S
        try:
            answer = await exchange.upstream.ask(exchange.api_key, exchange.api_version, body, timeout_s=broker_s)
        except TimeoutError:
            self.abandoned(exchange)  # it may be carried out yet
            return None
        return await read_exchange(replace(exchange, request=memoryview(body)), answer, self._blocking)

    async def _carried_out(
        self, exchange: Exchange, opened: Opened, planned: _Planned, since_s: float
    ) -> tuple[Any, dict[RowKey, Any]]:
        """Ask the broker for what is planned, and have done remotely what it accepts; the client waits since ``since_s``.
        Return the broker's answer, whose rows are of no use, and those that the client gets."""
        connection, offsets = exchange.connection, planned.offsets
        rows = {key: asked_again(opened.rows[key]) for key in offsets}  # unless it is answered otherwise
        wanted = {key: changed_row(opened.asked[key], offset=Offset(offset)) for key, offset in offsets.items()}
        body = await write_only(opened.request, wanted, self._blocking)
        if self._second_steps.are_over:
            return opened.answered, rows
        if exchange.upstream.is_client_gone:
            raise UpstreamClosedError("the client has gone before anything was deleted for it")
        connection.asked_s = self._clock.monotonic_s()
        if connection.asked_s - planned.looked_s > _FRESH_S:  # this process stood still
            log.warning("gateway.delete_records.failed", reason="this process is too slow for what it has looked at")
            return opened.answered, rows
        connection.deletes_under_way = under_way = dict(offsets)
        again = await self._asked(exchange, opened, body)
        if again is None:
            return opened.answered, rows
        read_s = self._clock.monotonic_s()
        is_late, accepted = connection.is_late(read_s, _timeout_s(opened)), _accepted(again)
        for key in again.rows.keys() - accepted.keys():
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
        self.abandoned(exchange)  # of what it has not answered
        return replace(opened.answered, throttle_time=again.answered.throttle_time), rows


def _is_of(noted: ToDelete, key: RowKey, asked_at: Moment | None) -> bool:
    """Return whether it is what it was at ``asked_at``."""
    view = None if asked_at is None else asked_at.find(*key)
    before = None if view is None else (view.topic_id_partition, view.leader_epoch)
    return before == (noted.topic_id_partition, noted.leader_epoch)


def _none_of(rows: Mapping[RowKey, Any], reason: str) -> _Planned:
    log.warning("gateway.delete_records.failed", partitions=len(rows), reason=reason)
    return _Planned(failed={key: asked_again(row) for key, row in rows.items()})


def _accepted(opened: Opened) -> dict[RowKey, Any]:
    return {key: row for key, row in opened.rows.items() if row.error_code in _ACCEPTED}


def _wait_s(opened: Opened) -> float:
    return min(max(_timeout_s(opened), _LEAST_WAIT_S), _MOST_WAIT_S)


def _timeout_s(opened: Opened) -> float:
    """Return how long the client lets the broker wait for followers."""
    return max(float(opened.request.timeout.total_seconds()), 0.0)
