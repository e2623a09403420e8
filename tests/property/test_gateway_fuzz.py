"""Anything at all, and real captures with faults in them, into the gateway: never a crash, never an unbounded buffer.

The captures are what Java clients and aiokafka said to a broker, and what it answered (tests/golden/gateway).
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.gateway_exchange import exchange_of, rewritten_at_once
from tests.support.scripted_kafka import ADVERTISED, gateway_between, request, response
from tiersidecar.formats.wire.messages import MalformedMessageError
from tiersidecar.ports.metrics.gateway import GATEWAY_CONNECTIONS_CLOSED
from tiersidecar.services.gateway.api_keys import ApiKey
from tiersidecar.services.gateway.limits import GatewayLimits, ResponseMemory
from tiersidecar.services.gateway.pending import Fate, Pending, PendingQueue
from tiersidecar.services.gateway.request_heads import client_id_and_body, read_head
from tiersidecar.services.gateway.request_pump import RequestPump
from tiersidecar.services.gateway.response_pump import ResponsePump
from tiersidecar.services.gateway.rewrites import ApiVersionsRewrite, address_rewrites

GOLDEN = Path(__file__).parents[1] / "golden" / "gateway"
REQUESTS = {path.stem: path.read_bytes() for path in sorted(GOLDEN.glob("*.requests"))}
RESPONSES = {path.stem: path.read_bytes() for path in sorted(GOLDEN.glob("*.responses"))}
LIMITS = GatewayLimits(max_collected_request_bytes=4096)
REWRITES = address_rewrites(ADVERTISED)
REWRITES[ApiKey.API_VERSIONS] = ApiVersionsRewrite(REWRITES)


class TakesAll:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self.answered_requests: list[tuple[int, int, int]] = []
        self.tokens = 0

    def forward(self, data: memoryview) -> None:
        self.bytes += data

    def request_begins(self, api_key: int, api_version: int, correlation_id: int) -> None:
        self.answered_requests.append((api_key, api_version, correlation_id))

    def whole_request(self, frame: memoryview) -> None:
        client_id_and_body(frame)
        self.bytes += frame

    def unknown_api_versions(self, correlation_id: int) -> None:
        self.answered_requests.append((ApiKey.API_VERSIONS, -1, correlation_id))

    def token_begins(self) -> None:
        self.tokens += 1

    def tokens_end(self) -> None:
        return None


class TakesResponses:
    """Rewrites what is collected, as a connection does."""

    def __init__(self, memory: ResponseMemory) -> None:
        self.bytes, self._memory = bytearray(), memory

    def forward_response(self, data: memoryview) -> None:
        self.bytes += data

    def collected(self, pending: Pending, frame: memoryview, memory_bytes: int) -> None:
        self._memory.give_back(memory_bytes)
        assert pending.exchange is not None
        assert pending.rewrite is not None
        rewritten_at_once(pending.rewrite.rewrite(pending.exchange, frame[9:]))

    def passed(self, pending: Pending) -> None:
        assert pending.rewrite is not None

    def answered(self, pending: Pending) -> None:
        return None

    def room_found(self) -> None:
        raise AssertionError("nobody else takes memory")


def mutated(data: bytes, draw: random.Random) -> bytes:
    """With a few bytes flipped, taken out, doubled or put in; sizes are worth more tries than the rest."""
    changed = bytearray(data)
    for _ in range(draw.randint(0, 4)):
        at = draw.randrange(len(changed) + 1)
        match draw.randrange(6):
            case 0 if at < len(changed):
                changed[at] = draw.randrange(256)
            case 1:
                del changed[at : at + draw.randint(1, 40)]
            case 2:
                changed[at:at] = draw.randbytes(draw.randint(1, 40))
            case 3:
                changed[at:at] = changed[at : at + draw.randint(1, 200)]
            case 4:
                odd = draw.choice([-1, 0, 1, 9, 10, 2**31 - 1, -(2**31), 65_536, 4_096])
                changed[at : at + 4] = struct.pack(">i", odd)
            case _:
                changed[4 * (at // 4) : 4 * (at // 4) + 2] = struct.pack(">h", draw.choice([0, 1, 3, 17, 18, 78]))
    return bytes(changed)


def pieces(data: bytes, draw: random.Random) -> list[bytes]:
    cuts = sorted(draw.randrange(len(data) + 1) for _ in range(draw.randint(0, 6)))
    return [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def pumped(chunks: Sequence[bytes]) -> tuple[TakesAll, bool]:
    """What comes out, and whether it was refused."""
    sink = TakesAll()
    pump = RequestPump(sink, REWRITES, LIMITS, lambda: 0.0)
    for chunk in chunks:
        try:
            pump.feed(chunk)
        except MalformedMessageError:
            return sink, True
        kept = len(pump._kept)
        assert kept <= max(LIMITS.max_collected_request_bytes, 2**17) + len(chunk)
        assert pump.deadline_s is not None or not (kept or pump._passing), "what is incomplete has a deadline"
    return sink, False


@pytest.mark.parametrize("name", REQUESTS)
def test_a_capture_passes_as_it_is(name: str) -> None:
    sink, refused = pumped([REQUESTS[name]])
    assert not refused
    assert sink.bytes == REQUESTS[name]
    assert sink.answered_requests


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(REQUESTS)), draw=st.randoms(use_true_random=False))
def test_mutated_requests_pass_or_are_refused_whatever_their_pieces(name: str, draw: random.Random) -> None:
    data = mutated(REQUESTS[name], draw)
    whole, refused = pumped([data])
    again, refused_again = pumped(pieces(data, draw))
    assert refused == refused_again
    assert whole.answered_requests == again.answered_requests
    assert whole.tokens == again.tokens
    if not refused:
        assert whole.bytes == again.bytes
        assert data.startswith(bytes(whole.bytes)) or (ApiKey.API_VERSIONS, -1) in [
            known[:2] for known in whole.answered_requests
        ]


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=400), draw=st.randoms(use_true_random=False))
def test_any_bytes_pass_or_are_refused(data: bytes, draw: random.Random) -> None:
    pumped(pieces(data, draw))


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(RESPONSES)), draw=st.randoms(use_true_random=False))
def test_mutated_responses_pass_or_are_refused(name: str, draw: random.Random) -> None:
    memory = ResponseMemory(2**20)
    asked, _ = pumped([REQUESTS[name]])
    pending = PendingQueue(_pending(*one) for one in asked.answered_requests)
    pump = ResponsePump(TakesResponses(memory), pending, memory)
    try:
        for chunk in pieces(mutated(RESPONSES[name], draw), draw):
            pump.feed(chunk)
            assert len(pump._kept) < 8
    except MalformedMessageError:
        pass
    pump.close()
    assert memory.held_bytes == 0


def _pending(api_key: int, api_version: int, correlation_id: int) -> Pending:
    rewrite = REWRITES.get(api_key)
    if rewrite is None:
        return Pending(Fate.PASS, correlation_id)
    return Pending(Fate.REWRITE, correlation_id, exchange_of(api_key, api_version), rewrite)


@pytest.mark.slow
async def test_a_listener_lives_through_a_thousand_mutated_clients_and_brokers() -> None:
    """Both ends misbehave; then a client that does not is served, nothing is held, and no error was unexpected."""
    draw = random.Random(9)
    limits = GatewayLimits(request_timeout_s=2, max_in_flight_requests=8, max_collected_request_bytes=4096)
    async with gateway_between(limits=limits, memory_bytes=2**20) as ends:
        for _ in range(20):
            async with asyncio.TaskGroup() as group:
                for _ in range(50):
                    client, broker = await ends.pair()
                    name = draw.choice(sorted(REQUESTS))
                    client.send(mutated(REQUESTS[name], draw))
                    broker.send(mutated(RESPONSES[name], draw))
                    for peer in (client, broker):
                        peer.writer.write_eof()
                    group.create_task(client.ends())
                    group.create_task(broker.ends())
            assert ends.memory.held_bytes <= 2**20
        client, broker = await ends.pair()
        client.send(request(12, 4, 1))
        assert read_head(await broker.frame(), 0)[1] == 12
        broker.send(response(1))
        assert await client.frame() == response(1)
    assert ends.memory.held_bytes == 0
    closed = ends.telemetry.by_label(GATEWAY_CONNECTIONS_CLOSED, "reason")
    assert "error" not in closed
    assert closed["malformed"] > 50
