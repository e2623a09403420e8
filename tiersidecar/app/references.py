"""The references that are generated from the code: docs/configuration.md, docs/metrics.md, config/tiersidecar.yaml.

``python -m tiersidecar.app.references`` writes them below the current directory; a test checks that they are current.  The
first two are tables of all keys and all metrics; the last has every key with its meaning, in the order of the models.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from tiersidecar.app.config.broker import BrokerSection
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.gateway import GatewayListenerSection, GatewaySection
from tiersidecar.app.config.keys import choices, is_optional, keys_in, quantity_of, sections_in
from tiersidecar.app.config.report import WITHOUT_EFFECT
from tiersidecar.app.config.section import Section
from tiersidecar.app.config.serve import (
    ServeConfig,
    ServeHttpSection,
    ServeKafkaSection,
    ServeReadSection,
    ServeStatusSection,
    ServeUser,
)
from tiersidecar.app.config.services import LoggingSection, ReadCaller, ReaderQuota, ReadSection, StatusSection
from tiersidecar.app.config.store import INSTALLED, FilesystemStore, store_sections
from tiersidecar.app.config.store_base import KeyPair
from tiersidecar.app.config.topics import TopicRule
from tiersidecar.app.config.values import LONG_MAX, SECRET_FORMS, Address
from tiersidecar.ports.metrics import plugin
from tiersidecar.ports.metrics.catalogue import BUCKET_CATALOGUE, CATALOGUE
from tiersidecar.ports.telemetry import Metric

GENERATED = "Generated from the code by `python -m tiersidecar.app.references`: change it there."


def default_of(field: FieldInfo) -> Any:
    """Return the default of a key that is not required."""
    return field.get_default(call_default_factory=True, validated_data={})


def written(field: FieldInfo, default: Any) -> str:
    """Return ``default`` as YAML writes it, with a unit if the key takes one."""
    quantity = quantity_of(field)
    match default:
        case bool():
            return "true" if default else "false"
        case int() if quantity is not None:
            return str(default) if default == LONG_MAX else quantity.format(default)
        case tuple():
            return "[]"
        case dict():
            return "{}"
        case "":
            return '""'
        case _:
            return str(default)


def sentence_of(key: str, field: FieldInfo) -> str:
    """Return the key's documentation on one line, with a note if the key has no effect yet."""
    why = next((why for path, why in WITHOUT_EFFECT.items() if path[-1] == key), None)
    note = "" if why is None else f" (Without effect in this release: {why}.)"
    return " ".join((field.description or "").split()) + note


def _title_of_kind(kind: str) -> str:
    return "a type that another package adds" if kind == INSTALLED else f"type {kind}"


