"""The remote part of a user's delete: proposed to the sidecar of the partition's leader, which decides (DESIGN.md section 5).

What the broker accepts is proof for the topic and leader epoch that were known when it was asked.  Of a topic that was made a
moment ago nothing may be known here by then: the broker's disk has its id and its leader epoch, and the delete is proposed
once the topic is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
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
from tiersidecar.ports.broker import DescribePartitions
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.proposals import Propose
from tiersidecar.ports.state_log import PartitionState, StateChanges, StateLog
from tiersidecar.ports.state_records import Leases
from tiersidecar.reading.user_deletes import UserDelete
from tiersidecar.services.gateway.broker_offsets import BothTiers, BrokerOffsets
from tiersidecar.services.gateway.exchange import DeleteAsked, Exchange
from tiersidecar.services.gateway.leaders import Leaders
from tiersidecar.services.gateway.messages import RowKey, changed_row
from tiersidecar.services.gateway.new_partitions import until_ready
from tiersidecar.services.gateway.tiered_partitions import Asker, Moment, TieredView

log = structlog.get_logger(__name__)

_MOST_EPOCHS = 10_000
_AT_ONCE = 16
"""Small files of the broker's disk that are read before others have their turn of the loop."""


class SaidState(StateLog, StateChanges, Leases, Protocol):
    """What the sidecars have said, and when they say more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposer:
    """Who we are: cluster, and the broker that we stand in front of; and where we propose."""

    cluster_id: str
    broker_id: BrokerId
    proposals: Propose


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A client's request: it waits ``wait_s``, which end at ``until_s`` of the loop's time."""

    exchange: Exchange
    leaders: Leaders
    wait_s: float
    until_s: float


