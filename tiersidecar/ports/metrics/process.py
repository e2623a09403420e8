"""Metrics of the process as a whole: build, partitions, store, metadata topic, reconcile."""

from __future__ import annotations

from tiersidecar.ports.telemetry import Metric

BUILD_INFO = Metric(
    name="tiersidecar_build_info",
    kind="gauge",
    help="Always 1; the labels have the running version.",
    labels=("version", "python"),
)
NATIVE_CORE = Metric(
    name="tiersidecar_native_core",
    kind="gauge",
    help="1 if the native core walks over record batches, 0 if Python does; version is that of the installed native core, "
    "empty for none.",
    labels=("version",),
)
READY = Metric(
    name="tiersidecar_ready",
    kind="gauge",
    help="1 while /readyz answers 200, that is, every role of the process is working; at the time of the scrape.",
)
HALTED_PARTITIONS = Metric(
    name="tiersidecar_halted_partitions",
    kind="gauge",
    help="Partitions halted with an error.",
    labels=("topic", "partition"),
)
MISPLACED_PARTITIONS = Metric(
    name="tiersidecar_misplaced_partitions",
    kind="gauge",
    help="Partitions that the broker leads and that are not tiered: their directory is in none of the sidecar's log dirs, "
    "or is not the one that the broker writes.",
    labels=("topic", "partition"),
)
LOG_DIR_FAULTS = Metric(
    name="tiersidecar_log_dir_faults",
    kind="gauge",
    help="1 for a log dir or partition directory that cannot be read.",
    labels=("directory",),
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
STORE_WRITABLE = Metric(
    name="tiersidecar_store_writable",
    kind="gauge",
    help="1 while the store accepts writes, by the last probe or copy; 0 while copying waits for it.",
    absent_until_set=True,  # a process that writes nothing does not ask
)
PLACE_WRITABLE = Metric(
    name="tiersidecar_place_writable",
    kind="gauge",
    help="The same for each place besides the default one: 0 while the copies of its topics wait for it.",
    labels=("place",),
    absent_until_set=True,
)
METADATA_EVENTS = Metric(
    name="tiersidecar_metadata_events_total",
    kind="counter",
    help="Metadata events, applied and dropped.",
    labels=("outcome",),
)
METADATA_READY = Metric(
    name="tiersidecar_metadata_ready",
    kind="gauge",
    combined="min",
    help="1 once the metadata of every assigned partition has been replayed.",
)
SNAPSHOTS = Metric(
    name="tiersidecar_snapshots_total",
    kind="counter",
    help="Snapshots of partitions, written to the store for `tiersidecar recover`, or failed.",
    labels=("outcome",),
)
SNAPSHOT_AGE = Metric(
    name="tiersidecar_snapshot_lag_seconds",
    kind="gauge",
    help="Age of the oldest change of a led partition that is in no snapshot in the store.",
)
CLUSTER_SNAPSHOTS = Metric(
    name="tiersidecar_cluster_snapshots_total",
    kind="counter",
    help="Snapshots of topics and consumer groups, written to the store for `tiersidecar mount`, or failed.",
    labels=("outcome",),
)
CLUSTER_SNAPSHOT_AGE = Metric(
    name="tiersidecar_cluster_snapshot_lag_seconds",
    kind="gauge",
    help="How long the snapshot of topics and groups in the store may have been out of date; 0 if another sidecar writes "
    "it.",
)
RECONCILE_AGE = Metric(
    name="tiersidecar_reconcile_age_seconds",
    kind="gauge",
    help="Time since the end of the last reconcile run that put its report into the store; absent if there was none.",
    absent_until_set=True,  # 0 would be a run of this moment
)
RECONCILE_RUNS = Metric(
    name="tiersidecar_reconcile_runs_total",
    kind="counter",
    help="Runs of reconcile that this daemon started (reconcile.interval.ms), by result: clean, findings, failed.",
    labels=("outcome",),
)
RECONCILE_FINDINGS = Metric(
    name="tiersidecar_reconcile_findings",
    kind="gauge",
    help="Findings of that run, by kind.",
    labels=("kind",),
)
TIER_LEASE_HELD = Metric(
    name="tiersidecar_tier_lease_held",
    kind="gauge",
    help="1 while this process has the tier role of its broker; 0 while it stands by for another one, or has not renewed "
    "its lease.",
    absent_until_set=True,  # a process without the tier role is no broker's sidecar
)
