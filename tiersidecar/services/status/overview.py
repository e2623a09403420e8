"""One sidecar's report of itself to the others: ``/overview``.  It has the leader's figures; a follower's are not in it.

Partitions are lists of numbers in the order of ``COLUMNS``, which the document names: thousands of them are asked for at once.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tiersidecar.ports.metrics.gateway import GATEWAY_CONNECTIONS, GATEWAY_UNMAPPED_BROKERS
from tiersidecar.ports.metrics.process import RECONCILE_AGE, RECONCILE_FINDINGS
from tiersidecar.services.status.documents import summary_document
from tiersidecar.services.status.history import History
from tiersidecar.services.status.once import Once
from tiersidecar.services.status.source import PartitionStatus, RenderMetrics, StatusSource

COLUMNS = (
    "partition",
    "leader_epoch",
    "remote_log_start_offset",
    "copied_offset",
    "local_log_start_offset",
    "copy_lag_segments",
    "copy_lag_bytes",
    "remote_segments",
    "local_segments",
    "local_size_bytes",
    "trash",
    "remote",
    "both",
    "pinned",
    "local",
    "active",
    "halted",
    "held_back",
)
MOST_TROUBLES = 200
"""Partitions whose reasons are listed; all are counted."""
PARTITIONS_AT_ONCE = 50
"""Partitions that are looked at before other work of the process has its turn."""
_KEPT_S = 1.0


class Overview:
    """Make the document at most once in ``_KEPT_S``, however many callers ask, with turns for other work of the process."""

    def __init__(self, *, source: StatusSource, metrics: RenderMetrics, history: History) -> None:
        self._source, self._metrics, self._history = source, metrics, history
        self._once: Once[dict[str, Any]] = Once(self._make, kept_s=_KEPT_S)

    async def document(self) -> dict[str, Any]:
        """Return the document, made within the last second."""
        return await self._once.value()

    def close(self) -> None:
        """Make no more documents."""
        self._once.close()

    async def _make(self) -> dict[str, Any]:
        topics: dict[str, dict[str, Any]] = {}
        troubles: list[dict[str, Any]] = []
        for number, status in enumerate(self._source.partitions()):
            if number % PARTITIONS_AT_ONCE == 0:
                await asyncio.sleep(0)
            _add(topics, troubles, status)
        reasons = list(self._source.ready_reasons())
        summary = summary_document(self._source.summary())
        summary["misplaced"] = dict(sorted(summary["misplaced"].items())[:MOST_TROUBLES])
        return summary | {
            "ready": not reasons,
            "reasons": reasons,
            "now_ms": time.time_ns() // 1_000_000,
            "columns": COLUMNS,
            "topics": topics,
            "troubles": sorted(troubles, key=lambda trouble: trouble["kind"] != "halted")[:MOST_TROUBLES],
            "gateways": _gateways(self._metrics),
            "reconcile": _reconcile(self._metrics),
            "history": self._history.document(),
        }


def _add(topics: dict[str, dict[str, Any]], troubles: list[dict[str, Any]], status: PartitionStatus) -> None:
    topic_id_partition = status.topic_id_partition
    topic = topics.setdefault(topic_id_partition.topic, {"mode": status.mode, "seen": [], "leads": []})
    topic["seen"].append(topic_id_partition.partition)
    leads = status.role == "leader"
    if leads:
        topic["leads"].append(_row(status))
    for kind, reason in (("halted", status.halted_reason), ("held back", status.held_back_reason)):
        if reason is not None and (leads or kind == "halted"):
            troubles.append(
                {
                    "topic": topic_id_partition.topic,
                    "partition": topic_id_partition.partition,
                    "kind": kind,
                    "reason": reason,
                }
            )


def _row(status: PartitionStatus) -> list[int]:
    tiers = status.tiers
    return [
        status.topic_id_partition.partition,
        status.leader_epoch,
        status.remote_log_start_offset,
        status.copied_offset,
        status.local_log_start_offset,
        status.copy_lag_segments or 0,
        status.copy_lag_bytes or 0,
        status.remote_segments,
        status.local_segments,
        status.local_size_bytes,
        tiers.trash,
        tiers.remote,
        tiers.both,
        tiers.pinned,
        tiers.local,
        tiers.active,
        int(status.halted_reason is not None),
        int(status.held_back_reason is not None),
    ]


def _gateways(metrics: RenderMetrics) -> list[dict[str, Any]]:
    unmapped = {labels["listener"]: round(value) for labels, value in metrics.series(GATEWAY_UNMAPPED_BROKERS)}
    connections = {labels["listener"]: round(value) for labels, value in metrics.series(GATEWAY_CONNECTIONS)}
    return [
        {
            "listener": connection,
            "connections": connections.get(connection, 0),
            "unmapped_brokers": unmapped.get(connection, 0),
        }
        for connection in sorted(unmapped.keys() | connections.keys())
    ]


def _reconcile(metrics: RenderMetrics) -> dict[str, Any] | None:
    """Return the last run by the metrics that each tier role sets from the summary in the store; None where there is none."""
    ages = metrics.series(RECONCILE_AGE)
    if not ages:
        return None
    findings = {labels["kind"]: round(value) for labels, value in metrics.series(RECONCILE_FINDINGS) if value > 0}
    return {"age_s": round(ages[0][1]), "findings": findings}
