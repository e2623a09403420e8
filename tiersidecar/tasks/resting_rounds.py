"""Rounds of expiry that need not be: the last one found nothing to do, and nothing that it went by has changed since.

Nearly all of thousands of partitions are like that nearly always.  A round of each, with its lane, takes many times what it
takes to see that it would end as the last one did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tiersidecar.decide.expire import ExpiryPlan, QuietRound
from tiersidecar.decide.topics import TieredPartition
from tiersidecar.decide.trash_time import TrashTime
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.tasks.edges import Edges, Sources

_NOTHING = PartitionState()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rest:
    """``seen`` is all that the round went by, but the time, which is in ``quiet``."""

    quiet: QuietRound
    seen: tuple[object, ...]


class RestingRounds:
    """``has_failed`` says whether the last run of the partition's lane failed: one that ends well is to say so."""

    def __init__(self, *, sources: Sources, edges: Edges, has_failed: Callable[[TopicIdPartition], bool]) -> None:
        self._table, self._metadata = sources.table, sources.metadata
        self._state, self._lineages = sources.state, sources.lineages
        self._trash_clock, self._has_failed = edges.trash_clock, has_failed
        self._rests: dict[TopicIdPartition, _Rest] = {}

    def note(self, partition: TieredPartition, plan: ExpiryPlan, quiet: QuietRound | None) -> None:
        """Note that a round has found nothing to do: before anything is awaited, or what it went by might be another.

        Only where nothing but what is compared decides whether the lane may have a round at all (``LostLogs``), and what the
        lineage is: without a live file it is chosen anew after a time, and the pins' epochs are put around it each time.
        """
        topic_id_partition = partition.view.topic_id_partition
        self._rests.pop(topic_id_partition, None)
        if quiet is None or quiet.plan is not plan or not plan.tally.metadata_count:
            return
        if not self._table.leader_epochs(topic_id_partition) or self._table.pinned_leader_epochs(topic_id_partition):
            return
        if self._state.partition_state(topic_id_partition) == _NOTHING:
            return
        self._rests[topic_id_partition] = _Rest(quiet=quiet, seen=self._seen(partition, self._trash_clock.now()))

    def holds(self, partition: TieredPartition) -> bool:
        """Return whether a round now would do nothing, and leave everything as it is."""
        topic_id_partition = partition.view.topic_id_partition
        rest = self._rests.get(topic_id_partition)
        if rest is None or self._has_failed(topic_id_partition):
            return False
        time = self._trash_clock.now()
        if not rest.quiet.from_ms <= time.now_ms < rest.quiet.until_ms:
            return False
        try:
            return rest.seen == self._seen(partition, time)
        except MetadataNotReadyError:
            return False

    def _seen(self, partition: TieredPartition, time: TrashTime) -> tuple[object, ...]:
        """Return all that the view of a round is made of (``ExpireTask``), and what the round and the trim behind it set right
        on the partition's record.  Nearly all of it is the same object as before, which takes no time to compare."""
        topic_id_partition = partition.view.topic_id_partition
        table, record = self._table, self._table.record(topic_id_partition)
        return (
            partition.policy,
            partition.view.leader_epoch,
            topic_id_partition.topic in table.refused_topics,
            topic_id_partition.topic in table.untrimmable_topics,
            table.local.partitions.get(topic_id_partition),
            table.pins.of(topic_id_partition),
            self._lineages.last(topic_id_partition),
            self._state.halted_reason,
            self._state.partition_state(topic_id_partition),
            tuple(self._state.trash(topic_id_partition)),
            tuple(self._state.recopies(topic_id_partition)),
            self._metadata.mark(topic_id_partition),
            time.doubt,
            time.unseen,
            record.batch_epochs,
            record.remote_log_start,
            record.log_start_offset,
            record.expiry_reported,
            record.behind_trash,
        )
