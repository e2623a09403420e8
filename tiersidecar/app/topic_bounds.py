"""Where a topic begins and ends, and which one it is: made anew under the same name, it has another id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.ports.broker import DescribePartitions, ListOffsets, OffsetSpec


class TopicBroker(DescribePartitions, ListOffsets, Protocol):
    """What is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicBounds:
    """Offsets by partition, the end exclusive; the id in 22 characters."""

    topic_id: str
    begin: dict[int, int]
    end: dict[int, int]


async def read_topic_bounds(broker: TopicBroker, topic: str) -> TopicBounds:
    """Ask the partitions' leaders.

    Raises:
        BrokerUnreachableError: one does not answer.
        BrokerRefusedError: there is no such topic, or we may not see it.
    """
    views = await broker.describe_partitions([topic])
    if not views:
        raise BrokerRefusedError(api="Metadata", subject=f"topic {topic}", error="UNKNOWN_TOPIC_OR_PARTITION")
    asked = {view.topic_id_partition: view.leader_epoch for view in views}
    found: list[dict[int, int]] = []
    for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST):
        answers = await broker.list_offsets(asked, spec)
        for tip, answer in answers.items():
            if answer.error is not None:
                raise BrokerRefusedError(api="ListOffsets", subject=str(tip), error=answer.error)
        found.append({tip.partition: int(answer.offset) for tip, answer in answers.items()})
    return TopicBounds(topic_id=format_uuid(views[0].topic_id_partition.topic_id), begin=found[0], end=found[1])
