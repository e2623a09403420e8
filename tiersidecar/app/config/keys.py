"""The keys that there are, as read from the models: for suggestions, and for the generated references."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from tiersidecar.app.config.document import KeyPath
from tiersidecar.app.config.section import Section
from tiersidecar.app.config.values import Quantity

KEYS_OF_KAFKA = {
    "remote.log.storage.system.enable": "it is the broker's own switch for native tiering, which stays off",
    "remote.storage.enable": "list the topic under topics; the broker's own setting stays off",
    "remote.log.storage.manager.class.name": "the store is chosen by store.type",
    "remote.log.storage.manager.class.path": "the store is chosen by store.type",
    "remote.log.storage.manager.impl.prefix": "the plugin's keys stand under store",
    "remote.log.metadata.manager.class.name": "metadata is always kept in the topic remote.log.metadata.topic.name",
    "remote.log.metadata.manager.class.path": "metadata is always kept in the topic remote.log.metadata.topic.name",
    "remote.log.metadata.manager.impl.prefix": "the metadata topic's keys stand at the top level",
    "remote.log.metadata.manager.listener.name": "every connection uses broker.bootstrap.servers",
    "remote.log.manager.thread.pool.size": "Kafka 4.2 renamed it: remote.log.manager.follower.thread.pool.size",
    "remote.log.delete.on.disable": "remote data stays until it expires",
    "log.retention.hours": "write log.retention.ms, which takes units such as 7d",
    "log.retention.minutes": "write log.retention.ms, which takes units such as 7d",
    "log.dir": "write log.dirs",
    "storage.backend.class": "the store is chosen by store.type",
}
"""Keys that an operator of native tiering may bring along, and what to do instead."""


def keys_in(model: type[Section]) -> Iterator[tuple[str, FieldInfo]]:
    """Name and declaration of every key of a section: the required ones first, then as declared."""
    for name, field in sorted(model.model_fields.items(), key=lambda item: not item[1].is_required()):
        yield field.alias or name, field


def sections_in(annotation: Any) -> tuple[type[Section], ...]:
    """Return the sections that a value of this type may hold: alternatives of a union, items of a list, values of a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return (annotation,)
    if get_origin(annotation) is None:
        return ()
    return tuple(section for part in get_args(annotation) for section in sections_in(part))


def keys_of(model: type[Section], path: KeyPath, data: Any) -> list[str]:
    """Return the keys that may stand at ``path``; ``data`` decides which kind of store is meant."""
    value: Any = data
    section: type[Section] = model
    sections: tuple[type[Section], ...] = (model,)
    for part in path:
        value = value[part]
        if isinstance(part, int):
            continue
        field = dict(keys_in(section)).get(part)
        if field is None:  # a name that the file gives: what is below it says which kind it is
            section = _alternative(sections, value)
            continue
        sections = sections_in(field.annotation)
        if not sections:
            return []
        section = _alternative(sections, value)
    return [key for key, _ in keys_in(section)]


def _alternative(sections: tuple[type[Section], ...], value: Any) -> type[Section]:
    kind = value.get("type") if isinstance(value, Mapping) else None
    for section in sections:
        field = section.model_fields.get("type")
        if field is not None and kind in get_args(field.annotation):
            return section
    return sections[0]


def all_key_paths(model: type[Section], below: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield every key of ``model`` and of its sections, those of alternatives one after the other."""
    for key, field in keys_in(model):
        path = (*below, key)
        yield path
        in_list = (0,) if get_origin(field.annotation) is tuple else ()
        for section in sections_in(field.annotation):
            yield from all_key_paths(section, (*path, *in_list))


def is_optional(annotation: Any) -> bool:
    """Return whether None is among the values."""
    return get_origin(annotation) in {Union, types.UnionType} and type(None) in get_args(annotation)


def choices(annotation: Any) -> tuple[Any, ...]:
    """Return the values of a Literal, also of an optional one; empty for other types."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(choice for part in get_args(annotation) for choice in choices(part)) if is_optional(annotation) else ()


def quantity_of(field: FieldInfo) -> Quantity | None:
    """Return the unit of a key, also of an optional one; None for other kinds of value."""
    return _quantity_in(field.metadata) or _quantity_below(field.annotation)


def _quantity_in(metadata: Iterable[object]) -> Quantity | None:
    return next((item for item in metadata if isinstance(item, Quantity)), None)


def _quantity_below(annotation: Any) -> Quantity | None:
    if is_optional(annotation):
        return next((found for part in get_args(annotation) if (found := _quantity_below(part))), None)
    return _quantity_in(getattr(annotation, "__metadata__", ()))
