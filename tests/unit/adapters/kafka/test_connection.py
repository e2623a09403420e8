from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from kio.schema.metadata.v13 import MetadataResponse

from tests.unit.adapters.kafka import answers
from tests.unit.adapters.kafka.scripted_peer import (
    VERSIONS,
    Conversation,
    Script,
    api_versions_response,
    oldest_api_versions_response,
    scripted_peer,
)
from tiersidecar.adapters.kafka import apis
from tiersidecar.adapters.kafka.connection import BrokerConnection, ConnectionLimits, open_socket, split_address
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError
from tiersidecar.formats.wire.framing import write_frame

LIMITS = ConnectionLimits(connect_timeout_s=5, request_timeout_s=5, max_in_flight_requests=2, max_frame_bytes=10_000)
IMPATIENT = ConnectionLimits(connect_timeout_s=5, request_timeout_s=0.3)


@asynccontextmanager
async def connected(script: Script, limits: ConnectionLimits = LIMITS) -> AsyncIterator[BrokerConnection]:
    async with scripted_peer(script) as peer:
        connection = await open_socket(peer.address, client_id="tiersidecar", tls=None, limits=limits)
        try:
            yield connection
        finally:
            await connection.close()


async def ask(connection: BrokerConnection) -> MetadataResponse:
    return await connection.ask(apis.METADATA, lambda version: apis.metadata(version, ()))


async def test_requests_go_out_in_the_newest_version_in_common() -> None:
    async def script(talk: Conversation) -> None:
        await talk.tell_versions({**VERSIONS, 3: (0, 12)})
        header, _ = await talk.hear()
        assert (header.api_key, header.api_version, header.client_id) == (3, 12, "tiersidecar")
        talk.answer(header, answers.metadata(header, cluster_id="old"))

    async with connected(script) as connection:
        assert (await ask(connection)).cluster_id == "old"


async def test_we_tell_who_we_are() -> None:
    """KIP-511: the broker's metrics show the clients' software."""

    async def script(talk: Conversation) -> None:
        header, request = await talk.hear()
        assert (header.api_version, request.client_software_name) == (4, "tiersidecar")
        assert request.client_software_version
        talk.answer(header, api_versions_response(VERSIONS))

    async with connected(script) as connection:
        assert connection.is_open


async def test_a_broker_that_does_not_know_our_api_versions_is_asked_in_its_own() -> None:
    """KIP-35: it answers in version 0, with the versions that it knows."""

    async def script(talk: Conversation) -> None:
        header, _ = await talk.hear()
        talk.answer(header, oldest_api_versions_response(0, 3))
        header, _ = await talk.hear()
        assert header.api_version == 3
        talk.say(
            write_frame(
                struct.pack(">i", header.correlation_id) + bytes.fromhex("0000 02 0003 0000 000c 00 00000000 00")
            )
        )
        header, _ = await talk.hear()
        talk.answer(header, answers.metadata(header))

    async with connected(script) as connection:
        assert (await ask(connection)).cluster_id == "c"


@pytest.mark.parametrize(
    "metadata_versions", [{3: (0, 11)}, {3: (14, 20)}, {}], ids=["too old", "too new", "does not have it"]
)
async def test_no_version_in_common_is_a_refusal(metadata_versions: dict[int, tuple[int, int]]) -> None:
    async def script(talk: Conversation) -> None:
        await talk.tell_versions({18: (0, 4), **metadata_versions})
        await talk.until_closed()

    async with connected(script) as connection:
        with pytest.raises(BrokerRefusedError, match=r"Metadata.*UNSUPPORTED_VERSION"):
            await ask(connection)
        assert connection.is_open


async def test_answers_find_their_requests_by_correlation_id() -> None:
    async def script(talk: Conversation) -> None:
        await talk.tell_versions()
        (first, _), (second, _) = await talk.hear(), await talk.hear()
        talk.answer(second, answers.metadata(second, cluster_id="second"))
        talk.answer(first, answers.metadata(first, cluster_id="first"))

    async with connected(script) as connection:
        found = await asyncio.gather(ask(connection), ask(connection))

    assert [response.cluster_id for response in found] == ["first", "second"]


async def test_no_more_requests_are_in_flight_than_allowed() -> None:
    """DESIGN section 4, rule 8."""
    third_was_early = True

    async def script(talk: Conversation) -> None:
        nonlocal third_was_early
        await talk.tell_versions()
        (first, _), (second, _) = await talk.hear(), await talk.hear()
        third_was_early = bool(talk.reader._buffer)  # type: ignore[attr-defined]
        talk.answer(first, answers.metadata(first))
        third, _ = await talk.hear()
        for header in (second, third):
            talk.answer(header, answers.metadata(header))

    async with connected(script) as connection:
        await asyncio.gather(ask(connection), ask(connection), ask(connection))
        assert connection.is_idle

    assert not third_was_early


