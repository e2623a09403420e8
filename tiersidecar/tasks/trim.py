"""Trim the broker's local log of a partition with DeleteRecords, each byte of it proven remote first (strict mode).

The order is the protocol: read back, settings and leadership checked, the intended offset durable in the state topic,
then DeleteRecords.  DeleteRecords carries no leader epoch, so leadership is asked for right before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Protocol

import structlog

from tiersidecar.decide.pressure_trim import PressureTrim
from tiersidecar.decide.topics import TieredPartition
from tiersidecar.decide.trim import TrimStep, TrimView, decide_trim, reason_behind_trash
from tiersidecar.domain.errors import (
    BrokerRefusedError,
    CorruptDataError,
    DataKeyError,
    KeyRefusedError,
    KeyServiceError,
    MetadataNotReadyError,
    NotOwnedError,
    ObjectNotFoundError,
    OwnerMissingError,
    SegmentChangedError,
    StoreError,
    UncleanedError,
    UnknownPlaceError,
    WrongPlaceError,
)
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.domain.policy import UNLIMITED, RetentionMode
from tiersidecar.domain.segments import LocalPartition
from tiersidecar.domain.trash import replaced_segments
from tiersidecar.ports.broker import OffsetSpec
from tiersidecar.ports.metrics.retention import DROPPED_BYTES, TRIM_REFUSALS, TRIMMED_BYTES
from tiersidecar.reading.lineage import pictured_segments
from tiersidecar.tasks.edges import Actor, Edges, Sources
from tiersidecar.tasks.local_start import ASKED_WITHIN_S
from tiersidecar.tasks.read_back import Unproven
from tiersidecar.tasks.topic_checks import TopicChecks
from tiersidecar.tasks.trim_compacted import CompactedTrims
from tiersidecar.tasks.trim_gate import TrimGate

log = structlog.get_logger(__name__)

_STEPS_AT_ONCE = 16
"""Segments read back before their DeleteRecords goes out: few requests, and yet progress on a long backlog."""


class VerifyStep(Protocol):
    async def verify(self, step: TrimStep) -> None:
        """Return once the remote segments of ``step`` were read back whole and hold the very batches of the local one, from
        ``from_offset`` on.

        Raises:
            CorruptDataError: they do not.
            StoreError: they could not be read.
            KeyServiceError, KeyRefusedError, DataKeyError: their data key could not be opened.
        """


class TrimTask:
    """Trims one partition as far as it may be."""

    def __init__(
        self,
        *,
        sources: Sources,
        edges: Edges,
        actor: Actor,
        checks: TopicChecks,
        verifier: VerifyStep,
        gate: TrimGate,
        compacted: CompactedTrims,
    ) -> None:
        self._table, self._broker, self._metadata = sources.table, sources.broker, sources.metadata
        self._state, self._lineages = sources.state, sources.lineages
        self._checks, self._verifier, self.gate, self._compacted = checks, verifier, gate, compacted
        self._guard, self._ownership, self._observe_only = actor.guard, actor.ownership, actor.observe_only
        self._blocking, self._clock = edges.blocking, edges.clock
        self._telemetry, self._failpoints = edges.telemetry, edges.failpoints
        self._unproven = Unproven(table=sources.table, clock=edges.clock, ids=edges.ids, telemetry=edges.telemetry)
        self._observed: dict[TopicIdPartition, Offset] = {}
        """The offset that was reported last of each partition, where nothing is done."""

    def may_have_work(self, partition: TieredPartition) -> bool:
        """Return whether a look at the offsets is worth it: local retention is bounded, and a sealed segment is remote."""
        policy, topic_id_partition = partition.policy, partition.view.topic_id_partition
        limits = (policy.effective_local_retention_ms, policy.effective_local_retention_bytes)
        if policy.mode is not RetentionMode.STRICT or self._compacted.reason_not_to(topic_id_partition.topic):
            return False
        pressure = self._pressure(topic_id_partition)
        if pressure is not None and pressure.offset > self._table.record(topic_id_partition).log_start_offset:
            return True
        if all(limit == UNLIMITED for limit in limits):
            return False
        local = self._local(topic_id_partition)
        copied_offset = self._table.record(topic_id_partition).last_copied
        log_start_offset = self._table.record(topic_id_partition).log_start_offset
        return local is not None and any(
            segment.next_base_offset is not None
            and log_start_offset < segment.next_base_offset <= copied_offset + 1
            and not self._unproven.is_resting(topic_id_partition, segment.base_offset)
            for segment in local.segments
        )

    def _local(self, topic_id_partition: TopicIdPartition) -> LocalPartition | None:
        """Return what is on the disk; of a compacted topic without what its pins hold of an earlier moment."""
        if self._compacted.is_compacted(topic_id_partition.topic):
            return self._table.local.partitions.get(topic_id_partition)
        return self._table.local_partition(topic_id_partition)

    def _pressure(self, topic_id_partition: TopicIdPartition) -> PressureTrim | None:
        """Return what a full disk asks for: of a compacted topic nothing, which gives what its cleaners allow alone."""
        if self._compacted.is_compacted(topic_id_partition.topic):
            return None
        return self._table.pressure_trims.get(topic_id_partition)

    def is_forced(self, partition: TieredPartition) -> bool:
        """Return whether a full disk takes something from the partition that drop-oldest would rather lose than wait for."""
        topic_id_partition = partition.view.topic_id_partition
        pressure = self._pressure(topic_id_partition)
        log_start_offset = self._table.record(topic_id_partition).log_start_offset
        return pressure is not None and pressure.drops and pressure.offset > log_start_offset

    async def run(self, partition: TieredPartition) -> None:
        """Trim until nothing may go any more."""
        topic_id_partition = partition.view.topic_id_partition
        self._table.record(topic_id_partition).behind_trash = ""
        while self._table.leads(topic_id_partition, partition.view.leader_epoch) and self.may_have_work(partition):
            log_start_offset = await self._log_start_offset(partition)
            generation = self._state.partition_state(topic_id_partition).start_generation
            steps = await self.gate.allowed(partition, await self._due_steps(partition, log_start_offset))
            if not steps or not await self._is_allowed(topic_id_partition):
                return
            if self._observe_only:
                if self._observed.get(topic_id_partition) != steps[-1].offset:
                    self._observed[topic_id_partition] = steps[-1].offset
                    log.info(
                        "trim.observed",
                        topic=topic_id_partition.topic,
                        partition=topic_id_partition.partition,
                        offset=steps[-1].offset,
                    )
                return
            proven = await self._proven(
                topic_id_partition, (await self._owned(topic_id_partition, steps))[:_STEPS_AT_ONCE]
            )
            if not proven:
                return
            await self._failpoints.reach("trim.verified")
            if not await self._trim(partition, proven, generation):
                return

    async def _owned(self, topic_id_partition: TopicIdPartition, steps: tuple[TrimStep, ...]) -> tuple[TrimStep, ...]:
        """Return ``steps``, if what is remote of the topic is this cluster's.  Where that cannot be known, or it is not, return
        those that a full disk forces, with nothing remote: a broker waits for no store.

        Raises:
            NotOwnedError: it is another cluster's; nor is anything forced.
            OwnerMissingError, WrongPlaceError: this is not the store that it is in.
            StoreError: the store is away.
        """
        try:
            await self._ownership.confirm(topic_id_partition, anew=True)
        except (NotOwnedError, OwnerMissingError, StoreError, WrongPlaceError) as error:
            is_away = isinstance(error, StoreError)
            left = tuple(
                takewhile(lambda step: step.forced and (is_away or step.is_last_resort or not step.remote), steps)
            )
            if not left:
                raise
            log.warning(
                "trim.owner.unknown",
                topic=topic_id_partition.topic,
                partition=topic_id_partition.partition,
                error=str(error),
            )
            return tuple(replace(one, remote=()) for one in left)
        return steps

    async def _proven(self, topic_id_partition: TopicIdPartition, steps: Sequence[TrimStep]) -> tuple[TrimStep, ...]:
        """Return ``steps``, each read back, up to the first that cannot be.  One that is forced is taken for lost then, and so
        are those after it if the store or the key service is away; one whose remote copy is damaged, opens with no key of
        ours, or lies in a place that is not configured any more, only where nothing else is left to give.

        A data key that does not open halts nothing: a partition that is halted would be left out when a disk is full.
        """
        proven: list[TrimStep] = []
        is_away = False
        for step in steps:
            held = step.remote if not (is_away and step.forced) else ()
            if (
                held
                and not step.is_last_resort
                and self._unproven.is_resting(topic_id_partition, step.local.base_offset)
            ):
                break
            try:
                if held:
                    await (self._compacted.verifier if step.is_compacted else self._verifier).verify(step)
                    self._unproven.proven(topic_id_partition, step)
            except UncleanedError as error:
                self._compacted.failed(topic_id_partition, step, error)
                break
            except SegmentChangedError:
                if not step.is_compacted:
                    raise
                break  # the broker's cleaner has just been there: the next look sees what is left
            except (CorruptDataError, DataKeyError, ObjectNotFoundError, UnknownPlaceError) as error:
                self._unproven.failed(topic_id_partition, step, error)
                if not step.is_last_resort:
                    break
                held = ()
            except (StoreError, KeyServiceError, KeyRefusedError) as error:
                is_of_one = isinstance(error, KeyRefusedError)
                if not step.forced:
                    self._unproven.failed(
                        topic_id_partition, step, error
                    )  # other partitions may have something to give
                    if proven or is_of_one:
                        break
                    raise
                log.warning("trim.read_back.failed", base_offset=step.local.base_offset, error=str(error))
                held, is_away = (), is_away or not is_of_one
            proven.append(replace(step, remote=held))
        return tuple(proven)

    async def _due_steps(self, partition: TieredPartition, log_start_offset: Offset) -> tuple[TrimStep, ...]:
        topic_id_partition = partition.view.topic_id_partition
        local = self._local(topic_id_partition)
        if local is None:
            return ()
        try:
            view = await self.view(partition, local, log_start_offset)
            steps = decide_trim(view)
        except (CorruptDataError, StoreError):
            pressure = self._pressure(topic_id_partition)
            if pressure is None or not pressure.drops:
                raise
            view = await self.view(
                partition, local, log_start_offset, lineage=self._table.lineage_on_disk(topic_id_partition)
            )
            # By the epochs that the disk knows, less may count as remote than is: enough only for what is forced.
            steps = tuple(takewhile(lambda step: step.forced, decide_trim(view)))
            if not steps:
                raise
        if view.is_compacted:
            return await self._compacted.allowed(partition, view, steps)
        if not steps and (reason := reason_behind_trash(view)):
            self._table.record(topic_id_partition).behind_trash = reason
        return steps

    async def view(
        self,
        partition: TieredPartition,
        local: LocalPartition,
        log_start_offset: Offset,
        *,
        lineage: Lineage | None = None,
    ) -> TrimView:
        """Return the partition as the decision sees it, by the broker's log start; ``lineage`` is read if it is not given.

        Raises:
            BrokerRefusedError: another broker leads it by now.
            CorruptDataError, StoreError: the lineage could not be read.
        """
        topic_id_partition = partition.view.topic_id_partition
        pressure = self._pressure(topic_id_partition)
        is_compacted = self._compacted.is_compacted(topic_id_partition.topic)
        local = self._local(topic_id_partition) or local
        drop_offset = -1
        if lineage is None:
            lineage = await self._lineages.lineage(topic_id_partition)
        given_up_offset = int(self._state.partition_state(topic_id_partition).start_in(lineage))
        if pressure is not None and (pressure.drops or given_up_offset > log_start_offset):
            # A broker refuses DeleteRecords beyond the high watermark.
            high_watermark = await self._offset(partition, OffsetSpec.LATEST)
            drop_offset = min(pressure.offset, high_watermark) if pressure.drops else -1
            given_up_offset = min(given_up_offset, high_watermark)
        # Of what is no more on the broker's disk nothing is to be proven: that is most, of up to a hundred thousand.
        picture = self._metadata.picture(topic_id_partition)
        remote = await pictured_segments(picture, self._blocking, from_offset=log_start_offset)
        return TrimView(
            policy=partition.policy,
            lineage=lineage,
            segments=local.segments,
            log_start_offset=log_start_offset,
            remote_segments=remote,
            now_ms=self._clock.now_ms(),
            pressure_offset=-1 if pressure is None else pressure.offset,
            drop_offset=drop_offset,
            last_resort_offset=-1 if pressure is None else pressure.last_resort,
            given_up_offset=given_up_offset,
            erased=replaced_segments(self._state.trash(topic_id_partition)),
            is_compacted=is_compacted,
            untrimmable=self._compacted.reason_not_to(topic_id_partition.topic),
        )

    async def _is_allowed(self, topic_id_partition: TopicIdPartition) -> bool:
        reason = self._table.untrimmable_topics.get(topic_id_partition.topic, "") or self._state.halted_reason or ""
        reason = reason or self._guard.reason_not_to_delete_of(topic_id_partition.topic_id)
        if reason:
            self._telemetry.count(TRIM_REFUSALS, topic=topic_id_partition.topic, reason="settings")
            log.error(
                "trim.refused", topic=topic_id_partition.topic, partition=topic_id_partition.partition, reason=reason
            )
        return not reason

    async def _trim(self, partition: TieredPartition, steps: tuple[TrimStep, ...], generation: int) -> bool:
        """Trim, if all is still as it was; return whether another look is worth it at once."""
        topic_id_partition, offset = partition.view.topic_id_partition, steps[-1].offset
        held = max((step.offset for step in steps if step.remote), default=None)
        known = self._state.partition_state(topic_id_partition)
        await self._state.publish_partition_state(
            topic_id_partition, known.with_trim(offset, partition.view.leader_epoch, held)
        )
        await self._failpoints.reach("trim.intended.published")
        # Everything before this line took time: settings, groups and leadership are looked at once more.
        await self._checks.check([topic_id_partition.topic])
        if not await self.gate.is_open(partition, steps):
            return True
        if not await self._compacted.is_still_so(partition, steps):
            return False
        await self._log_start_offset(partition)
        if not self._table.leads(topic_id_partition, partition.view.leader_epoch) or not await self._is_allowed(
            topic_id_partition
        ):
            return True
        if any(one.from_trash for one in steps) and await self._is_undone(topic_id_partition, generation):
            return True
        await self._failpoints.reach("trim.allowed")
        self._ownership.require_role()
        low_watermark = await self._delete_records(partition, offset)
        if low_watermark is None:
            self._compacted.refused(topic_id_partition, steps)
            return False
        await self._failpoints.reach("trim.records.deleted")
        self._table.record(topic_id_partition).log_start_offset = low_watermark
        self._unproven.gone(topic_id_partition, low_watermark)
        size_bytes = sum(step.local.size_bytes for step in steps)
        self._telemetry.count(TRIMMED_BYTES, size_bytes, topic=topic_id_partition.topic)
        self._log_lost(partition, steps)
        log.info(
            "log.trimmed",
            topic=topic_id_partition.topic,
            partition=topic_id_partition.partition,
            leader_epoch=partition.view.leader_epoch,
            log_start_offset=low_watermark,
            segments=len(steps),
            bytes=size_bytes,
            reason=steps[-1].reason,
        )
        return True

    async def _is_undone(self, topic_id_partition: TopicIdPartition, generation: int) -> bool:
        """Return whether an undelete has set the remote log start back since ``generation``: asked right before what it would
        bring back goes for good.

        Raises:
            MetadataNotReadyError: the state topic could not be read to its end, or not quickly.
        """
        looked_s = self._clock.monotonic_s()
        await self._state.catch_up()
        if self._state.partition_state(topic_id_partition).start_generation != generation:
            log.info("trim.undone", topic=topic_id_partition.topic, partition=topic_id_partition.partition)
            return True
        if self._clock.monotonic_s() - looked_s > ASKED_WITHIN_S:
            raise MetadataNotReadyError(subject=str(topic_id_partition))
        return False

    async def _delete_records(self, partition: TieredPartition, offset: Offset) -> Offset | None:
        """Send DeleteRecords, and return the new log start; None where the policy of a compacted topic forbids it by now.  A
        leader that waits for a follower in vain has moved its own long since."""
        topic_id_partition, leader_epoch = partition.view.topic_id_partition, partition.view.leader_epoch
        answer = (
            await self._broker.delete_records(
                {topic_id_partition: offset}, leader_epochs={topic_id_partition: leader_epoch}
            )
        )[topic_id_partition]
        if answer.error is None:
            return answer.low_watermark
        if answer.error == "REQUEST_TIMED_OUT" and (reached := await self._log_start_offset(partition)) >= offset:
            return reached
        if answer.error == "POLICY_VIOLATION" and self._compacted.is_compacted(topic_id_partition.topic):
            return None
        raise BrokerRefusedError(api="DeleteRecords", subject=str(topic_id_partition), error=answer.error)

    async def _log_start_offset(self, partition: TieredPartition) -> Offset:
        """Return the broker's log start, asked with our leader epoch: a deposed leader is refused here."""
        offset = await self._offset(partition, OffsetSpec.EARLIEST)
        self._table.record(partition.view.topic_id_partition).log_start_offset = offset
        return offset

    async def _offset(self, partition: TieredPartition, spec: OffsetSpec) -> Offset:
        topic_id_partition = partition.view.topic_id_partition
        answers = await self._broker.list_offsets({topic_id_partition: partition.view.leader_epoch}, spec)
        if answers[topic_id_partition].error is not None:
            raise BrokerRefusedError(
                api="ListOffsets", subject=str(topic_id_partition), error=str(answers[topic_id_partition].error)
            )
        return answers[topic_id_partition].offset

    def _log_lost(self, partition: TieredPartition, steps: Sequence[TrimStep]) -> None:
        """Log what went by ``disk.pressure.policy: drop-oldest`` and is nowhere else, unless a pin still saves it."""
        topic_id_partition = partition.view.topic_id_partition
        for step in steps:
            if step.from_trash:
                log.warning(
                    "trash.dropped",
                    topic=topic_id_partition.topic,
                    partition=topic_id_partition.partition,
                    base_offset=step.local.base_offset,
                    next_base_offset=step.from_offset,
                    bytes=step.local.size_bytes,
                    reason=step.reason,
                )
            if step.remote or step.from_offset == step.local.next_base_offset:
                continue
            self._telemetry.count(DROPPED_BYTES, step.local.size_bytes, topic=topic_id_partition.topic)
            log.error(
                "segment.dropped",
                topic=topic_id_partition.topic,
                partition=topic_id_partition.partition,
                base_offset=step.local.base_offset,
                next_base_offset=step.local.next_base_offset,
                bytes=step.local.size_bytes,
                reason=step.reason,
                data_lost=True,
            )
