"""Small requests and responses, opened and written anew whole: for APIs whose messages hold no records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any

from kio.index import load_request_schema, load_response_schema

from tiersidecar.formats.wire.messages import (
    MalformedMessageError,
    UnaskedAnswerError,
    read_message,
    write_message,
)
from tiersidecar.ports.clock import Blocking
from tiersidecar.services.gateway.exchange import Exchange

RowKey = tuple[str, int]
"""Topic and partition."""


_ON_THE_LOOP_BYTES = 4 * 1024
"""Opening or writing larger ones takes milliseconds, a quarter of a second for 4,000 partitions: other connections go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """kio's entities of request and response, and the partitions of both."""

    request: Any
    answered: Any
    asked: Mapping[RowKey, Any]
    rows: Mapping[RowKey, Any]


async def read_exchange(exchange: Exchange, response: memoryview, blocking: Blocking) -> Opened:
    """Open request and response.

    Raises:
        MalformedMessageError: the request is none of its API and version.
        UnaskedAnswerError: the response is none, or has a partition that the request does not.
    """
    if len(exchange.request) + len(response) <= _ON_THE_LOOP_BYTES:
        return _read_both(exchange, response)
    return await blocking.run(_read_both, exchange, response)


async def is_any(
    look: Callable[[memoryview, int], bool], response: memoryview, version: int, blocking: Blocking
) -> bool:
    """Return what ``look`` says of the response, in that version of its API."""
    if len(response) <= _ON_THE_LOOP_BYTES:
        return look(response, version)
    return await blocking.run(look, response, version)


async def write_rows(message: Any, changed: Mapping[RowKey, Any], blocking: Blocking) -> bytes:
    """Write ``message`` with other rows in place of some of its own."""
    if sum(len(topic.partitions) for topic in message.topics) * _LEAST_ROW_BYTES <= _ON_THE_LOOP_BYTES:
        return _with_rows(message, changed)
    return await blocking.run(_with_rows, message, changed)


async def write_only(message: Any, rows: Mapping[RowKey, Any], blocking: Blocking) -> bytes:
    """Write ``message`` with ``rows``, and no others of its own."""
    if len(rows) * _LEAST_ROW_BYTES <= _ON_THE_LOOP_BYTES:
        return _with_only(message, rows)
    return await blocking.run(_with_only, message, rows)


async def write_answer(request: Any, answered: Any, rows: Mapping[RowKey, Any], blocking: Blocking) -> bytes:
    """Write ``answered`` with ``rows``, in the order of the request.  It has at least one topic of its own."""
    if len(rows) * _LEAST_ROW_BYTES <= _ON_THE_LOOP_BYTES:
        return _answer_of(request, answered, rows)
    return await blocking.run(_answer_of, request, answered, rows)


_LEAST_ROW_BYTES = 16
MOST_LOOKUP_BYTES = 512 * 1024
"""The most for a request that asks for offsets: some 20,000 partitions of one broker.  A thread decodes them in 0.5 s."""


def _read_both(exchange: Exchange, response: memoryview) -> Opened:
    key, version = exchange.api_key, exchange.api_version
    request = _whole(load_request_schema(key, version), bytes(exchange.request))
    try:
        answered = _whole(load_response_schema(key, version), bytes(response))
    except MalformedMessageError as error:
        raise UnaskedAnswerError(f"API {key}: {error}") from error  # the broker's bytes, and no fault of the client
    check_asked(key, request, answered)
    return Opened(request=request, answered=answered, asked=rows_of(request), rows=rows_of(answered))


def check_asked(api_key: int, request: Any, answered: Any) -> None:
    """
    Raises:
        UnaskedAnswerError: the response has a partition that the request does not.
    """
    unasked = rows_of(answered).keys() - rows_of(request).keys()
    if unasked:
        raise UnaskedAnswerError(f"API {api_key}: of {next(iter(unasked))} nothing was asked")


async def in_turns(one: Callable[[RowKey, Any], Awaitable[Any]], rows: Mapping[RowKey, Any]) -> dict[RowKey, Any]:
    """Return what ``one`` makes of each row, where that is another: some hundred at a time, so that a request of thousands of
    partitions holds up no other connection."""
    changed, items = dict[RowKey, Any](), iter(rows.items())
    while turn := list(islice(items, _AT_ONCE)):
        found = await asyncio.gather(*(one(key, row) for key, row in turn))
        changed.update((key, new) for (key, old), new in zip(turn, found, strict=True) if new is not old)
    return changed


_AT_ONCE, _BEGUN_AT_ONCE = 250, 32


async def all_at_once(
    one: Callable[[RowKey, Any], Coroutine[Any, Any, Any]], rows: Mapping[RowKey, Any]
) -> dict[RowKey, Any]:
    """Run as :func:`in_turns` does, but let none wait for the end of another: some are begun in each turn of the loop."""
    tasks = dict[RowKey, asyncio.Task[Any]]()
    async with asyncio.TaskGroup() as group:
        for number, (key, row) in enumerate(rows.items(), 1):
            tasks[key] = group.create_task(one(key, row), name="gateway: one partition of a request")
            if number % _BEGUN_AT_ONCE == 0:
                await asyncio.sleep(0)
    return {key: task.result() for key, task in tasks.items() if task.result() is not rows[key]}


def rows_of(message: Any) -> dict[RowKey, Any]:
    """Return the partitions of a request or response with ``topics``, by topic name and number."""
    return {_key(topic, row): row for topic in message.topics for row in topic.partitions}


def _with_rows(message: Any, changed: Mapping[RowKey, Any]) -> bytes:
    topics = tuple(
        replace(topic, partitions=tuple(changed.get(_key(topic, row), row) for row in topic.partitions))
        for topic in message.topics
    )
    return write_message(replace(message, topics=topics))


def _with_only(message: Any, rows: Mapping[RowKey, Any]) -> bytes:
    kept = (
        replace(topic, partitions=tuple(rows[key] for row in topic.partitions if (key := _key(topic, row)) in rows))
        for topic in message.topics
    )
    return write_message(replace(message, topics=tuple(topic for topic in kept if topic.partitions)))


def _answer_of(request: Any, answered: Any, rows: Mapping[RowKey, Any]) -> bytes:
    of_topic = answered.topics[0]
    topics = tuple(
        replace(of_topic, name=topic.name, partitions=tuple(rows[_key(topic, row)] for row in topic.partitions))
        for topic in request.topics
    )
    return write_message(replace(answered, topics=topics))


def changed_row(row: Any, **values: object) -> Any:
    """Return ``row`` with those of ``values`` that its version has."""
    known = {field.name for field in fields(row)}
    return replace(row, **{name: value for name, value in values.items() if name in known})


def _whole(schema: Any, body: bytes) -> Any:
    message, end = read_message(schema, body)
    if end != len(body):
        raise MalformedMessageError(f"{schema.__name__}: {len(body) - end} bytes are left over")
    return message


def _key(topic: Any, row: Any) -> RowKey:
    name = topic.name if hasattr(topic, "name") else topic.topic
    return str(name), int(row.partition_index if hasattr(row, "partition_index") else row.partition)
