"""Traffic of this process in the last hour: a bounded ring of samples, only in memory."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiersidecar.ports.metrics.copying import COPY_BYTES, COPY_LAG_BYTES
from tiersidecar.ports.metrics.gateway import GATEWAY_FILLED_BYTES
from tiersidecar.ports.metrics.reading import FETCH_BYTES
from tiersidecar.ports.telemetry import Metric
from tiersidecar.services.status.source import RenderMetrics

INTERVAL_MS = 30_000
POINTS = 120
"""An hour."""
_MOST_TOPICS = 200
"""Topics with cold reads of their own."""

COUNTED = {"copied": COPY_BYTES, "read": FETCH_BYTES, "filled": GATEWAY_FILLED_BYTES}
"""Series of bytes per interval, by the counter that each comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    bucket: int
    totals: Mapping[str, float]
    lag_bytes: float
    read_by_topic: Mapping[str, float]


class History:
    """Samples at whole multiples of ``INTERVAL_MS`` since 1970, so that those of all sidecars can be added up."""

    def __init__(self, metrics: RenderMetrics) -> None:
        self._metrics = metrics
        self._samples: deque[_Sample] = deque(maxlen=POINTS + 1)

    def take(self, now_ms: int) -> None:
        """Take a sample.  A second one of an interval takes the place of the first; a clock that went back drops all."""
        bucket = now_ms // INTERVAL_MS
        if self._samples and self._samples[-1].bucket > bucket:
            self._samples.clear()
        if self._samples and self._samples[-1].bucket == bucket:
            self._samples.pop()
        reads = _by_topic(self._metrics, FETCH_BYTES)
        self._samples.append(
            _Sample(
                bucket=bucket,
                totals={name: _total(self._metrics, metric) for name, metric in COUNTED.items()},
                lag_bytes=_total(self._metrics, COPY_LAG_BYTES),
                read_by_topic=dict(sorted(reads.items(), key=lambda read: -read[1])[:_MOST_TOPICS]),
            )
        )

    def document(self) -> dict[str, Any]:
        """Return the bytes of each interval, named by its end in intervals since 1970; without samples an interval has none."""
        pairs = list(zip(list(self._samples)[:-1], list(self._samples)[1:], strict=True))
        pairs = [(pair, next_one) for pair, next_one in pairs if next_one.bucket - pair.bucket == 1]
        series: dict[str, list[list[int]]] = {
            name: [[after.bucket, _grown(before.totals[name], after.totals[name])] for before, after in pairs]
            for name in COUNTED
        }
        series["lag"] = [[sample.bucket, round(sample.lag_bytes)] for sample in self._samples]
        return {"interval_ms": INTERVAL_MS, "series": series, "read_by_topic": self._read_by_topic()}

    def _read_by_topic(self) -> dict[str, int]:
        if not self._samples:
            return {}
        first, last = self._samples[0].read_by_topic, self._samples[-1].read_by_topic
        grown = {topic: _grown(first.get(topic, 0.0), total) for topic, total in last.items()}
        return {topic: amount for topic, amount in grown.items() if amount > 0}


def _grown(before: float, after: float) -> int:
    """Return the growth of a counter, which only falls where its series was dropped."""
    return round(after - before) if after >= before else round(after)


def _total(metrics: RenderMetrics, metric: Metric) -> float:
    return sum(value for _, value in metrics.series(metric))


def _by_topic(metrics: RenderMetrics, metric: Metric) -> Mapping[str, float]:
    found: defaultdict[str, float] = defaultdict(float)
    for labels, value in metrics.series(metric):
        found[labels["topic"]] += value
    return found


def buckets(last: int) -> Sequence[int]:
    """Return the intervals of the hour that ends with ``last``, ascending."""
    return range(last - POINTS + 1, last + 1)
