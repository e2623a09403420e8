"""DeleteRecords through the gateway: a user's delete, which moves the log start of both tiers (DESIGN.md section 5).

The broker is asked first, on the user's own connection: it authorises, and deletes what it has.  What it has accepted is
proposed, and the sidecar of the partition's leader decides: the gateway itself has no right to delete, nor to say a start.  Its
client is told of success once the start that the leader's sidecar has said is read here.  Of a gateway that dies before, or
waits in vain, the client asks again.

A delete up to the high watermark (offset -1) is of the one at its moment, which the broker's answer does not tell: by then its
start may have been trimmed further.  So it is asked for with a number: first all of the request up to 0, which deletes nothing,
waits for nobody and tells whether it may be done, then up to the high watermark that the broker tells.

Of a topic that was made a moment ago nothing may be known here when its delete passes.  The broker's disk tells its id and its
leader epoch: what the broker accepts is proof for these, and is proposed once the topic is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Set
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog
from kio.schema.errors import ErrorCode

from tiersidecar.domain.errors import (
    BrokerRefusedError,
    MetadataNotReadyError,
    NobodyDecidesError,
    PublishTimeoutError,
    TiersidecarError,
)
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.proposals import DeleteProposal
from tiersidecar.domain.segments import LeaderView
from tiersidecar.formats.wire.delete_records import deletes_asked, read_deletes, with_offsets
from tiersidecar.ports.broker import DescribePartitions
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.proposals import Propose
from tiersidecar.ports.state_log import StateChanges, StateLog
from tiersidecar.ports.state_records import Leases
from tiersidecar.reading.user_deletes import UserDelete
from tiersidecar.services.gateway.audit import NO_AUDIT_TOPIC, AuditTopic, audit_delete, audit_deletes
from tiersidecar.services.gateway.broker_offsets import BothTiers, BrokerOffsets
from tiersidecar.services.gateway.exchange import ConnectionState, DeleteAsked, Exchange, Rewrite, Rewritten
from tiersidecar.services.gateway.high_watermarks import high_watermarks
from tiersidecar.services.gateway.leaders import Leaders
from tiersidecar.services.gateway.messages import (
    Opened,
    RowKey,
    changed_row,
    in_turns,
    read_exchange,
    write_rows,
)
from tiersidecar.services.gateway.tiered_partitions import Asker, Moment, TieredView

log = structlog.get_logger(__name__)

HIGH_WATERMARK = -1
UNKNOWN = "unknown"
"""The outcome of a delete whose client has gone before it was told, or that the broker has not answered in time."""
_ACCEPTED = frozenset({ErrorCode.none, ErrorCode.request_timed_out})
"""After its own time limit the leader has moved its start, only not every follower has."""


_MOST_EPOCHS = 10_000
_MOST_EVENTS = 20
"""For deletes that the broker may have refused: who has no right may ask for thousands, and be gone."""
_MOST_NEW = 16
"""Partitions of a request that are looked up on the broker's disk: for each a small file is read, whoever asks."""
_BROKER_ANSWERS_S = 10.0
"""To a request that asks it to wait for nobody."""
_LOOK_AGAIN_S = 0.05
"""At what is known of those: nothing tells when it has changed."""
_LEAST_WAIT_S, _MOST_WAIT_S = 5.0, 20.0
"""A timeout of 0 asks the broker not to wait for followers, which is no wish to be told half of it.  The most is within the
client's own timeout for DeleteRecords; clients give up a request after 30 s by default."""


