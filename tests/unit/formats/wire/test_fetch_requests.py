"""Fetch requests against kio's schemas, of every version that the gateway offers (S-153)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema

from tests.unit.formats.wire.entities import entities
from tiersidecar.formats.wire.fetch_requests import (
    FETCH_API_KEY,
    FETCH_VERSIONS,
    PartitionKey,
    read_fetch_request,
    session_epoch_position,
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
