"""By what right remote segments are cleaned: that of the leader's sidecar, or of a command that holds the lease ``repair``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from tiersidecar.decide.cleaning_chain import CleaningChain
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition
from tiersidecar.domain.offsets import NO_OFFSET, ByteRange, Offset
from tiersidecar.domain.policy import PauseKind
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.ports.clock import Clock
from tiersidecar.tasks.edges import Actor, Sources
from tiersidecar.tasks.ownership import InFlight
from tiersidecar.tasks.rewriting_commands import CLEANER_FINISHES_WITHIN_S, RewritingCommands
from tiersidecar.tasks.segment_put import DigestAlone, Prover
from tiersidecar.tasks.segment_swap import SwapTrash


class CleaningRights(Protocol):
    """The right of one process.  Besides, the broker is asked before each event whether the leader epoch is still the last."""

    def reason_not_to_begin(self, partition: TieredPartition) -> str:
        """Return why nothing is cleaned now; empty where it may be."""

    def broker_id_of(self, partition: TieredPartition) -> BrokerId:
        """Return the broker that events of new segments name."""

    def author_of(self, partition: TieredPartition) -> str:
        """Return the author that entries of the trash name."""

    def due_ms(self, now_ms: int) -> int:
        """Return up to when what others have dated, delete horizons and records, is due or old enough at ``now_ms``, which this
        process's clock says."""

    async def confirm(self, owner: TopicIdPartition) -> None:
        """Return once the topic's remote data are known for this cluster's, in this very store.

        Raises:
            TiersidecarError: they are not, or the right is lost.
        """

    def require(self) -> None:
        """Return if this process may act now: called right before each act, without a wait between.

        Raises:
            TiersidecarError: another process may act in its place.
        """

    def copying(self, segment_id: RemoteLogSegmentId) -> AbstractAsyncContextManager[None]:
        """Hold the copy of a new segment as this process's, until the context ends."""

    async def renewed_until_s(self) -> float | None:
        """Renew the right, and return when it ends, by the clock's ``monotonic_s``; None where that cannot be known."""


class LeadersRights:
    """Those of the sidecar beside the leader: its role, the topic's ownership, and no command that acts."""

    def __init__(self, sources: Sources, actor: Actor, in_flight: InFlight, clock: Clock) -> None:
        self._table, self._state, self._actor, self._in_flight = sources.table, sources.state, actor, in_flight
        self._commands = RewritingCommands(sources.state, clock)

    def reason_not_to_begin(self, partition: TieredPartition) -> str:
        owner = partition.view.topic_id_partition
        if partition.role is not PartitionRole.LEADER or not self._table.leads(owner, partition.view.leader_epoch):
            return "this broker does not lead it"
        if self._actor.observe_only:
            return "mode is observe"
        return (
            self._table.refused_topics.get(owner.topic, "")
            or self._state.why_paused(owner.topic_id, PauseKind.COPIES)
            or self._actor.guard.reason_not_to_delete_remote_of(owner.topic_id)
            or self._commands.reason_to_wait(owner)
        )

    def broker_id_of(self, partition: TieredPartition) -> BrokerId:
        return self._actor.broker_id

    def author_of(self, partition: TieredPartition) -> str:
        return f"the cleaner beside broker {partition.view.leader_id}"

    def due_ms(self, now_ms: int) -> int:
        return now_ms

    async def confirm(self, owner: TopicIdPartition) -> None:
        await self._actor.ownership.confirm(owner)

    def require(self) -> None:
        self._actor.ownership.require_role()

    def copying(self, segment_id: RemoteLogSegmentId) -> AbstractAsyncContextManager[None]:
        return self._in_flight.copying(segment_id)

    async def renewed_until_s(self) -> float | None:
        return None

    def cleaned_here(self, owner: TopicIdPartition) -> list[TopicIdPartition]:
        """Return this partition, and every other one of a compacted topic that the broker has."""
        others = (one.view.topic_id_partition for one in self._table.assignment.values())
        return [owner, *(one for one in others if one.topic in self._table.compacted_topics)]


