"""Metrics of the process as a whole: build, partitions, store, metadata topic, reconcile."""

from __future__ import annotations

from tiersidecar.ports.telemetry import Metric

BUILD_INFO = Metric(
    name="tiersidecar_build_info",
    kind="gauge",
    help="Always 1; the labels say which build runs.",
    labels=("version", "python"),
)
NATIVE_CORE = Metric(
    name="tiersidecar_native_core",
    kind="gauge",
    help="1 where the native core walks over record batches, 0 where Python does; version is of the native core that is "
    "installed, empty for none.",
    labels=("version",),
)
READY = Metric(
    name="tiersidecar_ready",
    kind="gauge",
    help="1 while /readyz answers 200: every role of the process does its work; at the time of the scrape.",
)
HALTED_PARTITIONS = Metric(
    name="tiersidecar_halted_partitions",
    kind="gauge",
    help="Partitions parked with an error.",
    labels=("topic", "partition"),
)
MISPLACED_PARTITIONS = Metric(
    name="tiersidecar_misplaced_partitions",
    kind="gauge",
    help="Partitions led by the broker, and not tiered: their directory is in no log dir of the sidecar's, or is not the one "
    "that the broker writes.",
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
    help="1 while the store takes what is written to it, as the last probe or copy found; 0 while copying waits for it.",
    absent_until_set=True,  # a process that writes nothing does not ask
)
PLACE_WRITABLE = Metric(
    name="tiersidecar_place_writable",
    kind="gauge",
    help="The same of each place besides the default one: 0 while the copies of its topics wait for it.",
    labels=("place",),
    absent_until_set=True,
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
SNAPSHOTS = Metric(
    name="tiersidecar_snapshots_total",
    kind="counter",
    help="Snapshots of partitions put into the store, for `tiersidecar recover`: written or failed.",
    labels=("outcome",),
)
SNAPSHOT_AGE = Metric(
    name="tiersidecar_snapshot_lag_seconds",
    kind="gauge",
    help="Since when a led partition has changed in a way that no snapshot in the store has; of all the longest.",
)
CLUSTER_SNAPSHOTS = Metric(
    name="tiersidecar_cluster_snapshots_total",
    kind="counter",
    help="Snapshots of topics and consumer groups put into the store, for `tiersidecar mount`: written or failed.",
    labels=("outcome",),
)
CLUSTER_SNAPSHOT_AGE = Metric(
    name="tiersidecar_cluster_snapshot_lag_seconds",
    kind="gauge",
    help="Since when the snapshot of topics and groups in the store may be out of date; 0 where another sidecar writes it.",
)
RECONCILE_AGE = Metric(
    name="tiersidecar_reconcile_age_seconds",
    kind="gauge",
    help="Time since the last reconcile run ended that put its report into the store; none where there was no such run.",
    absent_until_set=True,  # 0 would be a run of this moment
)
RECONCILE_RUNS = Metric(
    name="tiersidecar_reconcile_runs_total",
    kind="counter",
    help="Runs of reconcile that this daemon started (reconcile.interval.ms), by how they ended: clean, findings, failed.",
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
    help="1 while this process is its broker's sidecar; 0 while it stands by for another one, or has not renewed its lease.",
    absent_until_set=True,  # a process without the tier role is no broker's sidecar
)
