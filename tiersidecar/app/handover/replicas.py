"""Brokers that have replicas of what is handed over: the files of all of them must be changed, and none may be behind.

A replica that is not changed takes its own log start for the users' once it leads, and deletes what is remote.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from tiersidecar.app.commands.session import Session
from tiersidecar.app.handover.plan import PlannedPartition
from tiersidecar.domain.errors import HandoverError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.segments import LeaderView


def replica_faults(views: Sequence[LeaderView], brokers: Collection[BrokerId]) -> Iterator[str]:
    """Yield what keeps these partitions from a plan; ``brokers`` are those that are up."""
    for view in views:
        behind = sorted(set(view.replicas) - set(view.in_sync_replicas))
        down = sorted(set(view.replicas) - set(brokers))
        found = [
            *([f"replicas {_listed(behind)} are not in sync"] if behind else ()),
            *([f"brokers {_listed(down)} are down"] if down else ()),
        ]
        if found:
            yield (
                f"{view.topic_id_partition}: {', '.join(found)}: let them catch up, or take them out of the partition's "
                "replicas (kafka-reassign-partitions), for their files have to be changed too"
            )


async def replica_obstacles(session: Session, topics: Sequence[str]) -> list[str]:
    """Ask the brokers, and return what is in the way.

    Raises:
        BrokerRefusedError, BrokerUnreachableError: they cannot be asked.
    """
    brokers = (await session.broker.describe_cluster()).brokers
    return [fault for topic in topics for fault in replica_faults(await session.partitions(topic), brokers)]


async def with_replicas(session: Session, planned: Sequence[PlannedPartition]) -> list[PlannedPartition]:
    """Return the planned partitions with the ids of the brokers that have replicas of them, ascending.

    Raises:
        HandoverError: one is down or behind, or a partition is gone.
        BrokerRefusedError, BrokerUnreachableError: they cannot be asked.
    """
    topics = list(dict.fromkeys(one.owner.topic for one in planned))
    if obstacles := await replica_obstacles(session, topics):
        raise HandoverError(subject="the plan", reason="; ".join(obstacles))
    views = [view for topic in topics for view in await session.partitions(topic)]
    replicas = {view.topic_id_partition: tuple(sorted(map(int, view.replicas))) for view in views}
    for one in planned:
        if one.owner not in replicas:
            raise HandoverError(subject=str(one.owner), reason="it is gone, or its topic was created again")
    return [replace(one, replicas=replicas[one.owner]) for one in planned]


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
