"""The frame of the gateway, on real sockets between a scripted broker and clients that send bytes (issue 9)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.scripted_kafka import Ends, gateway_between, request, response
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.ports.metrics.gateway import GATEWAY_CONNECTIONS_CLOSED, GATEWAY_CONNECTIONS_REFUSED
from tiersidecar.services.gateway import listener
from tiersidecar.services.gateway.exchange import Buffer, Exchange, Rewrite, Rewritten, UpstreamClosedError
from tiersidecar.services.gateway.limits import GatewayLimits

HEARTBEAT, LIST_OFFSETS = 12, ApiKey.LIST_OFFSETS
MIB = 2**20


@pytest.fixture(autouse=True)
def _sweeps_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of tenths of a second would each be waited for until the next sweep, a second long."""
    monkeypatch.setattr(listener, "_SWEEP_S", 0.1)


def closed(ends: Ends) -> dict[str, float]:
    return ends.telemetry.by_label(GATEWAY_CONNECTIONS_CLOSED, "reason")


def produce(correlation_id: int, acks: int, records: bytes = b"") -> bytes:
    """Version 7: client id, transactional id, acks, and what the gateway does not look at."""
    return request(ApiKey.PRODUCE, 7, correlation_id, struct.pack(">hh", -1, acks) + records)


@dataclass(slots=True)
class Filling(Rewrite):
    """Rewrites ListOffsets v1 as one that fills would: sees the request, asks the broker, takes its time."""

    waits_for: asyncio.Event | None = None
    asks: bool = False
    fails: bool = False
    reads_request: bool = True
    alone: bool = True

    def versions(self) -> range:
        return range(1, 4)

    def prepare(self, exchange: Exchange) -> Rewritten:
        return (b"[", exchange.request, b"]")

    async def rewrite(self, exchange: Exchange, response: memoryview) -> Sequence[Buffer] | None:
        if self.waits_for is not None:
            await self.waits_for.wait()
        if self.fails:
            raise LookupError("a fault of ours")
        more: Buffer = b""
        if self.asks:
            more = await exchange.upstream.ask(ApiKey.METADATA, 1, b"metadata?", 30)
        return (b"<", response, more, b">")

    def put(self, rewrites: dict[int, Rewrite]) -> None:
        rewrites[LIST_OFFSETS] = self


async def test_requests_pass_pipelined_and_responses_in_order() -> None:
    async with gateway_between() as ends:
        client, broker = await ends.pair()
        sent = [request(HEARTBEAT, 4, number, bytes(number)) for number in range(50)]
        client.send(b"".join(sent))
        assert [await broker.frame() for _ in sent] == sent
        answers = [response(number, bytes(number % 7)) for number in range(50)]
        broker.send(b"".join(answers))
        assert [await client.frame() for _ in sent] == answers