class Looked(Protocol):
    """Some offsets as one look found them."""

    @property
    def segments(self) -> Sequence[RemoteLogSegmentMetadata]:
        """Return all that hold any of them."""
        ...

    @property
    def chain(self) -> CleaningChain:
        """Return the part that may be cleaned."""
        ...

    @property
    def start_offset(self) -> Offset:
        """Return the remote log start, -1 while it is not said."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limit:
    """The longest that a round may take, by the wall clock or the monotonic one: the latter stands still while a machine is
    suspended, and a wall clock may be put back."""

    since_ms: int
    since_s: float
    longest_ms: int
    reason: str

    def is_over(self, now_ms: int, now_s: float) -> bool:
        return max(now_ms - self.since_ms, (now_s - self.since_s) * 1000) > self.longest_ms


class ChunkSwapper:
    """The :class:`~tiersidecar.tasks.segment_swap.Swapper` of one chunk, while its partition is led in that epoch.

    ``reason_to_end`` asks the rights, and the broker whether we lead.  ``decided_ms`` is the time of what is decided now, by
    the sidecars' clocks where this process's is behind."""

    def __init__(
        self,
        *,
        partition: TieredPartition,
        rights: CleaningRights,
        look_near: Callable[[ByteRange], Awaitable[Looked]],
        reason_to_end: Callable[[], Awaitable[str]],
        trash: SwapTrash,
        clock: Clock,
        decided_ms: Callable[[], int],
    ) -> None:
        self._partition, self._owner = partition, partition.view.topic_id_partition
        self.broker_id = rights.broker_id_of(partition)
        self._rights, self._look_near, self._reason_to_end = rights, look_near, reason_to_end
        self._trash, self._clock, self._decided_ms = trash, clock, decided_ms
        self._near: Sequence[RemoteLogSegmentMetadata] = ()
        self._start_offset = Offset(NO_OFFSET)
        self._looked_s = 0.0
        self._limits: list[_Limit] = []
        self._horizons: _Limit | None = None

    def give_up_after(self, longest_ms: int, reason: str) -> None:
        """Leave everything, for ``reason``, once this time has passed from now on."""
        self._limits.append(self._limit(longest_ms, reason))

    def _limit(self, longest_ms: int, reason: str) -> _Limit:
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic_s()
        return _Limit(since_ms=now_ms, since_s=now_s, longest_ms=longest_ms, reason=reason)

    def reason_to_give_up(self) -> str:
        """Return why everything is left; empty while the round has not taken too long."""
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic_s()
        return next((one.reason for one in self._limits if one.is_over(now_ms, now_s)), "")

    def sets_horizons(self, delete_retention_ms: int) -> None:
        """Note that the delete horizons of this round end so long after now."""
        self._horizons = self._limit(delete_retention_ms, "")

    def is_given_up(self, old: RemoteLogSegmentMetadata) -> bool:
        """Return whether ``old`` is below the remote log start by now, as the last look said, and the round may pass over it.

        An undelete may bring it back, with values that this round has not taken out.  So it must have been given up before any
        horizon of the round is over: then those tombstones stay as long as it exists (``decide.cleaning_chain``)."""
        if old.end_offset >= self._start_offset or self._horizons is None:
            return False
        return not self._horizons.is_over(self._clock.now_ms(), self._clock.monotonic_s())

    async def reason_to_leave(self, old: Sequence[RemoteLogSegmentMetadata]) -> str:
        """Return why they are left: each must still be the one of its span that readers are given.  Both topics are read to
        their ends first: a command that has claimed its lease before that is seen."""
        if reason := self.reason_to_give_up() or self._rights.reason_not_to_begin(self._partition):
            return reason
        await self._rights.confirm(self._owner)
        self._looked_s = self._clock.monotonic_s()
        now = await self._look_near(ByteRange(old[0].start_offset, old[-1].next_offset))
        self._start_offset = now.start_offset
        if reason := await self._reason_to_end():
            return reason
        if self._until_s <= self._clock.monotonic_s():
            return f"looking at it took more than {CLEANER_FINISHES_WITHIN_S} s: a command may have begun since"
        given = {one.remote_log_segment_id for one in now.chain.segments}
        if not all(one.remote_log_segment_id in given for one in old):
            return now.chain.stopped or "it was replaced or deleted meanwhile"
        self._near = now.segments
        return ""

    def after_ms(self) -> int:
        # What looks old to a sidecar, and is not finished, it takes for what another process has left.
        finished = (one.event_timestamp_ms for one in self._near if one.state is State.COPY_SEGMENT_FINISHED)
        return max(self._decided_ms() - 1, *finished)

    def copying(self, segment_id: RemoteLogSegmentId) -> AbstractAsyncContextManager[None]:
        return self._rights.copying(segment_id)

    def require(self) -> None:
        self._rights.require()

    async def until_s(self) -> float | None:
        """Return a moment sooner after the last look than any ``delete.retention.ms``: what a deposed leader finishes later
        could bring a key back.  A command waits for that long before it acts."""
        renewed_until_s = await self._rights.renewed_until_s()
        return self._until_s if renewed_until_s is None else min(self._until_s, renewed_until_s)

    def prover(self, stored: RemoteLogSegmentMetadata) -> Prover:
        return DigestAlone()

    async def retire(self, old: Sequence[RemoteLogSegmentMetadata], new: RemoteLogSegmentMetadata) -> None:
        self._rights.require()
        await self._trash.put(old)

    @property
    def _until_s(self) -> float:
        return self._looked_s + CLEANER_FINISHES_WITHIN_S
