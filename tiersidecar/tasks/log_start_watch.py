"""Watch the broker's log starts: above everything that a sidecar meant to trim, something else deletes local data.

A ``retention.ms`` that tooling put back, or a DeleteRecords sent straight to the broker.  It is an alarm and nothing more: the
broker's log start is never evidence of a user's delete (docs/design/0003).

Halts a led partition that one of the sidecars' own topics has forgotten, before anything is done with it.

What a process knew of the topics stands in its ``state.dir``, which may be lost with them; this asks the topics of each other.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

from tiersidecar.decide.lost_logs import KnownOfPartition, reason_log_lost
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.errors import RetriableError, TopicLossError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.policy import RetentionMode
from tiersidecar.ports.broker import ListOffsets, OffsetSpec
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metadata_log import MetadataLog
from tiersidecar.ports.metrics.retention import LOG_START_UNEXPLAINED
from tiersidecar.ports.state_log import PartitionState, StateLog
from tiersidecar.ports.state_records import AcceptedLosses
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.reading.lineage import LineageSource
from tiersidecar.tasks.catch_up import LaneWork
from tiersidecar.tasks.partition_table import PartitionTable

_NOTHING = PartitionState()


class LossState(StateLog, AcceptedLosses, Protocol):
    """The state topic, and what is accepted as lost."""


class HasClaimed(Protocol):
    async def has_claimed(self, topic_id: Uuid) -> bool:
        """Return whether this cluster's sidecars have claimed it in the store: they were here before.

        Raises:
            StoreError: the store is away.
        """


class LostLogs:
    """Asked by each lane that copies, trims or deletes."""

    def __init__(
        self,
        *,
        table: PartitionTable,
        metadata: MetadataLog,
        state: LossState,
        claims: HasClaimed,
        lineages: LineageSource,
    ) -> None:
        self._table, self._metadata, self._state = table, metadata, state
        self._claims, self._lineages = claims, lineages

    def before(self, work: LaneWork) -> LaneWork:
        """Return ``work``, begun where no loss is proven; of a topic that is refused nothing of ours is remote.

        Raises:
            TopicLossError: one is.
        """

        async def checked(partition: TieredPartition) -> None:
            await self.require(partition.view.topic_id_partition)
            await work(partition)

        return checked

    async def require(self, topic_id_partition: TopicIdPartition) -> None:
        """Return where no loss is proven of the partition.

        Raises:
            TopicLossError: one is.
                StoreError: it cannot be known, for the store is away.
        """
        reason = (
            "" if topic_id_partition.topic in self._table.refused_topics else await self._reason(topic_id_partition)
        )
        if reason:
            self._table.record(topic_id_partition).lost_log = f"{topic_id_partition}: {reason}"
            raise TopicLossError(subject=str(topic_id_partition), reason=reason)
        self._table.record(topic_id_partition).lost_log = ""

    async def _reason(self, topic_id_partition: TopicIdPartition) -> str:
        state, accepted = self._state.partition_state(topic_id_partition), self._state.accepted_losses()
        unfinished = sum(1 for _ in self._metadata.list_unfinished_segments(topic_id_partition))
        has_segments = self._metadata.segment_count(topic_id_partition) > unfinished
        # The usual case costs nothing; a lineage may have to be read from the store.
        may_be_trimmed = not has_segments and state.owner_seen_ms >= 0 and state.trim_offset >= 0
        if state != _NOTHING and not may_be_trimmed:
            return ""
        has_record = state != _NOTHING or self._has_record(topic_id_partition)
        # Asked only where it matters: what is new must be begun while the store is away, too.
        was_claimed = has_segments and not has_record and await self._claims.has_claimed(topic_id_partition.topic_id)
        lineage = await self._lineages.lineage(topic_id_partition)
        return reason_log_lost(
            KnownOfPartition(
                has_record=has_record,
                was_claimed=was_claimed,
                has_segments=has_segments,
                was_seen=state.owner_seen_ms >= 0,
                remote_log_start_offset=state.start_in(lineage),
                held_offset=state.held_in(lineage),
                state_loss_accepted=self._state.topic_id in accepted,
                metadata_loss_accepted=self._metadata.topic_id in accepted,
            )
        )

    def _has_record(self, topic_id_partition: TopicIdPartition) -> bool:
        known = (topic_id_partition.topic_id, topic_id_partition.partition)
        return any((one.topic_id, one.partition) == known for one in self._state.partitions())


def _are_same(now: tuple[object, ...], before: tuple[object, ...] | None) -> bool:
    """Return whether they are the same: numbers by their value, all else by identity."""
    return before is not None and all(
        one == other if isinstance(one, int) else one is other for one, other in zip(now, before, strict=True)
    )


log = structlog.get_logger(__name__)

_PARTITIONS_IN_ONE_GO = 64
"""About a millisecond between two looks at the loop."""


class LogStartWatch:
    """One question for all partitions that this broker leads in strict mode."""

    def __init__(
        self, *, table: PartitionTable, broker: ListOffsets, state: StateLog, clock: Clock, telemetry: Telemetry
    ) -> None:
        self._table, self._broker, self._state = table, broker, state
        self._clock, self._telemetry = clock, telemetry
        self._first_seen: dict[TopicIdPartition, int] = {}
        self._alarmed: dict[TopicIdPartition, int] = {}
        self._suspected: dict[TopicIdPartition, int] = {}
        self._explained: dict[TopicIdPartition, tuple[object, ...]] = {}
        """Views by which a log start was found explained: of thousands nearly all are so for hours, which need not be found
        anew."""

    async def run(self, interval_s: float) -> None:
        """Look every ``interval_s`` until cancelled."""
        while True:
            try:
                await self.look()
            except RetriableError as error:
                log.debug("log_start.watch.retry", error=str(error))
            await self._clock.sleep(interval_s)

    async def look(self) -> None:
        """Ask once.

        Raises:
            RetriableError: broker or state topic are away.
        """
        led = self._led()
        for known in (self._first_seen, self._alarmed, self._suspected):
            for gone in known.keys() - led.keys():
                del known[gone]
        for gone in self._explained.keys() - led.keys():
            del self._explained[gone]
        if not led:
            return
        answers = await self._broker.list_offsets(led, OffsetSpec.EARLIEST)
        for number, (topic_id_partition, answer) in enumerate(answers.items(), 1):
            if number % _PARTITIONS_IN_ONE_GO == 0:
                await asyncio.sleep(0)
            if answer.error is None:
                self._check(topic_id_partition, answer.offset)

    def _led(self) -> dict[TopicIdPartition, LeaderEpoch]:
        return {
            topic_id_partition: tiered.view.leader_epoch
            for topic_id_partition, tiered in self._table.assignment.items()
            if tiered.role is PartitionRole.LEADER and tiered.policy.mode is RetentionMode.STRICT
        }

    def _check(self, topic_id_partition: TopicIdPartition, log_start_offset: Offset) -> None:
        record = self._table.record(topic_id_partition)
        record.log_start_offset = log_start_offset
        state = self._state.partition_state(topic_id_partition)
        table = self._table
        found_by = (record, log_start_offset, state, table.local.partitions.get(topic_id_partition))
        pins = table.pins.of(topic_id_partition)
        if not pins and not record.batch_epochs and _are_same(found_by, self._explained.get(topic_id_partition)):
            return
        # Until our first trim whatever was there when we came is no news.
        first_seen = self._first_seen.setdefault(topic_id_partition, log_start_offset)
        # Each as far as it holds in this history: what was meant before an unclean election may be above all of it.
        lineage = self._table.lineage_on_disk(topic_id_partition)
        trimmed = lineage.as_of(state.trim_offset, state.trim_epoch) if state.trim_offset >= 0 else first_seen
        meant = max(state.start_in(lineage), trimmed)
        is_unexplained = log_start_offset > meant and self._is_so_still(topic_id_partition, log_start_offset, meant)
        labels = {"topic": topic_id_partition.topic, "partition": str(topic_id_partition.partition)}
        if is_unexplained is not record.log_start_reported:  # the series goes with the record
            record.log_start_reported = is_unexplained
            self._telemetry.gauge(LOG_START_UNEXPLAINED, 1 if is_unexplained else 0, **labels)
        if not is_unexplained:
            self._alarmed.pop(topic_id_partition, None)
        self._explained.pop(topic_id_partition, None)
        if log_start_offset <= meant:
            self._suspected.pop(topic_id_partition, None)
            self._explained[topic_id_partition] = found_by
        if not is_unexplained:
            return
        if self._alarmed.get(topic_id_partition) == log_start_offset:
            return
        self._alarmed[topic_id_partition] = log_start_offset
        copied_offset = record.last_copied
        log.error(
            "log_start.unexplained",
            **labels,
            log_start_offset=log_start_offset,
            trim_offset=meant,
            lost_offsets=max(log_start_offset - max(copied_offset + 1, meant), 0),
            reason="something other than a sidecar deleted local data; nothing remote goes because of it",
        )

    def _is_so_still(self, topic_id_partition: TopicIdPartition, log_start_offset: int, meant: int) -> bool:
        """Return whether what was seen at an earlier look is not explained yet: of a user's delete the gateway has the broker's
        part done first, and the next one may be under way when this one is said."""
        before = self._suspected.get(topic_id_partition)
        if before is not None and before > meant:
            return True
        self._suspected[topic_id_partition] = log_start_offset
        return False
