"""Clients of the gateway by TLS: what waits for them is counted, bounded, and not waited for without end (rule 8)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.certificates import CertificateAuthority
from tests.support.scripted_kafka import Ends, gateway_between, request, response
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.ports.metrics.gateway import GATEWAY_CONNECTIONS_CLOSED
from tiersidecar.services.gateway import listener
from tiersidecar.services.gateway.exchange import Exchange, Rewrite, Rewritten
from tiersidecar.services.gateway.limits import GatewayLimits

MIB = 2**20
SIZE = 24 * MIB
"""More than the sockets between two ends take."""


@pytest.fixture(autouse=True)
def _sweeps_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of tenths of a second would each be waited for until the next sweep, a second long."""
    monkeypatch.setattr(listener, "_SWEEP_S", 0.1)


class Same(Rewrite):
    """Collects the responses of ListOffsets, as everything that is filled is, and gives them back as another message."""

    alone = True

    def versions(self) -> range:
        return range(1, 4)

    async def rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten:
        return (response[:10], b"", response[10:])


def put_same(rewrites: dict[int, Rewrite]) -> None:
    rewrites[ApiKey.LIST_OFFSETS] = Same()


@asynccontextmanager
async def tls_gateway(
    directory: Path,
    limits: GatewayLimits | None = None,
    more: Callable[[dict[int, Rewrite]], None] = put_same,
) -> AsyncIterator[Ends]:
    authority = CertificateAuthority(directory)
    issued = authority.issue("gateway")
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(issued.certificate_path, issued.key_path)
    trusting = ssl.create_default_context(cafile=str(authority.authority_path))
    async with gateway_between(limits=limits, more=more, tls=served, client_tls=trusting) as ends:
        yield ends


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0.01)


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(3000):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not within 30 s")


async def test_a_tls_client_gets_its_bytes_whatever_their_size(tmp_path: Path) -> None:
    async with tls_gateway(tmp_path) as ends:
        client, broker = await ends.pair()
        for number, size in enumerate((0, 1, 256 * 1024, 256 * 1024 + 1, 3 * MIB)):
            client.send(request(ApiKey.LIST_OFFSETS, 1, number))
            await broker.frame()
            answer = response(number, bytes(range(256)) * (size // 256) + bytes(size % 256))
            broker.send(answer)
            assert await client.frame() == answer


async def test_a_response_that_a_tls_client_has_not_taken_counts_in_the_response_memory(tmp_path: Path) -> None:
    """Found by review: what asyncio's transport has encrypted seemed taken, so memory was unbounded with the clients."""
    async with tls_gateway(tmp_path) as ends:
        client, broker = await ends.pair()
        client.stop_taking()
        client.send(request(ApiKey.LIST_OFFSETS, 1, 1))
        await broker.frame()
        broker.send(response(1, bytes(SIZE)))
        await until(lambda: ends.memory.held_bytes > 0)
        await broker.writer.drain()
        await turns(30)
        assert ends.memory.held_bytes > SIZE
        client.take_again()
        assert len(await client.frame()) == 8 + SIZE
        await until(lambda: ends.memory.held_bytes == 0)


async def test_a_tls_client_that_takes_nothing_is_cut_off(tmp_path: Path) -> None:
    """Found by review: it kept its connection, its broker's and the response for ever."""
    async with tls_gateway(tmp_path, GatewayLimits(write_timeout_s=0.2)) as ends:
        client, broker = await ends.pair()
        client.stop_taking()
        client.send(request(ApiKey.LIST_OFFSETS, 1, 1))
        await broker.frame()
        broker.send(response(1, bytes(SIZE)))
        await broker.ends()
        assert ends.memory.held_bytes == 0
    assert ends.telemetry.by_label(GATEWAY_CONNECTIONS_CLOSED, "reason")["slow_reader"] == 1


@pytest.mark.slow
async def test_a_slow_tls_client_that_takes_something_is_served(tmp_path: Path) -> None:
    async with tls_gateway(tmp_path, GatewayLimits(write_timeout_s=1.5)) as ends:
        client, broker = await ends.pair()
        client.send(request(ApiKey.LIST_OFFSETS, 1, 1))
        await broker.frame()
        broker.send(response(1, bytes(SIZE)))
        for _ in range(16):  # of a quarter of a second: longer than it may take nothing
            client.take_again()
            await asyncio.sleep(0.001)
            client.stop_taking()
            await asyncio.sleep(0.25)
        client.take_again()
        assert len(await client.frame()) == 8 + SIZE


async def test_what_was_written_reaches_a_tls_client_although_the_broker_goes(tmp_path: Path) -> None:
    async with tls_gateway(tmp_path) as ends:
        client, broker = await ends.pair()
        client.stop_taking()
        client.send(request(ApiKey.LIST_OFFSETS, 1, 1))
        await broker.frame()
        answer = response(1, bytes(SIZE))
        broker.send(answer)
        await broker.writer.drain()
        broker.close()
        await turns(30)
        client.take_again()
        assert await client.ends() == answer
