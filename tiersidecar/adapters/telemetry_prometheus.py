"""Implement telemetry with prometheus-client, in registries of its own.

A gauge with a label ``partition`` is shown in two ways: as it is, or summed over its partitions.  At 4,000 partitions the
detailed series are too many for every scrape; the sums are what alerts need.  Its values are plain floats here: seventeen
objects of the library for each of 4,000 partitions take 58 MiB, and 0.6 s of CPU at each scrape.
"""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from tiersidecar.ports.metrics.catalogue import CATALOGUE
from tiersidecar.ports.metrics.plugin import SAME
from tiersidecar.ports.metrics.process import BUILD_INFO
from tiersidecar.ports.telemetry import Metric

PARTITION = "partition"

LibraryMetric = Counter | Gauge | Histogram

_CLASSES: dict[str, type[LibraryMetric]] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}


class PrometheusTelemetry:
    """Implements :class:`~tiersidecar.ports.telemetry.Telemetry` for the metrics of a catalogue.

    Raises:
        ValueError: a counter or a histogram with a label ``partition``.
    """

    def __init__(self, *, version: str, catalogue: Iterable[Metric] = CATALOGUE) -> None:
        # One series less per counter; a switch of the library's, for the whole process.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._plain = CollectorRegistry(auto_describe=False)
        self._detailed = CollectorRegistry(auto_describe=False)
        self._sums = CollectorRegistry(auto_describe=False)
        self._not_set_yet: set[str] = set()
        self._metrics = {metric.name: self._register(metric) for metric in catalogue}
        # To find a series by its labels costs more than to count, and some count thousands of times a second.
        self._counters: dict[tuple[str, tuple[tuple[str, str], ...]], Counter] = {}
        self._plain.register(_PluginMetrics(self._metrics))
        ProcessCollector(registry=self._plain)
        PlatformCollector(registry=self._plain)
        if BUILD_INFO.name in self._metrics:
            self.gauge(BUILD_INFO, 1, version=version, python=platform.python_version())

    def count(self, metric: Metric, amount: float = 1, **labels: str) -> None:
        """Add to a counter.

        Raises:
            TypeError: the metric is none.
            ValueError: labels other than the metric's, or a metric that is not in the catalogue.
        """
        key = (metric.name, tuple(labels.items()))
        counter = self._counters.get(key)
        if counter is None:
            child = self._child(metric, labels)
            if not isinstance(child, Counter):
                raise TypeError(f"{metric.name} is a {metric.kind}, not a counter")
            self._counters[key] = counter = child
        counter.inc(amount)

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge; raises as :meth:`count`."""
        known = self._known(metric)
        if isinstance(known, _PartitionGauge):
            known.values[self._values(metric, labels)] = float(value)
            return
        child = self._child(metric, labels)
        if not isinstance(child, Gauge):
            raise TypeError(f"{metric.name} is a {metric.kind}, not a gauge")
        child.set(value)
        if metric.name in self._not_set_yet:
            self._not_set_yet.remove(metric.name)
            self._plain.register(child)

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Add an observation to a histogram; raises as :meth:`count`."""
        child = self._child(metric, labels)
        if not isinstance(child, Histogram):
            raise TypeError(f"{metric.name} is a {metric.kind}, not a histogram")
        child.observe(value)

    def forget(self, metric: Metric, **labels: str) -> None:
        """Drop one labelled series; one that was never set is no error."""
        self._known(metric).remove(*self._values(metric, labels))
        self._counters.clear()

    def series(self, metric: Metric) -> Sequence[tuple[Mapping[str, str], float]]:
        """Return labels and value of each series of a counter or gauge; empty for one that is absent until it is set.

        Raises:
            ValueError: not in the catalogue.
        """
        known = self._known(metric)
        if metric.name in self._not_set_yet:
            return []
        return [(sample.labels, sample.value) for family in known.collect() for sample in family.samples]

    def render(self, *, partitions: bool = False) -> bytes:
        """Return the text exposition (version 0.0.4): per-partition series as they are, or summed by their other labels."""
        return generate_latest(self._plain) + generate_latest(self._detailed if partitions else self._sums)

    def _register(self, metric: Metric) -> LibraryMetric | _PartitionGauge:
        if PARTITION in metric.labels:
            gauge = _PartitionGauge(metric)
            self._detailed.register(gauge)
            self._sums.register(_SumOverPartitions(gauge))
            return gauge
        shown_when_set = metric.absent_until_set
        if shown_when_set:
            self._not_set_yet.add(metric.name)
        registry = None if shown_when_set else self._plain
        return _CLASSES[metric.kind](metric.name, metric.help, metric.labels, registry=registry)

    def _known(self, metric: Metric) -> LibraryMetric | _PartitionGauge:
        try:
            return self._metrics[metric.name]
        except KeyError:
            raise ValueError(f"{metric.name} is not in the catalogue of metrics") from None

    def _child(self, metric: Metric, labels: dict[str, str]) -> LibraryMetric:
        known = self._known(metric)
        if isinstance(known, _PartitionGauge):
            raise TypeError(f"{metric.name} is a gauge, no other kind has a label {PARTITION}")
        values = self._values(metric, labels)
        return known.labels(*values) if values else known

    @staticmethod
    def _values(metric: Metric, labels: dict[str, str]) -> tuple[str, ...]:
        if labels.keys() != set(metric.labels):
            raise ValueError(f"{metric.name} has labels {metric.labels}, not {tuple(labels)}")
        return tuple(labels[name] for name in metric.labels)


