"""The limits of one connection to the gateway."""

from __future__ import annotations

from dataclasses import dataclass

from tiersidecar.formats.wire.framing import DEFAULT_MAX_FRAME_BYTES

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """Names are Kafka's where it has them.

    ``max_collected_request_bytes`` is of requests that are read whole (Fetch, say); all others pass as they arrive.  What holds
    before the login is in ``unauthenticated``.  A request
    has ``request_timeout_s`` to arrive, and a second more for each ``slowest_bytes_per_s`` of it.  A client that takes nothing
    for ``write_timeout_s`` while there is something for it is cut off, and so is one that takes less than
    ``least_taken_bytes_per_s`` of it, on average over such a time.
    """

    socket_request_max_bytes: int = DEFAULT_MAX_FRAME_BYTES
    max_collected_request_bytes: int = 8 * MIB
    max_in_flight_requests: int = 100
    request_timeout_s: float = 30.0
    slowest_bytes_per_s: int = 64 * 1024
    write_timeout_s: float = 300.0
    least_taken_bytes_per_s: int = 16 * 1024
    connect_timeout_s: float = 10.0
