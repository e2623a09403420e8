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

from tests.support.gateway_core import Core
from tests.support.scripted_kafka import ADVERTISED, gateway_between, request, response
from tiersidecar.formats.wire.cursor import ApiKey, read_head
from tiersidecar.ports.metrics.gateway import GATEWAY_CONNECTIONS_CLOSED
from tiersidecar.services.gateway.frames import ResponseMemory
from tiersidecar.services.gateway.host import Refusal
from tiersidecar.services.gateway.limits import GatewayLimits
from tiersidecar.services.gateway.rewrites import ApiVersionsRewrite, frame_rewrites

GOLDEN = Path(__file__).parents[1] / "golden" / "gateway"
REQUESTS = {path.stem: path.read_bytes() for path in sorted(GOLDEN.glob("*.requests"))}
RESPONSES = {path.stem: path.read_bytes() for path in sorted(GOLDEN.glob("*.responses"))}
LIMITS = GatewayLimits(max_collected_request_bytes=4096)
REWRITES = frame_rewrites(ADVERTISED)
REWRITES[ApiKey.API_VERSIONS] = ApiVersionsRewrite(REWRITES)
OUR_ID = -123_456


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


def heard(chunks: Sequence[bytes]) -> Core:
    """What a conversation makes of what a client says, without an answer: none waits for one."""
    core = Core(REWRITES, limits=LIMITS, new_id=lambda: OUR_ID)
    for chunk in chunks:
        core.conversation.from_client(chunk)
        assert core.conversation.kept_bytes <= max(LIMITS.max_collected_request_bytes, 2**17) + len(chunk)
        _, unfinished_bytes = core.conversation.unfinished_request
        is_held = not core.conversation.wants_request_bytes
        assert unfinished_bytes or is_held or not core.conversation.kept_bytes, "what is incomplete has a deadline"
    return core


def frames_of(data: bytes) -> list[bytes]:
    """With their sizes; the last one may be cut short."""
    found, at = [], 0
    while at < len(data):
        size = max(*struct.unpack_from(">i", data.ljust(at + 4, b"\0"), at), 0)
        found.append(data[at : at + 4 + size])
        at += 4 + size
    return found


def without_ids(data: bytes) -> bytes:
    return b"".join(frame[:8] + frame[12:] for frame in frames_of(data))


@pytest.mark.parametrize("name", REQUESTS)
def test_a_capture_passes_as_it_is_but_for_ids(name: str) -> None:
    core = heard([REQUESTS[name]])
    assert not core.has_ended
    said = bytes(core.broker.data)
    assert without_ids(REQUESTS[name]).startswith(without_ids(said))
    for frame, original in zip(frames_of(said), frames_of(REQUESTS[name]), strict=False):
        has_answer_read = read_head(original, 0)[1] in REWRITES
        assert frame == (original[:8] + struct.pack(">i", OUR_ID) + original[12:] if has_answer_read else original)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(REQUESTS)), draw=st.randoms(use_true_random=False))
def test_mutated_requests_pass_or_are_refused_whatever_their_pieces(name: str, draw: random.Random) -> None:
    data = mutated(REQUESTS[name], draw)
    whole, again = heard([data]), heard(pieces(data, draw))
    assert (whole.refusal, whole.client.data) == (again.refusal, again.client.data)
    assert whole.refusal in (None, Refusal.MALFORMED)
    if whole.refusal is None:
        assert whole.broker.data == again.broker.data


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=400), draw=st.randoms(use_true_random=False))
def test_any_bytes_pass_or_are_refused(data: bytes, draw: random.Random) -> None:
    assert heard(pieces(data, draw)).refusal in (None, Refusal.MALFORMED)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(RESPONSES)), draw=st.randoms(use_true_random=False))
def test_mutated_responses_pass_or_are_refused(name: str, draw: random.Random) -> None:
    ids = iter([read_head(frame, 0)[3] for frame in frames_of(REQUESTS[name]) if read_head(frame, 0)[1] in REWRITES])
    memory = ResponseMemory(2**20)
    core = Core(REWRITES, memory=memory, new_id=lambda: next(ids))
    core.conversation.from_client(REQUESTS[name])
    for chunk in pieces(mutated(RESPONSES[name], draw), draw):
        core.conversation.from_broker(chunk)
    # A changed answer may leave a login without its end: what the client sends next is out of turn then.
    asked = {read_head(frame, 0)[1] for frame in frames_of(REQUESTS[name])}
    out_of_turn = {Refusal.MALFORMED} if ApiKey.SASL_AUTHENTICATE in asked else set[Refusal]()
    assert core.refusal in {None, Refusal.UNBOUND, Refusal.LOGIN} | out_of_turn
    core.close()
    assert memory.held_bytes == 0


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
