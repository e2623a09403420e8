"""The audit log: what was deleted, and which conversations were refused, each by whom and from where.

Each is an event of the process's log, and, where one is configured, a record of a topic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

import structlog

from tiersidecar.domain.readable import cut_text
from tiersidecar.services.gateway.exchange import ConnectionState, Exchange
from tiersidecar.services.gateway.host import Refusal

log = structlog.get_logger(__name__)


class AuditTopic(Protocol):
    def record(self, event: str, facts: Mapping[str, object]) -> None:
        """Queue the event for writing, or count it as lost.  Returns at once and raises nothing."""


class NoAuditTopic:
    """An :class:`AuditTopic` where none is configured."""

    def record(self, event: str, facts: Mapping[str, object]) -> None:
        return None


NO_AUDIT_TOPIC = NoAuditTopic()


def audit_delete(
    exchange: Exchange, topic: str, partition: int, offset: int, outcome: str, into: AuditTopic = NO_AUDIT_TOPIC
) -> None:
    """Audit a DeleteRecords of one partition that the broker has accepted.  ``offset`` is the requested offset, ``outcome``
    the error code that the client gets, or "unknown" where the client disconnected before the answer."""
    state = exchange.connection
    facts: dict[str, object] = {
        "listener": exchange.listener,
        "client": state.client,
        "client_id": exchange.client_id,
        "principal": state.login.principal,
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "outcome": outcome,
    }
    facts = {name: _cut(fact) for name, fact in facts.items()}
    log.info("gateway.audit.delete", **facts)
    into.record("gateway.audit.delete", facts)


def audit_deletes(
    exchange: Exchange, deletes: Sequence[tuple[str, int, int]], outcome: str, into: AuditTopic = NO_AUDIT_TOPIC
) -> None:
    """Audit many partitions in one event, with topic, partition and offset of each; else as :func:`audit_delete`.
    One event per partition would be twenty times the size of the request."""
    by_topic = defaultdict[str, list[tuple[int, int]]](list)
    for topic, partition, offset in deletes:
        by_topic[str(_cut(topic))].append((partition, offset))
    state = exchange.connection
    facts: dict[str, object] = {
        "listener": exchange.listener,
        "client": state.client,
        "client_id": _cut(exchange.client_id),
        "principal": _cut(state.login.principal),
        "deletes": dict(by_topic),
        "outcome": outcome,
    }
    log.info("gateway.audit.delete", **facts)
    into.record("gateway.audit.delete", facts)


def audit_end(
    listener: str, state: ConnectionState, refusal: Refusal, error: Exception, into: AuditTopic = NO_AUDIT_TOPIC
) -> None:
    """Audit a conversation that has ended with ``refusal``, if its own content ended it."""
    if refusal not in (Refusal.FAULT, Refusal.BROKER_GONE):
        audit_refused(listener, state, refusal.value, str(error), into)


def audit_refused(
    listener: str, state: ConnectionState, kind: str, reason: str, into: AuditTopic = NO_AUDIT_TOPIC
) -> None:
    """Audit a conversation that ends because of its content."""
    facts: dict[str, object] = {
        "listener": listener,
        "client": state.client,
        "principal": state.login.principal,
        "mechanism": state.login.mechanism,
        "kind": kind,
        "reason": reason,
    }
    facts = {name: _cut(fact) for name, fact in facts.items()}
    log.warning("gateway.audit.refused", **facts)
    into.record("gateway.audit.refused", facts)


def _cut(fact: object) -> object:
    """Shorten text that a client chose, so that one refusal is one line of limited length and cannot fill the disk."""
    return cut_text(fact) if isinstance(fact, str) else fact
