"""Which partitions of a request are tiered, as the gateway sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredView:
    """A tiered partition that the broker replicates."""

    topic_id_partition: TopicIdPartition
    leader_epoch: LeaderEpoch


class TieredPartitions(Protocol):
    def find(self, topic: str | bytes, partition: int) -> TieredView | None:
        """By the topic's name, or the 16 bytes of its id.  None: it is not tiered, and what the broker says of it stands.

        Raises:
            MetadataNotReadyError: it may be tiered, and nothing is known of it yet.
        """
        ...

    def topic_id(self, topic: str) -> Uuid | None:
        """Of a topic's name, as last seen, whether tiered or not; None where there was none."""
        ...
