"""Measurements kept by name and labels."""

from __future__ import annotations

from tiersidecar.ports.telemetry import Metric, NoTelemetry

Labels = tuple[tuple[str, str], ...]


class RecordedTelemetry(NoTelemetry):
    """``ports.telemetry.Telemetry``; counters add up, gauges keep their last value.  It is as strict as the real one: a
    metric is measured as what it is, and with its labels."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, Labels], float] = {}
        self._observed: dict[str, list[float]] = {}

    def count(self, metric: Metric, amount: float = 1, **labels: str) -> None:
        key = _key(metric, "counter", amount, labels)
        self.values[key] = self.values.get(key, 0) + amount

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        self.values[_key(metric, "gauge", value, labels)] = value

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        self._observed.setdefault(_key(metric, "histogram", value, labels)[0], []).append(value)

    def observations(self, metric: Metric) -> list[float]:
        """Return what was added to a histogram, in order."""
        return self._observed.get(metric.name, [])

    def forget(self, metric: Metric, **labels: str) -> None:
        self.values.pop((metric.name, tuple(sorted(labels.items()))), None)

    def by_label(self, metric: Metric, label: str) -> dict[str, float]:
        """Return the last values of one metric by one of its labels."""
        return {dict(labels)[label]: value for (name, labels), value in self.values.items() if name == metric.name}

    def value(self, metric: Metric, **labels: str) -> float | None:
        """Return what was measured last, None when nothing was."""
        return self.values.get((metric.name, tuple(sorted(labels.items()))))


def _key(metric: Metric, kind: str, value: float, labels: dict[str, str]) -> tuple[str, Labels]:
    assert metric.kind == kind
    assert sorted(labels) == sorted(metric.labels)
    assert all(isinstance(label, str) for label in labels.values())
    assert isinstance(value, int | float)
    return metric.name, tuple(sorted(labels.items()))