_SECTIONS: tuple[tuple[str, type[Section]], ...] = (
    ("Top level", Config),
    ("Section broker", BrokerSection),
    *((f"Section store, {_title_of_kind(kind)}", section) for kind, section in store_sections().items()),
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
_SERVE_SECTIONS: tuple[tuple[str, type[Section]], ...] = (
    ("tiersidecar serve", ServeConfig),
    ("tiersidecar serve, each of users", ServeUser),
    ("tiersidecar serve, section kafka", ServeKafkaSection),
    ("tiersidecar serve, section http", ServeHttpSection),
    ("tiersidecar serve, section read", ServeReadSection),
    ("tiersidecar serve, section status", ServeStatusSection),
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
    """Return docs/configuration.md: a table for each section."""
    parts = [
        "# Configuration reference",
        f"<!-- {GENERATED} -->",
        "The configuration is one YAML file. Dotted names are those of Kafka or of Aiven's plugin, with their meanings and\n"
        "defaults; the sections are tiersidecar's own. `tiersidecar check-config FILE` checks a file and prints the effective\n"
        "configuration. It reports all unknown keys, duplicate keys and wrong values at once, each with its line.",
        "- **Sizes** are bytes, or have a unit: `64MiB`, `1GiB`, `500MB`.\n"
        "- **Durations** are milliseconds, or have a unit: `500ms`, `30s`, `2min`, `12h`, `7d`. "
        "Keys that end in `.seconds` count seconds.\n"
        f"- **Secrets** are written as {SECRET_FORMS.replace('{', '`{').replace('}', '}`')}. "
        "They are never printed.\n  A file's last line break is not part of the secret.\n"
        "- The plugin prefixes of a broker's `server.properties` are accepted at the top level: `rsm.config.chunk.size` is\n"
        "  `chunk.size` in section store, `rsm.config.storage.s3.region` its `s3.region`, and `rlmm.config.` is dropped.",
    ]
    for title, section in (*_SECTIONS, *_SERVE_SECTIONS):
        parts.append(f"## {title}")
        if section is ServeConfig:
            parts.append(
                "A file of its own ([serve.md](serve.md)); its sections `store` and `logging` are a sidecar's."
            )
        parts.append("| key | value | default | meaning |\n| --- | --- | --- | --- |\n" + "\n".join(_rows(section)))
    return "\n\n".join(parts) + "\n"


def metrics_reference() -> str:
    """Return docs/metrics.md: a table of the catalogue."""
    rows = "\n".join(_metric_row(metric) for metric in CATALOGUE)
    of_serve = "\n".join(_metric_row(metric) for metric in BUCKET_CATALOGUE)
    return (
        "# Metrics reference\n\n"
        f"<!-- {GENERATED} -->\n\n"
        "`GET /metrics` of the status service returns these metrics in Prometheus' text format. Names that begin with\n"
        "`kafka_` are Kafka's own (BrokerTopicMetrics, RemoteLogManager) in Prometheus' form.\n\n"
        "A metric marked *by partition* is summed over the partitions of a topic, unless the scrape requests\n"
        "`/metrics?partitions=1` or `status.per.partition.series` is `always`. The Prometheus client adds `process_*` and\n"
        "`python_info`.\n\n"
        f"| metric | kind | labels | meaning |\n| --- | --- | --- | --- |\n{rows}\n\n"
        "## tiersidecar serve\n\n"
        "In addition to the metrics of reads and stores above ([serve.md](serve.md)):\n\n"
        f"| metric | kind | labels | meaning |\n| --- | --- | --- | --- |\n{of_serve}\n\n{_plugin_metrics()}"
    )


def _plugin_metrics() -> str:
    same = "\n".join(
        f"| `{one.attribute}` | `{one.name}` | {', '.join(f'`{label}`' for label in one.labels) or '–'} | `{one.source.name}` |"
        for one in plugin.SAME
    )
    otherwise = "\n".join(f"| {what} | {instead} |" for what, instead in plugin.OTHERWISE)
    return (
        "## Names of Aiven's plugin\n\n"
        f"Counters with the same meaning as an attribute of `{plugin.MANAGER}` are exported a second time, under the name that "
        "Prometheus' JMX exporter gives it. So dashboards for the plugin show them.\n\n"
        f"| attribute | exported as | labels | the same as |\n| --- | --- | --- | --- |\n{same}\n\n"
        f"| the plugin's other metrics | here |\n| --- | --- |\n{otherwise}\n"
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
        return _TYPES.get(plain, "section")
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


_WIDTH = 120


def annotated_configuration() -> str:
    """Return config/tiersidecar.yaml: every key with its meaning and default; keys without a default are commented out."""
    head = [
        "# Every key of the sidecar's configuration, with its default. Required: log.dirs, broker, store.",
        "# A real file needs a fraction of this: see config/examples.",
        f"# {GENERATED}",
        "# Keys that are commented out have no default; their values here are examples.",
    ]
    return "\n".join([*head, *_annotated(Config, "")]) + "\n"


def _annotated(section: type[Section], indent: str) -> Iterator[str]:
    for key, field in keys_in(section):
        yield ""
        yield from _comment(sentence_of(key, field), indent)
        below = _section_below(key, field)
        if below is not None:
            yield f"{indent}{key}:"
            yield from _annotated(below, indent + "  ")
        else:
            yield f"{indent}{_line(key, field)}"
        if key == "topics":
            yield "# topics:"
            yield from (f"# {line}".rstrip() for line in _as_list_item(TopicRule))


def _section_below(key: str, field: FieldInfo) -> type[Section] | None:
    if key == "store":
        return FilesystemStore
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def _as_list_item(section: type[Section]) -> Iterator[str]:
    marker = "- "
    for line in _annotated(section, "    "):
        is_key = bool(line) and not line.lstrip().startswith("#")
        yield line.replace("    ", f"  {marker}", 1) if is_key else line
        marker = "  " if is_key else marker


def _line(key: str, field: FieldInfo) -> str:
    if field.is_required() or key == "name":
        return f"{key}: {_example(field)}"
    default = default_of(field)
    return f"# {key}: {_example(field)}" if default is None else f"{key}: {written(field, default)}"


def _example(field: FieldInfo) -> Any:
    if field.examples:
        return field.examples[0]
    found = choices(field.annotation)
    if found:
        return found[0]
    quantity = quantity_of(field)
    if quantity is not None:
        return quantity.format(max(quantity.at_least, 1) if quantity.kind == "size" else 60_000)
    return "true" if bool in get_args(field.annotation) else "…"


def _comment(text: str, indent: str) -> Iterator[str]:
    line = ""
    for word in text.split():
        if line and len(indent) + len(line) + len(word) + 3 > _WIDTH:
            yield f"{indent}# {line}"
            line = word
        else:
            line = f"{line} {word}".lstrip()
    if line:
        yield f"{indent}# {line}"


def generated_files() -> dict[str, str]:
    """Return the text of each generated file, by its path relative to the project's root."""
    return {
        "docs/configuration.md": configuration_reference(),
        "docs/metrics.md": metrics_reference(),
        "config/tiersidecar.yaml": annotated_configuration(),
    }


def write_references(root: Path) -> None:
    """Write all generated files below ``root``."""
    for name, text in generated_files().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_references(Path.cwd())
