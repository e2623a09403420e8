"""DeleteRecords through the gateway: a user's delete, which moves the log start of both tiers (DESIGN.md section 5).

The broker is asked first, on the user's own connection: it authorises, and deletes what it has.  What it has accepted is
proposed, and the sidecar of the partition's leader decides: the gateway itself has no right to delete, nor to say a start.  Its
client is told of success once the start that the leader's sidecar has said is read here.  Of a gateway that dies before, or
waits in vain, the client asks again.

Of a topic that was made a moment ago nothing may be known here when its delete passes.  The broker's disk tells its id and its
leader epoch: what the broker accepts is proof for these, and is proposed once the topic is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
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
from tiersidecar.formats.wire.delete_records import deletes_asked, read_deletes
from tiersidecar.ports.broker import DescribePartitions
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.proposals import Propose
from tiersidecar.ports.state_log import StateChanges, StateLog
from tiersidecar.ports.state_records import Leases
from tiersidecar.reading.user_deletes import UserDelete
from tiersidecar.services.gateway.audit import NO_AUDIT_TOPIC, AuditTopic, audit_delete, audit_deletes
from tiersidecar.services.gateway.broker_offsets import BothTiers, BrokerOffsets
from tiersidecar.services.gateway.exchange import DeleteAsked, Exchange, Rewrite, Rewritten
from tiersidecar.services.gateway.messages import (
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
"""The outcome of a delete whose client has gone before it was told."""
_ACCEPTED = frozenset({ErrorCode.none, ErrorCode.request_timed_out})
"""After its own time limit the leader has moved its start, only not every follower has."""


_MOST_EPOCHS = 10_000
_MOST_EVENTS = 20
"""For deletes that the broker may have refused: who has no right may ask for thousands, and be gone."""
_MOST_NEW = 16
"""Partitions of a request that are looked up on the broker's disk: for each a small file is read, whoever asks."""
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


class _Leaders:
    """Of the partitions of one request: the broker answers for whole topics, so those that ask at once ask together."""

    def __init__(self, broker: DescribePartitions) -> None:
        self._broker = broker
        self._asking: dict[str, asyncio.Future[Sequence[LeaderView]]] = {}

    async def leader(self, partition: TopicIdPartition) -> LeaderView:
        """Return what the broker says that is asked after the client's request was answered.

        Raises:
            BrokerRefusedError: there is no such partition.
            TiersidecarError: the broker does not tell.
        """
        for view in await self._views(partition.topic):
            if view.topic_id_partition == partition:
                return view
        raise BrokerRefusedError(api="Metadata", subject=str(partition), error="UNKNOWN_TOPIC_OR_PARTITION")

    async def _views(self, topic: str) -> Sequence[LeaderView]:
        asking = self._asking.get(topic)
        if asking is None:
            # A task, which the first to ask may not take with it when it is given up.
            asking = self._asking[topic] = asyncio.ensure_future(self._broker.describe_partitions([topic]))
            asking.add_done_callback(lambda done: self._forget(topic, done))
        return await asyncio.shield(asking)

    def _forget(self, topic: str, done: asyncio.Future[Sequence[LeaderView]]) -> None:
        del self._asking[topic]
        if not done.cancelled():
            done.exception()  # seen, also where nobody waits for it any more


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking:
    """A client's request: it waits ``wait_s``, which end at ``until_s`` of the loop's time."""

    exchange: Exchange
    leaders: _Leaders
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
        """As it is.

        Raises:
            MalformedMessageError: it names a partition twice: which offset the broker has taken, its answer does not tell.
        """
        deletes = read_deletes(exchange.request, exchange.api_version)
        connection, known = exchange.connection, self._tiered.now()
        connection.deletes_told.clear()
        connection.asker.asked_at, connection.asked_s = known, self._clock.monotonic_s()
        try:
            connection.deletes_asked = self._known_of(known, deletes)
        except MetadataNotReadyError:
            connection.deletes_asked = {}  # the state topic has not been read yet: nothing can be proposed
        return None

    def _known_of(self, known: Moment, keys: Collection[RowKey]) -> dict[RowKey, DeleteAsked]:
        found = {key: self._asked(view) for key in keys if (view := known.find(*key)) is not None}
        # Few are looked up on the disk too: of one that is new, or was made anew, what is known is nothing or of the former.
        for key in keys if len(keys) <= _MOST_NEW else ():
            on_disk, before = self._tiered.find_on_disk(*key), found.get(key)
            if on_disk is not None and (
                before is None or before.topic_id_partition.topic_id != on_disk.topic_id_partition.topic_id
            ):
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
        read_s = self._clock.monotonic_s()
        opened = await read_exchange(exchange, response, self._blocking)
        is_late = exchange.connection.is_late(read_s, opened.request.timeout.total_seconds())
        asked = opened.asked
        rows = {key: row for key, row in opened.rows.items() if row.error_code in _ACCEPTED}
        told = exchange.connection.deletes_told
        told.update(opened.rows.keys() - rows.keys())  # what the broker has refused
        wait_s = min(max(opened.request.timeout.total_seconds(), _LEAST_WAIT_S), _MOST_WAIT_S)
        wait_s = max(
            wait_s - (read_s - exchange.connection.asked_s), 1.0
        )  # the broker's part is the client's time as well
        asking = _Asking(
            exchange=exchange,
            leaders=_Leaders(self._broker),
            wait_s=wait_s,
            until_s=asyncio.get_running_loop().time() + wait_s,
        )

        async def one(key: RowKey, row: Any) -> Any:
            offset = int(asked[key].offset)
            new = _asked_again(row) if is_late else await self._row(asking, key, row, offset)
            audit_delete(exchange, *key, offset, new.error_code.name, self._audit)
            told.add(key)
            return new

        changed = await in_turns(one, rows)
        return [await write_rows(opened.answered, changed, self._blocking)] if changed else None

    async def _row(self, asking: _Asking, key: RowKey, row: Any, offset: int) -> Any:
        asked = asking.exchange.connection.deletes_asked.get(key)
        try:
            view = await self._view(asking, key, asked)
            if view is None:
                return row
            if offset == HIGH_WATERMARK and row.error_code is ErrorCode.none:
                offset = row.low_watermark  # what the high watermark was
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
        # Not all followers had it in time, but the leader's start is what the high watermark was.
        target = local.log_start_offset if offset == HIGH_WATERMARK else Offset(offset)
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


def _asked_again(row: Any) -> Any:
    """Return what makes a client ask for the whole again."""
    return changed_row(row, error_code=ErrorCode.request_timed_out, low_watermark=Offset(-1))
