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
    name="tiersidecar_read_requested_bytes_total", kind="counter", help="Maximum bytes that readers requested."
)
READ_STORE_BYTES = Metric(
    name="tiersidecar_read_store_bytes_total",
    kind="counter",
    help="Bytes of chunks and indexes fetched from the store.",
)
READ_STORE_REQUESTS = Metric(
    name="tiersidecar_read_store_requests_total",
    kind="counter",
    help="Requests to the store for reads.",
    labels=("kind",),
)
HEDGED_FETCHES = Metric(
    name="tiersidecar_read_hedged_fetches_total",
    kind="counter",
    help="Slow fetches (read.hedged.fetches.percent). Outcomes: first and second, by which of the two requests answered "
    "first; too_many, if no second one was sent because of the limit.",
    labels=("outcome",),
)
READ_AHEAD_BYTES = Metric(
    name="tiersidecar_read_ahead_bytes",
    kind="gauge",
    combined="sum",
    help="Read-ahead that readers may use now, out of read.ahead.memory.bytes.",
)
READ_AHEAD_WINDOWS = Metric(
    name="tiersidecar_read_ahead_windows_total",
    kind="counter",
    help="Rounds of readers, one read-ahead window each, by what limited the window: reader (reads no faster), store "
    "(delivers no faster), memory (read.ahead.memory.bytes), maximum (read.ahead.reader.max.bytes), proof (has not "
    "read enough yet), unknown (the store's latency is not measured yet).",
    labels=("bound",),
)
READS_SHED = Metric(
    name="tiersidecar_reads_shed_total",
    kind="counter",
    help="Rejected reads. Reasons: pool, fetch_quota, reader_quota (remote.fetch.quota), store_requests, and requests (too "
    "many HTTP requests at once).",
    labels=("reason",),
)
COLD_READ_BYTES = Metric(
    name="tiersidecar_cold_read_bytes_total",
    kind="counter",
    help="Bytes of remote batches returned to clients, by reader. A hundred readers have series of their own, at most "
    "twenty of one principal; the rest is (others).",
    labels=("principal", "client_id", "topic"),
)
COLD_READ_REQUESTS = Metric(
    name="tiersidecar_cold_read_requests_total",
    kind="counter",
    help="Requests for remote data, one partition each, by reader; as tiersidecar_cold_read_bytes_total.",
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
    help="Bytes of batches, records and segment files that clients of the read service received, from both tiers.",
)
READ_HOLES = Metric(
    name="tiersidecar_read_holes_total",
    kind="counter",
    help="Reads that reached a hole: offsets that no segment has, between others that exist; read.hole names them.",
    labels=("topic",),
)
READER_TASK_QUEUE_SIZE = Metric(
    name="kafka_remote_log_reader_task_queue_size",
    kind="gauge",
    combined="sum",
    help="Remote reads that wait for a slot (RemoteLogReaderTaskQueueSize).",
)
READER_IDLE_RATIO = Metric(
    name="kafka_remote_log_reader_idle_ratio",
    kind="gauge",
    combined="mean",
    help="Share of the reader pool's slots that are free now (RemoteLogReaderAvgIdlePercent is its average over time).",
)
READER_FETCH_SECONDS = Metric(
    name="kafka_remote_log_reader_fetch_seconds",
    kind="histogram",
    help="Time in a slot of the reader pool, by read or step of a stream (RemoteLogReaderFetchRateAndTimeMs).",
)
FETCH_THROTTLE_SECONDS = Metric(
    name="kafka_remote_fetch_throttle_seconds_total",
    kind="counter",
    help="Delay of reads that were rejected, or streams that were slowed, because of the fetch quota "
    "(remote-fetch-throttle-time).",
)
READ_POOL_BUSY = Metric(name="tiersidecar_reader_pool_busy", kind="gauge", combined="sum", help="Remote reads running.")
