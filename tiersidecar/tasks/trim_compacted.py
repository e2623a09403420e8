"""What trims of compacted topics need beside all that other trims do (docs/design/0017-remote-compaction.md).

Both cleaners must have passed what goes, the remote log must have each record of it, and the segments that have them must be
those that readers are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Protocol

import structlog

from tiersidecar.decide.compacted_trim import CleanerSighting, Room, RoomView, decide_room, with_sighting
from tiersidecar.decide.topics import CleanupPolicy, TieredPartition
from tiersidecar.decide.trim import TrimStep, TrimView, decide_trim
from tiersidecar.domain.errors import UncleanedError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.segments import LocalPartition, LocalSegment
from tiersidecar.ports.pins import ReadCleanerOffset
from tiersidecar.tasks.clean_look import CleanLook, CleanLooks
from tiersidecar.tasks.edges import Edges, Sources
from tiersidecar.tasks.partition_table import Uncleaned
from tiersidecar.tasks.pictures import written_from

log = structlog.get_logger(__name__)


class VerifyContained(Protocol):
    async def verify(self, step: TrimStep) -> None:
        """Return once every record of the local segment was found in the remote ones.

        Raises:
            UncleanedError: one was not, or it is a tombstone.
        """


class CompactedTrims:
    """One per process.  ``is_enabled``: local data of compacted topics may be trimmed at all."""

    def __init__(
        self,
        *,
        sources: Sources,
        edges: Edges,
        cleaner: ReadCleanerOffset,
        verifier: VerifyContained,
        is_enabled: bool,
    ) -> None:
        self._table, self._looks, self._clock = sources.table, CleanLooks(sources), edges.clock
        self._cleaner, self.verifier, self._is_enabled = cleaner, verifier, is_enabled
        self._sightings: dict[TopicIdPartition, tuple[tuple[LeaderEpoch, int], tuple[CleanerSighting, ...]]] = {}
        """By leader epoch and ``delete.retention.ms``: what the broker's cleaner passed before that was raised has the horizons
        of then."""
        self._lacking: dict[TopicIdPartition, object] = {}
        """The step that could not be verified last, by all that another result depends on."""
        self._uncleaned: dict[TopicIdPartition, frozenset[LocalSegment]] = {}
        """Local segments above the broker's cleaner in which no cleaner was: each is looked through once."""

    def is_compacted(self, topic: str) -> bool:
        """Return whether the broker's cleaner rewrites segments of the topic."""
        return topic in self._table.compacted_topics

    def reason_not_to(self, topic: str) -> str:
        """Return why nothing local of a compacted topic is trimmed, empty where it may be, and of other topics."""
        settings = self._table.compacted_topics.get(topic)
        if settings is None:
            return ""
        if settings.policy is CleanupPolicy.COMPACT:
            return (
                "cleanup.policy is compact, and with that alone brokers refuse DeleteRecords: its local log stays whole"
            )
        return "" if self._is_enabled else "cleanup.policy has compact, and compaction.trim.enabled is false"

    async def allowed(
        self, partition: TieredPartition, view: TrimView, steps: Sequence[TrimStep]
    ) -> tuple[TrimStep, ...]:
        """Return those of ``steps``, which local retention allows, that the cleaners allow as well, oldest first; why the
        others wait is on the partition's record.

        Raises:
            MetadataNotReadyError: a topic of ours could not be read to its end.
        """
        topic_id_partition = partition.view.topic_id_partition
        local = self._table.local.partitions.get(topic_id_partition)
        if local is None or not steps:
            return ()
        look = await self._looks.look(partition)
        room = await self._room(partition, local, look)
        known = replace(view, lineage=look.lineage, remote_segments=look.chain.segments, stop_offset=room.stop_offset)
        cleaned = decide_trim(known)
        lacking = self._lacking.get(topic_id_partition)
        allowed = tuple(takewhile(lambda one: _fingerprint(one) != lacking, cleaned))
        if len(allowed) == len(cleaned):
            self._lacking.pop(topic_id_partition, None)
            waits = steps[len(allowed) :]
            reason = "; ".join(filter(None, (room.reason, look.chain.stopped)))
            self._note(
                topic_id_partition, Uncleaned(base_offset=waits[0].local.base_offset, reason=reason) if waits else None
            )
        return allowed

    def failed(self, topic_id_partition: TopicIdPartition, step: TrimStep, error: UncleanedError) -> None:
        """Note that the local segment of ``step`` has a record that keeps it.  It is not read again before one of both logs has
        changed there."""
        self._lacking[topic_id_partition] = _fingerprint(step)
        self._note(topic_id_partition, Uncleaned(base_offset=step.local.base_offset, reason=str(error)))

    def refused(self, topic_id_partition: TopicIdPartition, steps: Sequence[TrimStep]) -> None:
        """Note that the broker refuses DeleteRecords by the topic's policy, which has just been changed."""
        reason = "the broker refuses DeleteRecords by the topic's cleanup.policy"
        self._note(topic_id_partition, Uncleaned(base_offset=steps[0].local.base_offset, reason=reason))

    async def is_still_so(self, partition: TieredPartition, steps: Sequence[TrimStep]) -> bool:
        """Return whether what ``steps`` were allowed by holds now: asked right before they go.  A segment that was replaced
        since it was read has to be read again."""
        topic_id_partition = partition.view.topic_id_partition
        local = self._table.local.partitions.get(topic_id_partition)
        if local is None or self.reason_not_to(topic_id_partition.topic):
            return False
        if {one.is_compacted for one in steps} != {self.is_compacted(topic_id_partition.topic)}:
            return False  # cleanup.policy was changed since they were read back
        if not steps[0].is_compacted:
            return True
        look = await self._looks.look(partition)
        room = await self._room(partition, local, look)
        given = {one.remote_log_segment_id for one in look.chain.segments}
        are_given = all(one.remote_log_segment_id in given for step in steps for one in step.remote)
        return are_given and steps[-1].offset <= room.stop_offset

    async def _room(self, partition: TieredPartition, local: LocalPartition, look: CleanLook) -> Room:
        topic_id_partition = partition.view.topic_id_partition
        settings = self._table.compacted_topics[topic_id_partition.topic]
        terms = partition.view.leader_epoch, settings.delete_retention_ms
        seen_s = self._clock.monotonic_s()
        brokers = await self._cleaner.cleaner_offset(local)
        known = self._sightings.get(topic_id_partition)
        sightings = () if known is None or known[0] != terms else known[1]
        if brokers is not None and brokers >= 0 and await self._is_uncleaned_from(partition, local, brokers):
            sightings = with_sighting(sightings, brokers, seen_s)
        self._sightings[topic_id_partition] = (terms, sightings)
        return decide_room(
            RoomView(
                cleaner_offset=look.cleaner_offset,
                oldest_dirty_ms=_oldest_dirty_ms(look),
                brokers=brokers,
                sightings=sightings,
                now_s=seen_s,
                now_ms=self._clock.now_ms(),
                delete_retention_ms=settings.delete_retention_ms,
                min_compaction_lag_ms=settings.compaction.min_compaction_lag_ms,
            )
        )

    async def _is_uncleaned_from(self, partition: TieredPartition, local: LocalPartition, brokers: int) -> bool:
        """Return whether no cleaner was in the local log from ``brokers`` on, where the broker's own is said to be.

        Its checkpoint is written at the end of a round alone: one that was cut short is not in it.  It is lowered where the log
        was truncated, and set back where it was ahead of the log; and what this broker has fetched another's cleaner may have
        passed.
        """
        topic_id_partition = partition.view.topic_id_partition
        start = max(brokers, self._table.record(topic_id_partition).log_start_offset)
        known = self._uncleaned.get(topic_id_partition, frozenset())
        found = set[LocalSegment]()
        for segment in local.segments:
            # No cleaner of this broker is in the active segment, whose front may have been fetched.
            stop = segment.next_base_offset or Offset(written_from(partition, local))
            if stop <= max(start, segment.base_offset):
                continue
            first = Offset(max(start, segment.base_offset))
            if segment not in known and await self._cleaner.first_cleaned(segment, first, stop) is not None:
                return False
            if segment.next_base_offset is not None:
                found.add(segment)
        self._uncleaned[topic_id_partition] = frozenset(found)
        return True

    def _note(self, topic_id_partition: TopicIdPartition, found: Uncleaned | None) -> None:
        record = self._table.record(topic_id_partition)
        before, record.uncleaned = record.uncleaned, found
        if found is not None and (before is None or before.base_offset != found.base_offset):
            log.info(
                "trim.waits_for_cleaner",
                topic=topic_id_partition.topic,
                partition=topic_id_partition.partition,
                base_offset=found.base_offset,
                reason=found.reason,
            )


def _oldest_dirty_ms(look: CleanLook) -> int | None:
    """Return when the first segment was copied that is not clean to its end; None where all are.  Records may have any time."""
    clean_to = look.cleaner_offset or 0
    return min((one.event_timestamp_ms for one in look.chain.segments if one.end_offset >= clean_to), default=None)


def _fingerprint(step: TrimStep) -> object:
    local = step.local
    return (
        (local.base_offset, local.next_base_offset, local.size_bytes, local.modified_ms, step.from_offset),
        tuple(one.remote_log_segment_id for one in step.remote),
    )
