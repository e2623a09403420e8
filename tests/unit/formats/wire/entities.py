"""Any message of kio's schemas, filled with anything."""

from __future__ import annotations

import typing
import uuid
from dataclasses import field, fields, is_dataclass, make_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any

from hypothesis import strategies as st
from kio.index import load_entity_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map
from kio.static.protocol import Entity

FUTURE_TAG = 90


def _is_supported(entity_type: Any) -> bool:
    """Raft's and nobody else's: a tagged struct without a default."""
    return not entity_type.__module__.startswith(("kio.schema.fetch_snapshot", "kio.schema.update_raft_voter"))


@cache
def entity_types() -> list[type[Entity]]:
    """All that kio has: a second to import, so by the first test that asks and not by each process that collects tests."""
    return [
        entity_type
        for name, versions in schema_name_map.items()
        for version, kinds in versions.items()
        for kind in kinds
        if _is_supported(entity_type := load_entity_schema(name, version, kind))
    ]


ANY_TYPE: st.SearchStrategy[type[Entity]] = st.deferred(lambda: st.sampled_from(entity_types()))

_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "float64": st.floats(allow_nan=False),
    "string": st.text(max_size=5),
    "bytes": st.binary(max_size=200),
    "records": st.binary(max_size=200),
    "uuid": st.uuids() | st.none(),
    "error_code": st.sampled_from(ErrorCode),
    "timedelta_i32": st.integers(-(2**31), 2**31 - 1).map(lambda value: timedelta(milliseconds=value)),
    "timedelta_i64": st.integers(-(2**45), 2**45).map(lambda value: timedelta(milliseconds=value)),
    # kio's own reader refuses times before 1970
    "datetime_i64": st.integers(0, 2**32).map(lambda second: datetime.fromtimestamp(second, UTC)),
}


@cache
def entities(entity_type: Any) -> st.SearchStrategy[Any]:
    """Values of ``entity_type``; nulls where it allows them, tagged fields of any value."""
    return st.deferred(lambda: st.builds(entity_type, **{field.name: _values(field) for field in fields(entity_type)}))


def _values(field: Any) -> st.SearchStrategy[Any]:
    bare, nullable = _without_none(field.type)
    kafka_type = field.metadata.get("kafka_type")
    if typing.get_origin(bare) is tuple:
        item, _ = _without_none(typing.get_args(bare)[0])
        found: st.SearchStrategy[Any] = st.lists(_value(item, kafka_type), max_size=3).map(tuple)
    else:
        found = _value(bare, kafka_type)
    # kio cannot write a null that is tagged: there, null means absent.
    return found | st.none() if nullable and "tag" not in field.metadata else found


def _value(bare: Any, kafka_type: str | None) -> st.SearchStrategy[Any]:
    return entities(bare) if isinstance(bare, type) and is_dataclass(bare) else _VALUES[kafka_type or ""]


def _without_none(annotation: Any) -> tuple[Any, bool]:
    arguments = typing.get_args(annotation)
    if NoneType not in arguments or annotation is uuid.UUID:
        return annotation, False
    return next(argument for argument in arguments if argument is not NoneType), True


@cache
def of_the_future(schema: Any) -> Any:
    """The same message with one more tagged field in each of its structs, which Kafka adds without a new version (KIP-482)."""
    rows: list[Any] = []
    for one in fields(schema):
        default: dict[str, Any] = {"default": one.default} if "tag" in one.metadata else {}
        rows.append((one.name, _future_annotation(one.type), field(metadata=one.metadata, **default)))
    rows.append(("of_the_future", bytes, field(metadata={"kafka_type": "bytes", "tag": FUTURE_TAG}, default=b"")))
    names = ("__type__", "__version__", "__flexible__", "__api_key__", "__header_schema__")
    namespace = {name: getattr(schema, name) for name in names if hasattr(schema, name)}
    namespace["__annotations__"] = dict.fromkeys(namespace, typing.ClassVar)
    return make_dataclass(schema.__name__, rows, namespace=namespace, frozen=True, kw_only=True)


def _future_annotation(annotation: Any) -> Any:
    if typing.get_origin(annotation) is tuple:
        return tuple[_future_annotation(typing.get_args(annotation)[0]), ...]  # type: ignore[misc]
    if isinstance(annotation, UnionType):
        bare = next(arg for arg in typing.get_args(annotation) if arg is not type(None))
        return _future_annotation(bare) | None
    if hasattr(annotation, "__flexible__"):
        return of_the_future(annotation)
    return annotation
