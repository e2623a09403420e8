"""Measurements: a catalogue of metrics as data, and the port that takes their values.

Names are Kafka's in Prometheus form where Kafka has them (BrokerTopicMetrics, RemoteLogManager).  The metrics reference in
docs/ is generated from :data:`CATALOGUE`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric family.  A label ``partition`` makes it a per-partition series, exported only on request."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


BUILD_INFO = Metric(
    name="tiersidecar_build_info",
    kind="gauge",
    help="Always 1; the labels say which build runs.",
    labels=("version", "python"),
)
COPY_REQUESTS = Metric(
    name="kafka_remote_copy_requests_total",
    kind="counter",
    help="Segment copies started (RemoteCopyRequestsPerSec).",
    labels=("topic",),
)
COPY_ERRORS = Metric(
    name="kafka_remote_copy_errors_total",
    kind="counter",
    help="Segment copies that failed (RemoteCopyErrorsPerSec).",
    labels=("topic",),
)
COPY_BYTES = Metric(
    name="kafka_remote_copy_bytes_total",
    kind="counter",
    help="Bytes of .log copied and finished (RemoteCopyBytesPerSec).",
    labels=("topic",),
)
GAP_OFFSETS = Metric(
    name="tiersidecar_gap_offsets_total",
    kind="counter",
    help="Offsets above the remote log start that neither tier holds any more, as the leader finds them: lost, unless another "
    "replica's pins have them.",
    labels=("topic",),
)
COPY_LAG_BYTES = Metric(
    name="kafka_remote_copy_lag_bytes",
    kind="gauge",
    help="Bytes of sealed segments that are not remote yet (RemoteCopyLagBytes).",
    labels=("topic", "partition"),
)
COPY_LAG_SEGMENTS = Metric(
    name="kafka_remote_copy_lag_segments",
    kind="gauge",
    help="Sealed segments that are not remote yet (RemoteCopyLagSegments).",
    labels=("topic", "partition"),
)
COPY_LAG_SECONDS = Metric(
    name="tiersidecar_copy_lag_seconds",
    kind="gauge",
    help="Age of the oldest sealed segment that is not remote yet; 0 when there is none.",
    labels=("topic", "partition"),
)
COPY_OLDEST_AGE = Metric(
    name="tiersidecar_copy_in_flight_oldest_age_seconds",
    kind="gauge",
    help="Age of the oldest segment copy in flight; 0 when there is none.",
)
BACKFILL_PARTITIONS = Metric(
    name="tiersidecar_copy_backfill_partitions",
    kind="gauge",
    help="Partitions that catch up with a backlog of more sealed segments than copy.backfill.segments.",
)
BACKFILL_BYTES = Metric(
    name="tiersidecar_copy_backfill_remaining_bytes",
    kind="gauge",
    help="Bytes that partitions in backfill have yet to copy.",
)
BACKFILL_ETA = Metric(
    name="tiersidecar_copy_backfill_eta_seconds",
    kind="gauge",
    help="Time until the backfill is done, at the rate of the last ten minutes; NaN while there is no rate yet.",
)
REBUILT_ARTEFACTS = Metric(
    name="tiersidecar_rebuilt_artefacts_total",
    kind="counter",
    help="Indexes and producer snapshots of copied segments that were missing or damaged and made from the batches.",
    labels=("topic", "artefact"),
)
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
    help="Bytes of remote segments that are to go and have not gone (RemoteDeleteLagBytes).",
    labels=("topic", "partition"),
)
DELETE_LAG_SEGMENTS = Metric(
    name="kafka_remote_delete_lag_segments",
    kind="gauge",
    help="Remote segments that are to go and have not gone (RemoteDeleteLagSegments).",
    labels=("topic", "partition"),
)
EXPIRY_STOPPED = Metric(
    name="tiersidecar_expiry_stopped",
    kind="gauge",
    help="1 for a partition of which nothing expires, because clock, retention, metadata or history look wrong.",
    labels=("topic", "partition"),
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
    help="1 while the broker's log start is above all that the sidecars trimmed: something else deletes local data.",
    labels=("topic", "partition"),
)
TRIMMED_BYTES = Metric(
    name="tiersidecar_trimmed_bytes_total",
    kind="counter",
    help="Bytes of local segments given up to DeleteRecords after they were read back.",
    labels=("topic",),
)
TRIM_REFUSALS = Metric(
    name="tiersidecar_trim_refusals_total",
    kind="counter",
    help="Trims that were due but withheld by a check.",
    labels=("topic", "reason"),
)
TRIM_HELD_BYTES = Metric(
    name="tiersidecar_trim_held_bytes",
    kind="gauge",
    help="Bytes past local retention, and remote, that stay because a group has not read them, or it is not known.",
    labels=("topic", "partition"),
)
TRIM_HELD_BY_GROUP = Metric(
    name="tiersidecar_trim_held_by_group_bytes",
    kind="gauge",
    help="Such bytes by the group that holds them: the ten that hold most, all others as (others); (unknown) where groups "
    "cannot be listed. Several groups may hold the same bytes.",
    labels=("group",),
)
REMOTE_LOG_SIZE = Metric(
    name="kafka_remote_log_size_bytes",
    kind="gauge",
    help="Bytes of finished remote segments (RemoteLogSizeBytes).",
    labels=("topic", "partition"),
)
REMOTE_SEGMENTS = Metric(
    name="kafka_remote_log_metadata_count",
    kind="gauge",
    help="Remote segments known (RemoteLogMetadataCount).",
    labels=("topic", "partition"),
)
HALTED_PARTITIONS = Metric(
    name="tiersidecar_halted_partitions",
    kind="gauge",
    help="Partitions parked with an error.",
    labels=("topic", "partition"),
)
UNSAFE_TOPICS = Metric(
    name="tiersidecar_unsafe_topics",
    kind="gauge",
    help="1 for a tiered topic whose broker settings do not fit its mode: nothing is trimmed.",
    labels=("topic",),
)
LOG_DIR_FAULTS = Metric(
    name="tiersidecar_log_dir_faults",
    kind="gauge",
    help="1 for a log dir or partition directory that cannot be read.",
    labels=("directory",),
)
FETCH_REQUESTS = Metric(
    name="kafka_remote_fetch_requests_total",
    kind="counter",
    help="Remote reads started (RemoteFetchRequestsPerSec).",
    labels=("topic",),
)
FETCH_ERRORS = Metric(
    name="kafka_remote_fetch_errors_total",
    kind="counter",
    help="Remote reads that failed (RemoteFetchErrorsPerSec).",
    labels=("topic",),
)
FETCH_BYTES = Metric(
    name="kafka_remote_fetch_bytes_total",
    kind="counter",
    help="Bytes returned from remote segments (RemoteFetchBytesPerSec).",
    labels=("topic",),
)
READ_REQUESTED_BYTES = Metric(
    name="tiersidecar_read_requested_bytes_total", kind="counter", help="Bytes that readers asked for at most."
)
READ_STORE_BYTES = Metric(
    name="tiersidecar_read_store_bytes_total",
    kind="counter",
    help="Bytes of chunks and indexes fetched from the store.",
)
READ_STORE_REQUESTS = Metric(
    name="tiersidecar_read_store_requests_total",
    kind="counter",
    help="Requests that reads have made of the store.",
    labels=("kind",),
)
READS_SHED = Metric(
    name="tiersidecar_reads_shed_total",
    kind="counter",
    help="Reads turned away. Reasons: pool, fetch_quota, store_requests.",
    labels=("reason",),
)
READ_CACHE_BYTES = Metric(
    name="tiersidecar_read_cache_bytes_total",
    kind="counter",
    help="Bytes of chunks served from a cache.",
    labels=("tier",),
)
READ_RETURNED_BYTES = Metric(
    name="tiersidecar_read_returned_bytes_total",
    kind="counter",
    help="Bytes of batches, records and segment files that clients of the read service took, from both tiers.",
)
STORE_OPERATIONS = Metric(
    name="tiersidecar_store_operations_total",
    kind="counter",
    help="Requests to the object store.",
    labels=("verb", "outcome"),
)
STORE_BYTES = Metric(
    name="tiersidecar_store_bytes_total", kind="counter", help="Bytes to and from the object store.", labels=("verb",)
)
METADATA_EVENTS = Metric(
    name="tiersidecar_metadata_events_total",
    kind="counter",
    help="Metadata events applied, and those dropped.",
    labels=("outcome",),
)
METADATA_READY = Metric(
    name="tiersidecar_metadata_ready",
    kind="gauge",
    help="1 once the metadata of every assigned partition has been replayed.",
)
PINS_BYTES = Metric(
    name="tiersidecar_pins_bytes",
    kind="gauge",
    help="Bytes of .log that only pins keep on the disk: the broker has deleted its own files.",
    labels=("log_dir",),
)
PINS_SEGMENTS = Metric(
    name="tiersidecar_pins_segments",
    kind="gauge",
    help="Pinned segments, whether the broker still has its own files or not.",
    labels=("log_dir",),
)
PINS_ROOM_BYTES = Metric(
    name="tiersidecar_pins_room_bytes",
    kind="gauge",
    help="Bytes that pins may still come to keep before pins.max.bytes or disk.reserve makes the oldest go.",
    labels=("log_dir",),
)
PINS_DROPPED = Metric(
    name="tiersidecar_pins_dropped_total",
    kind="counter",
    help="Pins dropped. The reasons pins_max_bytes and disk_reserve mean lost data.",
    labels=("reason",),
)
PINS_UNAVAILABLE = Metric(
    name="tiersidecar_pins_unavailable",
    kind="gauge",
    help="1 for a log dir in which no hard links can be made, so that nothing is pinned.",
    labels=("log_dir",),
)
DISK_FREE_BYTES = Metric(
    name="tiersidecar_disk_free_bytes",
    kind="gauge",
    help="Bytes free on the file system of a log dir, to a process without privileges.",
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
    help="Time until that file system is full, at the rate of the last half hour, trims included; +Inf when it does not fill, "
    "NaN while there is no rate yet.",
    labels=("log_dir",),
)
DISK_STATE = Metric(
    name="tiersidecar_disk_state",
    kind="gauge",
    help="1 for the state that it is in: ok, filling (full within disk.full.alarm.ms), below_reserve (disk.reserve).",
    labels=("log_dir", "state"),
)
DROPPED_BYTES = Metric(
    name="tiersidecar_dropped_bytes_total",
    kind="counter",
    help="Bytes of local segments that were given up for room on the disk and are not remote: lost, unless a pin saves them "
    "(disk.pressure.policy: drop-oldest).",
    labels=("topic",),
)
READ_POOL_BUSY = Metric(name="tiersidecar_reader_pool_busy", kind="gauge", help="Remote reads running.")
GATEWAY_CONNECTIONS = Metric(
    name="tiersidecar_gateway_connections",
    kind="gauge",
    help="Client connections that are open.",
    labels=("listener",),
)
GATEWAY_CONNECTIONS_REFUSED = Metric(
    name="tiersidecar_gateway_connections_refused_total",
    kind="counter",
    help="Client connections that were not taken: too many, a failed TLS handshake, or no broker behind.",
    labels=("listener", "reason"),
)
GATEWAY_CONNECTIONS_CLOSED = Metric(
    name="tiersidecar_gateway_connections_closed_total",
    kind="counter",
    help="Client connections that have ended. The reason malformed is a client that does not speak Kafka's protocol.",
    labels=("listener", "reason"),
)
GATEWAY_REQUESTS = Metric(
    name="tiersidecar_gateway_requests_total",
    kind="counter",
    help="Requests that clients sent and that are answered (a Produce with acks=0 is not).",
    labels=("listener",),
)
GATEWAY_REWRITTEN = Metric(
    name="tiersidecar_gateway_responses_rewritten_total",
    kind="counter",
    help="Responses that went to clients with changes.",
    labels=("listener",),
)
GATEWAY_BYTES = Metric(
    name="tiersidecar_gateway_bytes_total",
    kind="counter",
    help="Bytes from clients (in) and to clients (out).",
    labels=("listener", "direction"),
)
GATEWAY_OUT_OF_RANGE = Metric(
    name="tiersidecar_gateway_out_of_range_total",
    kind="counter",
    help="Partitions that the broker answered OFFSET_OUT_OF_RANGE, by what became of it: fill, retry or stands.",
    labels=("outcome",),
)
GATEWAY_FILLS = Metric(
    name="tiersidecar_gateway_fills_total",
    kind="counter",
    help="Partitions of Fetch responses that were to be filled from the remote tier, by how that went.",
    labels=("outcome",),
)
GATEWAY_FILLED_BYTES = Metric(
    name="tiersidecar_gateway_filled_bytes_total",
    kind="counter",
    help="Bytes of record batches that Fetch responses got from the remote tier.",
)

LEADER_GAUGES = (
    COPY_LAG_BYTES,
    COPY_LAG_SECONDS,
    COPY_LAG_SEGMENTS,
    DELETE_LAG_BYTES,
    DELETE_LAG_SEGMENTS,
    EXPIRY_STOPPED,
    FUTURE_SEGMENTS,
    LOG_START_UNEXPLAINED,
    REMOTE_LOG_SIZE,
    REMOTE_SEGMENTS,
    TRIM_HELD_BYTES,
)
"""What only a partition's leader says of it: forgotten when it leads no more (T-30)."""

RECONCILE_AGE = Metric(
    name="tiersidecar_reconcile_age_seconds",
    kind="gauge",
    help="Time since the last reconcile run ended that put its report into the store; none where there was no such run.",
)
RECONCILE_FINDINGS = Metric(
    name="tiersidecar_reconcile_findings",
    kind="gauge",
    help="Findings of that run, by kind.",
    labels=("kind",),
)
CATALOGUE: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


class Telemetry(Protocol):
    def count(self, metric: Metric, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge."""

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Add an observation to a histogram."""

    def forget(self, metric: Metric, **labels: str) -> None:
        """Drop one labelled series: the partition or topic is no longer ours (U18)."""


class NoTelemetry:
    """Takes everything and keeps nothing."""

    def count(self, metric: Metric, amount: float = 1, **labels: str) -> None:
        return None

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        return None

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        return None

    def forget(self, metric: Metric, **labels: str) -> None:
        return None
