"""The audit log: what was deleted, and which conversations were refused, each by whom and from where."""

from __future__ import annotations

import structlog

from tiersidecar.services.gateway.exchange import ConnectionState, Exchange

log = structlog.get_logger(__name__)


def audit_delete(exchange: Exchange, topic: str, partition: int, offset: int, outcome: str) -> None:
    """A DeleteRecords of one partition that the broker has accepted.  ``offset`` is the one that was asked for, ``outcome`` the
    error code that the client is told."""
    state = exchange.connection
    log.info(
        "gateway.audit.delete",
        listener=exchange.listener,
        client=state.client,
        client_id=exchange.client_id,
        principal=state.login.principal,
        topic=topic,
        partition=partition,
        offset=offset,
        outcome=outcome,
    )


def audit_refused(listener: str, state: ConnectionState, kind: str, reason: str) -> None:
    """A conversation that ends because of what was said in it."""
    log.warning(
        "gateway.audit.refused",
        listener=listener,
        client=state.client,
        principal=state.login.principal,
        mechanism=state.login.mechanism,
        kind=kind,
        reason=reason,
    )
