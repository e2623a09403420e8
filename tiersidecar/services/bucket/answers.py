"""Requests and responses of small APIs as kio's entities, of whatever version the client speaks."""

from __future__ import annotations

import asyncio
import datetime
import typing
import uuid
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from tiersidecar.decide.reader_quotas import ColdReader
from tiersidecar.domain.errors import (
    MetadataNotReadyError,
    OffsetOutOfRangeError,
    TiersidecarError,
    UndecidedTransactionError,
)
from tiersidecar.domain.ids import Uuid
from tiersidecar.formats.wire.cursor import Buffer
from tiersidecar.formats.wire.messages import MalformedMessageError, read_message, without_none, write_message
from tiersidecar.reading.reader_limits import ASKER, READER
from tiersidecar.services.bucket.users import User

_ROWS_A_TURN = 64
_MOST_WRITTEN_ON_THE_LOOP = 1000
"""Rows: some milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request: its message is in ``body``."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body: bytes
    user: User
    parsed: Any = None
    """The result of :meth:`message`, where it has been parsed before."""

    def message(self) -> Any:
        """Return the request as kio's entity.

        Raises:
            MalformedMessageError: it is none.
        """
        if self.parsed is not None:
            return self.parsed
        schema = load_request_schema(self.api_key, self.version)
        message, end = read_message(schema, self.body)
        if end != len(self.body):
            raise MalformedMessageError(f"{schema.__name__}: {len(self.body) - end} bytes are left over")
        return message

    @property
    def response_type(self) -> Any:
        """Return kio's entity of the response."""
        return load_response_schema(self.api_key, self.version)

    def answered(self, **values: object) -> list[Buffer]:
        """Return the response's body: ``values`` where its version has such fields, and blanks for all others."""
        return [write_message(made(self.response_type, **values))]

    async def answered_in_rows(self, rows: int, **values: object) -> list[Buffer]:
        """Return the same; written in a thread where it has very many ``rows``."""
        if rows <= _MOST_WRITTEN_ON_THE_LOOP:
            return self.answered(**values)
        return await asyncio.to_thread(self.answered, **values)


def read_for(asked: Asked) -> None:
    """Count this task's reads from here on as those of the user who asks, among the places of all."""
    ASKER.set(f"user {asked.user.name}")
    READER.set(ColdReader(principal=f"User:{asked.user.name}", client_id=asked.client_id))


class Turns:
    """Gives other tasks a turn between the rows of a request with thousands of them."""

    def __init__(self) -> None:
        self._rows = 0

    async def after(self, rows: int) -> None:
        """Count ``rows`` more as done."""
        self._rows += rows
        if self._rows >= _ROWS_A_TURN:
            self._rows = 0
            await asyncio.sleep(0)


@cache
def has_flexible_header(api_key: int, version: int) -> bool:
    """Return whether tagged fields follow the correlation id of a response."""
    header: Any = load_response_schema(api_key, version).__header_schema__
    return bool(header.__flexible__)


def made(entity_type: Any, **values: object) -> Any:
    """Return an entity with those of ``values`` that its version has; what is left out has its default, or is blank."""
    given: dict[str, object] = {}
    for field in fields(entity_type):
        if field.name in values:
            given[field.name] = values[field.name]
        elif field.default is MISSING:
            given[field.name] = _blank(field)
    return entity_type(**given)


def items(entity_type: Any, name: str) -> Any:
    """Return the type of the entities in the array ``name``."""
    (field,) = (field for field in fields(entity_type) if field.name == name)
    return typing.get_args(without_none(field.type)[0])[0]


def has(entity_type: Any, name: str) -> bool:
    """Return whether this version has a field ``name``."""
    return any(field.name == name for field in fields(entity_type))


def uuid_of(topic_id: Uuid) -> uuid.UUID:
    """Return the id as kio's type."""
    return uuid.UUID(bytes=topic_id)


def error_of(error: TiersidecarError) -> ErrorCode:
    """Return the error that a client gets, so that it asks again: none here says that an offset is out of range."""
    match error:
        case UndecidedTransactionError() | MetadataNotReadyError() | OffsetOutOfRangeError():
            return ErrorCode.not_leader_or_follower
        case _:
            return ErrorCode.kafka_storage_error


def epoch_fault(asked_epoch: int, leader_epoch: int) -> ErrorCode | None:
    """Return what is wrong with the leader epoch that a client goes by; -1 is no claim."""
    if asked_epoch < 0 or asked_epoch == leader_epoch:
        return None
    return ErrorCode.unknown_leader_epoch if asked_epoch > leader_epoch else ErrorCode.fenced_leader_epoch


def _blank(field: Field[Any]) -> object:
    bare, is_nullable = without_none(field.type)
    if is_nullable:
        return None
    if typing.get_origin(bare) is tuple:
        return ()
    for kind, blank in _BLANKS:
        if issubclass(bare, kind):
            return blank
    assert is_dataclass(bare), bare
    return made(bare)


_BLANKS: tuple[tuple[type, object], ...] = (
    (ErrorCode, ErrorCode.none),
    (bool, False),
    (int, -1),
    (str, ""),
    (bytes, b""),
    (datetime.timedelta, datetime.timedelta(0)),
)
