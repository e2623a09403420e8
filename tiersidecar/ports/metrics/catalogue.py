"""All metrics, in the order of the metrics reference, and those that only a partition's leader reports."""

from __future__ import annotations

from types import ModuleType

from tiersidecar.ports.metrics import bucket, copying, gateway, process, reading, retention
from tiersidecar.ports.telemetry import Metric

LEADER_GAUGES = (
    copying.COPY_LAG_BYTES,
    copying.COPY_LAG_SECONDS,
    copying.COPY_LAG_SEGMENTS,
    copying.OPEN_TRANSACTION_SECONDS,
    retention.DELETE_LAG_BYTES,
    retention.DELETE_LAG_SEGMENTS,
    retention.EXPIRY_STOPPED,
    retention.FUTURE_SEGMENTS,
    retention.LOG_START_UNEXPLAINED,
    retention.REMOTE_LOG_SIZE,
    retention.REMOTE_SEGMENTS,
    retention.REMOTE_STORED_BYTES,
    retention.TRASH_BYTES,
    retention.TRASH_SEGMENTS,
    retention.TRIM_HELD_BYTES,
)
"""Metrics that only a partition's leader reports: forgotten when it no longer leads (T-30)."""


def _metrics_of(module: ModuleType) -> list[Metric]:
    return [value for value in vars(module).values() if isinstance(value, Metric)]


CATALOGUE: tuple[Metric, ...] = tuple(
    metric for module in (process, copying, retention, reading, gateway) for metric in _metrics_of(module)
)
BUCKET_CATALOGUE: tuple[Metric, ...] = tuple(_metrics_of(bucket))
"""Those of ``tiersidecar serve`` alone."""
