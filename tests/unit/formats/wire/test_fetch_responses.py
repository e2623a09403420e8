"""Fetch responses against kio's schemas: found by their spans, and spliced (S-153)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from tests.unit.formats.wire.entities import entities, of_the_future
from tests.unit.formats.wire.test_fetch_requests import key_of
from tiersidecar.formats.wire.cursor import splice
from tiersidecar.formats.wire.fetch_requests import FETCH_API_KEY, FETCH_VERSIONS
from tiersidecar.formats.wire.fetch_responses import (
    FETCH_SESSION_ID_NOT_FOUND,
    KAFKA_STORAGE_ERROR,
    FilledPartition,
    read_fetch_response,
    replacing,
    write_partition,
    write_session_error,
)
from tiersidecar.formats.wire.messages import MalformedMessageError, read_message, write_message

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
