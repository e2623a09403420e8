"""What one frame of a client may cost before its broker has authorised it (issue 17): one user held up all others."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema

from tests.support.gateway_conversations import FillsAll, rewrites_over
from tests.support.gateway_core import Core
from tests.support.inline_blocking import InlineBlocking
from tests.support.scripted_kafka import request
from tests.unit.services.gateway.test_crowded_requests import message
from tiersidecar.adapters.clock import SystemClock
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.formats.wire.delete_records import read_deletes, up_to_0
from tiersidecar.formats.wire.messages import MalformedMessageError, read_message, write_message
from tiersidecar.services.gateway.exchange import Rewrite, Rewrites
from tiersidecar.services.gateway.host import Refusal
from tiersidecar.services.gateway.leader_epoch_rewrite import OffsetForLeaderEpochRewrite
from tiersidecar.services.gateway.limits import GatewayLimits
from tiersidecar.services.gateway.list_offsets_rewrite import ListOffsetsRewrite
from tiersidecar.services.gateway.messages import MOST_LOOKUP_BYTES
from tiersidecar.services.gateway.tiered_partitions import BothTiers

KIB, MIB = 1024, 1024 * 1024
MOST_DELETE_BYTES = 16 * KIB
MOST_CPU_S = 0.1
"""Of one call of a conversation."""


def rewrites() -> Rewrites:
    """Of all that the gateway reads whole."""
    tier = FillsAll()
    anything: Any = tier
    common: Any = {
        "tiers": BothTiers(tiered=anything, reader=anything, offsets=anything, pending=anything),
        "lineages": anything,
        "blocking": InlineBlocking(),
        "clock": SystemClock(),
    }
    lookups: dict[int, Rewrite] = {
        ApiKey.LIST_OFFSETS: ListOffsetsRewrite(**common, timestamps=anything, timeout_ms=1000),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: OffsetForLeaderEpochRewrite(**common),
    }
    return {**rewrites_over(tier, raw_tokens=False), **lookups}


def core() -> Core:
    return Core(rewrites(), limits=GatewayLimits())


def beginning(api_key: int, version: int, size_bytes: int) -> bytes:
    """Of a request: from its size alone it is judged."""
    return struct.pack(">ihhih", size_bytes, api_key, version, 9, -1)


LIMITS = [
    (ApiKey.DELETE_RECORDS, 1, MOST_DELETE_BYTES),
    (ApiKey.DELETE_RECORDS, 2, MOST_DELETE_BYTES),
    (ApiKey.LIST_OFFSETS, 7, MOST_LOOKUP_BYTES),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, MOST_LOOKUP_BYTES),
]


@pytest.mark.parametrize(("api_key", "version", "most_bytes"), LIMITS)
async def test_what_would_be_decoded_is_refused_by_its_size_and_the_reason_says_what_to_do(
    api_key: ApiKey, version: int, most_bytes: int
) -> None:
    conversation = core()
    conversation.conversation.from_client(beginning(api_key, version, most_bytes - 4))
    assert not conversation.has_ended
    conversation = core()
    conversation.conversation.from_client(beginning(api_key, version, most_bytes - 3))
    assert conversation.refusal is Refusal.MALFORMED
    assert conversation.broker.data == b""
    assert f"({api_key.name}) of {most_bytes + 1} bytes where {most_bytes} are the most" in str(conversation.error)
    assert "ask for fewer partitions in each request" in str(conversation.error)


def filled(head: bytes, unit: bytes, size_bytes: int, tail: bytes = b"") -> bytes:
    """As many of ``unit`` as there is room for, with their number in front as a compact array's length."""
    count = (size_bytes - len(head) - len(tail) - 8) // len(unit)
    return head + varint(count + 1) + unit * count + tail


def varint(value: int) -> bytes:
    encoded = b""
    while value > 127:
        encoded, value = encoded + bytes([value & 127 | 128]), value >> 7
    return encoded + bytes([value])


