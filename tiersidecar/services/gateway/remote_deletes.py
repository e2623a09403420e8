"""The remote part of a user's delete: proposed to the sidecar of the partition's leader, which decides (docs/design/0006).

What the broker accepts is proof for the topic and leader epoch that it had when it was asked.  Of a topic that was made a
moment ago the table knows nothing yet: the broker's disk has its id and its leader epoch, and it is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import structlog
from kio.schema.errors import ErrorCode

from tiersidecar.domain.errors import (
    BrokerRefusedError,
    MetadataNotReadyError,
    NobodyDecidesError,
    PublishTimeoutError,
    RetriableError,
    TiersidecarError,
)
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.lease import Lease
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.proposals import DeleteProposal
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.broker import DescribePartitions
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.proposals import Propose
from tiersidecar.ports.state_log import PartitionState, StateChanges, StateLog
from tiersidecar.ports.state_records import Leases
from tiersidecar.reading.user_deletes import UserDelete
from tiersidecar.services.gateway.exchange import Exchange
from tiersidecar.services.gateway.leaders import Leaders, Once
from tiersidecar.services.gateway.messages import RowKey, changed_row
from tiersidecar.services.gateway.new_partitions import until_ready
from tiersidecar.services.gateway.tiered_partitions import Asker, BothTiers, TieredView

log = structlog.get_logger(__name__)

_MOST_EPOCHS, _MOST_NEW_TOPICS = 10_000, 16
_TRY_AGAIN_S = 0.2
_IN_ONE_TURN = 32
"""Partitions that are looked up in one turn of the loop."""


class SaidState(StateLog, StateChanges, Leases, Protocol):
    """The state that the sidecars have published, with notice of changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposer:
    """This gateway's cluster, the broker behind it, and the topic for its proposals."""

    cluster_id: str
    broker_id: BrokerId
    proposals: Propose


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A client's request, once the broker has answered it: it waits ``wait_s``, which end at ``until_s`` of the loop's time.
    What all of its partitions need, leaders and a state topic that is read to its end, is asked for once."""

    exchange: Exchange
    leaders: Leaders
    state: Once
    wait_s: float
    until_s: float
    waits: dict[str, Once] = field(default_factory=dict)
    """For topics that are not known yet, by name."""
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_IN_ONE_TURN))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """A lease as it was when a delete was last asked for, at ``looked_s``.  It has been so since ``since_s`` at the latest, and
    was renewed after ``renewed_after_s``, when it was another."""

    lease: Lease
    looked_s: float
    since_s: float
    renewed_after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToDelete:
    """The subject of a delete: the topic, the leader, and the generation that no operator had set back yet."""

    topic_id_partition: TopicIdPartition
    leader_epoch: LeaderEpoch
    start_generation: int


class RemoteDeletes:
    """The remote deletes of all clients."""

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
        self._looks: dict[str, _Look] = {}

    def asking(self, exchange: Exchange, wait_s: float) -> Asking:
        """Return a request that waits ``wait_s`` from now on."""
        until_s = asyncio.get_running_loop().time() + wait_s
        return Asking(
            exchange=exchange,
            leaders=Leaders(self._broker),
            state=Once(self._state.catch_up),
            wait_s=wait_s,
            until_s=until_s,
        )

    # Before the broker's part

    async def is_made_ready(self, asking: Asking, key: RowKey, offset: int, noted: ToDelete) -> bool:
        """Return once all that the remote part of its delete up to ``offset`` needs is there; False where it is not tiered.
        ``noted`` is what it was of when the client asked.

        Raises:
            BrokerRefusedError: it is not of ``noted`` any more.
            TiersidecarError: it could not be carried out remotely; the broker has to be spared it.
            TimeoutError: no answer came in time.
        """
        partition = noted.topic_id_partition
        view = await self._found(asking, key)
        if view is None and self._tiered.topic_id(key[0]) == partition.topic_id:
            return False
        if view is None or view.topic_id_partition != partition or self.known(key) != noted:
            raise _refused(partition, "FENCED_LEADER_EPOCH")
        async with asyncio.timeout_at(asking.until_s):
            leader = await self._leader(asking, noted)
            known = await self._caught_up(asking, noted)
            if offset < 0 or not _said_by(noted, offset).is_said(known):
                self._require_decider(leader)
            await until_ready(lambda: self._reader.bounds(partition), clock=self._clock, until_s=asking.until_s)
        return True

    async def _found(self, asking: Asking, key: RowKey) -> TieredView | None:
        """Return what is found of it, as ``TieredPartitions.find``; a topic that the broker has on its disk is waited for, once
        for all of its partitions: a look at the cluster finds all that are there."""
        asker, waits = Asker(topic_ids=asking.exchange.connection.asker.topic_ids), asking.waits
        try:
            return self._tiered.find(*key, asker)
        except MetadataNotReadyError:
            if key[0] not in waits and len(waits) >= _MOST_NEW_TOPICS:
                raise

        async def known() -> None:
            self._tiered.find(*key, asker)

        async def becomes_known() -> None:
            await until_ready(
                known,
                clock=self._clock,
                until_s=asking.until_s,
                is_worthwhile=lambda: self._tiered.find_on_disk(*key) is not None,
            )

        await waits.setdefault(key[0], Once(becomes_known)).done()
        async with asking.turns:  # all of them are woken at once
            await asyncio.sleep(0)
            return self._tiered.find(*key, asker)

    def known(self, key: RowKey) -> ToDelete | None:
        """Return what a delete of it would be of now, by the table and by the broker's disk: of a topic that is new, was made
        anew, or has another leader, the table is behind.  Reads a small file.

        Raises:
            MetadataNotReadyError: the state topic has not been read yet.
        """
        view, on_disk = self._tiered.now().find(*key), self._tiered.find_on_disk(*key)
        if on_disk is not None and (view is None or _is_later(on_disk, view)):
            view = on_disk
        if view is None:
            return None
        partition = view.topic_id_partition
        return ToDelete(
            topic_id_partition=partition,
            leader_epoch=max(view.leader_epoch, self._epochs.get(partition, view.leader_epoch)),
            start_generation=self._state.partition_state(partition).start_generation,
        )

    async def high_watermarks(self, partitions: Collection[TopicIdPartition]) -> dict[TopicIdPartition, Offset]:
        """Return the present ones; partitions whose leader does not report it are left out."""
        current = await self._offsets.current(partitions)
        return {partition: known.high_watermark for partition, known in current.items()}

    # After it

    async def carried_out(self, asking: Asking, to_delete: ToDelete, row: Any, offset: int) -> Any:
        """Return the row that the client gets of a delete up to ``offset``, of which the broker has accepted ``row``.  What is
        only out of reach is tried again for as long as the client waits: the broker has deleted already."""
        trouble: list[Exception] = [TimeoutError()]
        try:
            async with asyncio.timeout_at(asking.until_s):
                low_watermark = await self._deleted(asking, row, to_delete, offset, trouble)
        except TimeoutError:
            return failed_row(to_delete.topic_id_partition, row, trouble[-1])
        except TiersidecarError as error:
            return failed_row(to_delete.topic_id_partition, row, error)
        return row if row.error_code is not ErrorCode.none else changed_row(row, low_watermark=low_watermark)

    async def _deleted(
        self, asking: Asking, row: Any, to_delete: ToDelete, offset: int, trouble: list[Exception]
    ) -> Offset:
        while True:
            try:
                return await self._delete(asking, row, to_delete, offset)
            except RetriableError as error:
                if _is_final(error):
                    raise
                trouble[:] = [error]
            await self._clock.sleep(_TRY_AGAIN_S)

    async def _leader(self, asking: Asking, asked: ToDelete) -> LeaderView:
        """
        Raises:
            BrokerRefusedError: another one leads than when the broker was asked: an unclean election between the two may have
                given its offsets to other records.
        """
        leader = await asking.leaders.leader(asked.topic_id_partition)
        if leader.leader_epoch != asked.leader_epoch:
            self._learn(asked.topic_id_partition, leader.leader_epoch)
            raise _refused(asked.topic_id_partition, "FENCED_LEADER_EPOCH")
        return leader

    def _learn(self, partition: TopicIdPartition, leader_epoch: LeaderEpoch) -> None:
        """Note this epoch: the client's next delete is of it, though the table may not know it for a while."""
        if len(self._epochs) >= _MOST_EPOCHS:
            self._epochs.clear()
        self._epochs[partition] = leader_epoch

    async def _delete(self, asking: Asking, row: Any, asked: ToDelete, offset: int) -> Offset:
        """Propose the delete, and wait until the leader's sidecar has said it; gives the first offset that is left.

        Raises:
            NobodyDecidesError: the leader's sidecar is of a former release.
            TiersidecarError: it has not been said in time, or not by this leader; or another one leads than when the broker was
                asked, or an operator has set the start back since.
        """
        partition = asked.topic_id_partition
        leader = await self._leader(asking, asked)
        local = await self._offsets.current_of(partition)
        target = Offset(offset)
        if target > local.high_watermark:
            # Accepted by a leader that has been deposed since: said in the new one's epoch, it would delete what comes next.
            raise _refused(partition, "OFFSET_OUT_OF_RANGE")
        delete = _said_by(asked, offset)
        known = await self._caught_up(asking, asked)
        if not delete.is_said(known):
            # Also where there is no sidecar by now, or it is about to stop: the next one reads it.
            self._require_present_release(leader)
            await self._proposer.proposals.propose(self._proposal(asking.exchange, row, asked, target))
            if row.error_code is not ErrorCode.none:
                return target  # the client gets a timeout: it need not wait for more
            await self._until_said(partition, delete, asking)
        start = self._state.partition_state(partition).remote_log_start_offset
        bounds = await until_ready(
            lambda: self._reader.bounds(partition), clock=self._clock, until_s=asking.until_s
        )  # a new partition's metadata may have to be read first
        return max(start, bounds.start)

    async def _caught_up(self, asking: Asking, asked: ToDelete) -> PartitionState:
        """Return what is said of it now: what was said before may have been undone since.

        Raises:
            BrokerRefusedError: an operator has set the start back since ``asked``.
            RetriableError: the state topic is out of reach.
        """
        await asking.state.done()
        known = self._state.partition_state(asked.topic_id_partition)
        if known.start_generation != asked.start_generation:
            error = "an operator has set the remote log start back since the broker was asked"
            raise _refused(asked.topic_id_partition, error)
        return known

    def _proposal(self, exchange: Exchange, row: Any, asked: ToDelete, target: Offset) -> DeleteProposal:
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
        if lease is None or lease.released or lease.stopping or self._is_silent(lease):
            raise BrokerRefusedError(
                api="DeleteRecords",
                subject=str(view.topic_id_partition),
                error=f"broker {view.leader_id} has no sidecar now",
            )
        self._require_present_release(view)

    def _require_present_release(self, view: LeaderView) -> None:
        lease = self._state.lease(str(view.leader_id))
        if lease is not None and not lease.decides_proposals:
            raise NobodyDecidesError(broker_id=view.leader_id, version=lease.version)

    def _is_silent(self, lease: Lease) -> bool:
        """Return whether its holder has not renewed it for as long as it lasts: by the clocks of both machines, or, where these
        differ, by what was seen of it here in that time."""
        now_s, duration_s, before = self._clock.monotonic_s(), lease.duration_ms / 1000, self._looks.get(lease.name)
        look = _Look(lease=lease, looked_s=now_s, since_s=now_s, renewed_after_s=float("-inf"))
        if before is not None and before.lease == lease:
            look = replace(before, looked_s=now_s)
        elif before is not None:
            look = replace(look, renewed_after_s=before.looked_s)
        self._looks[lease.name] = look
        if now_s - look.since_s > duration_s:
            return True
        is_seen_to_renew = now_s - look.renewed_after_s <= duration_s
        return not is_seen_to_renew and self._clock.now_ms() - lease.renewed_ms > lease.duration_ms

    async def _until_said(self, partition: TopicIdPartition, delete: UserDelete, asking: Asking) -> None:
        """Return once the state topic, as read here, has it: no client reads below it through this gateway any more.

        Raises:
            PublishTimeoutError: not in time; it may be carried out yet.
            BrokerRefusedError: a later leader has said less, so this delete is not in force.
        """
        try:
            async with asyncio.timeout_at(asking.until_s):
                while not delete.is_said(known := self._state.partition_state(partition)):
                    if known.remote_log_start_epoch > delete.leader_epoch:
                        raise _refused(partition, "FENCED_LEADER_EPOCH")
                    await self._state.advanced()
        except TimeoutError as error:
            raise PublishTimeoutError(
                subject=f"delete of {partition}", waited_ms=round(asking.wait_s * 1000)
            ) from error


