"""The copy lane of a led partition: observe, decide, upload one segment, and again (S-012 to S-015).

Offsets below the copied one that only the broker still holds have not been given up, so they are copied too.

A former release passed over segments that were past their retention at the time, and a typing error may have made them so.

Offsets that neither tier holds any more are reported once: the first thing an operator must hear of.

Before the first segment of a partition is copied, the start of its remote log is published.  Until then users delete at the
broker itself: what they deleted must not be readable again once the segment that it was in is remote.  Afterwards only a
decision moves the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import structlog

from tiersidecar.decide.copy import CopyPlan, CopyView, decide_copy
from tiersidecar.decide.expiry_standing import first_start, standings
from tiersidecar.decide.pin import is_remote, without_remote_pins
from tiersidecar.decide.topics import TieredPartition, reason_not_to_trim
from tiersidecar.domain.errors import BrokerRefusedError, SegmentWithoutEpochError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import ByteRange, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.policy import PauseKind, RetentionMode
from tiersidecar.domain.segments import LocalPartition, LocalSegment, Pin, gone_below
from tiersidecar.ports.broker import DescribeConfigs, ListOffsets, OffsetSpec
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.failpoints import Failpoints
from tiersidecar.ports.metadata_log import MetadataView
from tiersidecar.ports.metrics.copying import GAP_OFFSETS
from tiersidecar.ports.state_log import PartitionState, StateLog
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.reading.lineage import pictured_segments
from tiersidecar.reading.segment_lookup import agreed_stop
from tiersidecar.tasks.batch_epochs import BatchEpochs
from tiersidecar.tasks.copy_admission import CopyAdmission, CopyLagReport, copied_offset_of
from tiersidecar.tasks.edges import Actor, Edges, Sources
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.segment_reading import next_base_offset_of
from tiersidecar.tasks.tail_cuts import UploadSegment
from tiersidecar.tasks.transaction_waits import TransactionWaits


class GapReport:
    """Logs each offset of a gap once per process, however often a plan finds it."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._reported: dict[TopicIdPartition, ByteRange] = {}

    def report(self, topic_id_partition: TopicIdPartition, gap: ByteRange | None, log_start_offset: int) -> None:
        """Log ``gap``, a range of offsets.  What lies below the remote log start went by retention or by a user's delete: not
        lost."""
        # A counter that first shows when it rises has no increase that an alert could see.
        self._telemetry.count(GAP_OFFSETS, 0, topic=topic_id_partition.topic)
        start, stop = (gap.start, gap.stop) if gap is not None else (0, 0)
        start = max(start, log_start_offset)
        if start >= stop:
            self._reported.pop(topic_id_partition, None)
            return
        reported = self._reported.get(topic_id_partition)
        new_from = max(start, reported.stop) if reported is not None else start
        if new_from >= stop:
            return
        self._reported[topic_id_partition] = ByteRange(start, stop)
        self._telemetry.count(GAP_OFFSETS, stop - new_from, topic=topic_id_partition.topic)
        log.error(
            "segment.gap",
            topic=topic_id_partition.topic,
            partition=topic_id_partition.partition,
            start_offset=start,
            stop_offset=stop,
        )


