"""Nothing is written to what is mounted read-only, and no partition is added to it (issue 21)."""

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
from tiersidecar.formats.wire.cursor import ApiKey, write_request_header
from tiersidecar.formats.wire.messages import MalformedMessageError, read_message, write_message
from tiersidecar.services.gateway.exchange import ConnectionState, Exchange
from tiersidecar.services.gateway.mount_refusals import mount_refusals

PRODUCE, IN_TRANSACTION, DELETES = ApiKey.PRODUCE, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.DELETE_RECORDS
MARKERS, NEW_PARTITIONS = ApiKey.WRITE_TXN_MARKERS, ApiKey.CREATE_PARTITIONS
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
        request=memoryview(bytearray(body)),
        upstream=upstream,
        connection=ConnectionState(),
        listener="main",
    )


def rewritten(pieces: Any, before: bytes | bytearray) -> bytes:
    return bytes(before) if pieces is None else b"".join(pieces)


def sent(key: int, version: int, body: bytes) -> bytes:
    """What goes to the broker, without its header."""
    if key != PRODUCE:
        exchange = asked(key, version, body)
        assert REFUSALS[key].prepare(exchange) is None
        return bytes(exchange.request)
    whole = framed(version, body)
    return passed(version, whole, [whole])[-len(body) :]


def framed(version: int, body: bytes) -> bytes:
    return with_size(write_request_header(PRODUCE, version, 5, "a-client") + body)


def passed(version: int, whole: bytes, pieces: Sequence[bytes]) -> bytes:
    """What goes on of a Produce request that comes in ``pieces``."""
    passing = REFUSALS[PRODUCE].passing_request(version, len(whole))
    assert passing is not None
    return b"".join(bytes(one) for piece in pieces for one in passing.feed(memoryview(bytearray(piece))))


@pytest.mark.parametrize(("key", "version"), MESSAGES)
def test_the_broker_is_asked_for_no_partition_and_the_client_is_refused(key: int, version: int) -> None:
    """What else is in the request goes on as it came, and so does what the broker says of it."""
    refusal = REFUSALS[key]
    assert version in refusal.versions()
    body = write_message(built(load_request_schema(key, version), {LOCAL: [4], MOUNTED: [0, 5]}))
    elsewhere = {LOCAL: [4], MOUNTED: [NO_PARTITION, NO_PARTITION + 5]}
    assert sent(key, version, body) == write_message(built(load_request_schema(key, version), elsewhere))

    response_schema = load_response_schema(key, version)
    response = bytearray(write_message(built(response_schema, elsewhere)))
    pieces = refusal.rewrite(asked(key, version, body), memoryview(response))
    got, end = read_message(response_schema, rewritten(pieces, response))
    assert end == len(response)
    local, mounted = answered_rows(got)
    assert [(number_of(row), error_of(row)) for row in local] == [(4, ErrorCode.unknown_topic_or_partition)]
    refused = ErrorCode.topic_authorization_failed
    assert [(number_of(row), error_of(row)) for row in mounted] == [(0, refused), (5, refused)]


def test_a_request_without_mounted_partitions_passes_as_it_is() -> None:
    body = write_message(built(load_request_schema(PRODUCE, 11), {LOCAL: [0, 1]}))
    assert sent(PRODUCE, 11, body) == body


def test_a_client_that_asks_for_no_partition_itself_is_cut_off() -> None:
    """The answer to it would be taken for one to a refused request."""
    for key, version in ((DELETES, 2), (PRODUCE, 11)):
        body = write_message(built(load_request_schema(key, version), {LOCAL: [NO_PARTITION]}))
        with pytest.raises(MalformedMessageError, match="which no topic has"):
            sent(key, version, body)


def test_after_a_produce_without_an_answer_the_next_answer_is_the_next_request_s() -> None:
    core = Core(REFUSALS)
    core.conversation.from_client(produce(0))
    assert core.broker.take()
    core.conversation.from_client(frame(HEARTBEAT))
    sent = core.broker.take()
    core.conversation.from_broker(with_size(sent[8:12] + struct.pack(">h", 0)))
    assert core.client.take() == with_size(sent[8:12] + struct.pack(">h", 0))
    assert core.refusal is None


