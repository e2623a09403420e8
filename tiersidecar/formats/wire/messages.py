"""Kafka messages to and from bytes, by kio's schemas.

Writing is kio's.  Reading is ours, because kio 0.6.5's native reader must not see bytes from another process: it
allocates whatever an array length claims, which aborts the process, and it refuses unknown tagged fields,
which Kafka adds without a new version (KIP-482).
"""

from __future__ import annotations

import io
import struct
import typing
import uuid
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.protocol import Entity

E = TypeVar("E", bound=Entity)
Read = Callable[[bytes, int], tuple[Any, int]]
"""Takes the bytes and a position, returns the value and the position after it."""


class MalformedMessageError(ValueError):
    """Bytes that are not the message they should be."""


class UnaskedAnswerError(MalformedMessageError):
    """An answer to another request than the next one, or about what this one has not asked for."""


def write_message(entity: Entity) -> bytes:
    """Return ``entity`` as Kafka's bytes, without a frame or a header."""
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def read_message(entity_type: type[E], buffer: bytes, offset: int = 0) -> tuple[E, int]:
    """Read the ``entity_type`` at ``offset``, and the offset after it.

    Unknown tagged fields are skipped, unknown error codes are UNKNOWN_SERVER_ERROR (as ``Errors.forCode`` does), an
    all-zero Uuid is None, durations past what Python can hold are the longest that it can.

    Raises:
        MalformedMessageError: the bytes end too soon, or a length, a text or a null is impossible.
    """
    try:
        entity, position = _entity_reader(entity_type)(buffer, offset)
    except MalformedMessageError:
        raise
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise MalformedMessageError(f"{entity_type.__name__}: {error}") from error
    return entity, position


@cache
def _entity_reader(entity_type: type[Entity]) -> Read:
    plain: list[tuple[str, Read]] = []
    tagged: dict[int, tuple[str, Read]] = {}
    for field in fields(entity_type):
        reader = _field_reader(field, flexible=entity_type.__flexible__, header=entity_type.__name__ == "RequestHeader")
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = (field.name, reader)
        else:
            plain.append((field.name, reader))
    defaults = {field.name: field.default for field in fields(entity_type) if field.default is not MISSING}

    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        for name, reader in plain:
            values[name], position = reader(buffer, position)
        if not entity_type.__flexible__:
            return entity_type(**values), position
        position = _read_tagged(tagged, values, buffer, position)
        for name, _ in tagged.values():
            values.setdefault(name, defaults[name])
        return entity_type(**values), position

    return read


def _read_tagged(tagged: dict[int, tuple[str, Read]], values: dict[str, Any], buffer: bytes, position: int) -> int:
    count, position = _read_uvarint(buffer, position)
    for _ in range(count):
        tag, position = _read_uvarint(buffer, position)
        size, position = _read_uvarint(buffer, position)
        end = _end(buffer, position, size)
        if tag in tagged:
            name, reader = tagged[tag]
            values[name], reached = reader(buffer, position)
            if reached != end:
                raise MalformedMessageError(f"tagged field {name} has {size} bytes, {reached - position} were read")
        position = end
    return position


def _field_reader(field: Field[Any], *, flexible: bool, header: bool) -> Read:
    # A request header's client id is in the old string format even when the header is flexible (RequestHeader.json).
    flexible = flexible and not (header and field.name == "client_id")
    kafka_type = field.metadata.get("kafka_type")
    bare, nullable = without_none(field.type)
    if typing.get_origin(bare) is not tuple:
        return _value_reader(bare, kafka_type, flexible=flexible, nullable=nullable)
    item, _ = without_none(typing.get_args(bare)[0])
    if kafka_type in _FIXED and _FIXED[kafka_type][1] is None:
        return _fixed_array_reader(_FIXED[kafka_type][0], flexible, nullable)
    return _array_reader(_value_reader(item, kafka_type, flexible=flexible, nullable=False), flexible, nullable)


def without_none(annotation: Any) -> tuple[Any, bool]:
    """Return the type of a message's field without None, and whether it has that."""
    if typing.get_origin(annotation) not in (UnionType, typing.Union):
        return annotation, False
    (bare,) = (argument for argument in typing.get_args(annotation) if argument is not NoneType)
    return bare, True


