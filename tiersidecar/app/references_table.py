"""docs/configuration.md and docs/metrics.md: tables of all keys and all metrics."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from tiersidecar.app.config.broker import BrokerSection
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.gateway import GatewayListenerSection, GatewaySection
from tiersidecar.app.config.keys import choices, is_optional, keys_in, quantity_of, sections_in
from tiersidecar.app.config.section import Section
from tiersidecar.app.config.services import LoggingSection, ReadCaller, ReaderQuota, ReadSection, StatusSection
from tiersidecar.app.config.store import FilesystemStore, S3Store
from tiersidecar.app.config.store_azure import AzureStore
from tiersidecar.app.config.store_base import KeyPair
from tiersidecar.app.config.store_installed import InstalledStore
from tiersidecar.app.config.topics import TopicRule
from tiersidecar.app.config.values import SECRET_FORMS, Address
from tiersidecar.app.references_values import GENERATED, default_of, sentence_of, written
from tiersidecar.ports.metrics.catalogue import CATALOGUE
from tiersidecar.ports.telemetry import Metric

_SECTIONS: tuple[tuple[str, type[Section]], ...] = (
    ("Top level", Config),
    ("Section broker", BrokerSection),
    ("Section store, type filesystem", FilesystemStore),
    ("Section store, type s3", S3Store),
    ("Section store, type azure", AzureStore),
    ("Section store, a type that another package brings", InstalledStore),
    ("Section store, each of encryption.key.pairs", KeyPair),
    ("List topics, each rule", TopicRule),
    ("Section read", ReadSection),
    ("Section read, each of callers", ReadCaller),
    ("Each of remote.fetch.quota", ReaderQuota),
    ("Section gateway", GatewaySection),
    ("Section gateway, each of listeners", GatewayListenerSection),
    ("Section status", StatusSection),
    ("Section logging", LoggingSection),
)
_KINDS = {"size": "size", "duration_ms": "duration", "duration_s": "duration in seconds", "percent": "percent"}
_TYPES: dict[type, str] = {
    bool: "true, false",
    int: "number",
    float: "number",
    str: "text",
    SecretStr: "secret",
    Address: "host:port",
}


def configuration_reference() -> str:
    """docs/configuration.md: a table per section."""
    parts = [
        "# Configuration reference",
        f"<!-- {GENERATED} -->",
        "One YAML file. Nested sections are ours; dotted names are Kafka's or the Aiven plugin's and keep their names, "
        "meanings and defaults. `tiersidecar check-config FILE` checks a file and prints what it means; unknown keys, "
        "duplicate keys and wrong values are errors, told all at once, each with its line.",
        "- **Sizes** are bytes, or have a unit: `64MiB`, `1GiB`, `500MB`.\n"
        "- **Durations** are milliseconds, or have a unit: `500ms`, `30s`, `2min`, `12h`, `7d`. "
        "Keys that end in `.seconds` count seconds.\n"
        f"- **Secrets** are written as {SECRET_FORMS.replace('{', '`{').replace('}', '}`')}. "
        "They are never printed. A file's last line break is not part of the secret.\n"
        "- The plugin prefixes of a broker's `server.properties` are accepted at the top level: `rsm.config.chunk.size` is "
        "`chunk.size` in section store, `rsm.config.storage.s3.region` its `s3.region`, and `rlmm.config.` is dropped.",
    ]
    for title, section in _SECTIONS:
        parts.append(f"## {title}")
        parts.append("| key | value | default | meaning |\n| --- | --- | --- | --- |\n" + "\n".join(_rows(section)))
    return "\n\n".join(parts) + "\n"


def metrics_reference() -> str:
    """docs/metrics.md: a table of the catalogue."""
    rows = "\n".join(_metric_row(metric) for metric in CATALOGUE)
    return (
        "# Metrics reference\n\n"
        f"<!-- {GENERATED} -->\n\n"
        "`GET /metrics` of the status service, in Prometheus' text format. Names beginning with `kafka_` are Kafka's own "
        "(BrokerTopicMetrics, RemoteLogManager) in Prometheus' form.\n\n"
        "A metric marked *by partition* is summed over its partitions per topic, unless the scrape asks for "
        "`/metrics?partitions=1` or `status.per.partition.series` is `always`. `process_*` and `python_info` of the "
        "Prometheus client are there as well.\n\n"
        f"| metric | kind | labels | meaning |\n| --- | --- | --- | --- |\n{rows}\n"
    )


def _rows(section: type[Section]) -> Iterator[str]:
    for key, field in keys_in(section):
        cells = (f"`{key}`", _kind(field), _default_cell(field), sentence_of(key, field))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _kind(field: FieldInfo) -> str:
    annotation = field.annotation
    quantity = quantity_of(field)
    if quantity is not None:
        return _KINDS[quantity.kind]
    if choices(annotation):
        return ", ".join(f"`{choice}`" if choice else "empty" for choice in choices(annotation))
    plain = _without_none(annotation)
    if isinstance(plain, type) and issubclass(plain, Enum):
        return ", ".join(f"`{member.value}`" for member in plain)
    if isinstance(plain, type):
        return {
            bool: "true, false",
            int: "number",
            float: "number",
            str: "text",
            SecretStr: "secret",
            Address: "host:port",
        }.get(plain, "section")
    if get_origin(plain) is tuple:
        return "list of sections" if sections_in(plain) else "list"
    return "section"


def _default_cell(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = default_of(field)
    if default is None:
        return "–"
    if isinstance(default, Section):
        return "its defaults"
    return f"`{written(field, default)}`"


def _metric_row(metric: Metric) -> str:
    by_partition = " *By partition.*" if "partition" in metric.labels else ""
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help}{by_partition} |"


def _without_none(annotation: Any) -> Any:
    if is_optional(annotation):
        return next(_bare(part) for part in get_args(annotation) if part is not type(None))
    return _bare(annotation)


def _bare(annotation: Any) -> Any:
    return annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation
