"""Metrics of the gateway's connections, requests and fills."""

from __future__ import annotations

from tiersidecar.ports.telemetry import Metric

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
GATEWAY_UNMAPPED_BROKERS = Metric(
    name="tiersidecar_gateway_unmapped_brokers",
    kind="gauge",
    help="Brokers of the cluster that have no advertised address: clients of this listener cannot reach what they lead.",
    labels=("listener",),
)
GATEWAY_REQUESTS = Metric(
    name="tiersidecar_gateway_requests_total",
    kind="counter",
    help="Requests that clients sent and that are answered (a Produce with acks=0 is not).",
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
    help="Audit events that were not written there, because the topic took none for too long; the log has them.",
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
    help="Partitions that the broker answered OFFSET_OUT_OF_RANGE, by what became of it: fill, at_end (of a read-only "
    "mount), retry, hole (tried again too, but neither tier has it) or stands.",
    labels=("outcome",),
)
GATEWAY_FILLS = Metric(
    name="tiersidecar_gateway_fills_total",
    kind="counter",
    help="Partitions of Fetch responses that were to be filled from the remote tier, by how that went: filled, empty, pending "
    "(not read in time), no_room (in the response), shed (quota or pool), not_ready, hole (no segment has it) or failed.",
    labels=("outcome",),
)
GATEWAY_FILLED_BYTES = Metric(
    name="tiersidecar_gateway_filled_bytes_total",
    kind="counter",
    help="Bytes of record batches that Fetch responses got from the remote tier.",
)
