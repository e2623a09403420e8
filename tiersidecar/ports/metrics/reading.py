"""Metrics of reads of tiered data, by reader, gateway and trim alike."""

from __future__ import annotations

from tiersidecar.ports.telemetry import Metric

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
READ_POOL_BUSY = Metric(name="tiersidecar_reader_pool_busy", kind="gauge", help="Remote reads running.")