def _value_reader(value_type: Any, kafka_type: str | None, *, flexible: bool, nullable: bool) -> Read:
    if is_dataclass(value_type):
        reader = _entity_reader(typing.cast("type[Entity]", value_type))
        return _nullable_entity_reader(reader) if nullable else reader
    match kafka_type:
        case "string":
            return _text_reader(_bytes_reader(_read_compact_length if flexible else _read_int16_length, nullable))
        case "bytes" | "records":
            return _bytes_reader(_read_compact_length if flexible else _read_int32_length, nullable)
        case "datetime_i64" if nullable:
            return _fixed_reader("q", lambda value: None if value == -1 else _moment(value))
        case str() if kafka_type in _FIXED:
            return _fixed_reader(*_FIXED[kafka_type])
        case _:
            raise TypeError(f"no reader for {value_type} as {kafka_type}")


def _fixed_reader(layout: str, convert: Callable[[Any], Any] | None) -> Read:
    unpack, size = struct.Struct(">" + layout).unpack_from, struct.calcsize(">" + layout)
    if convert is None:
        return lambda buffer, position: (unpack(buffer, position)[0], position + size)
    return lambda buffer, position: (convert(unpack(buffer, position)[0]), position + size)


def _nullable_entity_reader(reader: Read) -> Read:
    # One byte before the struct: negative for null (KIP-893).
    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        return (None, position + 1) if buffer[position] > 127 else reader(buffer, position + 1)

    return read


def _bytes_reader(read_length: Read, nullable: bool) -> Read:
    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        length, position = read_length(buffer, position)
        if length < 0:
            _check_null(nullable)
            return None, position
        end = _end(buffer, position, length)
        return bytes(buffer[position:end]), end

    return read


def _text_reader(reader: Read) -> Read:
    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        value, position = reader(buffer, position)
        return value if value is None else value.decode("utf-8"), position

    return read


def _array_reader(reader: Read, flexible: bool, nullable: bool) -> Read:
    read_length = _read_compact_length if flexible else _read_int32_length

    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        length, position = read_length(buffer, position)
        if length < 0:
            _check_null(nullable)
            return None, position
        _end(buffer, position, length)  # an item has a byte at least
        items = []
        for _ in range(length):
            item, position = reader(buffer, position)
            items.append(item)
        return tuple(items), position

    return read


def _fixed_array_reader(layout: str, flexible: bool, nullable: bool) -> Read:
    # Replica lists, above all: most of a Metadata response.
    read_length, size = _read_compact_length if flexible else _read_int32_length, struct.calcsize(">" + layout)

    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        length, position = read_length(buffer, position)
        if length < 0:
            _check_null(nullable)
            return None, position
        end = _end(buffer, position, length * size)
        return struct.unpack_from(f">{length}{layout}", buffer, position), end

    return read


def _check_null(nullable: bool) -> None:
    if not nullable:
        raise MalformedMessageError("null where there must be a value")


def _end(buffer: bytes, position: int, length: int) -> int:
    if length > len(buffer) - position:
        raise MalformedMessageError(f"a length of {length} at byte {position} of {len(buffer)}")
    return position + length


def _read_uvarint(buffer: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift > 28:
            raise MalformedMessageError(f"a varint of more than five bytes before byte {position}")


def _read_compact_length(buffer: bytes, position: int) -> tuple[int, int]:
    length, position = _read_uvarint(buffer, position)
    return length - 1, position


def _read_int16_length(buffer: bytes, position: int) -> tuple[int, int]:
    return struct.unpack_from(">h", buffer, position)[0], position + 2


def _read_int32_length(buffer: bytes, position: int) -> tuple[int, int]:
    return struct.unpack_from(">i", buffer, position)[0], position + 4


def _error_code(value: int) -> ErrorCode:
    try:
        return ErrorCode(value)
    except ValueError:
        return ErrorCode.unknown_server_error


def _milliseconds(value: int) -> timedelta:
    try:
        return timedelta(milliseconds=value)
    except OverflowError:
        return timedelta.max if value > 0 else timedelta.min


def _moment(value: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=value)


_FIXED: dict[str, tuple[str, Callable[[Any], Any] | None]] = {
    "bool": ("?", None),
    "int8": ("b", None),
    "int16": ("h", None),
    "int32": ("i", None),
    "int64": ("q", None),
    "uint16": ("H", None),
    "float64": ("d", None),
    "uuid": ("16s", lambda raw: uuid.UUID(bytes=raw) if any(raw) else None),
    "error_code": ("h", _error_code),
    "timedelta_i32": ("i", _milliseconds),
    "timedelta_i64": ("q", _milliseconds),
    "datetime_i64": ("q", _moment),
}
