"""Metrics of ``tiersidecar serve``, which no sidecar has."""

from __future__ import annotations

from tiersidecar.ports.telemetry import Metric

BUCKET_LOOKS = Metric(name="tiersidecar_bucket_looks_total", kind="counter", help="Completed listings of the bucket.")
BUCKET_LOOK_FAILURES = Metric(
    name="tiersidecar_bucket_look_failures_total",
    kind="counter",
    help="Failed listings: the store was unavailable, or showed nothing where it had segments. What was read before is "
    "still served.",
)
BUCKET_LOOK_SECONDS = Metric(
    name="tiersidecar_bucket_look_seconds",
    kind="gauge",
    help="Duration of the last listing, with the new manifests.",
)
BUCKET_SEGMENTS = Metric(name="tiersidecar_bucket_segments", kind="gauge", help="Segments that are served.")
BUCKET_PARTITIONS = Metric(name="tiersidecar_bucket_partitions", kind="gauge", help="Partitions that are served.")
BUCKET_REFUSED = Metric(
    name="tiersidecar_bucket_refused_manifests",
    kind="gauge",
    help="Manifests that are ignored, because they cannot be read or contradict their key or the objects beside them.",
)
BUCKET_EVENTS_FOLLOWED = Metric(
    name="tiersidecar_bucket_events_followed",
    kind="gauge",
    help="1 while the source's events are followed (events.bootstrap.servers), 0 while they cannot be.",
)
BUCKET_SERVE_DELAY_SECONDS = Metric(
    name="tiersidecar_bucket_serve_delay_seconds",
    kind="gauge",
    help="How long after its COPY_SEGMENT_FINISHED the last segment from the source's events was served.",
)
BUCKET_CONNECTIONS = Metric(
    name="tiersidecar_bucket_connections",
    kind="gauge",
    help="Connections of Kafka clients, by whether they have logged in.",
    labels=("logged_in",),
)
BUCKET_CONNECTIONS_CLOSED = Metric(
    name="tiersidecar_bucket_connections_closed_total",
    kind="counter",
    help="Closed connections of Kafka clients. The reason malformed is a client that does not speak the protocol.",
    labels=("reason",),
)
BUCKET_LOGINS = Metric(
    name="tiersidecar_bucket_logins_total",
    kind="counter",
    help="Logins of Kafka clients, by outcome: accepted or refused.",
    labels=("outcome",),
)
BUCKET_REQUESTS = Metric(
    name="tiersidecar_bucket_requests_total",
    kind="counter",
    help="Requests of Kafka clients that were answered, by API key.",
    labels=("api_key",),
)
BUCKET_FETCHED_BYTES = Metric(
    name="tiersidecar_bucket_fetched_bytes_total", kind="counter", help="Bytes of record batches in Fetch responses."
)