class LocalHoles:
    """Remembers what was found until anything changes that it depends on: a plan is made for each copy."""

    def __init__(self, metadata: MetadataView) -> None:
        self._metadata = metadata
        self._known: dict[TopicIdPartition, tuple[object, tuple[ByteRange, ...]]] = {}
        self._filled: dict[TopicIdPartition, set[Offset]] = {}

    def find(
        self,
        topic_id_partition: TopicIdPartition,
        segments: tuple[LocalSegment, ...],
        lineage: Lineage,
        copied_offset: int,
        start_offset: int,
    ) -> tuple[ByteRange, ...]:
        """Return holes of sealed segments at or above ``start_offset`` and not above ``copied_offset``; pins have their own
        rule."""
        asked = [
            segment
            for segment in segments
            if not segment.pinned
            and segment.next_base_offset is not None
            and start_offset < segment.next_base_offset <= copied_offset + 1
        ]
        if not asked or not lineage:
            return ()
        depends = (
            self._metadata.segment_count(topic_id_partition),
            lineage,
            start_offset,
            asked[0].base_offset,
            len(asked),
        )
        known = self._known.get(topic_id_partition)
        if known is None or known[0] != depends:
            known = (depends, self._look(topic_id_partition, asked, lineage, start_offset))
            self._known[topic_id_partition] = known
        return known[1]

    def fill(self, topic_id_partition: TopicIdPartition, segment: LocalSegment) -> None:
        """Note that ``segment`` is remote now: what is still not found of it another copy would not bring either."""
        self._filled.setdefault(topic_id_partition, set()).add(segment.base_offset)

    def readable_stop(self, topic_id_partition: TopicIdPartition, lineage: Lineage, copied_offset: int) -> int:
        """Return up to where readers go on from ``copied_offset`` in segments of another history, whose front is of this one
        too."""
        offset = copied_offset + 1
        while True:
            epoch = lineage.epoch_for_offset(offset)
            found = (
                None if epoch is None else self._metadata.remote_log_segment_metadata(topic_id_partition, epoch, offset)
            )
            if found is None:
                return offset
            offset = max(agreed_stop(found, lineage, offset), offset + 1)

    def _look(
        self, topic_id_partition: TopicIdPartition, asked: list[LocalSegment], lineage: Lineage, start_offset: int
    ) -> tuple[ByteRange, ...]:
        segments_at, filled = (
            partial(self._metadata.finished_segments_at, topic_id_partition),
            self._filled.get(topic_id_partition, set()),
        )
        first_known = lineage.entries[0].start_offset
        return tuple(
            ByteRange(segment.base_offset, segment.next_base_offset)
            for segment in asked
            if segment.next_base_offset is not None
            and segment.next_base_offset > first_known
            and segment.base_offset not in filled
            and not is_remote(lineage, segments_at, segment, from_offset=start_offset)
        )


log = structlog.get_logger(__name__)


