"""Which partitions of a request are tiered, as the gateway sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch

ToldIds = Mapping[str, Uuid]
NOTHING_TOLD: ToldIds = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredView:
    """A tiered partition that the broker replicates."""

    topic_id_partition: TopicIdPartition
    leader_epoch: LeaderEpoch


class TieredPartitions(Protocol):
    def find(self, topic: str | bytes, partition: int, told: ToldIds = NOTHING_TOLD) -> TieredView | None:
        """By the topic's name, or the 16 bytes of its id.  None: it is not tiered, and what the broker says of it stands.

        ``told`` are ids that the broker has told the asking client of topics by name.

        Raises:
            MetadataNotReadyError: it may be tiered, and nothing is known of it yet; or the name is another topic's by now than
                what is known is of.
        """
        ...

    def topic_id(self, topic: str) -> Uuid | None:
        """Of a topic's name, as last seen, whether tiered or not; None where there was none."""
        ...
