"""Measurements: what a metric is, and the port that takes its values.  The metrics themselves are in ``ports/metrics``.

Names are Kafka's in Prometheus form where Kafka has them (BrokerTopicMetrics, RemoteLogManager).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric family.  A label ``partition`` makes it a per-partition series, exported only on request.

    A metric without labels shows 0 from the start, except where that would be untrue: ``absent_until_set``.  Where several
    processes have set a gauge, ``combined`` of their values is shown.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    absent_until_set: bool = False
    combined: Literal["max", "sum", "min", "mean"] = "max"


class Telemetry(Protocol):
    def count(self, metric: Metric, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge."""

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Add an observation to a histogram."""

    def forget(self, metric: Metric, **labels: str) -> None:
        """Drop one labelled series: the partition or topic is no longer ours (U18)."""


class NoTelemetry:
    """Accepts all values and keeps none."""

    def count(self, metric: Metric, amount: float = 1, **labels: str) -> None:
        return None

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        return None

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        return None

    def forget(self, metric: Metric, **labels: str) -> None:
        return None