@pytest.mark.parametrize(("key", "version"), MESSAGES)
@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.unknown_topic_id,
        ErrorCode.not_leader_or_follower,
    ],
)
def test_what_else_the_broker_says_stands(
    key: int, version: int, error: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of every topic: by an error of its own, who has no right at all would learn what is mounted."""
    for name in ("error_code", "partition_error_code"):
        monkeypatch.setitem(OTHER_VALUES, name, error)
    schema = load_response_schema(key, version)
    response = bytearray(write_message(built(schema, {MOUNTED: [NO_PARTITION, NO_PARTITION + 5]})))
    pieces = REFUSALS[key].rewrite(asked(key, version, b""), memoryview(response))
    (rows,) = answered_rows(read_message(schema, rewritten(pieces, response))[0])
    assert [(number_of(row), error_of(row)) for row in rows] == [(0, error), (5, error)]


@pytest.mark.parametrize(("key", "version"), MESSAGES)
def test_a_number_below_0_goes_as_it_is(key: int, version: int) -> None:
    """And comes back as it went, as of any topic."""
    numbers = {MOUNTED: [-(2**31), -1]}
    body = write_message(built(load_request_schema(key, version), numbers))
    assert sent(key, version, body) == body
    response = write_message(built(load_response_schema(key, version), numbers))
    pieces = REFUSALS[key].rewrite(asked(key, version, body), memoryview(bytearray(response)))
    assert rewritten(pieces, response) == response


def many(key: int, version: int, topics: int, partitions: int) -> bytes:
    numbers = list(range(partitions))
    return write_message(built(load_request_schema(key, version), {f"t{at}": numbers for at in range(topics)}))


@pytest.mark.parametrize(("key", "version"), [(PRODUCE, 11), (IN_TRANSACTION, 3), (DELETES, 2)])
@pytest.mark.parametrize(("topics", "partitions"), [(1, 10_000), (10_001, 0)], ids=["partitions", "topics"])
def test_nobody_has_the_loop_for_more_rows_than_any_client_asks_for(
    key: int, version: int, topics: int, partitions: int
) -> None:
    """Before the broker says whether the client has any right."""
    with pytest.raises(MalformedMessageError, match="more than 10000 topics and partitions"):
        sent(key, version, many(key, version, topics, partitions))


def test_as_many_as_a_client_asks_for_are_looked_at() -> None:
    body = many(PRODUCE, 11, 1, 9_999)
    assert sent(PRODUCE, 11, body) == body


def test_tagged_fields_are_not_walked_over_by_the_million() -> None:
    one_row = write_message(built(load_request_schema(PRODUCE, 11), {LOCAL: [0]}))
    assert one_row.endswith(b"\0\0\0"), "no tagged fields of the row, its topic and the request"
    tags = b"".join(bytes([tag, 0]) for tag in range(5))
    with pytest.raises(MalformedMessageError, match="5 tagged fields"):
        sent(PRODUCE, 11, one_row[:-3] + b"\5" + tags + b"\0\0")


@pytest.mark.parametrize("version", [0, 2, 3, 8, 9, 12, 13])
def test_a_produce_request_passes_in_whatever_pieces_it_comes(version: int) -> None:
    """Before version 3 there is no transactional id, and kio does not know it."""
    rows = {LOCAL: [4], MOUNTED: [0, 5], "": []} if version < 13 else {LOCAL: [4], MOUNTED: [0, 5]}
    body, due = (
        write_message(built(load_request_schema(PRODUCE, max(version, 3)), given))
        for given in (rows, {**rows, MOUNTED: [NO_PARTITION, NO_PARTITION + 5]})
    )
    if version < 3:
        body, due = body[3:], due[3:]
    whole, wanted = framed(version, body), framed(version, due)
    for size in range(1, len(whole) + 1):
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        assert passed(version, whole, pieces) == wanted, size
    with pytest.raises(MalformedMessageError, match=f"no Produce request of version {version}"):
        passed(version, whole[:-1], [whole[:-1]])


def test_nothing_of_a_produce_request_s_records_is_kept() -> None:
    """A thousand clients have a thousand of them on their way at once; and they are as large as the broker takes them."""
    records = bytes(12 * 2**20)
    row = struct.pack(">hhiih5sii", -1, 1, 1000, 1, 5, b"local", 1, 4) + struct.pack(">i", len(records))
    core = Core(REFUSALS)
    whole = with_size(write_request_header(PRODUCE, 8, 5, "a-client") + row + records)
    for at in range(0, len(whole), 2**18):
        core.conversation.from_client(whole[at : at + 2**18])
        assert core.conversation.kept_bytes == 0
        assert len(core.broker.data) == min(at + 2**18, len(whole))
    assert core.refusal is None
    assert bytes(core.broker.data[12:]) == whole[12:]
    assert core.conversation._pending[0].exchange is not None
    assert not core.conversation._pending[0].exchange.request


def test_fields_of_a_produce_request_do_not_grow_without_end() -> None:
    """Nothing but records is large."""
    endless_name = b"\0" + struct.pack(">hi", 1, 1000) + b"\2" + b"\xff\xff\xff\x7f"
    whole = with_size(write_request_header(PRODUCE, 9, 5, "c") + endless_name + bytes(2**20))
    core = Core(REFUSALS)
    core.conversation.from_client(whole[: 2**18])
    assert isinstance(core.error, MalformedMessageError)
    assert len(core.broker.data) < 100


@pytest.mark.parametrize("acks", [0, 1])
def test_a_produce_request_to_a_mounted_topic_is_for_no_partition_whatever_its_acks(acks: int) -> None:
    body = struct.pack(">hhiih7sii", -1, acks, 1000, 1, 7, b"mounted", 1, 4) + struct.pack(">i", 3) + b"abc"
    core = Core(REFUSALS)
    core.conversation.from_client(with_size(write_request_header(PRODUCE, 8, 5, "c") + body))
    assert struct.pack(">ii", NO_PARTITION + 4, 3) + b"abc" in core.broker.take()
    assert len(core.conversation._pending) == acks


@pytest.mark.parametrize(
    ("key", "most"),
    [(IN_TRANSACTION, 64 * 1024), (DELETES, 16 * 1024), (MARKERS, 64 * 1024), (NEW_PARTITIONS, 256 * 1024)],
)
def test_requests_are_no_larger_than_any_client_s(key: int, most: int) -> None:
    assert REFUSALS[key].most_request_bytes == most


def test_nothing_is_copied_nor_cut_into_pieces() -> None:
    """A request of millions of rows was millions of pieces; the client's own buffer goes on."""
    body = write_message(built(load_request_schema(IN_TRANSACTION, 3), {MOUNTED: [0, 1]}))
    exchange = asked(IN_TRANSACTION, 3, body)
    assert REFUSALS[IN_TRANSACTION].prepare(exchange) is None
    assert bytes(exchange.request) != body
    response = bytearray(write_message(built(load_response_schema(IN_TRANSACTION, 3), {MOUNTED: [NO_PARTITION]})))
    pieces: Any = REFUSALS[IN_TRANSACTION].rewrite(exchange, memoryview(response))
    assert len(pieces) == 1


@pytest.mark.parametrize("version", [1, 2])
def test_no_marker_is_written(version: int) -> None:
    """Of ``kafka-transactions.sh abort``: it would be the first record of the log."""
    key = MARKERS

    def body_of(mounted: Sequence[int]) -> bytes:
        schema: Any = load_request_schema(key, version)
        marker: Any = typing.get_args(next(one for one in fields(schema) if one.name == "markers").type)[0]
        topic: Any = typing.get_args(next(one for one in fields(marker) if one.name == "topics").type)[0]
        values = {"producer_id": 1, "producer_epoch": 2, "transaction_result": False, "coordinator_epoch": -1}
        rows = ((MOUNTED, mounted), (LOCAL, [4]))
        topics = tuple(topic(name=name, partition_indexes=tuple(numbers)) for name, numbers in rows)
        return write_message(schema(markers=(marker(**values, topics=topics),)))

    exchange = asked(key, version, body_of([0, 5]))
    assert REFUSALS[key].prepare(exchange) is None
    assert bytes(exchange.request) == body_of([NO_PARTITION, NO_PARTITION + 5])
    answered: Any = load_response_schema(key, version)
    marker: Any = typing.get_args(fields(answered)[0].type)[0]
    topic: Any = typing.get_args(next(one for one in fields(marker) if one.name == "topics").type)[0]
    row: Any = typing.get_args(next(one for one in fields(topic) if one.name == "partitions").type)[0]
    unknown = ErrorCode.unknown_topic_or_partition
    topics = (
        topic(name=MOUNTED, partitions=(row(partition_index=NO_PARTITION, error_code=unknown),)),
        topic(name=LOCAL, partitions=(row(partition_index=4, error_code=unknown),)),
    )
    response = bytearray(write_message(answered(markers=(marker(producer_id=1, topics=topics),))))
    got, _ = read_message(answered, rewritten(REFUSALS[key].rewrite(exchange, memoryview(response)), response))
    told = [[(row.partition_index, row.error_code) for row in one.partitions] for one in got.markers[0].topics]
    assert told == [[(0, ErrorCode.topic_authorization_failed)], [(4, unknown)]]


@pytest.mark.parametrize("version", range(4))
def test_no_partition_is_added_to_what_is_mounted(version: int) -> None:
    """The controller says first whether the client may; what it says of anything but the number stands."""
    key, schema = NEW_PARTITIONS, load_request_schema(NEW_PARTITIONS, version)
    kind: Any = schema
    topic: Any = typing.get_args(next(one for one in fields(schema) if one.name == "topics").type)[0]

    def body_of(count: int) -> bytes:
        topics = (topic(name=LOCAL, count=7, assignments=None), topic(name=MOUNTED, count=count, assignments=None))
        return write_message(kind(topics=topics, timeout=timedelta(seconds=1), validate_only=False))

    exchange = asked(key, version, body_of(9))
    assert REFUSALS[key].prepare(exchange) is None
    assert bytes(exchange.request) == body_of(0)
    answered: Any = load_response_schema(key, version)
    result: Any = typing.get_args(next(one for one in fields(answered) if one.name == "results").type)[0]
    for error, told in (
        (ErrorCode.invalid_partitions, (ErrorCode.topic_authorization_failed, "the topic is mounted read-only")),
        (ErrorCode.topic_authorization_failed, (ErrorCode.topic_authorization_failed, None)),
        (ErrorCode.unknown_topic_or_partition, (ErrorCode.unknown_topic_or_partition, None)),
    ):
        results = tuple(result(name=name, error_code=error, error_message=None) for name in (MOUNTED, LOCAL))
        response = bytearray(write_message(answered(throttle_time=timedelta(0), results=results)))
        got, _ = read_message(answered, rewritten(REFUSALS[key].rewrite(exchange, memoryview(response)), response))
        rows = [(row.name, row.error_code, row.error_message) for row in got.results]
        assert rows == [(MOUNTED, *told), (LOCAL, error, None)]