class SaidState(StateLog, StateChanges, Leases, Protocol):
    """What the sidecars have said, and when they say more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposer:
    """Who we are: cluster, and the broker that we stand in front of; and where we propose."""

    cluster_id: str
    broker_id: BrokerId
    proposals: Propose


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking:
    """A client's request: it waits ``wait_s``, which end at ``until_s`` of the loop's time."""

    exchange: Exchange
    leaders: Leaders
    wait_s: float
    until_s: float


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
        self._tiered, self._reader, self._offsets = tiers.tiered, tiers.reader, tiers.offsets
        self._state, self._proposer, self._broker = state, proposer, broker
        self._blocking, self._clock, self._audit = blocking, clock, audit
        self._epochs: dict[TopicIdPartition, LeaderEpoch] = {}

    def versions(self) -> range:
        """See :class:`Rewrite`."""
        return range(3)

    def prepare(self, exchange: Exchange) -> Rewritten:
        """As it is, but for deletes up to the high watermark of what may be tiered.

        Raises:
            MalformedMessageError: it names a partition twice: which offset the broker has taken, its answer does not tell.
        """
        deletes = read_deletes(exchange.request, exchange.api_version)
        connection = exchange.connection
        connection.deletes_told.clear()
        self._note_what_is_known(connection, deletes)
        moving = {key for key in connection.deletes_asked if deletes[key] == HIGH_WATERMARK}
        connection.deletes_up_to_high_watermark = moving
        if not moving:
            return None
        return [with_offsets(exchange.request, exchange.api_version, dict.fromkeys(deletes, 0), timeout_ms=0)]

    def _note_what_is_known(self, connection: ConnectionState, keys: Collection[RowKey]) -> None:
        """Right before the broker is asked: what it answers is proof for this, and for nothing later."""
        known: Moment = self._tiered.now()
        connection.asker.asked_at, connection.asked_s = known, self._clock.monotonic_s()
        try:
            connection.deletes_asked = self._known_of(known, keys)
        except MetadataNotReadyError:
            connection.deletes_asked = {}  # the state topic has not been read yet: nothing can be proposed

    def _known_of(self, known: Moment, keys: Collection[RowKey]) -> dict[RowKey, DeleteAsked]:
        found = {key: self._asked(view) for key in keys if (view := known.find(*key)) is not None}
        # Few are looked up on the disk too: of one that is new, was made anew, or has another leader, nothing that is known
        # holds.
        for key in keys if len(keys) <= _MOST_NEW else ():
            on_disk, before = self._tiered.find_on_disk(*key), found.get(key)
            if on_disk is not None and (before is None or _is_later(on_disk, before)):
                found[key] = replace(self._asked(on_disk), is_new=True)
        return found

    def _asked(self, view: TieredView) -> DeleteAsked:
        partition = view.topic_id_partition
        return DeleteAsked(
            topic_id_partition=partition,
            leader_epoch=max(view.leader_epoch, self._epochs.get(partition, view.leader_epoch)),
            start_generation=self._state.partition_state(partition).start_generation,
        )

    def abandoned(self, exchange: Exchange) -> None:
        """Have it in the audit log all the same: a client that is gone before the answer may have deleted."""
        told = exchange.connection.deletes_told
        asked = deletes_asked(exchange.request, exchange.api_version)
        left = [one for one in asked if one[:2] not in told]
        if len(left) > _MOST_EVENTS:
            audit_deletes(exchange, left, UNKNOWN, self._audit)
            return
        for topic, partition, offset in left:
            audit_delete(exchange, topic, partition, offset, UNKNOWN, self._audit)

    async def rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten:
        """See :class:`Rewrite`."""
        opened = await read_exchange(exchange, response, self._blocking)
        if moving := exchange.connection.deletes_up_to_high_watermark & opened.rows.keys():
            changed = await self._up_to_high_watermark(exchange, opened, moving)
        else:
            changed = await self._carried_out(exchange, opened, opened.rows.keys(), exchange.connection.asked_s)
        return [await write_rows(opened.answered, changed, self._blocking)] if changed else None

    async def _carried_out(
        self, exchange: Exchange, opened: Opened, keys: Collection[RowKey], since_s: float
    ) -> dict[RowKey, Any]:
        """Have done remotely what the broker has accepted of ``keys``; gives the rows that the client, which waits since
        ``since_s``, gets in another form."""
        read_s, timeout_s = self._clock.monotonic_s(), opened.request.timeout.total_seconds()
        is_late = exchange.connection.is_late(read_s, timeout_s)
        rows = {key: row for key, row in opened.rows.items() if key in keys and row.error_code in _ACCEPTED}
        told = exchange.connection.deletes_told
        told.update(set(keys) - rows.keys())  # what the broker has refused
        # The broker's part is the client's time as well.
        wait_s = max(min(max(timeout_s, _LEAST_WAIT_S), _MOST_WAIT_S) - (read_s - since_s), _LEAST_WAIT_S)
        asking = _Asking(
            exchange=exchange,
            leaders=Leaders(self._broker),
            wait_s=wait_s,
            until_s=asyncio.get_running_loop().time() + wait_s,
        )

        async def one(key: RowKey, row: Any) -> Any:
            offset = int(opened.asked[key].offset)
            new = _asked_again(row) if is_late else await self._row(asking, key, row, offset)
            audit_delete(exchange, *key, offset, new.error_code.name, self._audit)
            told.add(key)
            return new

        return await in_turns(one, rows)

    async def _up_to_high_watermark(self, exchange: Exchange, opened: Opened, moving: Set[RowKey]) -> dict[RowKey, Any]:
        """Ask for all of the request, which the broker has answered as far as it may be done: with the numbers that ``moving``
        are up to now."""
        since_s, told = exchange.connection.asked_s, exchange.connection.deletes_told
        accepted = {key for key, row in opened.rows.items() if row.error_code in _ACCEPTED}
        if not accepted:
            told.update(opened.rows)
            return {}
        broker_s, is_sent = opened.request.timeout.total_seconds() + _BROKER_ANSWERS_S, False
        try:
            marks, refused = await high_watermarks(exchange, moving & accepted, self._blocking, _BROKER_ANSWERS_S)
            numbers = {**dict.fromkeys(moving, 0), **marks}
            body = with_offsets(exchange.request, exchange.api_version, numbers)
            self._note_what_is_known(exchange.connection, opened.rows)
            is_sent = True
            answer = await exchange.upstream.ask(
                exchange.api_key, exchange.api_version, bytes(body), timeout_s=broker_s
            )
        except TimeoutError:
            told.update(opened.rows)
            for key in accepted if is_sent else ():  # it may be carried out yet
                audit_delete(exchange, *key, int(opened.asked[key].offset), UNKNOWN, self._audit)
            return {key: _asked_again(opened.rows[key]) for key in accepted}
        asked = replace(exchange, request=memoryview(body))
        again = await read_exchange(asked, answer, self._blocking)
        untold = {key: _refused(opened.rows[key], error) for key, error in refused.items()}
        told.update(untold)
        rows = {key: row for key, row in again.rows.items() if key not in untold}
        return {**untold, **rows, **await self._carried_out(asked, again, rows.keys(), since_s)}

    async def _row(self, asking: _Asking, key: RowKey, row: Any, offset: int) -> Any:
        asked = asking.exchange.connection.deletes_asked.get(key)
        try:
            view = await self._view(asking, key, asked)
            if view is None:
                return row
            if asked is None:
                raise MetadataNotReadyError(subject=str(view.topic_id_partition))
            async with asyncio.timeout_at(asking.until_s):
                low_watermark = await self._delete(asking, row, asked, offset)
        except NobodyDecidesError as error:
            log.warning("gateway.delete_records.failed", topic=key[0], partition=key[1], reason=str(error))
            return changed_row(row, error_code=ErrorCode.unsupported_version, low_watermark=Offset(-1))
        except (TiersidecarError, TimeoutError) as error:
            # Its own part the broker has done; the client asks for the whole again.
            reason = str(error) or "it has taken too long"
            log.warning("gateway.delete_records.failed", topic=key[0], partition=key[1], reason=reason)
            return _asked_again(row)
        return row if row.error_code is not ErrorCode.none else changed_row(row, low_watermark=low_watermark)

    async def _view(self, asking: _Asking, key: RowKey, asked: DeleteAsked | None) -> TieredView | None:
        """Return what is known of it now; None where it is not tiered.  One that was new when it was asked for is waited for.

        Raises:
            MetadataNotReadyError: it may be tiered, and nothing is known of it in time; or it was another when it was asked
                for.
        """
        asker = asking.exchange.connection.asker
        if asked is None or not asked.is_new:
            return self._tiered.find(*key, asker)
        waited = Asker(told=asker.told)  # which topic and leader it is of, ``asked`` tells
        while True:
            try:
                return self._tiered.find(*key, waited)
            except MetadataNotReadyError:
                if asyncio.get_running_loop().time() >= asking.until_s or not self._is_still_there(asked):
                    raise
            await self._clock.sleep(_LOOK_AGAIN_S)

    def _is_still_there(self, asked: DeleteAsked) -> bool:
        partition = asked.topic_id_partition
        on_disk = self._tiered.find_on_disk(partition.topic, partition.partition)
        return on_disk is not None and on_disk.topic_id_partition == partition

    async def _delete(self, asking: _Asking, row: Any, asked: DeleteAsked, offset: int) -> Offset:
        """Propose the delete, and wait until the leader's sidecar has said it; gives the first offset that is left.

        Raises:
            NobodyDecidesError: the leader's sidecar is of a former release.
            TiersidecarError: it has not been said in time, or not by this leader; or another one leads than when the broker was
                asked, or an operator has set the start back since.
        """
        exchange, partition = asking.exchange, asked.topic_id_partition
        view = await asking.leaders.leader(partition)
        if view.leader_epoch != asked.leader_epoch:
            # An unclean election between the two may have given its offsets to other records.
            self._learn(partition, view.leader_epoch)
            raise BrokerRefusedError(api="DeleteRecords", subject=str(partition), error="FENCED_LEADER_EPOCH")
        local = await self._local_offsets(partition)
        target = Offset(offset)
        if target > local.high_watermark:
            # Accepted by a leader that has been deposed since: said in the new one's epoch, it would delete what comes next.
            raise BrokerRefusedError(api="DeleteRecords", subject=str(partition), error="OFFSET_OUT_OF_RANGE")
        # Whose work the broker's own log start is, the leader's sidecar decides.
        delete = UserDelete(offset=target, leader_epoch=view.leader_epoch, trims=False)
        await self._state.catch_up()  # what was said may have been undone since
        known = self._state.partition_state(partition)
        if known.start_generation != asked.start_generation:
            error = "an operator has set the remote log start back since the broker was asked"
            raise BrokerRefusedError(api="DeleteRecords", subject=str(partition), error=error)
        if not delete.is_said(known):
            self._require_decider(view)
            await self._proposer.proposals.propose(
                DeleteProposal(
                    cluster_id=self._proposer.cluster_id,
                    topic_id_partition=partition,
                    offset=target,
                    leader_epoch=view.leader_epoch,
                    low_watermark=Offset(max(row.low_watermark, -1))
                    if row.error_code is ErrorCode.none
                    else Offset(-1),
                    start_generation=asked.start_generation,
                    principal=exchange.connection.login.principal,
                    client_id=exchange.client_id or "",
                    address=exchange.connection.client,
                    gateway=self._proposer.broker_id,
                    proposed_ms=self._clock.now_ms(),
                )
            )
            if row.error_code is not ErrorCode.none:
                return target  # the client is told that it has taken too long: so it has not to wait for more
            await self._until_said(partition, delete, asking)
        start = self._state.partition_state(partition).remote_log_start_offset
        return max(start, await self._first_offset(partition, asking))

    async def _first_offset(self, partition: TopicIdPartition, asking: _Asking) -> Offset:
        """Of what is remote; a new partition's metadata may have to be read first.

        Raises:
            MetadataNotReadyError: it was not read in time.
        """
        while True:
            try:
                return (await self._reader.bounds(partition)).start
            except MetadataNotReadyError:
                if asyncio.get_running_loop().time() >= asking.until_s:
                    raise
            await self._clock.sleep(_LOOK_AGAIN_S)

    def _learn(self, partition: TopicIdPartition, leader_epoch: LeaderEpoch) -> None:
        """The client's next delete is of this epoch, though the table may not know it for a while."""
        if len(self._epochs) >= _MOST_EPOCHS:
            self._epochs.clear()
        self._epochs[partition] = leader_epoch

    def _require_decider(self, view: LeaderView) -> None:
        lease = self._state.lease(str(view.leader_id))
        if lease is None or lease.released:
            raise BrokerRefusedError(
                api="DeleteRecords",
                subject=str(view.topic_id_partition),
                error=f"broker {view.leader_id} has no sidecar now",
            )
        if not lease.decides_proposals:
            raise NobodyDecidesError(broker_id=view.leader_id, version=lease.version)

    async def _until_said(self, partition: TopicIdPartition, delete: UserDelete, asking: _Asking) -> None:
        """Return once the state topic, as read here, has it: nobody reads below it through this gateway any more.

        Raises:
            PublishTimeoutError: not in time; it may be carried out yet.
            BrokerRefusedError: a later leader has said less, so this delete is not in force.
        """
        try:
            async with asyncio.timeout_at(asking.until_s):
                while not delete.is_said(known := self._state.partition_state(partition)):
                    if known.remote_log_start_epoch > delete.leader_epoch:
                        raise BrokerRefusedError(
                            api="DeleteRecords", subject=str(partition), error="FENCED_LEADER_EPOCH"
                        )
                    await self._state.advanced()
        except TimeoutError as error:
            raise PublishTimeoutError(
                subject=f"delete of {partition}", waited_ms=round(asking.wait_s * 1000)
            ) from error

    async def _local_offsets(self, partition: TopicIdPartition) -> BrokerOffsets:
        known = (await self._offsets.current([partition])).get(partition)
        if known is None:
            raise BrokerRefusedError(api="ListOffsets", subject=str(partition), error="LEADER_NOT_AVAILABLE")
        return known


def _is_later(on_disk: TieredView, before: DeleteAsked) -> bool:
    is_same = on_disk.topic_id_partition.topic_id == before.topic_id_partition.topic_id
    return not is_same or on_disk.leader_epoch > before.leader_epoch


def _refused(row: Any, error: ErrorCode) -> Any:
    """Nothing was deleted: the broker did not tell the high watermark."""
    return changed_row(row, error_code=error, low_watermark=Offset(-1))


def _asked_again(row: Any) -> Any:
    """Return what makes a client ask for the whole again."""
    return changed_row(row, error_code=ErrorCode.request_timed_out, low_watermark=Offset(-1))