class RemoteDeletes:
    """Of all clients."""

    def __init__(
        self,
        *,
        tiers: BothTiers,
        state: SaidState,
        proposer: Proposer,
        broker: DescribePartitions,
        clock: Clock,
    ) -> None:
        self._tiered, self._reader, self._offsets = tiers.tiered, tiers.reader, tiers.offsets
        self._state, self._proposer, self._broker, self._clock = state, proposer, broker, clock
        self._epochs: dict[TopicIdPartition, LeaderEpoch] = {}

    def asking(self, exchange: Exchange, wait_s: float) -> Asking:
        """Return a request that waits ``wait_s`` from now on."""
        until_s = asyncio.get_running_loop().time() + wait_s
        return Asking(exchange=exchange, leaders=Leaders(self._broker), wait_s=wait_s, until_s=until_s)

    # What is known when the broker is asked

    def in_table(self, known: Moment, keys: Collection[RowKey]) -> dict[RowKey, DeleteAsked]:
        """Those of ``keys`` that the last look at the cluster has met.

        Raises:
            MetadataNotReadyError: the state topic has not been read yet: nothing can be proposed.
        """
        return {key: self._asked(view) for key in keys if (view := known.find(*key)) is not None}

    def on_disk(self, key: RowKey, before: DeleteAsked | None) -> DeleteAsked | None:
        """``before``, unless the broker's disk has a later one: of a topic that is new, was made anew, or has another leader,
        nothing that is known holds.  Reads a small file.

        Raises:
            MetadataNotReadyError: as :meth:`in_table`.
        """
        view = self._tiered.find_on_disk(*key)
        if view is None or (before is not None and not _is_later(view, before)):
            return before
        return replace(self._asked(view), is_new=True)

    async def of_accepted(self, known: Moment, keys: Collection[RowKey]) -> dict[RowKey, DeleteAsked]:
        """Return what is known of each of ``keys`` by the table, as it is in ``known``, and by the broker's disk: however many,
        for the broker has said that the client may delete there.

        Raises:
            MetadataNotReadyError: as :meth:`in_table`.
        """
        found = self.in_table(known, keys)
        for number, key in enumerate(keys):
            asked = self.on_disk(key, found.get(key))
            if asked is not None:
                found[key] = asked
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        return found

    def learn(self, asked: DeleteAsked) -> None:
        """The client's next delete is of this epoch, though the table may not know it for a while."""
        if len(self._epochs) >= _MOST_EPOCHS:
            self._epochs.clear()
        self._epochs[asked.topic_id_partition] = asked.leader_epoch

    def _asked(self, view: TieredView) -> DeleteAsked:
        partition = view.topic_id_partition
        return DeleteAsked(
            topic_id_partition=partition,
            leader_epoch=max(view.leader_epoch, self._epochs.get(partition, view.leader_epoch)),
            start_generation=self._state.partition_state(partition).start_generation,
        )

    def check_same(self, key: RowKey, before: DeleteAsked | None, now: DeleteAsked | None) -> None:
        """
        Raises:
            TiersidecarError: ``now`` is of another topic or leader than its client has asked about, or an operator has set its
                start back since.  Asked for again it will be of this one.
        """
        if now == (before if before is None or now is None else replace(before, is_new=now.is_new)):
            return
        if now is not None:
            self.learn(now)
        self._tiered.find(*key)  # has the cluster looked at where the table does not know it
        raise BrokerRefusedError(api="DeleteRecords", subject=f"{key[0]}-{key[1]}", error="FENCED_LEADER_EPOCH")

    # Before and after the broker's part

    async def high_watermark(self, asking: Asking, key: RowKey, asked: DeleteAsked | None) -> Offset | None:
        """Return the high watermark of now, if all that a remote delete needs is there; None where it is not tiered.

        Raises:
            TiersidecarError: the delete could not be carried out remotely; the broker has to be spared it.
            TimeoutError: nobody told in time.
        """
        view = await self._view(asking, key, asked)
        if view is None:
            return None
        asked = _known(view, asked)
        async with asyncio.timeout_at(asking.until_s):
            leader = await self._leader(asking, asked)
            await self._caught_up(asked)
            self._require_decider(leader)
            await until_ready(
                lambda: self._reader.bounds(asked.topic_id_partition), clock=self._clock, until_s=asking.until_s
            )
            return (await self._local_offsets(asked.topic_id_partition)).high_watermark

    async def carried_out(self, asking: Asking, key: RowKey, row: Any, offset: int) -> Any:
        """Return the row that the client gets of a delete up to ``offset``, of which the broker has accepted ``row``."""
        asked = asking.exchange.connection.deletes_asked.get(key)
        try:
            view = await self._view(asking, key, asked)
            if view is None:
                return row
            async with asyncio.timeout_at(asking.until_s):
                low_watermark = await self._delete(asking, row, _known(view, asked), offset)
        except (TiersidecarError, TimeoutError) as error:
            return failed_row(key, row, error)
        return row if row.error_code is not ErrorCode.none else changed_row(row, low_watermark=low_watermark)

    async def _view(self, asking: Asking, key: RowKey, asked: DeleteAsked | None) -> TieredView | None:
        """Return what is known of it now; None where it is not tiered.  One that was new when it was asked for is waited for.

        Raises:
            MetadataNotReadyError: it may be tiered, and nothing is known of it in time; or it was another when it was asked
                for.
        """
        asker = asking.exchange.connection.asker
        if asked is None or not asked.is_new:
            return self._tiered.find(*key, asker)
        waited = Asker(told=asker.told)  # which topic and leader it is of, ``asked`` tells

        async def found() -> TieredView | None:
            return self._tiered.find(*key, waited)

        return await until_ready(
            found, clock=self._clock, until_s=asking.until_s, is_worthwhile=lambda: self._is_still_there(asked)
        )

    def _is_still_there(self, asked: DeleteAsked) -> bool:
        partition = asked.topic_id_partition
        on_disk = self._tiered.find_on_disk(partition.topic, partition.partition)
        return on_disk is not None and on_disk.topic_id_partition == partition

    async def _leader(self, asking: Asking, asked: DeleteAsked) -> LeaderView:
        """
        Raises:
            BrokerRefusedError: another one leads than when the broker was asked: an unclean election between the two may have
                given its offsets to other records.
        """
        leader = await asking.leaders.leader(asked.topic_id_partition)
        if leader.leader_epoch != asked.leader_epoch:
            self.learn(replace(asked, leader_epoch=leader.leader_epoch))
            subject = str(asked.topic_id_partition)
            raise BrokerRefusedError(api="DeleteRecords", subject=subject, error="FENCED_LEADER_EPOCH")
        return leader

    async def _delete(self, asking: Asking, row: Any, asked: DeleteAsked, offset: int) -> Offset:
        """Propose the delete, and wait until the leader's sidecar has said it; gives the first offset that is left.

        Raises:
            NobodyDecidesError: the leader's sidecar is of a former release.
            TiersidecarError: it has not been said in time, or not by this leader; or another one leads than when the broker was
                asked, or an operator has set the start back since.
        """
        partition = asked.topic_id_partition
        leader = await self._leader(asking, asked)
        local = await self._local_offsets(partition)
        target = Offset(offset)
        if target > local.high_watermark:
            # Accepted by a leader that has been deposed since: said in the new one's epoch, it would delete what comes next.
            raise BrokerRefusedError(api="DeleteRecords", subject=str(partition), error="OFFSET_OUT_OF_RANGE")
        # Whose work the broker's own log start is, the leader's sidecar decides.
        delete = UserDelete(offset=target, leader_epoch=asked.leader_epoch, trims=False)
        known = await self._caught_up(asked)
        if not delete.is_said(known):
            self._require_decider(leader)
            await self._proposer.proposals.propose(self._proposal(asking.exchange, row, asked, target))
            if row.error_code is not ErrorCode.none:
                return target  # the client is told that it has taken too long: so it has not to wait for more
            await self._until_said(partition, delete, asking)
        start = self._state.partition_state(partition).remote_log_start_offset
        bounds = await until_ready(
            lambda: self._reader.bounds(partition), clock=self._clock, until_s=asking.until_s
        )  # a new partition's metadata may have to be read first
        return max(start, bounds.start)

    async def _caught_up(self, asked: DeleteAsked) -> PartitionState:
        """Return what is said of it now: what was said before may have been undone since.

        Raises:
            BrokerRefusedError: an operator has set the start back since ``asked``.
            RetriableError: the state topic is out of reach.
        """
        await self._state.catch_up()
        known = self._state.partition_state(asked.topic_id_partition)
        if known.start_generation != asked.start_generation:
            error = "an operator has set the remote log start back since the broker was asked"
            raise BrokerRefusedError(api="DeleteRecords", subject=str(asked.topic_id_partition), error=error)
        return known

    def _proposal(self, exchange: Exchange, row: Any, asked: DeleteAsked, target: Offset) -> DeleteProposal:
        is_done = row.error_code is ErrorCode.none
        return DeleteProposal(
            cluster_id=self._proposer.cluster_id,
            topic_id_partition=asked.topic_id_partition,
            offset=target,
            leader_epoch=asked.leader_epoch,
            low_watermark=Offset(max(row.low_watermark, -1)) if is_done else Offset(-1),
            start_generation=asked.start_generation,
            principal=exchange.connection.login.principal,
            client_id=exchange.client_id or "",
            address=exchange.connection.client,
            gateway=self._proposer.broker_id,
            proposed_ms=self._clock.now_ms(),
        )

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

    async def _until_said(self, partition: TopicIdPartition, delete: UserDelete, asking: Asking) -> None:
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


def _known(view: TieredView, asked: DeleteAsked | None) -> DeleteAsked:
    """
    Raises:
        MetadataNotReadyError: nothing was known of ``view`` when the broker was asked.
    """
    if asked is None:
        raise MetadataNotReadyError(subject=str(view.topic_id_partition))
    return asked


def _is_later(on_disk: TieredView, before: DeleteAsked) -> bool:
    is_same = on_disk.topic_id_partition.topic_id == before.topic_id_partition.topic_id
    return not is_same or on_disk.leader_epoch > before.leader_epoch


def failed_row(key: RowKey, row: Any, error: Exception) -> Any:
    """Return the row that a client gets where the remote part failed, with a word in the log."""
    reason = str(error) or "it has taken too long"
    log.warning("gateway.delete_records.failed", topic=key[0], partition=key[1], reason=reason)
    if isinstance(error, NobodyDecidesError):
        return changed_row(row, error_code=ErrorCode.unsupported_version, low_watermark=Offset(-1))
    return asked_again(row)  # what the broker has done, it has done; the client asks for the whole again


def asked_again(row: Any) -> Any:
    """Return what makes a client ask for the whole again."""
    return changed_row(row, error_code=ErrorCode.request_timed_out, low_watermark=Offset(-1))
