"""The trash: remote deletes that are decided and not done yet.  It stands in the state topic, an entry a record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.trash import TrashEntry


class TrashLog(Protocol):
    def trash(self, topic_id_partition: TopicIdPartition) -> Sequence[TrashEntry]:
        """What is in the trash of a partition, ascending by id; the topic's name has no part in it.

        Raises:
            MetadataNotReadyError: the topic has not been replayed to its end yet.
        """

    def trash_partitions(self) -> Sequence[TopicIdPartition]:
        """Every partition with an entry, of topics that exist and of those that are gone; raises likewise."""

    async def put_into_trash(self, topic_id_partition: TopicIdPartition, entries: Iterable[TrashEntry]) -> None:
        """Merge each with what is known of its id (:meth:`TrashEntry.merged_with`), write it, return after read-back.

        Raises:
            PublishTimeoutError: not read back in time.
        """

    async def take_out_of_trash(self, topic_id_partition: TopicIdPartition, entries: Iterable[TrashEntry]) -> None:
        """Remove each (a tombstone), unless more was decided in it since; return after read-back.  One that is gone is no
        error."""