def worst_frames() -> Iterator[tuple[str, bytes]]:
    """Those that take longest for their size."""
    for size_bytes in (60 * KIB, 127 * KIB, 8 * MIB - 64):
        tags = varint(size_bytes // 2) + bytes(size_bytes // 2 * 2)
        head = struct.pack(">hhihh", 1, 15, 9, 0, 0)[:10]
        yield f"tagged fields of a Fetch's header, {size_bytes}", framed(head + tags)
    rows = struct.pack(">iqb", 0, 0, 0)
    many = b"".join(struct.pack(">iqb", number, 0, 0) for number in range(4_900))
    delete = b"\x02\x02t" + varint(4_901) + many + b"\0" + bytes(5)
    yield "DeleteRecords of many partitions", request(ApiKey.DELETE_RECORDS, 2, 1, b"\0" + delete)
    empty = filled(b"\0", b"\x02t\x01\0", MOST_DELETE_BYTES - 64, bytes(5))
    yield "DeleteRecords of many topics without partitions", request(ApiKey.DELETE_RECORDS, 2, 1, empty)
    tagged = b"\x02\x02t\x02" + rows[:12] + varint(31_000) + bytes(62_000) + b"\0" + bytes(5)
    yield "DeleteRecords of many tagged fields", request(ApiKey.DELETE_RECORDS, 2, 1, b"\0" + tagged)
    fetch = struct.pack(">iiiibii", -1, 500, 1, 2**20, 0, 0, -1)
    yield (
        "Fetch of many topics",
        request(ApiKey.FETCH, 12, 1, filled(b"\0" + fetch, b"\x02t\x01\0", 127 * KIB, b"\x01\x01\0")),
    )


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


WORST = dict(worst_frames())


def cpu_s(frame: bytes) -> float:
    """Of this thread, for a conversation that takes ``frame``: the least of some, since the collector of garbage counts too."""
    return min(_cpu_s(frame) for _ in range(3))


def _cpu_s(frame: bytes) -> float:
    one = core()
    began_s = time.thread_time()
    one.conversation.from_client(frame)
    took_s = time.thread_time() - began_s
    one.close()
    return took_s


@pytest.mark.parametrize("name", WORST)
async def test_no_frame_takes_long_of_the_event_loop(name: str) -> None:
    """One of 8 MiB took 12 s of it before anybody had asked whether its user may."""
    assert cpu_s(WORST[name]) < MOST_CPU_S


@settings(max_examples=60, deadline=None)
@given(
    api_and_size=st.sampled_from(
        [
            *((api_key, 8 * MIB - KIB) for api_key in (ApiKey.FETCH, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS)),
            *((api_key, MOST_LOOKUP_BYTES - KIB) for api_key in (ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH)),
            (ApiKey.FETCH, 127 * KIB),
            (ApiKey.DELETE_RECORDS, MOST_DELETE_BYTES - KIB),
            (ApiKey.PRODUCE, 64 * KIB),
        ]
    ),
    version=st.integers(0, 18),
    before=st.lists(st.sampled_from([0, 1, 2]), max_size=40).map(bytes),
    unit=st.lists(st.sampled_from([0, 1, 2, 3, 116]), min_size=1, max_size=6).map(bytes),
)
def test_no_frame_of_one_thing_over_and_over_takes_long(
    api_and_size: tuple[ApiKey, int], version: int, before: bytes, unit: bytes
) -> None:
    api_key, size_bytes = api_and_size
    head = struct.pack(">hhih", api_key, version, 9, 0)
    assert cpu_s(framed(filled(head + before, unit, size_bytes))) < MOST_CPU_S


ROWS = {"offset": 7}


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("number_of", [2, 200])
def test_the_first_step_deletes_nothing_of_some_topics_and_leaves_the_others(version: int, number_of: int) -> None:
    schema: Any = load_request_schema(ApiKey.DELETE_RECORDS, version)
    one = read_message(schema, message(schema, 3, ROWS))[0]
    topics = tuple(replace(one.topics[0], name=f"topic-{number}") for number in range(number_of))
    whole = write_message(replace(one, topics=topics))
    for some in (topics[:1], topics[1:], topics, ()):
        names = {topic.name for topic in some}
        found, _ = read_message(schema, bytes(up_to_0(whole, version, names)))
        offsets = {topic.name: {row.offset for row in topic.partitions} for topic in found.topics}
        assert offsets == {topic.name: {0} if topic.name in names else {7} for topic in topics}
        assert [topic.name for topic in found.topics] == [topic.name for topic in topics]
        assert found.timeout == (timedelta(0) if len(some) == number_of else one.timeout), (
            "whose followers are waited for"
        )
    assert read_message(schema, whole)[0].topics == topics, "the client's own is kept"


@pytest.mark.parametrize("version", range(3))
def test_a_delete_is_looked_at_as_it_is_written(version: int) -> None:
    schema = load_request_schema(ApiKey.DELETE_RECORDS, version)
    whole = message(schema, 3, ROWS)
    read_deletes(memoryview(whole), version)
    for stop in range(len(whole)):
        with pytest.raises(MalformedMessageError):
            read_deletes(memoryview(whole[:stop]), version)
    with pytest.raises(MalformedMessageError, match="left over"):
        read_deletes(whole + b"\0", version)
    twice = whole.replace(struct.pack(">iq", 2, 7), struct.pack(">iq", 1, 7))
    with pytest.raises(MalformedMessageError, match="twice"):
        read_deletes(twice, version)
