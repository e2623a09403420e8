"""Fetch requests and responses against kio's schemas, of every version that the gateway offers: found by their spans, and
spliced (S-153).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from tests.unit.formats.wire.entities import entities, of_the_future
from tiersidecar.formats.wire.cursor import splice
from tiersidecar.formats.wire.fetch import (
    FETCH_API_KEY,
    FETCH_SESSION_ID_NOT_FOUND,
    FETCH_VERSIONS,
    KAFKA_STORAGE_ERROR,
    FilledPartition,
    PartitionKey,
    read_fetch_request,
    read_fetch_response,
    replacing,
    session_epoch_position,
    write_partition,
    write_session_error,
    write_single_fetch,
)
from tiersidecar.formats.wire.messages import MalformedMessageError, read_message, write_message

VERSIONS = pytest.mark.parametrize("version", FETCH_VERSIONS)


def key_of(topic: Any, partition: int) -> PartitionKey:
    if hasattr(topic, "topic"):
        return topic.topic, partition
    return bytes(16) if topic.topic_id is None else topic.topic_id.bytes, partition


def milliseconds(duration: Any) -> int:
    return int(duration.days * 86_400_000 + duration.seconds * 1000 + duration.microseconds // 1000)


@given(version=st.sampled_from(FETCH_VERSIONS), data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_request_reads_as_kio_wrote_it(version: int, data: st.DataObject) -> None:
    message = data.draw(entities(load_request_schema(FETCH_API_KEY, version)))
    request = read_fetch_request(memoryview(write_message(message)), version)
    replica = message.replica_state.replica_id if version >= 15 else message.replica_id
    assert (request.replica_id, request.min_bytes, request.max_bytes) == (replica, message.min_bytes, message.max_bytes)
    assert request.max_wait_ms == milliseconds(message.max_wait)
    assert request.is_read_committed == (message.isolation_level == 1)
    last = {key_of(topic, row.partition): row for topic in message.topics for row in topic.partitions}
    assert set(request.partitions) == set(last)
    for key, row in last.items():
        found = request.partitions[key]
        assert (found.fetch_offset, found.max_bytes) == (row.fetch_offset, row.partition_max_bytes)
        assert found.current_leader_epoch == getattr(row, "current_leader_epoch", -1)
    if version >= 7:
        assert (request.session_id, request.session_epoch) == (message.session_id, message.session_epoch)
        assert request.forgotten == tuple(
            key_of(topic, number) for topic in message.forgotten_topics_data for number in topic.partitions
        )


@given(version=st.sampled_from(FETCH_VERSIONS), data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_session_epoch_stands_where_it_is_said_to(version: int, data: st.DataObject) -> None:
    message = data.draw(entities(load_request_schema(FETCH_API_KEY, version)))
    body, position = write_message(message), session_epoch_position(version)
    if position is None:
        assert version < 7
    else:
        assert int.from_bytes(body[position : position + 4], "big", signed=True) == message.session_epoch


@VERSIONS
def test_a_request_of_ours_is_what_kio_reads(version: int) -> None:
    topic: str | bytes = b"sixteen-byte-id." if version >= 13 else "a-topic"
    body = write_single_fetch(
        version, (topic, 3), 42, max_wait_ms=7, max_bytes=1000, read_committed=True, last_fetched_epoch=5
    )
    schema: Any = load_request_schema(FETCH_API_KEY, version)
    message, end = read_message(schema, body)
    assert end == len(body)
    (asked,) = message.topics
    (row,) = asked.partitions
    assert key_of(asked, row.partition) == (topic, 3)
    assert (row.fetch_offset, row.partition_max_bytes, message.isolation_level) == (42, 1000, 1)
    assert version < 12 or row.last_fetched_epoch == 5
    assert version < 7 or (message.session_id, message.session_epoch) == (0, -1)
    assert read_fetch_request(memoryview(body), version).partitions[topic, 3].fetch_offset == 42


@given(version=st.sampled_from(FETCH_VERSIONS), data=st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_requests_are_refused_and_nothing_else_happens(version: int, data: st.DataObject) -> None:
    body = bytearray(write_message(data.draw(entities(load_request_schema(FETCH_API_KEY, version)))))
    position = data.draw(st.integers(0, len(body) - 1))
    body[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    for damaged in (body, body[:cut]):
        try:
            read_fetch_request(memoryview(bytes(damaged)), version)
        except MalformedMessageError:
            continue


def test_an_array_that_claims_more_than_there_is_allocates_nothing() -> None:
    claims = bytes(4 + 13 + 8) + b"\x7f\xff\xff\xff"
    with pytest.raises(MalformedMessageError, match="an array of 2147483647"):
        read_fetch_request(memoryview(claims), 7)


FILLED = FilledPartition(
    high_watermark=100,
    last_stable_offset=90,
    log_start_offset=5,
    aborted=((7, 11), (8, 12)),
    records=(b"first ", memoryview(b"second"), bytearray(b" " + bytes(200))),
)


def responses(version: int) -> st.SearchStrategy[Any]:
    """Those of a broker of today, and of one of the future where there may be tagged fields."""
    return st.sampled_from(fetch_schemas(version)).flatmap(entities)


def fetch_schemas(version: int) -> Sequence[Any]:
    schema: Any = load_response_schema(FETCH_API_KEY, version)
    return (schema, of_the_future(schema)) if schema.__flexible__ else (schema,)


@given(version=st.sampled_from(FETCH_VERSIONS), data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_response_reads_as_kio_wrote_it(version: int, data: st.DataObject) -> None:
    message = data.draw(responses(version))
    body = memoryview(write_message(message))
    response = read_fetch_response(body, version)
    rows = [(key_of(topic, row.partition_index), row) for topic in message.responses for row in topic.partitions]
    assert [partition.key for partition in response.partitions] == [key for key, _ in rows]
    for found, (_, row) in zip(response.partitions, rows, strict=True):
        assert found.error_code == row.error_code.value
        assert (found.high_watermark, found.last_stable_offset) == (row.high_watermark, row.last_stable_offset)
        assert found.records_bytes == len(row.records or b"")
        aborted = row.aborted_transactions
        expected = None if aborted is None else tuple((one.producer_id, one.first_offset) for one in aborted)
        assert found.aborted == expected
    assert response.records_bytes == sum(len(row.records or b"") for _, row in rows)
    if version >= 7:
        assert (response.error_code, response.session_id) == (message.error_code.value, message.session_id)


@given(version=st.sampled_from(FETCH_VERSIONS), data=st.data())
@settings(max_examples=60, deadline=None)
def test_spliced_partitions_change_and_all_others_stay(version: int, data: st.DataObject) -> None:
    message = data.draw(responses(version))
    body = memoryview(write_message(message))
    response = read_fetch_response(body, version)
    chosen = data.draw(st.sets(st.sampled_from(range(len(response.partitions))))) if response.partitions else set()
    replacements = [one for at in sorted(chosen) for one in replacing(version, response.partitions[at], FILLED)]
    spliced = b"".join(splice(body, replacements) or [body])
    found, end = read_message(type(message), spliced)
    assert end == len(spliced)
    before = [row for topic in message.responses for row in topic.partitions]
    after = [row for topic in found.responses for row in topic.partitions]
    for at, (old, new) in enumerate(zip(before, after, strict=True)):
        if at not in chosen:
            assert new == old
            continue
        assert (new.partition_index, new.error_code) == (old.partition_index, ErrorCode.none)
        assert (new.high_watermark, new.last_stable_offset) == (100, 90)
        assert version < 5 or new.log_start_offset == 5
        assert [(transaction.producer_id, transaction.first_offset) for transaction in new.aborted_transactions] == [
            (7, 11),
            (8, 12),
        ]
        assert new.records == b"first second " + bytes(200)
        assert version < 11 or new.preferred_read_replica == -1
    empty = tuple(replace(topic, partitions=()) for topic in message.responses)
    assert replace(found, responses=empty) == replace(message, responses=empty)


@given(version=st.sampled_from(FETCH_VERSIONS), data=st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_responses_are_refused_and_nothing_else_happens(version: int, data: st.DataObject) -> None:
    body = bytearray(write_message(data.draw(responses(version))))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    for damaged in (body, body[:cut]):
        try:
            read_fetch_response(memoryview(bytes(damaged)), version)
        except MalformedMessageError:
            continue


@pytest.mark.parametrize("version", [one for one in FETCH_VERSIONS if one >= 7])
def test_a_session_error_is_a_whole_response(version: int) -> None:
    schema: Any = load_response_schema(FETCH_API_KEY, version)
    body = write_session_error(version, 5, FETCH_SESSION_ID_NOT_FOUND)
    message, end = read_message(schema, body)
    assert (end, message.error_code, message.session_id) == (len(body), ErrorCode.fetch_session_id_not_found, 0)
    assert message.responses == ()


@pytest.mark.parametrize(("version", "error_code"), [(4, 6), (5, 6), (6, 56), (18, 56)])
def test_clients_get_no_error_code_that_their_version_lacks(version: int, error_code: int) -> None:
    head = bytes(write_partition(version, 1, FilledPartition(error_code=KAFKA_STORAGE_ERROR))[0])
    assert int.from_bytes(head[4:6], "big") == error_code