async def test_a_frame_passes_while_it_arrives() -> None:
    """Nobody waits for the end of 16 MiB, neither of a request nor of a response."""
    async with gateway_between() as ends:
        client, broker = await ends.pair()
        size = 16 * MIB
        client.send(produce(1, 1, bytes(size))[: size // 2])
        await asyncio.wait_for(broker.reader.readexactly(size // 2), 30)
        client.send(bytes(len(produce(1, 1, bytes(size))) - size // 2))
        await asyncio.wait_for(broker.reader.readexactly(len(produce(1, 1, bytes(size))) - size // 2), 30)
        client.send(request(HEARTBEAT, 4, 2))
        await broker.frame()


@pytest.mark.parametrize("step", [1, 3, 7])
async def test_any_pieces_are_the_same_bytes(step: int) -> None:
    async with gateway_between() as ends:
        client, broker = await ends.pair()
        sent = request(HEARTBEAT, 4, 1, b"abc") + produce(2, 1, b"records") + produce(3, 0) + request(HEARTBEAT, 4, 4)
        for at in range(0, len(sent), step):
            client.send(sent[at : at + step])
            await asyncio.sleep(0)
        assert b"".join([await broker.frame() for _ in range(4)]) == sent
        answers = response(1, b"x") + response(2, b"yy") + response(4)
        for at in range(0, len(answers), step):
            broker.send(answers[at : at + step])
            await asyncio.sleep(0)
        assert b"".join([await client.frame() for _ in range(3)]) == answers


async def test_a_produce_without_acks_has_no_answer() -> None:
    async with gateway_between() as ends:
        client, broker = await ends.pair()
        client.send(produce(1, 0) + request(HEARTBEAT, 4, 2))
        await broker.frame()
        await broker.frame()
        broker.send(response(2))
        assert await client.frame() == response(2)


async def test_what_was_sent_without_acks_arrives_though_the_client_is_gone() -> None:
    async with gateway_between() as ends:
        client, broker = await ends.pair()
        frames = [produce(number, 0, bytes(100_000)) for number in range(30)]
        client.send(b"".join(frames))
        client.close()
        assert [await broker.frame() for _ in frames] == frames
        assert await broker.ends() == b""


@pytest.mark.parametrize(("mechanism", "tokens"), [("PLAIN", 1), ("SCRAM-SHA-256", 2), ("OAUTHBEARER", 1)])
async def test_tokens_pass_without_headers_after_a_handshake_of_version_0(mechanism: str, tokens: int) -> None:
    async with gateway_between(raw_tokens=True) as ends:
        client, broker = await ends.pair()
        name = mechanism.encode()
        client.send(request(ApiKey.SASL_HANDSHAKE, 0, 1, struct.pack(">h", len(name)) + name))
        await broker.frame()
        broker.send(response(1, b"\0\0"))
        assert await client.frame() == response(1, b"\0\0")
        for number in range(tokens):
            client.send(struct.pack(">i", 3 + number) + b"\0\1\2xyz"[: 3 + number])
            assert len(await broker.frame()) == 7 + number
            broker.send(struct.pack(">i", number) + b"z" * number)
            assert await client.frame() == struct.pack(">i", number) + b"z" * number
        client.send(request(HEARTBEAT, 4, 2))
        await broker.frame()
        broker.send(response(2))
        assert await client.frame() == response(2)


async def test_the_tokens_of_an_unknown_mechanism_end_with_the_first_request() -> None:
    """GSSAPI: as many as it takes, and the broker need not answer the last one."""
    async with gateway_between(raw_tokens=True) as ends:
        client, broker = await ends.pair()
        client.send(request(ApiKey.SASL_HANDSHAKE, 0, 1, struct.pack(">h", 6) + b"GSSAPI"))
        await broker.frame()
        broker.send(response(1, b"\0\0"))
        await client.frame()
        for token in (b"\x60\x82" + bytes(500), b""):
            client.send(struct.pack(">i", len(token)) + token)
            assert (await broker.frame())[4:] == token
            broker.send(struct.pack(">i", 3) + b"abc")
            assert await client.frame() == struct.pack(">i", 3) + b"abc"
        token = b"\x05\x04" + bytes(30)
        client.send(struct.pack(">i", len(token)) + token)
        assert (await broker.frame())[4:] == token
        client.send(request(HEARTBEAT, 4, 2))
        await broker.frame()
        broker.send(response(2))
        assert await client.frame() == response(2)


async def test_a_rewrite_sees_the_request_and_changes_both() -> None:
    async with gateway_between(more=Filling().put) as ends:
        client, broker = await ends.pair()
        client.send(request(LIST_OFFSETS, 1, 9, b"body") + request(HEARTBEAT, 4, 10))
        assert await broker.frame() == request(LIST_OFFSETS, 1, 9, b"[body]")
        broker.send(response(9, b"answer"))
        assert await client.frame() == response(9, b"<answer>")
        assert await broker.frame() == request(HEARTBEAT, 4, 10)


async def test_a_rewrite_asks_on_the_clients_own_connection_before_anything_else_is_sent() -> None:
    async with gateway_between(more=Filling(asks=True).put) as ends:
        client, broker = await ends.pair()
        client.send(request(LIST_OFFSETS, 1, 9) + request(HEARTBEAT, 4, 10))
        await broker.frame()
        broker.send(response(9, b"answer"))
        asked = await broker.frame()
        assert asked[4:8] == struct.pack(">hh", ApiKey.METADATA, 1)
        assert asked.endswith(b"metadata?")
        broker.send(response(struct.unpack_from(">i", asked, 8)[0], b"metadata!"))
        assert await client.frame() == response(9, b"<answermetadata!>")
        assert await broker.frame() == request(HEARTBEAT, 4, 10)


@dataclass(slots=True)
class TurnAndTurn(Rewrite):
    """Every other answer is there at once, as what was read ahead is."""

    reads_request: bool = True
    alone: bool = True
    later: Filling = field(default_factory=Filling)
    number: int = 0

    def versions(self) -> range:
        return self.later.versions()

    def prepare(self, exchange: Exchange) -> Rewritten:
        return self.later.prepare(exchange)

    def put(self, rewrites: dict[int, Rewrite]) -> None:
        rewrites[LIST_OFFSETS] = self

    def rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten | Coroutine[Any, Any, Rewritten]:
        self.number += 1
        return (b"at once ", response) if self.number % 2 else self.later.rewrite(exchange, response)


@pytest.mark.parametrize("step", [1, 7, 10_000])
async def test_answers_that_need_no_waiting_keep_the_order_and_let_the_next_request_go(step: int) -> None:
    """However the requests arrive: with the one before, in the midst of it, or after its answer."""
    async with gateway_between(more=TurnAndTurn().put) as ends:
        client, broker = await ends.pair()
        sent = b"".join(request(LIST_OFFSETS, 1, number) + request(HEARTBEAT, 4, 100 + number) for number in range(6))
        for begin in range(0, len(sent), step):
            client.send(sent[begin : begin + step])
            await asyncio.sleep(0)
        for number in range(6):
            assert await broker.frame() == request(LIST_OFFSETS, 1, number, b"[]")
            broker.send(response(number, b"answer"))
            filled = b"<answer>" if number % 2 else b"at once answer"
            assert await client.frame() == response(number, filled)
            assert await broker.frame() == request(HEARTBEAT, 4, 100 + number)
            broker.send(response(100 + number))
            assert await client.frame() == response(100 + number)
        client.send(request(LIST_OFFSETS, 1, 9))
        assert await broker.frame() == request(LIST_OFFSETS, 1, 9, b"[]")


async def test_a_slow_rewrite_holds_up_its_own_connection_only() -> None:
    event = asyncio.Event()
    async with gateway_between(more=Filling(waits_for=event).put) as ends:
        slow, slow_broker = await ends.pair()
        slow.send(request(LIST_OFFSETS, 1, 1) + request(HEARTBEAT, 4, 2))
        await slow_broker.frame()
        slow_broker.send(response(1))
        other, other_broker = await ends.pair()
        other.send(request(HEARTBEAT, 4, 1))
        await other_broker.frame()
        other_broker.send(response(1))
        assert await other.frame() == response(1)
        event.set()
        assert await slow.frame() == response(1, b"<>")
        assert await slow_broker.frame() == request(HEARTBEAT, 4, 2)


async def test_a_rewrite_that_fails_ends_its_connection_and_sends_nothing_half_done() -> None:
    async with gateway_between(more=Filling(fails=True).put) as ends:
        client, broker = await ends.pair()
        client.send(request(LIST_OFFSETS, 1, 1))
        await broker.frame()
        broker.send(response(1, b"answer"))
        assert await client.ends() == b""
        assert await broker.ends() == b""
    assert closed(ends)["error"] == 1


async def test_who_asked_learns_that_the_broker_is_gone() -> None:
    learnt: list[BaseException] = []

    class Asking(Filling):
        async def rewrite(self, exchange: Exchange, response: memoryview) -> Sequence[Buffer] | None:
            try:
                return (await exchange.upstream.ask(ApiKey.METADATA, 1, b"", 30),)
            except BaseException as error:
                learnt.append(error)
                raise

    async with gateway_between(more=Asking().put) as ends:
        client, broker = await ends.pair()
        client.send(request(LIST_OFFSETS, 1, 1))
        await broker.frame()
        broker.send(response(1))
        await broker.frame()
        broker.close()
        assert await client.ends() == b""
    assert isinstance(learnt[0], UpstreamClosedError | asyncio.CancelledError)


async def test_api_versions_offers_what_can_be_rewritten_and_nothing_newer() -> None:
    async with gateway_between(more=Filling().put) as ends:
        client, broker = await ends.pair()
        client.send(request(ApiKey.API_VERSIONS, 2, 1))
        await broker.frame()
        offered = ((ApiKey.METADATA, 0, 99), (LIST_OFFSETS, 0, 11), (HEARTBEAT, 0, 99), (ApiKey.FETCH, 50, 60))
        listed = b"".join(struct.pack(">hhh", *row) for row in offered)
        broker.send(response(1, struct.pack(">hi", 0, len(offered)) + listed + bytes(4)))
        expected = ((ApiKey.METADATA, 0, 13), (LIST_OFFSETS, 1, 3), (HEARTBEAT, 0, 99))
        clamped = b"".join(struct.pack(">hhh", *row) for row in expected)
        assert await client.frame() == response(1, struct.pack(">hi", 0, len(expected)) + clamped + bytes(4))


async def test_an_api_versions_request_that_is_too_new_is_answered_in_its_turn() -> None:
    async with gateway_between() as ends:
        client, broker = await ends.pair()
        client.send(request(HEARTBEAT, 4, 1) + request(ApiKey.API_VERSIONS, 9, 2) + request(HEARTBEAT, 4, 3))
        assert await broker.frame() == request(HEARTBEAT, 4, 1)
        assert await broker.frame() == request(HEARTBEAT, 4, 3), "the broker does not see it"
        broker.send(response(1) + response(3))
        assert await client.frame() == response(1)
        assert await client.frame() == response(2, struct.pack(">hihhh", 35, 1, ApiKey.API_VERSIONS, 0, 4))
        assert await client.frame() == response(3)


MALFORMED = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "TLS": bytes.fromhex("1603010200010001fc0303"),
    "a negative size": struct.pack(">i", -5) + bytes(20),
    "a size above socket.request.max.bytes": struct.pack(">i", 100 * MIB + 1) + bytes(20),
    "too short for a header": struct.pack(">i", 6) + bytes(20),
    "a version that was not offered": request(ApiKey.METADATA, 99, 1),
    "a Produce that ends before its acks": struct.pack(">ihhih", 11, 0, 7, 1, -1) + b"\0" + bytes(40),
    "a request to be read whole that is too large": struct.pack(">ihhi", 9 * MIB, LIST_OFFSETS, 1, 1),
    "a header that ends in its client id": struct.pack(">ihhih", 10, LIST_OFFSETS, 1, 1, 500),
}


@pytest.mark.parametrize("sent", MALFORMED.values(), ids=MALFORMED.keys())
async def test_malformed_bytes_end_their_connection_and_no_other(sent: bytes) -> None:
    async with gateway_between(more=Filling().put) as ends:
        other, other_broker = await ends.pair()
        client, broker = await ends.pair()
        client.send(sent)
        assert await client.ends() == b""
        await broker.ends()
        other.send(request(HEARTBEAT, 4, 1))
        await other_broker.frame()
        other_broker.send(response(1))
        assert await other.frame() == response(1)
    assert closed(ends)["malformed"] == 1


async def test_a_conversation_that_is_refused_is_audited_with_its_client_s_address() -> None:
    async with gateway_between() as ends:
        client, _ = await ends.pair()
        host, port = client.writer.get_extra_info("sockname")[:2]
        with capture_logs() as events:
            client.send(b"GET / HTTP/1.1\r\n\r\n")
            assert await client.ends() == b""
    (event,) = [one for one in events if one["event"] == "gateway.audit.refused"]
    expected = {"client": f"{host}:{port}", "principal": "User:ANONYMOUS", "kind": "malformed", "listener": "GATEWAY"}
    assert expected.items() <= event.items()


@pytest.mark.parametrize(
    "sent",
    [response(7), struct.pack(">i", -1), struct.pack(">i", 2) + bytes(8), response(1) + response(1)],
    ids=["another correlation id", "a negative size", "no correlation id", "one too many"],
)
async def test_a_broker_that_answers_nonsense_ends_its_clients_connection(sent: bytes) -> None:
    async with gateway_between() as ends:
        client, broker = await ends.pair()
        client.send(request(HEARTBEAT, 4, 1))
        await broker.frame()
        broker.send(sent)
        await client.ends()
    assert closed(ends)["broker_malformed"] == 1


async def test_a_broker_that_goes_ends_its_clients_connection_after_what_it_said() -> None:
    async with gateway_between() as ends:
        client, broker = await ends.pair()
        client.send(request(HEARTBEAT, 4, 1) + request(HEARTBEAT, 4, 2))
        await broker.frame()
        broker.send(response(1, bytes(MIB)))
        await broker.writer.drain()
        broker.close()
        assert await client.ends() == response(1, bytes(MIB))
    assert closed(ends)["broker"] == 1


async def test_a_client_that_does_not_read_stops_the_broker_and_costs_no_memory() -> None:
    """What waits is in sockets, and a few buffers of the gateway's, however much there is."""
    async with gateway_between() as ends:
        client, broker = await ends.pair()
        client.stop_taking()
        client.send(request(HEARTBEAT, 4, 1))
        await broker.frame()
        broker.send(response(1, bytes(48 * MIB)))
        left = broker.writer.transport.get_write_buffer_size()
        for _ in range(200):
            await asyncio.sleep(0.01)
            if broker.writer.transport.get_write_buffer_size() == left:
                break
            left = broker.writer.transport.get_write_buffer_size()
        assert left > 24 * MIB, "the broker still has most of it"
        client.take_again()
        assert len(await client.frame()) == 8 + 48 * MIB


async def test_a_broker_that_does_not_read_stops_the_client() -> None:
    async with gateway_between() as ends:
        client, broker = await ends.pair()
        broker.stop_taking()
        frame = produce(1, 1, bytes(24 * MIB))
        client.send(frame)
        for _ in range(50):
            await asyncio.sleep(0.01)
        assert client.writer.transport.get_write_buffer_size() > 8 * MIB
        broker.take_again()
        assert await broker.frame() == frame


async def test_no_more_requests_are_in_flight_than_allowed() -> None:
    limits = GatewayLimits(max_in_flight_requests=4)
    async with gateway_between(limits=limits) as ends:
        client, broker = await ends.pair()
        sent = [request(HEARTBEAT, 4, number) for number in range(10)]
        client.send(b"".join(sent))
        assert [await broker.frame() for _ in range(4)] == sent[:4]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(broker.reader.read(1), 0.2)
        for number in range(10):
            broker.send(response(number))
            assert await client.frame() == response(number)
            if number < 6:
                await asyncio.sleep(0)
        assert [await broker.frame() for _ in range(6)] == sent[4:]


async def test_a_request_that_does_not_end_ends_its_connection() -> None:
    """Slow loris: neither a byte now and then nor a kept beginning holds a connection for ever."""
    limits = GatewayLimits(request_timeout_s=0.2)
    async with gateway_between(limits=limits) as ends:
        begun, _ = await ends.pair()
        begun.send(request(HEARTBEAT, 4, 1)[:-1])
        headless, _ = await ends.pair()
        headless.send(b"\0\0")
        collected, _ = await ends.pair()
        collected.send(request(ApiKey.API_VERSIONS, 9, 1)[:-1])
        idle, idle_broker = await ends.pair()
        for client in (begun, headless, collected):
            assert await client.ends() == b""
        idle.send(request(HEARTBEAT, 4, 1))
        await idle_broker.frame()
    assert closed(ends)["slow_request"] == 3


async def test_a_client_that_never_reads_is_cut_off() -> None:
    limits = GatewayLimits(write_timeout_s=0.2)
    async with gateway_between(limits=limits) as ends:
        client, broker = await ends.pair()
        client.stop_taking()
        client.send(request(HEARTBEAT, 4, 1))
        await broker.frame()
        broker.send(response(1, bytes(64 * MIB)))
        await broker.ends()
    assert closed(ends)["slow_reader"] == 1


async def test_a_client_that_takes_a_little_now_and_then_is_cut_off() -> None:
    """Found by review: any progress began its time anew, so that it kept what it had been sent for as long as it liked."""
    limits = GatewayLimits(write_timeout_s=2.0, least_taken_bytes_per_s=2**40)
    with capture_logs() as logs:
        async with gateway_between(limits=limits) as ends:
            client, broker = await ends.pair()
            client.stop_taking()
            client.send(request(HEARTBEAT, 4, 1))
            await broker.frame()
            broker.send(response(1, bytes(256 * MIB)))
            for _ in range(100):
                client.take_again()
                await asyncio.sleep(0.001)
                client.stop_taking()
                await asyncio.sleep(0.1)
                if broker.writer.transport.is_closing():
                    break
            assert broker.writer.transport.is_closing()
    assert closed(ends)["slow_reader"] == 1
    (refused,) = [log for log in logs if log["event"] == "gateway.audit.refused"]
    assert (refused["kind"], refused["principal"]) == ("slow_reader", "User:ANONYMOUS")
    assert refused["client"].startswith("127.0.0.1:")
    assert "the least" in refused["reason"]


async def test_a_client_that_takes_all_there_is_may_wait_as_long_as_it_likes() -> None:
    limits = GatewayLimits(write_timeout_s=0.2, least_taken_bytes_per_s=2**40)
    async with gateway_between(limits=limits) as ends:
        client, broker = await ends.pair()
        for number in range(8):
            client.send(request(HEARTBEAT, 4, number))
            await broker.frame()
            broker.send(response(number, bytes(100)))
            await asyncio.sleep(0.1)
            assert await client.frame() == response(number, bytes(100))


@pytest.mark.parametrize(("each", "ip", "reason"), [(2, 9, "max_connections"), (9, 2, "max_connections_per_ip")])
async def test_connections_above_a_limit_are_closed_at_once(each: int, ip: int, reason: str) -> None:
    async with gateway_between(max_connections=each, max_connections_per_ip=ip) as ends:
        first, _ = await ends.pair()
        await ends.pair()
        refused = await ends.client()
        assert await refused.ends() == b""
        first.close()
        for _ in range(1000):
            client = await ends.client()
            client.send(request(HEARTBEAT, 4, 1))
            try:
                peer = await asyncio.wait_for(ends.arrived.get(), 0.05)
            except TimeoutError:
                continue
            await peer.frame()
            break
        else:
            pytest.fail("the place of the one that left was not given away")
    assert ends.telemetry.by_label(GATEWAY_CONNECTIONS_REFUSED, "reason")[reason] >= 1


async def test_without_a_broker_a_client_is_turned_away() -> None:
    async with gateway_between() as ends:
        ends.close_broker()
        client = await ends.client()
        assert await client.ends() == b""
    assert ends.telemetry.by_label(GATEWAY_CONNECTIONS_REFUSED, "reason")["broker_unreachable"] == 1


async def test_responses_that_are_collected_share_a_bounded_memory() -> None:
    """Of clients at one address: what finds no room is collected when another is on its way; then all is given back."""
    event = asyncio.Event()
    async with gateway_between(memory_bytes=9 * MIB, more=Filling(waits_for=event).put) as ends:
        pairs = [await ends.pair() for _ in range(6)]
        for client, broker in pairs:
            client.send(request(LIST_OFFSETS, 1, 1))
            await broker.frame()
            broker.send(response(1, bytes(2 * MIB)))
        for _ in range(100):
            await asyncio.sleep(0)
        assert ends.memory.held_bytes <= 9 * MIB
        event.set()
        for client, _ in pairs:
            assert len(await client.frame()) == 8 + 2 * MIB + 2
        for client, _ in pairs:
            client.close()
        async with asyncio.timeout(30):
            while ends.memory.held_bytes:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)


async def test_a_small_answer_does_not_wait_for_memory_that_large_ones_hold() -> None:
    """Nor does the answer to what a rewrite asks, which holds memory itself; and more from the client gives none of it back."""
    event = asyncio.Event()
    async with gateway_between(memory_bytes=8 * MIB + 64, more=Filling(waits_for=event, asks=True).put) as ends:
        large, large_broker = await ends.pair()
        large.send(request(LIST_OFFSETS, 1, 1))
        await large_broker.frame()
        large_broker.send(response(1, bytes(2 * MIB)))
        async with asyncio.timeout(30):
            while not ends.memory.held_bytes:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        small, small_broker = await ends.pair()
        small.send(request(ApiKey.METADATA, 0, 1))
        await small_broker.frame()
        answer = response(1, struct.pack(">ii", 0, 0) + bytes(1000))
        for at in range(0, len(answer), 100):
            small_broker.send(answer[at : at + 100])
            await asyncio.sleep(0.001)
        assert await small.frame() == answer
        large.send(request(HEARTBEAT, 4, 2)[:5])
        await asyncio.sleep(0.05)
        assert ends.memory.held_bytes > 2 * MIB
        event.set()
        asked = await large_broker.frame()
        told = response(struct.unpack_from(">i", asked, 8)[0], bytes(500))
        large_broker.send(told[:10])
        await asyncio.sleep(0.01)
        large_broker.send(told[10:])
        assert len(await large.frame()) == 8 + 2 * MIB + 500 + 2


async def test_a_response_larger_than_the_memory_passes_alone() -> None:
    async with gateway_between(memory_bytes=MIB, more=Filling().put) as ends:
        client, broker = await ends.pair()
        client.send(request(LIST_OFFSETS, 1, 1))
        await broker.frame()
        broker.send(response(1, bytes(4 * MIB)))
        assert len(await client.frame()) == 8 + 4 * MIB + 2
