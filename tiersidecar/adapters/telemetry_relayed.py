"""Metrics of worker processes: counted there, sent as what has changed, and added up in the process that is scraped.

What is sent is plain data (JSON): ``counts`` since it was sent last, ``gauges`` as they are, ``observed`` values, and which
``forgotten`` series.  What a process had counted when it died stays counted; its gauges are dropped.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from statistics import fmean
from typing import Any

from tiersidecar.adapters.telemetry_prometheus import PrometheusTelemetry
from tiersidecar.ports.metrics.catalogue import CATALOGUE
from tiersidecar.ports.telemetry import Metric

_Key = tuple[str, tuple[str, ...]]
"""Name of the metric, and the values of its labels in their order."""

_MOST_OBSERVED = 10_000
"""Observations kept between two messages; what comes then is lost, and the loop had stood still anyway."""


class RelayedTelemetry:
    """Implements :class:`~tiersidecar.ports.telemetry.Telemetry` in a worker process; :meth:`take` gives what has changed."""

    def __init__(self) -> None:
        self._counts = defaultdict[_Key, float](float)
        self._gauges: dict[_Key, float] = {}
        self._forgotten: dict[_Key, None] = {}
        self._observed: list[tuple[_Key, float]] = []

    def count(self, metric: Metric, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        self._counts[_key(metric, labels)] += amount

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge."""
        key = _key(metric, labels)
        self._forgotten.pop(key, None)
        self._gauges[key] = float(value)

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Add an observation to a histogram."""
        if len(self._observed) < _MOST_OBSERVED:
            self._observed.append((_key(metric, labels), value))

    def forget(self, metric: Metric, **labels: str) -> None:
        """Drop one labelled series."""
        key = _key(metric, labels)
        self._gauges.pop(key, None)
        self._counts.pop(key, None)
        self._forgotten[key] = None

    def take(self) -> dict[str, Any]:
        """Return what has changed since the last call."""
        changes = {
            "forgotten": [[*_plain(key)] for key in self._forgotten],
            "counts": [[*_plain(key), amount] for key, amount in self._counts.items() if amount],
            "gauges": [[*_plain(key), value] for key, value in self._gauges.items()],
            "observed": [[*_plain(key), value] for key, value in self._observed],
        }
        self._counts.clear()
        self._gauges.clear()
        self._observed.clear()
        self._forgotten.clear()
        return {kind: rows for kind, rows in changes.items() if rows}


def _key(metric: Metric, labels: Mapping[str, str]) -> _Key:
    if labels.keys() != set(metric.labels):
        raise ValueError(f"{metric.name} has labels {metric.labels}, not {tuple(labels)}")
    return metric.name, tuple(labels[name] for name in metric.labels)


def _plain(key: _Key) -> tuple[str, list[str]]:
    return key[0], list(key[1])


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is nothing to add")
    return number


_OWN = 0
"""This process among those that set a gauge."""

_COMBINE: Mapping[str, Callable[[Collection[float]], float]] = {"max": max, "sum": sum, "min": min, "mean": fmean}


class SummedTelemetry(PrometheusTelemetry):
    """What this process and its workers count, under the same names and labels."""

    def __init__(self, *, version: str, catalogue: Iterable[Metric] = CATALOGUE) -> None:
        catalogue = tuple(catalogue)
        self._by_name = {metric.name: metric for metric in catalogue}
        self._set_by = defaultdict[_Key, dict[int, float]](dict)
        self._counted_by = defaultdict[_Key, set[int]](set)
        super().__init__(version=version, catalogue=catalogue)

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge of this process."""
        self._set(_OWN, metric, value, labels)

    def forget(self, metric: Metric, **labels: str) -> None:
        """Drop one labelled series of this process."""
        self._forget(_OWN, metric, labels)

    def add(self, worker: int, changes: Any) -> None:
        """Add what a worker has sent.

        Raises:
            ValueError: it is not what :meth:`RelayedTelemetry.take` gives.
        """
        try:
            self._add(worker, changes)
        except (ArithmeticError, AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not metrics of a worker: {error!r}") from error

    def drop(self, worker: int) -> None:
        """Forget the gauges of a worker that is no more; what it has counted stays, until one that lives forgets it."""
        for counted_by in self._counted_by.values():
            counted_by.discard(worker)
        for key in [key for key, values in self._set_by.items() if worker in values]:
            metric = self._by_name[key[0]]
            self._forget(worker, metric, dict(zip(metric.labels, key[1], strict=True)))

    def _add(self, worker: int, changes: Any) -> None:
        for name, values in changes.get("forgotten", ()):
            self._forget(worker, *self._metric(name, values))
        for name, values, amount in changes.get("counts", ()):
            metric, labels = self._metric(name, values)
            self.count(metric, _finite(amount), **labels)
            self._counted_by[_key(metric, labels)].add(worker)
        for name, values, value in changes.get("gauges", ()):
            metric, labels = self._metric(name, values)
            if metric.kind != "gauge":
                raise TypeError(f"{name} is a {metric.kind}, not a gauge")
            self._set(worker, metric, float(value), labels)
        for name, values, value in changes.get("observed", ()):
            metric, labels = self._metric(name, values)
            self.observe(metric, _finite(value), **labels)

    def _metric(self, name: str, values: Collection[str]) -> tuple[Metric, dict[str, str]]:
        metric = self._by_name[name]
        # What is no text, or half a character, would leave nothing to be scraped.
        shown = [value.encode("utf-8", "replace").decode() for value in values]
        return metric, dict(zip(metric.labels, shown, strict=True))

    def _set(self, process: int, metric: Metric, value: float, labels: dict[str, str]) -> None:
        set_by = self._set_by[_key(metric, labels)]
        set_by[process] = value
        super().gauge(metric, _COMBINE[metric.combined](set_by.values()), **labels)

    def _forget(self, process: int, metric: Metric, labels: dict[str, str]) -> None:
        key = _key(metric, labels)
        if metric.kind == "counter" and self._is_counted_by_another(process, key):
            return
        set_by = self._set_by.get(key, {})
        set_by.pop(process, None)
        if set_by:
            super().gauge(metric, _COMBINE[metric.combined](set_by.values()), **labels)
            return
        self._set_by.pop(key, None)
        if metric.kind == "gauge" and not metric.labels:
            super().gauge(metric, 0)
        elif metric.labels:
            super().forget(metric, **labels)

    def _is_counted_by_another(self, process: int, key: _Key) -> bool:
        counted_by = self._counted_by.get(key)
        if counted_by is None:
            return False
        counted_by.discard(process)
        if counted_by:
            return True
        del self._counted_by[key]
        return False
