"""Expire a led partition: the remote log start first, durable and read back, then the segments below it (S-066, S-067).

The order is the protocol: decided by what is known, the broker asked with our leader epoch, decided anew, the start published,
then one segment after the other.  A process that ends anywhere leaves a start below which the next one finds what to delete.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

import structlog

from tiersidecar.decide.cleanup import Removal
from tiersidecar.decide.expire import ExpiryPlan
from tiersidecar.decide.expiry_standing import standings
from tiersidecar.decide.expiry_view import ExpiryView
from tiersidecar.decide.needless import is_covered, needless_segments, standing_segments
from tiersidecar.decide.topics import TieredPartition
from tiersidecar.decide.undelete import pinned_ranges
from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition
from tiersidecar.domain.offsets import Lineage
from tiersidecar.domain.policy import RetentionMode
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import NEEDLESS, TrashKind
from tiersidecar.ports.broker import OffsetSpec
from tiersidecar.ports.metrics.retention import (
    DELETE_LAG_BYTES,
    DELETE_LAG_SEGMENTS,
    EXPIRY_STOPPED,
    FUTURE_SEGMENTS,
    REMOTE_LOG_SIZE,
    REMOTE_SEGMENTS,
    REMOTE_STORED_BYTES,
    TRASH_BYTES,
    TRASH_SEGMENTS,
)
from tiersidecar.ports.state_log import PartitionState, SeenGeneration
from tiersidecar.tasks.edges import Actor, Edges, Sources
from tiersidecar.tasks.expiry_look import ExpiryLook, ExpirySettings
from tiersidecar.tasks.local_start import LocalStart
from tiersidecar.tasks.ownership import InFlight
from tiersidecar.tasks.removal import RefusedLast, SegmentRemover
from tiersidecar.tasks.resting_rounds import RestingRounds
from tiersidecar.tasks.topic_checks import TopicChecks

log = structlog.get_logger(__name__)


class SegmentIsWhole(Protocol):
    async def is_whole(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """Return whether all its objects are in the store now."""


class ExpireTask:
    """Expire one partition at a time."""

    def __init__(
        self,
        *,
        sources: Sources,
        edges: Edges,
        actor: Actor,
        settings: ExpirySettings,
        presence: SegmentIsWhole,
        in_flight: InFlight,
        remover: SegmentRemover,
        checks: TopicChecks,
    ) -> None:
        self._table, self._metadata = sources.table, sources.metadata
        self._state, self._lineages = sources.state, sources.lineages
        self._in_flight, self._remover, self._presence, self._checks = in_flight, remover, presence, checks
        self._guard, self._ownership, self._observe_only = actor.guard, actor.ownership, actor.observe_only
        self._interval_s = settings.interval_s
        self._clock, self._failpoints, self._telemetry = edges.clock, edges.failpoints, edges.telemetry
        self.look = ExpiryLook(
            sources=sources, edges=edges, settings=settings, in_flight=in_flight, by=f"broker {actor.broker_id}"
        )
        self._local_start = LocalStart(
            table=sources.table,
            broker=sources.broker,
            state=sources.state,
            clock=edges.clock,
            failpoints=edges.failpoints,
            ownership=actor.ownership,
        )
        self._next_round_s: dict[TopicIdPartition, float] = {}
        self._resting = RestingRounds(sources=sources, edges=edges, has_failed=settings.has_failed)
        self._refused_last = RefusedLast()
        self._observed: dict[TopicIdPartition, frozenset[RemoteLogSegmentId]] = {}

    def may_have_work(self, partition: TieredPartition) -> bool:
        """Return whether a round is due, and would not end as the last one did: cheap, and asked at every look."""
        topic_id_partition, now_s = partition.view.topic_id_partition, self._clock.monotonic_s()
        if now_s >= self._next_round_s.get(topic_id_partition, 0.0):
            if not self._resting.holds(partition):
                return True
            self._next_round_s[topic_id_partition] = now_s + self._interval_s
        if self.owes_an_answer(partition):
            return True
        unfinished = self._metadata.list_unfinished_segments(topic_id_partition)
        return any(segment.remote_log_segment_id not in self._in_flight.ids for segment in unfinished)

    def may_act(self, partition: TieredPartition) -> bool:
        """Return whether a round would expire anything."""
        return (
            partition.view.topic_id_partition.topic not in self._table.refused_topics
            and self._state.halted_reason is None
        )

    async def run(self, partition: TieredPartition) -> None:
        """Do one round.

        Raises:
            BrokerRefusedError: also where another leads by now.
            StoreError: objects could not be deleted, or an epoch blob not be read; nothing is lost, and the next round retries.
        """
        topic_id_partition = partition.view.topic_id_partition
        if not self.may_act(partition):
            self._table.record(topic_id_partition).expiry_looked = True
            return
        try:
            await self.answer_undelete(partition)
            view, plan = await self.look.from_memory(partition, await self._lineages.lineage(topic_id_partition))
            self._table.see_start(topic_id_partition, view.remote_log_start_offset)
            self._report(topic_id_partition, plan)
            if self._is_due(partition, view, plan):
                await self._act(partition)
            else:
                self._resting.note(partition, plan, self.look.quiet.get(topic_id_partition))
        finally:
            self._table.record(topic_id_partition).expiry_looked = True
        self._next_round_s[topic_id_partition] = self._clock.monotonic_s() + self._interval_s

    def owes_an_answer(self, partition: TieredPartition) -> bool:
        """Return whether an undelete waits for what :meth:`answer_undelete` says."""
        topic_id_partition = partition.view.topic_id_partition
        if self._observe_only or topic_id_partition.topic in self._table.refused_topics:
            return False
        if self._state.halted_reason is not None or self._state.readiness_reason is not None:
            return False
        return self._state.partition_state(topic_id_partition).awaits_answer

    async def answer_undelete(self, partition: TieredPartition) -> None:
        """Answer, where it is asked for, that the start is known to be set back: this lane is at nothing now that was decided
        before.  What the undelete left in the trash is put there first, for the answer ends what it said of that."""
        if not self.owes_an_answer(partition):
            return
        topic_id_partition, state = (
            partition.view.topic_id_partition,
            self._state.partition_state(partition.view.topic_id_partition),
        )
        unsure = self._remover.unsure(topic_id_partition)
        if unsure:  # an answer before them would call readable what is on its way to be deleted
            await self._metadata.catch_up(topic_id_partition)
            self._remover.settle(unsure)
        local = self._table.local_partition(topic_id_partition)
        seen = SeenGeneration(
            generation=state.start_generation,
            leader_epoch=partition.view.leader_epoch,
            pinned=pinned_ranges(() if local is None else local.segments),
        )
        self._ownership.require_role()
        await self._state.put_into_trash(topic_id_partition, state.kept)
        self._ownership.require_role()
        await self._state.publish_partition_state(topic_id_partition, PartitionState(seen=seen))

    async def _act(self, partition: TieredPartition) -> None:
        topic_id_partition = partition.view.topic_id_partition
        await self._checks.check(
            [topic_id_partition.topic]
        )  # native tiering may have been switched on since the last look
        if topic_id_partition.topic in self._table.refused_topics:
            return
        with suppress(StoreError):  # a store that is away stops no start; each removal asks again
            await self._ownership.confirm(topic_id_partition)
        log_start_offset = await self.look.ask(partition, OffsetSpec.EARLIEST)
        high_watermark = await self.look.ask(partition, OffsetSpec.LATEST)
        lineage = await self._lineages.refresh(topic_id_partition)
        plan = await self.look.decide(await self.look.view(partition, lineage, log_start_offset, high_watermark))
        self._report(topic_id_partition, plan)
        if self._observe_only:
            self._say_observed(topic_id_partition, plan)
            return
        await self._publish_stop(partition, plan)
        if self._guard.reason_not_to_delete_remote_of(topic_id_partition.topic_id):
            return  # a sidecar of a former release that leads next would delete at once what a start of ours gives up
        if not await self._publish_trash(partition, plan):
            return
        if not await self._publish_start(partition, plan, lineage) or self._guard.reason_not_to_delete_of(
            topic_id_partition.topic_id
        ):
            return
        await self._local_start.raise_to(
            partition, plan.trash.due_start_offset, log_start_offset, high_watermark, plan.start_generation
        )
        await self._remove_all(partition, plan)

    def _is_due(self, partition: TieredPartition, view: ExpiryView, plan: ExpiryPlan) -> bool:
        """Return whether anything is to be done or said: most rounds find nothing, and ask nothing."""
        return bool(
            plan.expired
            or plan.leftovers
            or plan.guard_stop is not None
            or (view.policy.delete_remote and view.remote_segments)
            or self._start_to_publish(partition, plan, view.lineage) is not None
            or plan.trash.put
            or plan.trash.take_out
            or self._local_start.is_below(partition, plan.trash.due_start_offset)
            # What a former release gave up is to be said, too.
            or (
                partition.policy.mode is RetentionMode.STRICT
                and plan.trash.stop < plan.remote_log_start_offset
                and self._local_start.is_below(partition, plan.remote_log_start_offset)
            )
        )

    def _start_to_publish(
        self, partition: TieredPartition, plan: ExpiryPlan, lineage: Lineage
    ) -> PartitionState | None:
        """Return the state to publish where the start moved, and once in each leader epoch: what an earlier leader says after
        that changes nothing.  Again where the history has an epoch that was not said: by a former release, or by the broker's
        file of before the election."""
        start, leader_epoch = plan.remote_log_start_offset, partition.view.leader_epoch
        known = self._state.partition_state(partition.view.topic_id_partition)
        is_said = (known.remote_log_start_offset, known.remote_log_start_epoch) == (start, leader_epoch)
        if start < 0 or (is_said and Lineage(known.leader_epochs).latest_epoch >= lineage.latest_epoch):
            return None
        if known.start_generation != plan.start_generation:
            return None  # set back since it was decided
        said = known.with_start(start, leader_epoch).with_epochs(lineage)
        if plan.first_start_offset < 0:
            return said
        return said.merged_with(known.with_delete(plan.first_start_offset, leader_epoch))

    async def _publish_stop(self, partition: TieredPartition, plan: ExpiryPlan) -> None:
        """Publish it before anything that could make what is due look smaller: a copy, or another leader."""
        if plan.guard_stop is None:
            return
        topic_id_partition = partition.view.topic_id_partition
        known = self._state.partition_state(topic_id_partition).guard_stop
        number = 0 if known is None else known.number + 1
        stop = replace(plan.guard_stop, leader_epoch=partition.view.leader_epoch, number=number)
        await self._state.publish_partition_state(topic_id_partition, PartitionState(guard_stop=stop))
        await self._failpoints.reach("expire.stop.published")
        if stop.is_over:
            log.info(
                "expire.stop.ended",
                topic=topic_id_partition.topic,
                partition=topic_id_partition.partition,
                reason=stop.reason,
            )

    async def _publish_trash(self, partition: TieredPartition, plan: ExpiryPlan) -> bool:
        """Return whether the decision is durable, and still ours to make."""
        topic_id_partition = partition.view.topic_id_partition
        if not self._table.leads(topic_id_partition, partition.view.leader_epoch):
            return False
        await self._state.take_out_of_trash(topic_id_partition, plan.trash.take_out)
        await self._state.put_into_trash(topic_id_partition, plan.trash.put)
        for entry in plan.trash.put:
            log.info(
                "trash.put",
                topic=topic_id_partition.topic,
                partition=topic_id_partition.partition,
                kind=entry.kind.value,
                up_to=entry.up_to,
                segments=len(entry.segments),
                due_ms=entry.due_ms,
                reason=entry.reason,
            )
        if plan.trash.put:
            await self._failpoints.reach("expire.trash.published")
        return True

    async def _publish_start(self, partition: TieredPartition, plan: ExpiryPlan, lineage: Lineage) -> bool:
        """Return whether the start is durable, and still ours to say."""
        topic_id_partition, leader_epoch = partition.view.topic_id_partition, partition.view.leader_epoch
        before = self._state.partition_state(topic_id_partition).remote_log_start_offset
        state = self._start_to_publish(partition, plan, lineage)
        if state is not None:
            await self._state.publish_partition_state(topic_id_partition, state)
            await self._failpoints.reach("expire.start.published")
        now = self._state.partition_state(topic_id_partition)
        if now.start_generation != plan.start_generation:
            log.info(
                "expire.undone",
                topic=topic_id_partition.topic,
                partition=topic_id_partition.partition,
                leader_epoch=leader_epoch,
            )
            return False
        if plan.remote_log_start_offset < 0:
            return self._table.leads(topic_id_partition, leader_epoch)
        if now.remote_log_start_epoch != leader_epoch or now.remote_log_start_offset < plan.remote_log_start_offset:
            log.warning(
                "expire.deposed",
                topic=topic_id_partition.topic,
                partition=topic_id_partition.partition,
                leader_epoch=leader_epoch,
            )
            return False
        if now.remote_log_start_offset != before:
            log.info(
                "remote_log_start.moved",
                topic=topic_id_partition.topic,
                partition=topic_id_partition.partition,
                leader_epoch=leader_epoch,
                remote_log_start_offset=now.remote_log_start_offset,
            )
        return self._table.leads(topic_id_partition, leader_epoch)

    def _may_still_remove(self, partition: TieredPartition) -> bool:
        topic_id_partition = partition.view.topic_id_partition
        leads = self._table.leads(topic_id_partition, partition.view.leader_epoch)
        return leads and not self._guard.reason_not_to_delete_remote_of(topic_id_partition.topic_id)

    async def _remove_all(self, partition: TieredPartition, plan: ExpiryPlan) -> None:
        topic_id_partition = partition.view.topic_id_partition
        remaining = list(plan.expired)
        for removal in self._refused_last.order(topic_id_partition, (*plan.leftovers, *plan.expired)):
            if not self._may_still_remove(partition):
                return
            if await self._is_to_be_left(topic_id_partition, removal) or self._has_been_finished(removal):
                continue
            if removal.kind in NEEDLESS and not await self._is_needless_still(partition, removal):
                continue
            if self._state.partition_state(topic_id_partition).start_generation != plan.start_generation:
                return  # undone while we were at it
            is_undone = partial(self._is_undone, topic_id_partition, plan)
            segment_id = removal.metadata.remote_log_segment_id
            try:
                with self._in_flight.holding(segment_id):
                    await self._remover.remove(removal, is_undone)
            except StoreError:
                self._refused_last.refused(removal)
                raise
            await self._in_flight.settle(segment_id)
            if removal in remaining:
                remaining.remove(removal)
            self._report_lag(topic_id_partition, remaining)

    async def _is_undone(self, topic_id_partition: TopicIdPartition, plan: ExpiryPlan) -> bool:
        """Return whether it is undone.  Asked right before what cannot be undone, so read anew: an undelete may be durable and
        not have come here yet."""
        await self._state.catch_up()
        return self._state.partition_state(topic_id_partition).start_generation != plan.start_generation

    async def _is_to_be_left(self, topic_id_partition: TopicIdPartition, removal: Removal) -> bool:
        """Return whether it is a copy that the broker itself may be at, or whose topic does not say: asked right before."""
        reason = await self._checks.reason_to_leave(topic_id_partition.topic) if removal.of_another else ""
        if reason:
            log.info(
                "segment.delete.left",
                topic=topic_id_partition.topic,
                partition=topic_id_partition.partition,
                segment_id=str(removal.metadata.remote_log_segment_id),
                reason=reason,
            )
        return bool(reason)

    async def _is_needless_still(self, partition: TieredPartition, removal: Removal) -> bool:
        """Return whether it is needless still, decided anew on metadata and state that are read to their ends and on what the
        store has: what covered it when it was decided, or a moment ago, may be on its way out."""
        topic_id_partition, segment = partition.view.topic_id_partition, removal.metadata
        await self._metadata.catch_up(topic_id_partition)
        await self._state.catch_up()
        view = await self.look.view(partition, await self._lineages.refresh(topic_id_partition))
        found = standings(view.remote_segments, view.lineage)
        known = [one.metadata.remote_log_segment_id for one in needless_segments(view, found, ())]
        near = [
            one
            for one in standing_segments(view, found)
            if one.start_offset <= segment.end_offset and one.end_offset >= segment.start_offset
        ]
        whole = [one for one in near if await self._presence.is_whole(one)]
        is_held = bool(view.hold) and removal.kind is TrashKind.REPAIR
        if not is_held and segment.remote_log_segment_id in known and is_covered(segment, whole):
            return True
        log.warning(
            "segment.delete.left",
            topic=topic_id_partition.topic,
            partition=topic_id_partition.partition,
            segment_id=str(segment.remote_log_segment_id),
            reason=f"{removal.kind} took it for needless, and nothing else holds all its records now",
        )
        return False

    def _has_been_finished(self, removal: Removal) -> bool:
        """Return whether a copy that was taken for dead is finished by now: its COPY_SEGMENT_FINISHED was on its way, and a
        follower that has read it has dropped its pin for it."""
        now = self._metadata.segment(removal.metadata.remote_log_segment_id)
        was = removal.metadata.state
        return was is State.COPY_SEGMENT_STARTED and now is not None and now.state is State.COPY_SEGMENT_FINISHED

    def _report(self, topic_id_partition: TopicIdPartition, plan: ExpiryPlan) -> None:
        """Report what was not reported already: a quiet round gives the plan of the one before."""
        record = self._table.record(topic_id_partition)
        if plan is record.expiry_reported:
            return
        record.expiry_reported = plan
        labels = {"topic": topic_id_partition.topic, "partition": str(topic_id_partition.partition)}
        self._telemetry.gauge(REMOTE_SEGMENTS, plan.tally.metadata_count, **labels)
        self._telemetry.gauge(REMOTE_LOG_SIZE, plan.tally.finished_bytes, **labels)
        self._telemetry.gauge(REMOTE_STORED_BYTES, self.look.stored_bytes[topic_id_partition], **labels)
        self._telemetry.gauge(FUTURE_SEGMENTS, len(plan.tally.from_the_future), **labels)
        self._telemetry.gauge(EXPIRY_STOPPED, 1 if plan.stop else 0, **labels)
        self._report_lag(topic_id_partition, plan.expired)
        in_trash = [one.metadata.segment_size_in_bytes for one in plan.trash.waiting]
        self._telemetry.gauge(TRASH_BYTES, sum(in_trash), **labels)
        self._telemetry.gauge(TRASH_SEGMENTS, len(in_trash), **labels)
        if plan.stop == record.expiry_stop:
            return
        record.expiry_stop = plan.stop
        if plan.stop:
            log.error("expire.stopped", **labels, reason=plan.stop)
        else:
            log.info("expire.stopped.cleared", **labels)

    def _report_lag(self, topic_id_partition: TopicIdPartition, removals: tuple[Removal, ...] | list[Removal]) -> None:
        size_bytes = sum(removal.metadata.segment_size_in_bytes for removal in removals)
        labels = {"topic": topic_id_partition.topic, "partition": str(topic_id_partition.partition)}
        self._telemetry.gauge(DELETE_LAG_BYTES, size_bytes, **labels)
        self._telemetry.gauge(DELETE_LAG_SEGMENTS, len(removals), **labels)

    def _say_observed(self, topic_id_partition: TopicIdPartition, plan: ExpiryPlan) -> None:
        logged, now = self._observed.get(topic_id_partition, frozenset()), (*plan.leftovers, *plan.expired)
        self._observed[topic_id_partition] = frozenset(one.metadata.remote_log_segment_id for one in now)
        for removal in now:
            if removal.metadata.remote_log_segment_id in logged:
                continue
            log.info(
                "segment.delete.observed",
                topic=topic_id_partition.topic,
                partition=topic_id_partition.partition,
                segment_id=str(removal.metadata.remote_log_segment_id),
                reason=removal.reason,
            )
