"""A rewrite can tell that its client has ended the connection, though the gateway reads nothing of it meanwhile (issue 17)."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.scripted_kafka import Ends, gateway_between, request, response
from tests.unit.services.gateway.test_tls_side import tls_gateway, until
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.services.gateway.exchange import Exchange, Rewrite, Rewritten


@dataclass(slots=True)
class Looking(Rewrite):
    """Notes whether the client is gone, before it goes and after."""

    found: list[bool] = field(default_factory=list)
    waits_for: asyncio.Event = field(default_factory=asyncio.Event)
    is_done: asyncio.Event = field(default_factory=asyncio.Event)
    alone: bool = True

    def versions(self) -> range:
        return range(1, 4)

    async def rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten:
        self.found.append(exchange.upstream.is_client_gone)
        await self.waits_for.wait()
        self.found.append(exchange.upstream.is_client_gone)
        self.is_done.set()
        return None

    def put(self, rewrites: dict[int, Rewrite]) -> None:
        rewrites[ApiKey.LIST_OFFSETS] = self


def opened(looking: Looking, directory: Path, *, tls: bool) -> AbstractAsyncContextManager[Ends]:
    return tls_gateway(directory, more=looking.put) if tls else gateway_between(more=looking.put)


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("has_sent_more", [False, True])
@pytest.mark.parametrize("goes", [False, True])
async def test_a_client_that_ends_its_connection_is_seen_to(
    tmp_path: Path, *, goes: bool, has_sent_more: bool, tls: bool
) -> None:
    looking = Looking()
    async with opened(looking, tmp_path, tls=tls) as ends:
        client, broker = await ends.pair()
        client.send(request(ApiKey.LIST_OFFSETS, 1, 1))
        await broker.frame()
        broker.send(response(1))
        await until(lambda: bool(looking.found))
        if has_sent_more:
            client.send(request(ApiKey.LIST_OFFSETS, 1, 2))  # unread: another is alone
        if goes:
            client.writer.transport.abort()  # one of TLS would wait for the other's word
        await asyncio.sleep(0.1)
        looking.waits_for.set()
        async with asyncio.timeout(10):
            await looking.is_done.wait()
            if not goes:
                assert await client.frame() == response(1)
    assert looking.found == [False, goes]