class CopyTask:
    """Copies what may be copied of one partition; ``admission`` decides whose turn it is."""

    def __init__(
        self,
        *,
        sources: Sources,
        edges: Edges,
        actor: Actor,
        uploader: UploadSegment,
        admission: CopyAdmission,
        lag: CopyLagReport,
        waits: TransactionWaits,
        batch_epochs: BatchEpochs,
    ) -> None:
        self._table, self._broker, self._metadata = sources.table, sources.broker, sources.metadata
        self._state, self._lineages = sources.state, sources.lineages
        self._uploader, self.admission, self._lag = uploader, admission, lag
        self._waits, self._batch_epochs = waits, batch_epochs
        self._guard, self._observe_only = actor.guard, actor.observe_only
        self._blocking, self._clock = edges.blocking, edges.clock
        self._gaps, self._holes = GapReport(edges.telemetry), LocalHoles(sources.metadata)
        self._first_start = FirstStart(
            table=sources.table,
            broker=sources.broker,
            metadata=sources.metadata,
            state=sources.state,
            blocking=edges.blocking,
            failpoints=edges.failpoints,
        )
        self._observed: dict[TopicIdPartition, tuple[LocalSegment, ...]] = {}
        """The segments that were reported last of each partition, where nothing is done."""

    def may_act(self, partition: TieredPartition) -> bool:
        """Return whether a run would copy: where copies are paused it ends before the first one."""
        if self._state.readiness_reason is not None:
            return False
        return not self._state.why_paused(partition.view.topic_id_partition.topic_id, PauseKind.COPIES)

    async def run(self, partition: TieredPartition) -> None:
        """Copy until nothing may be copied any more, or the partition is no longer led in this epoch."""
        topic_id_partition = partition.view.topic_id_partition
        while self._table.leads(topic_id_partition, partition.view.leader_epoch):
            local = self._table.local_partition(topic_id_partition)
            if local is None or topic_id_partition.topic in self._table.refused_topics:
                return
            lineage = await self._lineages.lineage(topic_id_partition)
            plan = await self._plan(partition, local, lineage)
            if not plan.segments:
                if plan.halted:
                    if await self._batch_epochs.ask(local, lineage):
                        continue
                    raise SegmentWithoutEpochError(subject=str(topic_id_partition), reason=plan.halted)
                return
            if self._observe_only:
                self._log_observed(topic_id_partition, plan)
                return
            if paused := self._state.why_paused(topic_id_partition.topic_id, PauseKind.COPIES):
                self._table.record(topic_id_partition).copy_held_back = paused
                return
            await self._first_start.ensure(partition, local, lineage)
            start = self._log_start_offset(topic_id_partition, lineage)
            segment = next((one for one in plan.segments if next_base_offset_of(one) > start), None)
            if segment is not None:
                await self._copy(partition, segment, lineage)

    async def _copy(self, partition: TieredPartition, segment: LocalSegment, lineage: Lineage) -> None:
        topic_id_partition = partition.view.topic_id_partition
        async with self.admission.admitted(topic_id_partition, segment.size_bytes):
            if self._state.why_paused(topic_id_partition.topic_id, PauseKind.COPIES):
                return  # while it waited
            # Before anything of it is remote: topics that are gone are looked for among those that have a state.
            await self._state.publish_partition_state(topic_id_partition, PartitionState())
            await self._uploader.upload(partition, segment, lineage)
            self._holes.fill(topic_id_partition, segment)

    async def _plan(self, partition: TieredPartition, local: LocalPartition, lineage: Lineage) -> CopyPlan:
        topic_id_partition, view = partition.view.topic_id_partition, await self.view(partition, local, lineage)
        plan = decide_copy(view)
        record = self._table.record(topic_id_partition)
        record.copied_offset, record.copy_holes = view.copied_offset, view.holes
        record.remote_log_start, record.copy_held_back = view.remote_log_start_offset, plan.held_back
        await self._waits.held(topic_id_partition, plan.unstable, view.last_stable_offset)
        self._lag.report(partition)
        self._gaps.report(topic_id_partition, plan.gap, view.remote_log_start_offset)
        return plan

    async def view(self, partition: TieredPartition, local: LocalPartition, lineage: Lineage) -> CopyView:
        """Return the partition as the decision sees it now.

        Raises:
            BrokerRefusedError: another broker leads it by now.
        """
        topic_id_partition = partition.view.topic_id_partition
        copied_offset = await copied_offset_of(self._metadata, topic_id_partition, lineage, self._blocking)
        start_offset = self._log_start_offset(topic_id_partition, lineage)
        segments = self._without_settled_pins(topic_id_partition, local.segments, lineage)
        holes = self._holes.find(topic_id_partition, segments, lineage, copied_offset, start_offset)
        return CopyView(
            policy=self._table.policy_of(partition),
            segments=segments,
            copied_offset=copied_offset,
            last_stable_offset=await self._last_stable_offset(topic_id_partition, partition.view.leader_epoch),
            now_ms=self._clock.now_ms(),
            remote_log_start_offset=start_offset,
            holes=holes,
            readable_stop=self._holes.readable_stop(topic_id_partition, lineage, copied_offset),
            may_expire=self._may_expire(partition),
            first_epoch_offset=lineage.entries[0].start_offset if lineage else 0,
            live_start_offset=await self._live_start(partition, segments, lineage, start_offset),
        )

    async def _live_start(
        self,
        partition: TieredPartition,
        segments: tuple[LocalSegment, ...],
        lineage: Lineage,
        start_offset: Offset,
    ) -> Offset:
        """Return the start.  The broker is asked only where a segment reaches below the first leader epoch: as after
        DeleteRecords within it."""
        if not lineage or not segments or segments[0].base_offset >= lineage.entries[0].start_offset:
            return start_offset
        topic_id_partition = partition.view.topic_id_partition
        asked = {topic_id_partition: partition.view.leader_epoch}
        answer = (await self._broker.list_offsets(asked, OffsetSpec.EARLIEST))[topic_id_partition]
        if answer.error is not None:
            raise BrokerRefusedError(api="ListOffsets", subject=str(topic_id_partition), error=answer.error)
        return Offset(max(start_offset, answer.offset))

    def _may_expire(self, partition: TieredPartition) -> bool:
        """Return whether expiry has yet to look, and could give up what it finds: else that is copied."""
        topic_id_partition = partition.view.topic_id_partition
        stop = self._state.partition_state(topic_id_partition).guard_stop
        return (
            partition.policy.mode is RetentionMode.STRICT
            and not self._table.record(topic_id_partition).expiry_looked
            and not self._observe_only
            and not self._guard.reason_not_to_delete_of(topic_id_partition.topic_id)
            and (stop is None or stop.is_over)
        )

    def _without_settled_pins(
        self, topic_id_partition: TopicIdPartition, segments: tuple[LocalSegment, ...], lineage: Lineage
    ) -> tuple[LocalSegment, ...]:
        """Return them without pins that are remote, or were and have expired: the keeper drops them a little later."""
        if not any(segment.pinned for segment in segments):
            return segments
        start_offset = self._log_start_offset(topic_id_partition, lineage)
        wanted = [one for one in segments if not one.pinned or next_base_offset_of(one) > start_offset]
        return without_remote_pins(wanted, lineage, partial(self._metadata.finished_segments_at, topic_id_partition))

    def _log_start_offset(self, topic_id_partition: TopicIdPartition, lineage: Lineage) -> Offset:
        state = self._state.partition_state(topic_id_partition)
        return state.start_in(lineage)

    async def _last_stable_offset(self, topic_id_partition: TopicIdPartition, leader_epoch: LeaderEpoch) -> Offset:
        answers = await self._broker.list_offsets(
            {topic_id_partition: leader_epoch}, OffsetSpec.LATEST, read_committed=True
        )
        answer = answers[topic_id_partition]
        if answer.error is not None:
            raise BrokerRefusedError(api="ListOffsets", subject=str(topic_id_partition), error=answer.error)
        return answer.offset

    def _log_observed(self, topic_id_partition: TopicIdPartition, plan: CopyPlan) -> None:
        if self._observed.get(topic_id_partition) == plan.segments:
            return
        self._observed[topic_id_partition] = plan.segments
        log.info(
            "segment.copy.observed",
            topic=topic_id_partition.topic,
            partition=topic_id_partition.partition,
            segments=[segment.base_offset for segment in plan.segments],
            bytes=sum(segment.size_bytes for segment in plan.segments),
        )


