"""The audit log tells of whoever was refused, and no stranger fills the disk by it."""

from __future__ import annotations

from structlog.testing import capture_logs

from tiersidecar.services.gateway.audit import audit_refused
from tiersidecar.services.gateway.exchange import ConnectionState


def test_what_a_stranger_named_is_cut() -> None:
    with capture_logs() as logged:
        audit_refused("CLIENTS", ConnectionState(), "login", "SaslHandshake of " + "x" * 32_000)
    (event,) = logged
    assert len(event["reason"]) < 600
    assert event["reason"].endswith("(32017 characters)")
