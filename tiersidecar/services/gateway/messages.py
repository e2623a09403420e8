"""Small requests and responses, opened and written anew whole: for APIs whose messages hold no records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from kio.index import load_request_schema, load_response_schema

from tiersidecar.formats.wire.messages import MalformedMessageError, read_message, write_message
from tiersidecar.services.gateway.exchange import Exchange

RowKey = tuple[str, int]
"""Topic and partition."""


def read_request(exchange: Exchange) -> Any:
    """kio's entity of the request.

    Raises:
        MalformedMessageError: it is none of its API and version.
    """
    return _whole(load_request_schema(exchange.api_key, exchange.api_version), bytes(exchange.request))


def read_response(exchange: Exchange, response: memoryview) -> Any:
    """As :func:`read_request`, of the response."""
    return _whole(load_response_schema(exchange.api_key, exchange.api_version), bytes(response))


def rows_of(message: Any) -> dict[RowKey, Any]:
    """The partitions of a request or response with ``topics``, by topic name and number."""
    return {(_name(topic), _number(row)): row for topic in message.topics for row in topic.partitions}


def with_rows(message: Any, changed: Mapping[RowKey, Any]) -> bytes:
    """``message`` written with other rows in place of some of its own."""
    topics = tuple(
        replace(topic, partitions=tuple(changed.get((_name(topic), _number(row)), row) for row in topic.partitions))
        for topic in message.topics
    )
    return write_message(replace(message, topics=topics))


def changed_row(row: Any, **values: object) -> Any:
    """``row`` with those of ``values`` that its version has."""
    known = {field.name for field in fields(row)}
    return replace(row, **{name: value for name, value in values.items() if name in known})


def _whole(schema: Any, body: bytes) -> Any:
    message, end = read_message(schema, body)
    if end != len(body):
        raise MalformedMessageError(f"{schema.__name__}: {len(body) - end} bytes are left over")
    return message


def _name(topic: Any) -> str:
    return str(topic.name if hasattr(topic, "name") else topic.topic)


def _number(row: Any) -> int:
    return int(row.partition_index if hasattr(row, "partition_index") else row.partition)
