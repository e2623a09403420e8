"""The status as JSON: names as Kafka has them, unknown offsets as null."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from tiersidecar.decide.explain import Explanation
from tiersidecar.decide.segment_rows import SegmentRow
from tiersidecar.domain.ids import format_uuid
from tiersidecar.services.status.source import PartitionStatus, SidecarStatus, StatusSummary


def summary_document(summary: StatusSummary) -> dict[str, Any]:
    """Return the document of the process."""
    return {
        "version": summary.version,
        "core": summary.core,
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
        "losses": list(summary.losses),
        "halted_mounts": list(summary.halted_mounts),
        "misplaced": dict(summary.misplaced),
        "deletes_blocked": summary.deletes_blocked,
        "paused": list(summary.paused),
        "disks": [asdict(disk) for disk in summary.disks],
        "standing_by": summary.standing_by,
        "cold_readers": [asdict(reader) for reader in summary.cold_readers],
    }


def partition_document(status: PartitionStatus) -> dict[str, Any]:
    """Return one partition's; offsets are inclusive starts, ``copied_offset`` an inclusive end."""
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
        "local_segments": status.local_segments,
        "local_size_bytes": status.local_size_bytes,
        "remote_segments": status.remote_segments,
        "remote_size_bytes": status.remote_size_bytes,
        "halted_reason": status.halted_reason,
        "held_back_reason": status.held_back_reason,
    }


def sidecars_document(sidecars: Sequence[SidecarStatus], cluster_id: str | None) -> dict[str, Any]:
    """Return the addresses of the cluster's sidecars."""
    return {"cluster_id": cluster_id, "sidecars": [asdict(sidecar) for sidecar in sidecars]}


def row_document(row: SegmentRow) -> dict[str, Any]:
    """Return a segment's; both offsets are inclusive, the active segment's end is null.  Sizes are those of the .log file."""
    remote, local = row.remote, row.local
    return {
        "state": row.state.value,
        "start_offset": row.start_offset,
        "end_offset": row.end_offset,
        "size_bytes": remote.segment_size_in_bytes if remote is not None else local.size_bytes if local else None,
        "local_size_bytes": None if local is None else local.size_bytes,
        "max_timestamp_ms": _time(
            remote.max_timestamp_ms if remote is not None else local.max_timestamp_ms if local else -1
        ),
        "modified_ms": None if local is None else local.modified_ms,
        "remote_event_ms": None if remote is None else remote.event_timestamp_ms,
        "remote_state": None if remote is None else remote.state.name,
        "segment_id": None if remote is None else format_uuid(remote.remote_log_segment_id.uuid),
        "broker_id": None if remote is None else remote.broker_id,
        "leader_epochs": None if remote is None else [one.epoch for one in remote.segment_leader_epochs],
        "pinned": local is not None and local.pinned,
    }


def explanation_document(explanation: Explanation) -> dict[str, Any]:
    """Return accounts of segments, each with the rules' results."""
    return {
        "accounts": [
            {
                "segment": row_document(account.row),
                "segments": account.count,
                "findings": [asdict(finding) for finding in account.findings],
            }
            for account in explanation.accounts
        ],
        "missing": explanation.missing or None,
    }


def in_order(partitions: Iterable[PartitionStatus]) -> list[PartitionStatus]:
    """Return them by topic and partition."""
    return sorted(partitions, key=lambda status: (status.topic_id_partition.topic, status.topic_id_partition.partition))


def _time(time_ms: int) -> int | None:
    return None if time_ms < 0 else time_ms


def _known(number: int) -> int | None:
    return None if number < 0 else number
