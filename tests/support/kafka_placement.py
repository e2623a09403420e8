"""Where replicas lie and which of them leads, as by kafka-reassign-partitions and kafka-leader-election."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import cast

from kio.schema.alter_partition_reassignments.v0.request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kio.schema.alter_partition_reassignments.v0.response import AlterPartitionReassignmentsResponse
from kio.schema.alter_replica_log_dirs.v2.request import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from kio.schema.alter_replica_log_dirs.v2.response import AlterReplicaLogDirsResponse
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest, TopicPartitions
from kio.schema.elect_leaders.v2.response import ElectLeadersResponse
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.response import MetadataResponsePartition
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta

from tests.support.kafka_admin import KafkaAdmin, KafkaAdminError, wait_until

_PREFERRED, _UNCLEAN = i8(0), i8(1)
_TIMEOUT = i32Timedelta.parse(timedelta(seconds=15))


def reassign(admin: KafkaAdmin, topic: str, replicas: Mapping[int, Sequence[int]]) -> None:
    """Begin to put each partition on these nodes, the preferred leader first."""
    partitions = tuple(
        ReassignablePartition(partition_index=i32(index), replicas=tuple(BrokerId(node) for node in nodes))
        for index, nodes in replicas.items()
    )
    request = AlterPartitionReassignmentsRequest(
        timeout=_TIMEOUT, topics=(ReassignableTopic(name=TopicName(topic), partitions=partitions),)
    )
    with admin.connected() as connection:
        answer = cast(AlterPartitionReassignmentsResponse, connection.call(request))
    rows = [row for response in answer.responses for row in response.partitions]
    _check(f"AlterPartitionReassignments {topic}", [answer.error_code, *(row.error_code for row in rows)])


def elect_preferred_leaders(admin: KafkaAdmin, topic: str, partitions: Sequence[int]) -> None:
    """Make the first replica of each lead, which must be in sync."""
    wanted = TopicPartitions(topic=TopicName(topic), partitions=tuple(i32(index) for index in partitions))
    request = ElectLeadersRequest(election_type=_PREFERRED, topic_partitions=(wanted,), timeout=_TIMEOUT)
    with admin.connected() as connection:
        answer = cast(ElectLeadersResponse, connection.call(request))
    rows = [row for result in answer.replica_election_results for row in result.partition_result]
    codes = [answer.error_code, *(row.error_code for row in rows)]
    _check(f"ElectLeaders {topic}", [code for code in codes if code is not ErrorCode.election_not_needed])


def elect_uncleanly(admin: KafkaAdmin, topic: str, partition: int, node: int) -> None:
    """Have the one replica that is up lead, whatever it lacks, when this returns."""
    wanted = TopicPartitions(topic=TopicName(topic), partitions=(i32(partition),))

    def led() -> bool:
        with admin.connected() as connection:
            connection.call(ElectLeadersRequest(election_type=_UNCLEAN, topic_partitions=(wanted,), timeout=_TIMEOUT))
        return _row(admin, topic, partition).leader_id == node

    wait_until(led, f"{node} leads {topic}-{partition}, uncleanly", 60)


def move_replica(admin: KafkaAdmin, topic: str, partition: int, log_dir: Path) -> None:
    """Begin to move the replica of the broker that ``admin`` asks to another of its log dirs."""
    rows = AlterReplicaLogDirTopic(name=TopicName(topic), partitions=(i32(partition),))
    request = AlterReplicaLogDirsRequest(dirs=(AlterReplicaLogDir(path=str(log_dir), topics=(rows,)),))
    with admin.connected() as connection:
        answer = cast(AlterReplicaLogDirsResponse, connection.call(request))
    codes = [row.error_code for result in answer.results for row in result.partitions]
    _check(f"AlterReplicaLogDirs {topic}-{partition} {log_dir}", codes)


def place(admin: KafkaAdmin, topic: str, partition: int, nodes: Sequence[int]) -> None:
    """Place the partition on these nodes, all in sync, the first one leading, when this returns."""
    reassign(admin, topic, {partition: nodes})
    wait_until(lambda: _isr(admin, topic, partition) == sorted(nodes), f"{topic}-{partition} is on {nodes}", 60)

    def led() -> bool:
        # A replica may have left the set again for a moment: then it cannot lead yet.
        try:
            elect_preferred_leaders(admin, topic, [partition])
        except KafkaAdminError as error:
            if error.error_code is not ErrorCode.preferred_leader_not_available:
                raise
        row = _row(admin, topic, partition)
        return row.leader_id == nodes[0]

    wait_until(led, f"{nodes[0]} leads {topic}-{partition}", 60)


def _isr(admin: KafkaAdmin, topic: str, partition: int) -> list[int]:
    """Return in-sync replicas, once they are all the replicas there are."""
    row = _row(admin, topic, partition)
    return sorted(row.isr_nodes) if sorted(row.isr_nodes) == sorted(row.replica_nodes) else []


def _row(admin: KafkaAdmin, topic: str, partition: int) -> MetadataResponsePartition:
    return next(row for row in admin.describe_topic(topic).partitions if row.partition_index == partition)


def _check(asked: str, codes: Sequence[ErrorCode]) -> None:
    for code in codes:
        if code is not ErrorCode.none:
            raise KafkaAdminError(asked=asked, error_code=code)
