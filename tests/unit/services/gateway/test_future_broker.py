"""A broker, and clients, newer than the gateway: what it cannot rewrite it does not offer, what it does not know passes
(S-153, S-304)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.gateway_exchange import exchange_of, rewritten_at_once
from tests.support.scripted_kafka import ADVERTISED, gateway_between, request, response
from tests.unit.formats.wire.entities import FUTURE_TAG, entities, of_the_future
from tests.unit.services.gateway.test_addresses import (
    NAMES,
    REWRITES,
    known_nodes,
    response_type,
    versions_of,
    with_gateways,
)
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.formats.wire.messages import write_message
from tiersidecar.services.gateway.rewrites import ApiVersionsRewrite, address_rewrites, frame_rewrites

NEWEST_API_VERSIONS = 4
UNSUPPORTED_VERSION = 35
UNKNOWN_API = 400
SLOW_TO_DRAW = settings(max_examples=40, suppress_health_check=list(HealthCheck), deadline=None)
TAGGED = bytes((1, FUTURE_TAG, 3)) + b"new"
"""One tagged field that nobody knows yet."""
FEATURES = bytes((3, 0, 9, 2)) + b"\5what\0\1\0\2\0" + bytes((1, 8)) + struct.pack(">q", 77) + bytes((99, 4)) + b"else"
"""Tagged fields of the whole response: a feature of a name that nobody knows (tag 0), the epoch (1), and one of the future."""

OLDEST_AND_NEWEST = dict.fromkeys((*range(100), UNKNOWN_API), (0, 99)) | {
    ApiKey.FIND_COORDINATOR: (6, 9),
    ApiKey.DESCRIBE_CLUSTER: (3, 9),
    UNKNOWN_API: (0, 3),
}
"""All that Kafka 4.3 has, newer; one whose oldest version is our newest; one that we know no version of any more; one more."""


def offered_by_the_gateway() -> dict[int, tuple[int, int]]:
    known = {key: rewrite.versions() for key, rewrite in frame_rewrites(ADVERTISED).items()}
    known[ApiKey.API_VERSIONS] = range(NEWEST_API_VERSIONS + 1)
    offered = dict(OLDEST_AND_NEWEST)
    for key, versions in known.items():
        offered[key] = (max(offered[key][0], versions.start), min(offered[key][1], versions.stop - 1))
    del offered[ApiKey.DESCRIBE_CLUSTER]
    assert offered[ApiKey.FIND_COORDINATOR] == (6, 6)
    return offered


def api_versions(version: int, offered: dict[int, tuple[int, int]]) -> bytes:
    """The body of an answer, by the message's definition; every second API has a tagged field of the future."""
    flexible = version >= 3
    rows = [
        struct.pack(">hhh", key, *versions) + ((TAGGED if key % 2 else b"\0") if flexible else b"")
        for key, versions in offered.items()
    ]
    count = _uvarint(len(rows) + 1) if flexible else struct.pack(">i", len(rows))
    throttle = struct.pack(">i", 11) if version >= 1 else b""
    return b"\0\0" + count + b"".join(rows) + throttle + (FEATURES if flexible else b"")


def _uvarint(value: int) -> bytes:
    return bytes((value,)) if value < 128 else bytes((value & 127 | 128, value >> 7))


@pytest.mark.parametrize("version", range(NEWEST_API_VERSIONS + 1))
async def test_of_a_newer_broker_s_versions_those_that_can_be_rewritten_are_offered_and_the_rest_is_as_it_says(
    version: int,
) -> None:
    async with gateway_between() as ends:
        client, broker = await ends.pair()
        asked = request(ApiKey.API_VERSIONS, version, 1, b"whatever it says of itself")
        client.send(asked)
        assert await broker.frame() == asked
        broker.send(response(1, api_versions(version, OLDEST_AND_NEWEST)))
        assert await client.frame() == response(1, api_versions(version, offered_by_the_gateway()))