def _refused(partition: TopicIdPartition, error: str) -> BrokerRefusedError:
    """Return what is said of a delete that will not be in force, however often it is tried."""
    return BrokerRefusedError(api="DeleteRecords", subject=str(partition), error=error, retriable=False)


def _is_final(error: RetriableError) -> bool:
    return isinstance(error, NobodyDecidesError) or (isinstance(error, BrokerRefusedError) and not error.retriable)


def _said_by(to_delete: ToDelete, offset: int) -> UserDelete:
    """Return the delete to propose; the leader's sidecar decides what moved the broker's own log start."""
    return UserDelete(offset=Offset(offset), leader_epoch=to_delete.leader_epoch, trims=False)


def _is_later(on_disk: TieredView, in_table: TieredView) -> bool:
    is_same = on_disk.topic_id_partition == in_table.topic_id_partition
    return not is_same or on_disk.leader_epoch > in_table.leader_epoch


def failed_row(of: RowKey | TopicIdPartition, row: Any, error: Exception) -> Any:
    """Return the row that a client gets where the remote part failed, with a word in the log."""
    topic, partition = (of.topic, of.partition) if isinstance(of, TopicIdPartition) else of
    reason = str(error) or "it has taken too long"
    log.warning("gateway.delete_records.failed", topic=topic, partition=partition, reason=reason)
    if isinstance(error, NobodyDecidesError):
        return changed_row(row, error_code=ErrorCode.unsupported_version, low_watermark=Offset(-1))
    return asked_again(row)  # what the broker has done, it has done; the client asks for the whole again


def asked_again(row: Any) -> Any:
    """Return what makes a client ask for the whole again."""
    return changed_row(row, error_code=ErrorCode.request_timed_out, low_watermark=Offset(-1))
