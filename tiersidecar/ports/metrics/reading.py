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
HEDGED_FETCHES = Metric(
    name="tiersidecar_read_hedged_fetches_total",
    kind="counter",
    help="Fetches that were late (read.hedged.fetches.percent). Outcomes: first and second, by which of the two requests "
    "answered first; too_many, where no second one was sent because enough had been.",
    labels=("outcome",),
)
READ_AHEAD_BYTES = Metric(
    name="tiersidecar_read_ahead_bytes",
    kind="gauge",
    help="Bytes that readers may have fetched ahead now, of read.ahead.memory.bytes.",
)
READ_AHEAD_WINDOWS = Metric(
    name="tiersidecar_read_ahead_windows_total",
    kind="counter",
    help="Rounds of readers, each of one window, by what bounded the window: reader (takes no more), store (delivers no more), "
    "memory (read.ahead.memory.bytes), maximum (read.ahead.reader.max.bytes), proof (has not read enough yet), unknown (the "
    "store's latency is not measured yet).",
    labels=("bound",),
)
READS_SHED = Metric(
    name="tiersidecar_reads_shed_total",
    kind="counter",
    help="Reads turned away. Reasons: pool, fetch_quota, reader_quota (remote.fetch.quota), store_requests, and requests: more "
    "HTTP requests at once than may be.",
    labels=("reason",),
)
COLD_READ_BYTES = Metric(
    name="tiersidecar_cold_read_bytes_total",
    kind="counter",
    help="Bytes of remote batches that clients were given, by who asked. A hundred have series of their own, twenty of one "
    "principal; the rest is (others).",
    labels=("principal", "client_id", "topic"),
)
COLD_READ_REQUESTS = Metric(
    name="tiersidecar_cold_read_requests_total",
    kind="counter",
    help="Requests for what is remote, of one partition each, by who asked; as tiersidecar_cold_read_bytes_total.",
    labels=("principal", "client_id", "topic"),
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
READ_HOLES = Metric(
    name="tiersidecar_read_holes_total",
    kind="counter",
    help="Reads that came to offsets which no segment holds though others before and behind are held; read.hole says which.",
    labels=("topic",),
)
READER_TASK_QUEUE_SIZE = Metric(
    name="kafka_remote_log_reader_task_queue_size",
    kind="gauge",
    help="Remote reads that wait for a place (RemoteLogReaderTaskQueueSize).",
)
READER_IDLE_RATIO = Metric(
    name="kafka_remote_log_reader_idle_ratio",
    kind="gauge",
    help="Share of the reader pool's places that are free now (RemoteLogReaderAvgIdlePercent is its average over time).",
)
READER_FETCH_SECONDS = Metric(
    name="kafka_remote_log_reader_fetch_seconds",
    kind="histogram",
    help="Time in a place of the reader pool, by read or step of a stream (RemoteLogReaderFetchRateAndTimeMs).",
)
FETCH_THROTTLE_SECONDS = Metric(
    name="kafka_remote_fetch_throttle_seconds_total",
    kind="counter",
    help="Time that reads were sent away for, or streams slowed by, over the fetch quota (remote-fetch-throttle-time).",
)
READ_POOL_BUSY = Metric(name="tiersidecar_reader_pool_busy", kind="gauge", help="Remote reads running.")
