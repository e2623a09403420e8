"""Metrics of copying: copy lag, backfill, pins."""

from __future__ import annotations

from tiersidecar.ports.telemetry import Metric

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
COPY_THROTTLE_SECONDS = Metric(
    name="kafka_remote_copy_throttle_seconds_total",
    kind="counter",
    help="Time that copies waited for the copy quota, including that of backfill (remote-copy-throttle-time).",
)
GAP_OFFSETS = Metric(
    name="tiersidecar_gap_offsets_total",
    kind="counter",
    help="Offsets above the remote log start that are in neither tier, as the leader finds them: lost, unless another "
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
    help="Partitions in backfill: they have more sealed segments to copy than copy.backfill.segments.",
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
    help="Indexes and producer snapshots of copied segments that were missing or damaged, and were rebuilt from the "
    "batches.",
    labels=("topic", "artefact"),
)
COMPLETED_TRANSACTIONS = Metric(
    name="tiersidecar_completed_transactions_total",
    kind="counter",
    help="Aborted transactions of copied segments that were in the batches, but not in the broker's transaction index.",
    labels=("topic",),
)
OPEN_TRANSACTION_SECONDS = Metric(
    name="tiersidecar_open_transaction_seconds",
    kind="gauge",
    help="How long copying, or readers of committed records at the border of the tiers, have waited for the end of the "
    "oldest open transaction; 0 if none delays them.",
    labels=("topic", "partition"),
)
PINS_BYTES = Metric(
    name="tiersidecar_pins_bytes",
    kind="gauge",
    help="Bytes of .log that only pins keep on the disk: the broker has deleted its own files, or its cleaner has replaced "
    "them.",
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
    help="Bytes that pins may still use before pins.max.bytes or disk.reserve removes the oldest.",
    labels=("log_dir",),
)
PINS_DROPPED = Metric(
    name="tiersidecar_pins_dropped_total",
    kind="counter",
    help="Pins dropped. The reasons pins_max_bytes and disk_reserve mean lost data, partition_gone that it may be lost.",
    labels=("reason",),
)
PINS_UNAVAILABLE = Metric(
    name="tiersidecar_pins_unavailable",
    kind="gauge",
    help="1 for a log dir in which no hard links can be made, so that nothing is pinned.",
    labels=("log_dir",),
)
