"""config/tiersidecar.yaml: every key with its meaning, in the order of the models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic.fields import FieldInfo

from tiersidecar.app.config.config import Config
from tiersidecar.app.config.keys import choices, keys_in, quantity_of
from tiersidecar.app.config.section import Section
from tiersidecar.app.config.store import FilesystemStore
from tiersidecar.app.config.topics import TopicRule
from tiersidecar.app.references_values import GENERATED, default_of, sentence_of, written

_WIDTH = 120


def annotated_configuration() -> str:
    """config/tiersidecar.yaml: every key with its meaning; active ones at their defaults, those without commented out."""
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
