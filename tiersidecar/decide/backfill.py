"""Partitions that catch up with a backlog, and their order: at first enablement, or after a long outage.

A backlog of terabytes must not hold up the segment that was sealed a moment ago, nor take all the bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tiersidecar.decide.copy import CopyLag
from tiersidecar.domain.ids import TopicIdPartition


class BackfillOrder(StrEnum):
    """Order of topics, by the last write to their oldest segment that is not remote."""

    OLDEST = "oldest"
    NEWEST = "newest"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPlan:
    """``ranks`` has the partitions that catch up: lower ones go first, those of one topic share a rank.

    ``remaining_bytes`` is all that they have to copy.
    """

    ranks: Mapping[TopicIdPartition, int]
    remaining_bytes: int


def decide_backfill(lags: Mapping[TopicIdPartition, CopyLag], threshold: int, order: BackfillOrder) -> BackfillPlan:
    """Plan for the partitions with more than ``threshold`` segments that are not remote (steady state: about two, S-047)."""
    behind = {topic_id_partition: lag for topic_id_partition, lag in lags.items() if lag.segments > threshold}
    oldest_ms: dict[str, int] = {}
    for topic_id_partition, lag in behind.items():
        assert lag.oldest_ms is not None, "segments that wait have been written"
        oldest_ms[topic_id_partition.topic] = min(lag.oldest_ms, oldest_ms.get(topic_id_partition.topic, lag.oldest_ms))
    sign = 1 if order is BackfillOrder.OLDEST else -1
    topics = sorted(oldest_ms, key=lambda topic: (sign * oldest_ms[topic], topic))
    rank_of = {topic: rank for rank, topic in enumerate(topics)}
    return BackfillPlan(
        ranks={topic_id_partition: rank_of[topic_id_partition.topic] for topic_id_partition in behind},
        remaining_bytes=sum(lag.size_bytes for lag in behind.values()),
    )