@pytest.mark.parametrize("version", [5, 6, 99])
@pytest.mark.parametrize("body", [b"", TAGGED + b"\7Client\4now\0", bytes(5000)], ids=["empty", "tagged", "long"])
async def test_a_newer_client_is_told_which_versions_there_are_and_goes_on(version: int, body: bytes) -> None:
    """ApiVersions 5 brings fields of the request that we cannot know; the client learns of 4 without the broker's help."""
    async with gateway_between() as ends:
        client, broker = await ends.pair()
        client.send(request(ApiKey.API_VERSIONS, version, 1, body))
        told = struct.pack(">hihhh", UNSUPPORTED_VERSION, 1, ApiKey.API_VERSIONS, 0, NEWEST_API_VERSIONS)
        assert await client.frame() == response(1, told)
        again = request(ApiKey.API_VERSIONS, NEWEST_API_VERSIONS, 2, body)
        client.send(again)
        assert await broker.frame() == again, "the first thing that the broker hears"
        answer = api_versions(NEWEST_API_VERSIONS, {int(ApiKey.API_VERSIONS): (0, 9)})
        broker.send(response(2, answer))
        clamped = api_versions(NEWEST_API_VERSIONS, {int(ApiKey.API_VERSIONS): (0, NEWEST_API_VERSIONS)})
        assert await client.frame() == response(2, clamped)


@pytest.mark.parametrize("version", range(NEWEST_API_VERSIONS + 1))
@pytest.mark.parametrize(
    ("of_the_broker", "of_the_gateway"),
    [
        ([(18, 0, 2)], [(18, 0, 2)]),
        ([(18, 3, 7)], [(18, 3, 4)]),
        ([(18, 5, 7)], []),
        ([], []),
    ],
    ids=[
        "an older broker",
        "one that has dropped our oldest",
        "one that has dropped all of ours",
        "one that says none",
    ],
)
async def test_a_broker_that_does_not_know_the_request_s_version_answers_in_version_0(
    version: int, of_the_broker: Sequence[tuple[int, int, int]], of_the_gateway: Sequence[tuple[int, int, int]]
) -> None:
    def told(rows: Sequence[tuple[int, int, int]]) -> bytes:
        return struct.pack(">hi", UNSUPPORTED_VERSION, len(rows)) + b"".join(struct.pack(">hhh", *row) for row in rows)

    rewrite = ApiVersionsRewrite(address_rewrites(ADVERTISED))
    exchange = exchange_of(ApiKey.API_VERSIONS, version)
    pieces = rewritten_at_once(rewrite.rewrite(exchange, memoryview(told(of_the_broker))))
    assert pieces is not None
    assert b"".join(pieces) == told(of_the_gateway)


async def test_another_error_of_the_broker_s_is_the_client_s_to_read() -> None:
    """INVALID_REQUEST, for a name that the client gave itself: in the version that was asked, with no API."""
    async with gateway_between() as ends:
        client, broker = await ends.pair()
        client.send(request(ApiKey.API_VERSIONS, 3, 1))
        await broker.frame()
        answer = response(1, struct.pack(">h", 42) + b"\1" + bytes(4) + FEATURES)
        broker.send(answer)
        assert await client.frame() == answer


@pytest.mark.parametrize("known", [True, False], ids=["APIs that are not rewritten", "APIs of the future"])
async def test_whatever_is_not_rewritten_passes_as_bytes(known: bool) -> None:
    """S-304: the gateway fills in, and is no Kafka of its own: it has no opinion on anything else, in any version."""
    keys = [key for key in range(100) if key not in REWRITES and key not in set(ApiKey)] if known else [UNKNOWN_API]
    async with gateway_between() as ends:
        client, broker = await ends.pair()
        for number, key in enumerate(keys):
            for version in (0, 99):
                sent = request(key, version, number, bytes((key % 256, version)) * 50)
                client.send(sent)
                assert await broker.frame() == sent
                answer = response(number, TAGGED * version)
                broker.send(answer)
                assert await client.frame() == answer


@pytest.mark.slow
@NAMES
@SLOW_TO_DRAW
@given(data=st.data())
def test_tagged_fields_of_the_future_stay_where_they_are_beside_the_gateway_s_addresses(
    api_key: int, data: st.DataObject
) -> None:
    version = data.draw(versions_of(api_key).filter(lambda one: response_type(api_key, one).__flexible__))
    answer = data.draw(entities(of_the_future(response_type(api_key, version))).filter(known_nodes))
    body = write_message(answer)
    pieces = rewritten_at_once(REWRITES[api_key].rewrite(exchange_of(api_key, version), memoryview(body)))
    assert (body if pieces is None else b"".join(pieces)) == write_message(with_gateways(answer))