class _PartitionGauge(Collector):
    """``values`` by the metric's labels, in their order.  Set by the event loop, and collected in a thread from copies."""

    def __init__(self, metric: Metric) -> None:
        if metric.kind != "gauge":
            raise ValueError(f"{metric.name}: a {metric.kind} cannot have a label {PARTITION}")
        self.metric, self.values = metric, dict[tuple[str, ...], float]()

    def remove(self, *labels: str) -> None:
        """Drop one series, if it is there."""
        self.values.pop(labels, None)

    def collect(self) -> Iterator[Family]:
        """Yield all series, in the order in which they were first set."""
        family = GaugeMetricFamily(self.metric.name, self.metric.help, labels=self.metric.labels)
        for labels, value in self.values.copy().items():
            family.add_metric(labels, value)
        yield family


class _SumOverPartitions(Collector):
    def __init__(self, detailed: _PartitionGauge) -> None:
        self._detailed = detailed
        self._labels = tuple(name for name in detailed.metric.labels if name != PARTITION)
        # One label is given as it is, several as a tuple.
        self._group = itemgetter(*(detailed.metric.labels.index(name) for name in self._labels))

    def collect(self) -> Iterator[Family]:
        sums: defaultdict[str | tuple[str, ...], float] = defaultdict(float)
        for labels, value in self._detailed.values.copy().items():
            sums[self._group(labels)] += value
        metric = self._detailed.metric
        family = GaugeMetricFamily(metric.name, f"{metric.help} Summed over partitions.", labels=self._labels)
        for group, value in sorted(sums.items()):
            family.add_metric((group,) if isinstance(group, str) else group, value)
        yield family


class _PluginMetrics(Collector):
    """Counters that have the meaning of one of Aiven's plugin, by its names too."""

    def __init__(self, metrics: Mapping[str, Collector]) -> None:
        self._known = [(one, metrics[one.source.name]) for one in SAME if one.source.name in metrics]

    def collect(self) -> Iterator[Family]:
        for same, counted in self._known:
            sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
            for family in counted.collect():
                for sample in family.samples:
                    if all(sample.labels[name] == value for name, value in same.where.items()):
                        sums[tuple(sample.labels[name] for name in same.labels)] += sample.value
            family = CounterMetricFamily(same.name, f"As {same.source.name}: {same.source.help}", labels=same.labels)
            for values, value in sorted(sums.items()):
                family.add_metric(values, value)
            yield family