async def test_a_cancelled_request_leaves_the_connection_usable() -> None:
    """STYLE section 2: a step may be abandoned at any await."""
    heard = asyncio.Event()

    async def script(talk: Conversation) -> None:
        await talk.tell_versions()
        abandoned, _ = await talk.hear()
        heard.set()
        header, _ = await talk.hear()
        talk.answer(abandoned, answers.metadata(abandoned, cluster_id="late"))
        talk.answer(header, answers.metadata(header, cluster_id="wanted"))

    async with connected(script) as connection:
        task = asyncio.create_task(ask(connection))
        await heard.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await ask(connection)).cluster_id == "wanted"


async def test_a_big_answer_is_decoded_like_a_small_one() -> None:
    async def script(talk: Conversation) -> None:
        await talk.tell_versions()
        header, _ = await talk.hear()
        talk.answer(header, answers.metadata(header, leaders={f"t{n}": [1] * 100 for n in range(50)}))

    async with connected(script, ConnectionLimits()) as connection:
        assert len((await ask(connection)).topics) == 50


def _answering(*octets: bytes) -> Script:
    async def script(talk: Conversation) -> None:
        await talk.tell_versions()
        await talk.hear()
        for part in octets:
            talk.say(part)
        await talk.until_closed()

    return script


BROKEN = {
    "a correlation id that nobody waits for": (
        write_frame(struct.pack(">i", 99)),
        "request 99, which is not in flight",
    ),
    "a frame too short for a correlation id": (write_frame(b"\0"), "no correlation id"),
    "a frame above the limit": (struct.pack(">i", 10_001), "a frame of 10001 bytes"),
    "a negative frame size": (struct.pack(">i", -2), "a frame of -2 bytes"),
    "an HTTP server": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is this Kafka"),
    "an array that claims a billion items": (
        write_frame(struct.pack(">i", 1) + bytes.fromhex("00 00000000 ffffffff07")),
        "not a valid answer",
    ),
    "a message cut short": (write_frame(struct.pack(">i", 1) + bytes.fromhex("00 0000")), "not a valid answer"),
    "bytes left over": (
        write_frame(struct.pack(">i", 1) + bytes.fromhex("00 00000000 01 00 00000000 01 0000 00 ff")),
        "left over",
    ),
}


@pytest.mark.parametrize(("octets", "reason"), BROKEN.values(), ids=BROKEN.keys())
async def test_an_answer_that_cannot_be_one_ends_the_connection(octets: bytes, reason: str) -> None:
    async with connected(_answering(octets)) as connection:
        with pytest.raises(BrokerUnreachableError, match=reason):
            await ask(connection)
        assert not connection.is_open
        with pytest.raises(BrokerUnreachableError):
            await ask(connection)


async def test_a_peer_that_closes_in_the_middle_of_a_frame_fails_all_that_is_in_flight() -> None:
    async def script(talk: Conversation) -> None:
        await talk.tell_versions()
        await talk.hear()
        await talk.hear()
        talk.say(struct.pack(">i", 100) + b"half")

    async with connected(script) as connection:
        found = await asyncio.gather(ask(connection), ask(connection), return_exceptions=True)
        assert not connection.is_open

    assert [str(error) for error in found] == [
        f"broker at {connection.address} could not be reached: the broker closed the connection"
    ] * 2


async def test_a_slow_peer_is_given_up_with_all_behind_it() -> None:
    async with connected(_answering(), IMPATIENT) as connection:
        with pytest.raises(BrokerUnreachableError, match=r"no answer to Metadata within 0\.3 s"):
            await ask(connection)
        assert not connection.is_open


async def test_a_peer_that_accepts_and_never_speaks_is_given_up() -> None:
    async def script(talk: Conversation) -> None:
        await talk.until_closed()

    with pytest.raises(BrokerUnreachableError, match="no answer to ApiVersions"):
        async with connected(script, IMPATIENT):
            pass


async def test_closing_fails_what_is_in_flight() -> None:
    async with connected(_answering()) as connection:
        asking = asyncio.create_task(ask(connection))
        await asyncio.sleep(0)
        await connection.close()
        with pytest.raises(BrokerUnreachableError, match="the connection is closed"):
            await asking


async def test_nobody_listening_is_told_with_the_address() -> None:
    async with scripted_peer(_answering()) as peer:
        address = peer.address
    with pytest.raises(BrokerUnreachableError, match=address):
        await open_socket(address, client_id="x", tls=None, limits=LIMITS)


@pytest.mark.parametrize(
    ("address", "parts"),
    [("kafka-1:9092", ("kafka-1", 9092)), ("[::1]:9092", ("::1", 9092)), ("10.0.0.1:1", ("10.0.0.1", 1))],
)
def test_addresses(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize("address", ["kafka-1", "kafka-1:", ":9092", "kafka-1:x", "kafka-1:0", "kafka-1:65536"])
def test_what_is_no_address_is_told(address: str) -> None:
    with pytest.raises(BrokerUnreachableError, match="not host:port"):
        split_address(address)
