"""Clean the remote log of a compacted topic now, for an operator: the cleaner's rounds, by a command beside the sidecars.

The rounds are those of the lane (:mod:`~tiersidecar.tasks.clean`).  What differs is the right to act: the lease ``repair`` in
the place of the role.  It names the partition that the command has come to, whose lane waits; the others go on.  Leadership is
not this process's, so the broker is asked with the leader epoch before each event and each claim, and a claim counts for the
leader epoch in which it was made, as a leader's own does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from tiersidecar.adapters.clock import SystemIds
from tiersidecar.app.builders.retain import trash_delays
from tiersidecar.app.commands.session import Session, operator
from tiersidecar.app.compact_turns import Turns
from tiersidecar.app.deletion_doubts import reason_not_ours, reason_not_to_delete
from tiersidecar.app.handover.look import Histories, leader_epochs_of, open_histories
from tiersidecar.app.held_lease import HeldLease, claimed_lease, kept_renewed
from tiersidecar.app.repair_run import LEASE
from tiersidecar.app.rewriting_parts import RewritingParts, open_rewriting, topic_owners
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    CompactionError,
    LeaseHeldError,
    TiersidecarError,
)
from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition
from tiersidecar.domain.lease import due_ms
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.policy import PauseKind
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.broker import OffsetSpec
from tiersidecar.ports.failpoints import NO_FAILPOINTS, Failpoints
from tiersidecar.tasks.clean import CleanedChunk, CleanSettings, CleanTask, PlannedRound, local_engine
from tiersidecar.tasks.clean_engine import CleanEngine, Progress, quiet
from tiersidecar.tasks.edges import Sources
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.topic_owners import TopicOwners

_MOST_LEADERS = 5
_NEXT_LEADER_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacting:
    """The operator's request.  ``partition`` None is each; ``scratch`` is this process's alone; ``settle_s`` is how long the
    cleaner of a sidecar may take to end what it had begun when its partition was named in the lease."""

    topic: str
    partition: int | None
    scratch: Path
    dedupe_buffer_bytes: int
    settle_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLook:
    """One partition, as it is: what a round would do, or why none can be planned.  ``failed``: it could not be looked at."""

    view: LeaderView
    planned: PlannedRound | str
    failed: TiersidecarError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCompacted:
    """One partition, when its rounds had ended.  ``left`` says why something was not done that could have been, and ``stopped``
    why there was nothing more to do."""

    owner: TopicIdPartition
    rounds: Sequence[CleanedChunk]
    stopped: str = ""
    left: str = ""

    @property
    def cleaner_offset(self) -> Offset | None:
        """Return the last one that was claimed; None where none was."""
        return next((one.cleaner_offset for one in reversed(self.rounds) if one.cleaner_offset >= 0), None)


EngineOf = Callable[[RewritingParts, CleanSettings, Failpoints, Progress], CleanEngine]


def engine_of_this_process(
    parts: RewritingParts, settings: CleanSettings, failpoints: Failpoints, progress: Progress
) -> CleanEngine:
    """Return the engine that streams everything past this process."""
    return local_engine(
        settings,
        parts.swap_store,
        parts.swap,
        blocking=parts.blocking,
        failpoints=failpoints,
        cleaned_here=lambda owner: [owner],
        progress=progress,
    )


class Compactor:
    """Looks, and acts.  Every step may be abandoned and done again."""

    def __init__(
        self,
        session: Session,
        wanted: Compacting,
        *,
        engine_of: EngineOf = engine_of_this_process,
        progress: Progress = quiet,
        failpoints: Failpoints = NO_FAILPOINTS,
    ) -> None:
        self._session, self._wanted, self._engine_of = session, wanted, engine_of
        self._progress, self._failpoints, self._ids = progress, failpoints, SystemIds()

    async def look(self) -> list[PartitionLook]:
        """Return what a round of each partition would do; nothing is changed.

        Raises:
            BrokerRefusedError: there is no such topic or partition; or each has no leader, or another one by now.
            CompactionError: the topic's data are not this cluster's.
            TiersidecarError: store or topics are away.
        """
        async with self._open(lease=None) as cleaning:
            looks = []
            for view in cleaning.views:
                if reason := await reason_not_ours(
                    self._session, cleaning.parts.store, view.topic_id_partition, lives_here=True
                ):
                    raise CompactionError(subject=self._wanted.topic, reason=reason)
                self._progress(f"looking at partition {view.topic_id_partition.partition}")
                try:
                    looks.append(
                        PartitionLook(view=view, planned=await cleaning.task.planned(await cleaning.led(view)))
                    )
                except BrokerRefusedError as error:  # the other partitions have leaders of their own
                    looks.append(PartitionLook(view=view, planned=str(error), failed=error))
        failed = [one.failed for one in looks if one.failed is not None]
        if len(failed) == len(looks):
            raise failed[0]
        return looks

    async def apply(self) -> list[PartitionCompacted]:
        """Clean partition after partition, each as far as it could be cleaned when its first round was planned: of a topic that
        is written to there is always something left.

        Raises:
            LeaseHeldError: another command acts.
            TiersidecarError: the first that stood in the way, where nothing was done; else it is said in ``left``.
        """
        done: list[PartitionCompacted] = []
        failed: TiersidecarError | None = None
        async with (
            claimed_lease(self._session, self._ids, LEASE, self._progress) as lease,
            kept_renewed(lease, self._session.clock),
            self._open(lease=lease) as cleaning,
        ):
            unsettled = list[TopicIdPartition]()  # what was sent of a round that failed may still arrive
            todo = list[LeaderView]()
            for view in cleaning.views:
                if (idle := await _idle(view, cleaning)) is None:
                    todo.append(view)
                else:
                    done.append(idle)
            turns = Turns(lease, self._session.clock, self._wanted.settle_s, self._progress)
            for place, view in enumerate(todo):
                owner = view.topic_id_partition
                try:
                    await turns.take_over(owner, unsettled, [one.topic_id_partition for one in todo[place + 1 :]])
                    one, error = await self._compact(view, cleaning)
                except TiersidecarError as trouble:
                    one, error = PartitionCompacted(owner=owner, rounds=(), left=f"it failed: {trouble}"), trouble
                done.append(one)
                failed = failed or error
                if isinstance(error, LeaseHeldError):
                    break
                if error is not None:
                    unsettled.append(owner)
        if failed is not None and not any(each.rounds for each in done):
            raise failed
        return sorted(done, key=lambda one: one.owner.partition)

    async def _compact(
        self, view: LeaderView, cleaning: _Cleaning
    ) -> tuple[PartitionCompacted, TiersidecarError | None]:
        owner, leaders, rounds = view.topic_id_partition, 1, list[CleanedChunk]()
        goal: Offset | None = None

        def note(now: CleanedChunk) -> None:
            if now.cleaner_offset >= 0 or now.swapped:
                rounds.append(now)

        while True:
            try:
                partition = await cleaning.led(view)
                if goal is not None and rounds[-1].cleaner_offset >= goal:
                    planned = await cleaning.task.planned(partition)
                    left = "" if isinstance(planned, str) else str(planned.lost_records(owner) or "")
                    stopped = _reason_to_stop(planned, goal)
                    return PartitionCompacted(owner=owner, rounds=rounds, stopped=stopped, left=left), None
                self._progress(f"partition {owner.partition}, round {len(rounds) + 1}")
                now = await cleaning.task.run(partition, cut_short=note)
            except (BrokerRefusedError, BrokerUnreachableError) as error:
                after = await self._next_leader(view, error)
                if after is None or leaders == _MOST_LEADERS:
                    return PartitionCompacted(owner=owner, rounds=rounds, left=f"it failed: {error}"), error
                view, leaders = after, leaders + 1
                continue
            except TiersidecarError as error:
                return PartitionCompacted(owner=owner, rounds=rounds, left=f"it failed: {error}"), error
            note(now)
            leaders = 1
            if now.left or now.cleaner_offset < 0:
                return PartitionCompacted(owner=owner, rounds=rounds, stopped=now.reason, left=now.left), None
            goal = now.cleanable_to if goal is None else goal

    async def _next_leader(self, view: LeaderView, error: TiersidecarError) -> LeaderView | None:
        """Return the partition in another epoch, in which a round begins where the last claim ends; None where there is none
        after a while.  Where the leader has died, what was sent last may still arrive: it takes as long as to settle."""
        owner, is_dead = view.topic_id_partition, isinstance(error, BrokerUnreachableError)
        await self._session.clock.sleep(max(_NEXT_LEADER_WITHIN_S, self._wanted.settle_s if is_dead else 0))
        try:
            after = await self._session.partition(owner.topic, owner.partition)
        except TiersidecarError:
            return None
        return after if after != view and after.topic_id_partition == owner else None

    @asynccontextmanager
    async def _open(self, *, lease: HeldLease | None) -> AsyncIterator[_Cleaning]:
        session, wanted = self._session, self._wanted
        views = [
            view
            for view in await session.partitions(wanted.topic)
            if wanted.partition in (None, view.topic_id_partition.partition)
        ]
        if not views:
            subject = f"{wanted.topic}-{wanted.partition}"
            raise BrokerRefusedError(api="Metadata", subject=subject, error="UNKNOWN_TOPIC_OR_PARTITION")
        settings = CleanSettings(
            dedupe_buffer_bytes=wanted.dedupe_buffer_bytes,
            scratch=wanted.scratch / "cleaned",
            filters=wanted.scratch / "filters",
            delays=trash_delays(session.config),
            takes_all=True,
        )
        async with AsyncExitStack() as stack:
            parts = await stack.enter_async_context(open_rewriting(session, self._ids, self._failpoints, place="clean"))
            owners = [view.topic_id_partition for view in views]
            histories = await open_histories(session, stack, parts.store, owners)
            rights = CommandsRights(session, lease, await topic_owners(session, parts.store, incarnation="compact"))
            task = CleanTask(
                sources=Sources(
                    table=PartitionTable(),
                    broker=session.broker,
                    metadata=histories.metadata,
                    state=session.state,
                    lineages=histories.lineages,
                ),
                clock=session.clock,
                failpoints=self._failpoints,
                rights=rights,
                engine=self._engine_of(parts, settings, self._failpoints, self._progress),
                blobs=parts.swap_store.blobs,
                settings=settings,
            )
            yield _Cleaning(session=session, views=views, parts=parts, histories=histories, task=task)


async def _idle(view: LeaderView, cleaning: _Cleaning) -> PartitionCompacted | None:
    """Return the result for a partition in which there is nothing to do: nobody has to wait there, neither its cleaner for the
    command nor the command for its cleaner.  None where there is, or where it cannot be said."""
    with suppress(TiersidecarError):
        planned = await cleaning.task.planned(await cleaning.led(view))
        if isinstance(planned, str):
            return PartitionCompacted(owner=view.topic_id_partition, rounds=(), stopped=planned)
        if planned.reason and not planned.chain.twins and planned.parted_at is None:
            return PartitionCompacted(owner=view.topic_id_partition, rounds=(), stopped=planned.reason)
    return None


def _reason_to_stop(planned: PlannedRound | str, goal: Offset) -> str:
    """Return why nothing more is cleaned of a partition that is clean up to ``goal``."""
    reason = planned if isinstance(planned, str) else planned.reason
    return (
        reason
        or f"clean up to offset {goal}, where what could be cleaned had ended at the beginning; more has come since"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cleaning:
    """What is open while a command looks or acts."""

    session: Session
    views: Sequence[LeaderView]
    parts: RewritingParts
    histories: Histories
    task: CleanTask

    async def led(self, view: LeaderView) -> TieredPartition:
        """Return the partition for a round in this leader epoch, whose history is the leader's own file: while the epoch
        lasts, nothing of it is cut off.

        Raises:
            BrokerRefusedError: another broker leads by now, or this one in another epoch.
        """
        owner, session = view.topic_id_partition, self.session
        log_start = await session.offset(view, OffsetSpec.EARLIEST)
        live = await leader_epochs_of(session.broker, view, log_start)
        policy = session.policy(owner.topic, owner.topic_id)
        if not live or policy is None:
            reason = "its leader has no history of it" if policy is not None else "it is not tiered"
            raise CompactionError(subject=str(owner), reason=reason)
        self.histories.live.epochs[owner] = live
        await self.histories.lineages.refresh(owner)
        return TieredPartition(view=view, role=PartitionRole.LEADER, policy=policy)


class CommandsRights:
    """The :class:`~tiersidecar.tasks.clean_rights.CleaningRights` of a command that holds the lease; without one it looks."""

    def __init__(self, session: Session, lease: HeldLease | None, owners: TopicOwners) -> None:
        self._session, self._lease, self._owners = session, lease, owners

    def reason_not_to_begin(self, partition: TieredPartition) -> str:
        paused = self._session.state.why_paused(partition.view.topic_id_partition.topic_id, PauseKind.COPIES)
        return (reason_not_to_delete(self._session) or "") or paused

    def broker_id_of(self, partition: TieredPartition) -> BrokerId:
        return partition.view.leader_id

    def author_of(self, partition: TieredPartition) -> str:
        return operator("compact")

    def due_ms(self, now_ms: int) -> int:
        return due_ms(now_ms, self._session.state.known_leases())

    async def confirm(self, owner: TopicIdPartition) -> None:
        self.require()
        await self._owners.claim(owner)
        self.require()

    def require(self) -> None:
        self._held.require()

    def copying(self, segment_id: RemoteLogSegmentId) -> AbstractAsyncContextManager[None]:
        """Note nothing: the journal is the sidecar's, and what a killed command leaves goes after the copy grace."""
        return nullcontext()

    async def renewed_until_s(self) -> float | None:
        """Renew the lease: COPY_SEGMENT_FINISHED is read back while it holds, or given up."""
        await self._held.renew_now()
        return self._held.until_s

    @property
    def _held(self) -> HeldLease:
        assert self._lease is not None, "a command that only looks publishes nothing"
        return self._lease
