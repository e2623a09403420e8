"""Explain a led partition: what copy, expiry and trim see of it now, and what keeps the daemon from acting by them."""

from __future__ import annotations

import asyncio

from tiersidecar.decide.expire import decide_expiry
from tiersidecar.decide.explain import Explanation, Stops, explain
from tiersidecar.decide.segment_rows import PartitionView, SegmentRow, segment_rows
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.decide.trim import decide_trim
from tiersidecar.domain.errors import NotLedHereError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.policy import PauseKind
from tiersidecar.tasks.catch_up import CatchUp
from tiersidecar.tasks.copy import CopyTask
from tiersidecar.tasks.edges import Actor, Edges, Sources
from tiersidecar.tasks.lanes import Lane, Lanes
from tiersidecar.tasks.retain import RetainTask
from tiersidecar.tasks.store_gates import StoreGates

_AT_ONCE = 2
"""Questions at a time: any client that reaches the status service may ask, and each takes the broker a few requests."""


class ExplainTask:
    """Asks the tasks themselves, so that it cannot disagree with what they do; changes nothing."""

    def __init__(
        self,
        *,
        sources: Sources,
        edges: Edges,
        actor: Actor,
        lanes: Lanes,
        caught_up: CatchUp,
        copy: CopyTask,
        retain: RetainTask,
        stores: StoreGates,
    ) -> None:
        self._table, self._state, self._lineages = sources.table, sources.state, sources.lineages
        self._lanes, self._caught_up, self._stores = lanes, caught_up, stores
        self._copy, self._admission = copy, copy.admission
        self._expiry, self._trim, self._gate = retain.expire.look, retain.trim, retain.trim.gate
        self._guard, self._observe_only, self._blocking = actor.guard, actor.observe_only, edges.blocking
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def rows(self, topic: str, partition: int) -> tuple[SegmentRow, ...]:
        """Return all segments of a partition that is led here.

        Raises:
            NotLedHereError: it is not, or is not tiered.
            RetriableError: the broker, the store or a topic of ours is away.
        """
        async with self._slots:
            return await self._blocking.run(segment_rows, await self._view(self._led(topic, partition)))

    async def explain(self, topic: str, partition: int, offset: int | None) -> Explanation:
        """Return why its segments are where they are; raises as :meth:`rows`."""
        async with self._slots:
            tiered = self._led(topic, partition)
            view = await self._view(tiered)
            return await self._blocking.run(explain, view, await self._stops(tiered, view), offset)

    def _led(self, topic: str, partition: int) -> TieredPartition:
        for topic_id_partition, tiered in self._table.assignment.items():
            if (topic_id_partition.topic, topic_id_partition.partition) == (topic, partition):
                if tiered.role is PartitionRole.LEADER:
                    return tiered
                raise NotLedHereError(topic=topic, partition=partition, leader_id=tiered.view.leader_id)
        raise NotLedHereError(topic=topic, partition=partition, leader_id=-1)

    async def _view(self, tiered: TieredPartition) -> PartitionView:
        topic_id_partition = tiered.view.topic_id_partition
        await self._caught_up.ensure(tiered)
        local = self._table.local_partition(topic_id_partition)
        if local is None:
            raise NotLedHereError(topic=topic_id_partition.topic, partition=topic_id_partition.partition, leader_id=-1)
        lineage = await self._lineages.lineage(topic_id_partition)
        copy = await self._copy.view(tiered, local, lineage)
        expiry = await self._expiry.asked_view(tiered, lineage)
        log_start_offset = Offset(expiry.log_start_offset or 0)
        trim = await self._trim.view(tiered, local, log_start_offset)
        return PartitionView(copy=copy, expiry=expiry, plan=await self._blocking.run(decide_expiry, expiry), trim=trim)

    async def _stops(self, tiered: TieredPartition, view: PartitionView) -> Stops:
        topic_id_partition = tiered.view.topic_id_partition
        everything = self._why_nothing(topic_id_partition)
        refused = self._table.refused_topics.get(topic_id_partition.topic, "")
        retain = self._lanes.reason_at_rest(topic_id_partition, Lane.RETAIN)
        record = self._table.record(topic_id_partition)
        unproven, uncleaned = record.unproven, record.uncleaned
        return Stops(
            copy=everything
            or refused
            or self._state.why_paused(topic_id_partition.topic_id, PauseKind.COPIES)
            or self._lanes.reason_at_rest(topic_id_partition, Lane.COPY)
            or self._stores.of_topic(topic_id_partition.topic).closed_reason,
            copy_wait_s=self._admission.quota_wait_s(topic_id_partition),
            trim=everything
            or self._table.untrimmable_topics.get(topic_id_partition.topic, "")
            or self._state.halted_reason
            or self._guard.reason_not_to_delete_of(topic_id_partition.topic_id)
            or ("" if unproven else retain),
            delete=everything
            or refused
            or self._state.halted_reason
            or self._guard.reason_not_to_delete_remote_of(topic_id_partition.topic_id)
            or ("" if unproven else retain),
            unproven="" if unproven is None else unproven.reason,
            unproven_from=None if unproven is None else unproven.base_offset,
            uncleaned="" if uncleaned is None else uncleaned.reason,
            uncleaned_from=None if uncleaned is None else uncleaned.base_offset,
            hold=await self._gate.hold(tiered, await self._blocking.run(decide_trim, view.trim)),
        )

    def _why_nothing(self, topic_id_partition: TopicIdPartition) -> str:
        return "mode is observe" if self._observe_only else self._table.misplaced.get(topic_id_partition, "")
