"""Counts of one listener, kept as plain numbers where bytes flow and reported to telemetry once a second."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tiersidecar.ports.metrics.gateway import (
    GATEWAY_BYTES,
    GATEWAY_CONNECTIONS,
    GATEWAY_CONNECTIONS_CLOSED,
    GATEWAY_CONNECTIONS_REFUSED,
    GATEWAY_REQUESTS,
    GATEWAY_REWRITTEN,
)
from tiersidecar.ports.telemetry import Telemetry


@dataclass(slots=True, kw_only=True)
class Traffic:
    """Counts since the last :meth:`report`; ``closed`` and ``refused`` by reason."""

    listener: str
    connections: int = 0
    requests: int = 0
    rewritten: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    closed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def report(self, telemetry: Telemetry) -> None:
        """Add it all to the metrics, and begin anew."""
        telemetry.gauge(GATEWAY_CONNECTIONS, self.connections, listener=self.listener)
        telemetry.count(GATEWAY_REQUESTS, self.requests, listener=self.listener)
        telemetry.count(GATEWAY_REWRITTEN, self.rewritten, listener=self.listener)
        telemetry.count(GATEWAY_BYTES, self.bytes_in, listener=self.listener, direction="in")
        telemetry.count(GATEWAY_BYTES, self.bytes_out, listener=self.listener, direction="out")
        for reason, number in self.closed.items():
            telemetry.count(GATEWAY_CONNECTIONS_CLOSED, number, listener=self.listener, reason=reason)
        for reason, number in self.refused.items():
            telemetry.count(GATEWAY_CONNECTIONS_REFUSED, number, listener=self.listener, reason=reason)
        self.requests = self.rewritten = self.bytes_in = self.bytes_out = 0
        self.closed.clear()
        self.refused.clear()
