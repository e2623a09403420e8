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
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.segments import LocalPartition
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
        if await self._tells_what_is_there(partition, local, brokers, sightings):
            assert brokers is not None
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

    async def _tells_what_is_there(
        self,
        partition: TieredPartition,
        local: LocalPartition,
        brokers: int | None,
        known: Sequence[CleanerSighting],
    ) -> bool:
        """Return whether no tombstone can have gone from the local log above where the broker's cleaner is said to be.

        Its checkpoint is lowered where the log was truncated, and set back where it was ahead of the log; it has no line of a
        replica that was just built or moved.  So of what another leader has written every offset must be there.
        """
        if brokers is None or brokers < 0:
            return False
        begins_at = written_from(partition, local)
        if brokers >= begins_at or any(one.offset == brokers for one in known):
            return True
        start = max(brokers, self._table.record(partition.view.topic_id_partition).log_start_offset)
        return await self._cleaner.first_missing(local, start, begins_at) is None

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
