"""The status as JSON: names as Kafka has them, unknown offsets as null."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tiersidecar.domain.ids import format_uuid
from tiersidecar.services.status.source import PartitionStatus, StatusSummary


def summary_document(summary: StatusSummary) -> dict[str, Any]:
    """The process."""
    return {
        "version": summary.version,
        "cluster_id": summary.cluster_id,
        "node_id": summary.node_id,
        "roles": list(summary.roles),
        "mode": summary.mode,
        "deletes_enabled": summary.deletes_enabled,
        "store": summary.store,
        "started_ms": summary.started_ms,
        "refused_topics": dict(summary.refused_topics),
        "untrimmable_topics": dict(summary.untrimmable_topics),
        "log_dir_faults": dict(summary.log_dir_faults),
        "disk_troubles": dict(summary.disk_troubles),
        "standing_by": summary.standing_by,
    }


def partition_document(status: PartitionStatus) -> dict[str, Any]:
    """One partition; offsets are inclusive starts, ``copied_offset`` an inclusive end."""
    return {
        "topic": status.topic_id_partition.topic,
        "topic_id": format_uuid(status.topic_id_partition.topic_id),
        "partition": status.topic_id_partition.partition,
        "role": status.role,
        "mode": status.mode,
        "leader_epoch": _known(status.leader_epoch),
        "copied_offset": _known(status.copied_offset),
        "local_log_start_offset": _known(status.local_log_start_offset),
        "remote_log_start_offset": _known(status.remote_log_start_offset),
        "copy_lag_bytes": status.copy_lag_bytes,
        "copy_lag_segments": status.copy_lag_segments,
        "remote_segments": status.remote_segments,
        "remote_size_bytes": status.remote_size_bytes,
        "halted_reason": status.halted_reason,
        "held_back_reason": status.held_back_reason,
    }


def in_order(partitions: Iterable[PartitionStatus]) -> list[PartitionStatus]:
    """By topic and partition."""
    return sorted(partitions, key=lambda status: (status.topic_id_partition.topic, status.topic_id_partition.partition))


def _known(number: int) -> int | None:
    return None if number < 0 else number