class AskOfTopics(ListOffsets, DescribeConfigs, Protocol):
    """Questions to the broker."""


class FirstStart:
    """Asks the broker, once per partition in its life."""

    def __init__(
        self,
        *,
        table: PartitionTable,
        broker: AskOfTopics,
        metadata: MetadataView,
        state: StateLog,
        blocking: Blocking,
        failpoints: Failpoints,
    ) -> None:
        self._table, self._broker, self._metadata, self._state = table, broker, metadata, state
        self._blocking, self._failpoints = blocking, failpoints

    async def ensure(self, partition: TieredPartition, local: LocalPartition, lineage: Lineage) -> None:
        """Return once a start is durable, whichever sidecar published it.

        Raises:
            BrokerRefusedError: the broker does not say where its log starts, or another leads by now.
            BrokerUnreachableError: or does not answer.
        """
        topic_id_partition, leader_epoch = partition.view.topic_id_partition, partition.view.leader_epoch
        state = self._state.partition_state(topic_id_partition)
        if state.start_in(lineage) >= 0:
            return
        answer = (await self._broker.list_offsets({topic_id_partition: leader_epoch}, OffsetSpec.EARLIEST))[
            topic_id_partition
        ]
        if answer.error is not None:
            raise BrokerRefusedError(api="ListOffsets", subject=str(topic_id_partition), error=answer.error)
        pins = self._table.pins.of(topic_id_partition)
        broker_expires = await self._broker_expires(partition, pins, answer.offset)
        remote = await pictured_segments(self._metadata.picture(topic_id_partition), self._blocking)
        start = first_start(
            log_start_offset=answer.offset,
            found=standings(remote, lineage),
            segments=gone_below(answer.offset, local.segments, pins),
            broker_expires=broker_expires,
            trim_offset=lineage.as_of(state.trim_offset, state.trim_epoch),
            held_offset=state.held_in(lineage),
        )
        await self._state.publish_partition_state(
            topic_id_partition, state.with_delete(start, leader_epoch).with_epochs(lineage)
        )
        await self._failpoints.reach("copy.start.published")
        log.info(
            "remote_log_start.first",
            topic=topic_id_partition.topic,
            partition=topic_id_partition.partition,
            leader_epoch=leader_epoch,
            remote_log_start_offset=start,
            log_start_offset=answer.offset,
        )

    async def _broker_expires(self, partition: TieredPartition, pins: Sequence[Pin], log_start_offset: Offset) -> bool:
        """Return whether the broker may have deleted by itself what only pins have: by the topic's settings of this moment, for
        those of the last check are those of before if it has."""
        topic = partition.view.topic_id_partition.topic
        if partition.policy.mode is RetentionMode.RACE or topic in self._table.untrimmable_topics:
            return True
        if not any(pin.base_offset < log_start_offset for pin in pins):
            return False
        configs = (await self._broker.describe_topic_configs([topic])).get(topic)
        return configs is None or bool(reason_not_to_trim(partition.policy, configs))
