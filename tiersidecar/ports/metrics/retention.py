"""Metrics of deletions, and of the disks that they relieve."""

from __future__ import annotations

from tiersidecar.ports.telemetry import Metric

DELETE_REQUESTS = Metric(
    name="kafka_remote_delete_requests_total",
    kind="counter",
    help="Deletions of remote segments begun (RemoteDeleteRequestsPerSec).",
    labels=("topic",),
)
DELETE_ERRORS = Metric(
    name="kafka_remote_delete_errors_total",
    kind="counter",
    help="Deletions of remote segments that failed (RemoteDeleteErrorsPerSec).",
    labels=("topic",),
)
DELETE_LAG_BYTES = Metric(
    name="kafka_remote_delete_lag_bytes",
    kind="gauge",
    help="Bytes of remote segments that are due for deletion and not deleted yet (RemoteDeleteLagBytes).",
    labels=("topic", "partition"),
)
DELETE_LAG_SEGMENTS = Metric(
    name="kafka_remote_delete_lag_segments",
    kind="gauge",
    help="Remote segments that are due for deletion and not deleted yet (RemoteDeleteLagSegments).",
    labels=("topic", "partition"),
)
PROPOSALS = Metric(
    name="tiersidecar_proposals_total",
    kind="counter",
    help="Users' deletes that gateways proposed and this sidecar decided: carried_out, or refused (every sidecar refuses "
    "proposals that it cannot read).",
    labels=("outcome",),
)
EXPIRY_STOPPED = Metric(
    name="tiersidecar_expiry_stopped",
    kind="gauge",
    help="1 for a partition of which nothing expires, because clock, retention, metadata or history look wrong, or because "
    "of an operator's hold (undelete).",
    labels=("topic", "partition"),
)
PAUSED = Metric(
    name="tiersidecar_paused",
    kind="gauge",
    help="1 while an operator has paused copies, or deletes and trims, of a topic or of (all) topics.",
    labels=("topic", "kind"),
)
TRASH_BYTES = Metric(
    name="tiersidecar_trash_bytes",
    kind="gauge",
    help="Bytes of remote segments in the trash, that is, given up and not deleted yet.",
    labels=("topic", "partition"),
)
TRASH_SEGMENTS = Metric(
    name="tiersidecar_trash_segments",
    kind="gauge",
    help="Remote segments in the trash, that is, given up and not deleted yet.",
    labels=("topic", "partition"),
)
TRASH_OVERDUE_SECONDS = Metric(
    name="tiersidecar_trash_overdue_seconds",
    kind="gauge",
    help="How long, at most, anything in the trash has been kept beyond its delay by the wall clock: it is not due, "
    "because the sidecar was not running to see the delay pass, or its clock is in doubt. 0 if nothing is.",
)
FUTURE_SEGMENTS = Metric(
    name="tiersidecar_future_segments",
    kind="gauge",
    help="Remote segments with records later than now: they expire by the time of their copy.",
    labels=("topic", "partition"),
)
LOG_START_UNEXPLAINED = Metric(
    name="tiersidecar_log_start_unexplained",
    kind="gauge",
    help="1 while the broker's log start is above everything that the sidecars trimmed: something else deletes local data.",
    labels=("topic", "partition"),
)
TRIMMED_BYTES = Metric(
    name="tiersidecar_trimmed_bytes_total",
    kind="counter",
    help="Bytes of local segments trimmed by DeleteRecords after they were read back.",
    labels=("topic",),
)
TRIM_REFUSALS = Metric(
    name="tiersidecar_trim_refusals_total",
    kind="counter",
    help="Trims that were due but withheld by a check. Reasons: settings (the topic's do not fit, deletes are paused, a "
    "broker has no sidecar, or the metadata is in doubt), groups (one has no offset, or cannot be checked), and corrupt, "
    "missing or unreadable (the remote copy could not be read back).",
    labels=("topic", "reason"),
)
TRIM_HELD_BYTES = Metric(
    name="tiersidecar_trim_held_bytes",
    kind="gauge",
    help="Remote bytes past local retention that stay on the disk because a group has not read them, or is unknown.",
    labels=("topic", "partition"),
)
TRIM_HELD_BY_GROUP = Metric(
    name="tiersidecar_trim_held_by_group_bytes",
    kind="gauge",
    help="These bytes by the group that holds them: the ten that hold most, all others as (others); (unknown) if groups "
    "cannot be listed. Several groups may hold the same bytes.",
    labels=("group",),
)
GROUP_BELOW_TRIM = Metric(
    name="tiersidecar_group_below_trim_offsets",
    kind="gauge",
    help="Offsets that a consumer group has not read and that have left the broker's disk, if the group has committed "
    "nothing for half an hour: if it continues straight from the broker, it skips them. The twenty groups with the "
    "most, all others as (others); none if groups cannot be listed.",
    labels=("group", "topic"),
)
REMOTE_LOG_SIZE = Metric(
    name="kafka_remote_log_size_bytes",
    kind="gauge",
    help="Bytes of finished remote segments (RemoteLogSizeBytes).",
    labels=("topic", "partition"),
)
REMOTE_STORED_BYTES = Metric(
    name="tiersidecar_remote_stored_bytes",
    kind="gauge",
    help="Bytes of remote segments in the store, with indexes and manifests, after compression and encryption, until their "
    "deletion is finished: the REMOTE_SIZE of their custom metadata (custom.metadata.fields.include). A segment that "
    "was copied without that field counts with its size on the broker's disk.",
    labels=("topic", "partition"),
)
REMOTE_SEGMENTS = Metric(
    name="kafka_remote_log_metadata_segments",
    kind="gauge",
    help="Remote segments known (RemoteLogMetadataCount).",
    labels=("topic", "partition"),
)
UNSAFE_TOPICS = Metric(
    name="tiersidecar_unsafe_topics",
    kind="gauge",
    help="1 for a tiered topic whose broker settings do not fit its mode: nothing is trimmed.",
    labels=("topic",),
)
DISK_FREE_BYTES = Metric(
    name="tiersidecar_disk_free_bytes",
    kind="gauge",
    help="Bytes free on the file system of a log dir, for a process without privileges.",
    labels=("log_dir",),
)
DISK_SIZE_BYTES = Metric(
    name="tiersidecar_disk_size_bytes",
    kind="gauge",
    help="Size of the file system of a log dir.",
    labels=("log_dir",),
)
DISK_SECONDS_TO_FULL = Metric(
    name="tiersidecar_disk_seconds_to_full",
    kind="gauge",
    help="Time until that file system is full, at the rate of the last half hour, trims included; +Inf if it does not "
    "fill, NaN while there is no rate yet.",
    labels=("log_dir",),
)
DISK_STATE = Metric(
    name="tiersidecar_disk_state",
    kind="gauge",
    help="1 for the current state: ok, filling (full within disk.full.alarm.ms), below_reserve (disk.reserve).",
    labels=("log_dir", "state"),
)
DROPPED_BYTES = Metric(
    name="tiersidecar_dropped_bytes_total",
    kind="counter",
    help="Bytes of local segments that were dropped to free disk space and are not remote: lost, unless a pin has them "
    "(disk.pressure.policy: drop-oldest).",
    labels=("topic",),
)
