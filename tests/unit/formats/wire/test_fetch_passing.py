"""Large Fetch responses while they pass: any pieces give the same bytes, but for what is put out of force in place (U7)."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from tests.unit.formats.wire.test_fetch import responses
from tiersidecar.formats.wire.fetch import FETCH_VERSIONS, is_flexible
from tiersidecar.formats.wire.fetch_passing import FetchPassing
from tiersidecar.formats.wire.messages import MalformedMessageError, read_message, write_message


def framed(version: int, message: Any) -> bytes:
    header = struct.pack(">i", 1) + (b"\0" if is_flexible(version) else b"")
    body = write_message(message)
    return struct.pack(">i", len(header) + len(body)) + header + body


def passed(version: int, frame: bytes, cuts: list[int], **settings: Any) -> tuple[bytes, FetchPassing]:
    walk, found = FetchPassing(version, len(frame), **settings), b""
    for start, stop in zip([0, *cuts], [*cuts, len(frame)], strict=True):
        if start < stop:
            found += b"".join(walk.feed(memoryview(frame)[start:stop]))
    assert walk.is_done
    return found, walk


def _with_errors(message: Any, draw: random.Random) -> Any:
    """With those that matter: the one that is put out of force, and its neighbours."""
    errors = (ErrorCode.none, ErrorCode.offset_out_of_range, ErrorCode.not_leader_or_follower)
    topics = (
        replace(topic, partitions=tuple(replace(row, error_code=draw.choice(errors)) for row in topic.partitions))
        for topic in message.responses
    )
    return replace(message, responses=tuple(topics))


def in_force(version: int, message: Any) -> Any:
    """What a client should find in it."""
    none = ErrorCode.none
    topics = tuple(
        replace(
            topic,
            partitions=tuple(
                replace(row, error_code=none) if row.error_code is ErrorCode.offset_out_of_range else row
                for row in topic.partitions
            ),
        )
        for topic in message.responses
    )
    hints = {"node_endpoints": ()} if version >= 16 else {}
    return replace(message, responses=topics, **hints)


@given(version=st.sampled_from(FETCH_VERSIONS), data=st.data(), draw=st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_any_pieces_pass_the_same_response_without_what_is_out_of_range(
    version: int, data: st.DataObject, draw: random.Random
) -> None:
    message = _with_errors(data.draw(responses(version)), draw)
    frame = framed(version, message)
    cuts = sorted(draw.randrange(len(frame) + 1) for _ in range(draw.choice([0, 1, 5, 50])))
    found, walk = passed(version, frame, cuts)
    assert len(found) == len(frame)
    body_at = 9 if is_flexible(version) else 8
    assert found[:body_at] == frame[:body_at]
    read, end = read_message(type(message), found[body_at:])
    assert end == len(found) - body_at
    assert read == in_force(version, message)
    rows = [row for topic in message.responses for row in topic.partitions]
    assert walk.found_out_of_range == any(row.error_code is ErrorCode.offset_out_of_range for row in rows)
    if version >= 7:
        assert (walk.error_code, walk.session_id) == (message.error_code.value, message.session_id)


@given(version=st.sampled_from(FETCH_VERSIONS), data=st.data(), draw=st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_of_what_is_hidden_only_errors_pass(version: int, data: st.DataObject, draw: random.Random) -> None:
    """Records become zeros; that a partition has none is hidden as well."""
    message = _with_errors(data.draw(responses(version)), draw)
    frame = framed(version, message)
    cuts = sorted(draw.randrange(len(frame) + 1) for _ in range(5))
    found, walk = passed(version, frame, cuts, is_hidden=lambda key: key[1] % 2 == 0)
    assert len(found) == len(frame)
    read, _ = read_message(type(message), found[9 if is_flexible(version) else 8 :])
    rows = [row for topic in message.responses for row in topic.partitions]
    for row, given_row in zip(rows, (one for topic in read.responses for one in topic.partitions), strict=True):
        if row.partition_index % 2 or row.error_code is not ErrorCode.none:
            assert given_row.records == row.records
            assert given_row.error_code is (
                ErrorCode.none if row.error_code is ErrorCode.offset_out_of_range else row.error_code
            )
        else:
            assert given_row.error_code is ErrorCode.not_leader_or_follower
            assert not any(given_row.records or b"")
            assert walk.found_out_of_range


@given(version=st.sampled_from(FETCH_VERSIONS), data=st.data())
@settings(max_examples=20, deadline=None)
def test_a_followers_response_stays_as_it_is_but_for_addresses(version: int, data: st.DataObject) -> None:
    message = data.draw(responses(version))
    frame = framed(version, message)
    found, walk = passed(version, frame, [], hides_out_of_range=False)
    assert not walk.found_out_of_range
    assert sum(left != right for left, right in zip(found, frame, strict=True)) <= 1, "the tag of NodeEndpoints"


@given(version=st.sampled_from(FETCH_VERSIONS), data=st.data(), cut=st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_a_frame_that_ends_too_soon_or_too_late_is_refused(version: int, data: st.DataObject, cut: int) -> None:
    frame = framed(version, data.draw(responses(version)))
    short = frame[: max(len(frame) - cut, 9)]
    for wrong in (short, frame + bytes(cut)):
        if len(wrong) != len(frame):
            with pytest.raises(MalformedMessageError):
                passed(version, wrong, [])


@given(version=st.sampled_from(FETCH_VERSIONS), data=st.binary(min_size=1, max_size=300), cut=st.integers(0, 300))
@settings(max_examples=200, deadline=None)
def test_any_bytes_pass_whole_or_are_refused(version: int, data: bytes, cut: int) -> None:
    try:
        found, _ = passed(version, data, [min(cut, len(data))])
    except MalformedMessageError:
        return
    assert len(found) == len(data)


def test_fields_without_an_end_are_refused_before_they_fill_the_memory() -> None:
    """A partition that claims to have two thousand million aborted transactions."""
    head = struct.pack(">iiiii", 2**30, 1, 0, 1, 1)[:16] + struct.pack(">h", 1) + b"t" + struct.pack(">i", 1)
    partition = struct.pack(">ihqq", 0, 0, 1, 1) + struct.pack(">i", 2**31 - 1)
    walk = FetchPassing(4, 2**30)
    walk.feed(memoryview(head + partition))
    piece = memoryview(bytes(2**18))

    def feed_all() -> int:
        for number in range(2**6):
            try:
                walk.feed(piece)
            except MalformedMessageError:
                return number
        return 2**6

    assert feed_all() < 2**5, "8 MiB"
