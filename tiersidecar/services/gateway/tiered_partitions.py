"""Which partitions of a request are tiered, as the gateway sees them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredView:
    """A tiered partition that the broker replicates."""

    topic_id_partition: TopicIdPartition
    leader_epoch: LeaderEpoch


class Moment(Protocol):
    """What was known of tiered partitions at a moment."""

    def find(self, topic: str, partition: int) -> TieredView | None:
        """By the topic's name; None where it was not known to be tiered."""
        ...


@dataclass(slots=True, kw_only=True)
class Asker:
    """The client for which a partition is looked for.

    ``told`` are ids that the broker has told it of topics by name.  ``asked_at`` is what was known when its request was sent,
    by which the broker has answered: what is of another topic or leader epoch since then is none that it was asked about.
    """

    told: dict[str, Uuid] = field(default_factory=dict)
    asked_at: Moment | None = None

    def check(self, view: TieredView) -> None:
        """
        Raises:
            MetadataNotReadyError: its request was about another topic, or leader epoch, than ``view`` is of.
        """
        partition = view.topic_id_partition
        if self.asked_at is not None and self.asked_at.find(partition.topic, partition.partition) != view:
            raise MetadataNotReadyError(subject=f"{partition}, which was another when it was asked for")


ANYBODY = Asker()
"""Nobody has told it anything."""


class TieredPartitions(Protocol):
    def find(self, topic: str | bytes, partition: int, asker: Asker = ANYBODY) -> TieredView | None:
        """By the topic's name, or the 16 bytes of its id.  None: it is not tiered, and what the broker says of it stands.

        Raises:
            MetadataNotReadyError: it may be tiered, and nothing is known of it yet; or the name is another topic's by now than
                what is known is of; or what is known has changed since ``asker`` has asked.
        """
        ...

    def now(self) -> Moment:
        """What is known now: it takes no time, however many partitions there are."""
        ...

    def topic_id(self, topic: str) -> Uuid | None:
        """Of a topic's name, as last seen, whether tiered or not; None where there was none."""
        ...
