"""Metrics of the gateway's connections, requests and fills."""

from __future__ import annotations

from tiersidecar.ports.telemetry import Metric

GATEWAY_CONNECTIONS = Metric(
    name="tiersidecar_gateway_connections",
    kind="gauge",
    combined="sum",
    help="Client connections that are open.",
    labels=("listener",),
)
GATEWAY_CONNECTIONS_REFUSED = Metric(
    name="tiersidecar_gateway_connections_refused_total",
    kind="counter",
    help="Client connections that were refused: too many, a failed TLS handshake, or no broker behind the gateway.",
    labels=("listener", "reason"),
)
GATEWAY_CONNECTIONS_CLOSED = Metric(
    name="tiersidecar_gateway_connections_closed_total",
    kind="counter",
    help="Closed client connections. The reason malformed is a client that does not speak Kafka's protocol.",
    labels=("listener", "reason"),
)
GATEWAY_UNMAPPED_BROKERS = Metric(
    name="tiersidecar_gateway_unmapped_brokers",
    kind="gauge",
    help="Brokers of the cluster that have no advertised address: clients of this listener cannot reach what they lead.",
    labels=("listener",),
)
GATEWAY_REQUESTS = Metric(
    name="tiersidecar_gateway_requests_total",
    kind="counter",
    help="Requests of clients that were answered (a Produce with acks=0 is not).",
    labels=("listener",),
)
GATEWAY_AUDIT_WRITTEN = Metric(
    name="tiersidecar_gateway_audit_written_total",
    kind="counter",
    help="Audit events that were written to gateway.audit.topic.name.",
)
GATEWAY_AUDIT_LOST = Metric(
    name="tiersidecar_gateway_audit_lost_total",
    kind="counter",
    help="Audit events that were not written there, because the topic accepted none for too long; the log has them.",
)
GATEWAY_REWRITTEN = Metric(
    name="tiersidecar_gateway_responses_rewritten_total",
    kind="counter",
    help="Responses that were changed for clients.",
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
    help="Partitions for which the broker returned OFFSET_OUT_OF_RANGE, by the gateway's response: fill, at_end (of a "
    "read-only mount), retry, hole (a retriable error too, but neither tier has it) or stands.",
    labels=("outcome",),
)
GATEWAY_FILLS = Metric(
    name="tiersidecar_gateway_fills_total",
    kind="counter",
    help="Partitions of Fetch responses to fill from the remote tier, by result: filled, empty, pending (not read in "
    "time), no_room (in the response), shed (quota or pool), not_ready, hole (no segment has it) or failed.",
    labels=("outcome",),
)
GATEWAY_FILLED_BYTES = Metric(
    name="tiersidecar_gateway_filled_bytes_total",
    kind="counter",
    help="Bytes of record batches from the remote tier in Fetch responses.",
)
GATEWAY_WORKERS = Metric(
    name="tiersidecar_gateway_workers",
    kind="gauge",
    help="Worker processes that are ready for clients, of gateway.workers; absent where the process serves clients itself.",
    absent_until_set=True,
)
GATEWAY_WORKER_STARTS = Metric(
    name="tiersidecar_gateway_worker_starts_total",
    kind="counter",
    help="Starts of worker processes, by reason: begin, ended (by itself, or killed), hung (it said nothing for too long).",
    labels=("reason",),
)
GATEWAY_WORKER_MEMORY = Metric(
    name="tiersidecar_gateway_worker_resident_bytes",
    kind="gauge",
    help="Resident memory of each worker process; process_resident_memory_bytes is that of the process that started them.",
    labels=("worker",),
)
GATEWAY_WORKER_CPU = Metric(
    name="tiersidecar_gateway_worker_cpu_seconds_total",
    kind="counter",
    help="CPU time of each worker process, of all its lives; process_cpu_seconds_total is that of the process that started "
    "them.",
    labels=("worker",),
)
