"""Nothing is written to what is mounted read-only: Produce, AddPartitionsToTxn, DeleteRecords (issue 21)."""

from __future__ import annotations

import struct
import typing
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from tests.support.gateway_conversations import frame, produce, with_size
from tests.support.gateway_core import Core
from tests.support.model_broker import HEARTBEAT
from tests.support.scripted_kafka import ADVERTISED
from tiersidecar.formats.wire.messages import MalformedMessageError, read_message, write_message
from tiersidecar.services.gateway.exchange import ConnectionState, Exchange
from tiersidecar.services.gateway.mount_refusals import mount_refusals
from tiersidecar.services.gateway.request_heads import ApiKey

PRODUCE, IN_TRANSACTION, DELETES = ApiKey.PRODUCE, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.DELETE_RECORDS
MOUNTED, LOCAL = "mounted", "local"
IDS = {MOUNTED: uuid.UUID(int=7), LOCAL: uuid.UUID(int=8)}
REFUSALS = mount_refusals(lambda topic: topic in (MOUNTED, IDS[MOUNTED].bytes), ADVERTISED)
MESSAGES = [
    *((PRODUCE, version) for version in range(3, 14)),
    *((IN_TRANSACTION, version) for version in range(4)),
    *((DELETES, version) for version in range(3)),
]
NO_PARTITION = 2**30
OTHER_VALUES = {
    "transactional_id": "t",
    "v3_and_below_transactional_id": "t",
    "v3_and_below_producer_id": 1,
    "v3_and_below_producer_epoch": 2,
    "producer_id": 1,
    "producer_epoch": 2,
    "acks": 1,
    "timeout": timedelta(seconds=1),
    "throttle_time": timedelta(0),
    "records": b"records",
    "error_code": ErrorCode.unknown_topic_or_partition,
    "partition_error_code": ErrorCode.unknown_topic_or_partition,
    "base_offset": 5,
    "log_start_offset": 3,
    "low_watermark": 4,
    "offset": 9,
    "error_message": "none here",
}


def built(schema: Any, rows: Mapping[str, Sequence[int]]) -> Any:
    """A request or response, by kio, with the partitions ``rows`` by topic: what else is in it matters little."""
    return _entity(schema, {"rows": rows})


def _entity(schema: Any, given: Mapping[str, Any]) -> Any:
    return schema(**{one.name: _value(one, given) for one in fields(schema) if one.name not in ("current_leader",)})


def _value(field: Field[Any], given: Mapping[str, Any]) -> Any:
    item = typing.get_args(field.type)[0] if typing.get_origin(field.type) is tuple else None
    if item is not None and "rows" in given:
        rows: Mapping[str, Sequence[int]] = {} if field.name == "node_endpoints" else given["rows"]
        return tuple(_entity(item, {"topic": topic, "numbers": numbers}) for topic, numbers in rows.items())
    if item is not None:
        numbers = given.get("numbers", ())  # of partitions; a row has arrays of its own, which are left empty
        is_entity = hasattr(item, "__dataclass_fields__")
        return tuple(_entity(item, {"number": number}) if is_entity else number for number in numbers)
    named = {"name": given.get("topic"), "topic_id": IDS.get(given.get("topic", ""))}
    named |= {"index": given.get("number"), "partition_index": given.get("number")}
    return named.get(field.name, OTHER_VALUES.get(field.name))


def error_of(row: Any) -> ErrorCode:
    return ErrorCode(getattr(row, "error_code", getattr(row, "partition_error_code", -1)))


def number_of(row: Any) -> int:
    return int(getattr(row, "index", getattr(row, "partition_index", -1)))


def answered_rows(answer: Any) -> list[list[Any]]:
    """The partitions of each topic of a response."""
    topics = next(value for one in fields(answer) if isinstance(value := getattr(answer, one.name), tuple) and value)
    return [
        next(list(getattr(topic, one.name)) for one in fields(topic) if isinstance(getattr(topic, one.name), tuple))
        for topic in topics
    ]


def asked(key: int, version: int, body: bytes) -> Exchange:
    upstream: Any = None
    return Exchange(
        api_key=key,
        api_version=version,
        client_id="c",
        request=memoryview(body),
        upstream=upstream,
        connection=ConnectionState(),
        listener="main",
    )


def rewritten(pieces: Any, before: bytes) -> bytes:
    return before if pieces is None else b"".join(pieces)


@pytest.mark.parametrize(("key", "version"), MESSAGES)
def test_the_broker_is_asked_for_no_partition_and_the_client_is_refused(key: int, version: int) -> None:
    """What else is in the request goes on as it came, and so does what the broker says of it."""
    refusal = REFUSALS[key]
    assert version in refusal.versions()
    body = write_message(built(load_request_schema(key, version), {LOCAL: [4], MOUNTED: [0, 5]}))
    exchange = asked(key, version, body)
    sent = rewritten(refusal.prepare(exchange), body)
    elsewhere = {LOCAL: [4], MOUNTED: [NO_PARTITION, NO_PARTITION + 5]}
    assert sent == write_message(built(load_request_schema(key, version), elsewhere))

    response_schema = load_response_schema(key, version)
    response = write_message(built(response_schema, elsewhere))
    got, end = read_message(response_schema, rewritten(refusal.rewrite(exchange, memoryview(response)), response))
    assert end == len(response)
    local, mounted = answered_rows(got)
    assert [(number_of(row), error_of(row)) for row in local] == [(4, ErrorCode.unknown_topic_or_partition)]
    refused = ErrorCode.topic_authorization_failed
    assert [(number_of(row), error_of(row)) for row in mounted] == [(0, refused), (5, refused)]


def test_a_request_without_mounted_partitions_passes_as_it_is() -> None:
    body = write_message(built(load_request_schema(PRODUCE, 11), {LOCAL: [0, 1]}))
    assert REFUSALS[PRODUCE].prepare(asked(PRODUCE, 11, body)) is None


def test_a_client_that_asks_for_no_partition_itself_is_cut_off() -> None:
    """The answer to it would be taken for one to a refused request."""
    body = write_message(built(load_request_schema(DELETES, 2), {LOCAL: [NO_PARTITION]}))
    with pytest.raises(MalformedMessageError, match="which no topic has"):
        REFUSALS[DELETES].prepare(asked(DELETES, 2, body))


def test_after_a_produce_without_an_answer_the_next_answer_is_the_next_request_s() -> None:
    core = Core(REFUSALS)
    core.conversation.from_client(produce(0))
    assert core.broker.take()
    core.conversation.from_client(frame(HEARTBEAT))
    sent = core.broker.take()
    core.conversation.from_broker(with_size(sent[8:12] + struct.pack(">h", 0)))
    assert core.client.take() == with_size(sent[8:12] + struct.pack(">h", 0))
    assert core.refusal is None
