"""Metrics of Aiven's tiered-storage plugin (its docs/metrics.rst) beside ours: those of the same meaning have its names too.

A dashboard made for the plugin shows these after a cluster has moved.  Names are those that Prometheus' JMX exporter gives to
the attributes of its beans by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tiersidecar.ports.metrics.process import STORE_BYTES, STORE_OPERATIONS
from tiersidecar.ports.metrics.reading import FETCH_ERRORS, READ_CACHE_BYTES, READ_REQUESTED_BYTES
from tiersidecar.ports.metrics.retention import DELETE_ERRORS, DELETE_LAG_BYTES, DELETE_REQUESTS
from tiersidecar.ports.telemetry import Metric

MANAGER = "aiven.kafka.server.tieredstorage:type=remote-storage-manager-metrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class SameMetric:
    """A counter of the plugin that is exported from ``source``: the sum of its series that have the labels ``where``, by its
    other labels."""

    attribute: str
    source: Metric
    where: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        domain, _, kind = MANAGER.partition(":type=")
        return "_".join((domain, kind, self.attribute)).replace(".", "_").replace("-", "_")

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(name for name in self.source.labels if name not in self.where)


SAME = (
    SameMetric(attribute="object-upload-bytes-total", source=STORE_BYTES, where={"verb": "put"}),
    SameMetric(attribute="segment-delete-total", source=DELETE_REQUESTS),
    SameMetric(attribute="segment-delete-errors-total", source=DELETE_ERRORS),
    SameMetric(attribute="segment-fetch-requested-bytes-total", source=READ_REQUESTED_BYTES),
)

OTHERWISE: tuple[tuple[str, str], ...] = (
    ("`*-rate`", "`rate()` of the counters"),
    (
        "`object-upload-total`",
        f'`{STORE_OPERATIONS.name}{{verb="put", outcome="ok"}}` counts all written objects, including probes of the store',
    ),
    ("tags `object-type` and `partition`", "not distinguished"),
    (
        "`segment-copy-time-*`, `segment-delete-time-*`",
        "not measured; the events `segment.copy.finished` have `elapsed_ms`, and "
        "`tiersidecar_copy_in_flight_oldest_age_seconds` shows a slow copy",
    ),
    ("`segment-delete-bytes-total`", f"not counted; `{DELETE_LAG_BYTES.name}` has what is still to be deleted"),
    (
        "segment-manifest, segment-indexes and chunk cache",
        f"entries of the plugin's caches have no counterpart; `{READ_CACHE_BYTES.name}` has the bytes served from caches",
    ),
    ("thread pools of the caches", "there are none: reads are coroutines, in the pool of `kafka_remote_log_reader_*`"),
    (
        "clients of S3, GCS and Azure",
        f"`{STORE_OPERATIONS.name}` counts requests by verb and outcome for every store; the parts of a multipart upload, "
        f"retries and times of single requests are not counted separately. Failed reads: `{FETCH_ERRORS.name}`",
    ),
)
"""The plugin's other metrics, and where to look here instead."""
