"""Connections that say nothing, as many as there are: others come in."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp import web

from tests.support.certificates import CertificateAuthority
from tests.support.inline_blocking import InlineBlocking
from tests.unit.services.status.test_server import Source
from tiersidecar.adapters.telemetry_prometheus import PrometheusTelemetry
from tiersidecar.services.http_listener import MAX_CONNECTIONS, ConnectionLimits, HttpServer, listen
from tiersidecar.services.status.server import serve_status

pytestmark = [pytest.mark.timeout(60)]

WAIT_S = 5.0
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"

Handler = Callable[[web.Request], Awaitable[web.Response]]
NewLoop = Callable[[], asyncio.AbstractEventLoop]


async def answer(server: HttpServer, tls: ssl.SSLContext | None = None) -> bytes:
    async with asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, ssl=tls, server_hostname="localhost" if tls else None
        )
        writer.write(HEALTH)
        answered = await reader.read()
        writer.close()
    return answered


def status_service() -> AbstractAsyncContextManager[HttpServer]:
    metrics = PrometheusTelemetry(version="1")
    return serve_status(host="127.0.0.1", port=0, source=Source(), metrics=metrics, blocking=InlineBlocking())


@pytest.mark.parametrize("first_bytes", [b"", b"GET /healthz HTTP/1.1\r\nX: "], ids=["silent", "unfinished head"])
def test_silent_connections_do_not_keep_the_health_check_out(first_bytes: bytes) -> None:
    """It was away for 71 s: longer than a liveness probe waits.  The daemon runs in this loop."""

    async def crowd() -> None:
        metrics = PrometheusTelemetry(version="1")
        async with serve_status(
            host="127.0.0.1", port=0, source=Source(), metrics=metrics, blocking=InlineBlocking()
        ) as server:
            held = []
            for _ in range(MAX_CONNECTIONS + 10):
                _, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(first_bytes)
                held.append(writer)
            for _ in range(3):
                assert (await answer(server)).startswith(b"HTTP/1.1 200")
            for writer in held:
                writer.close()

    run(uvloop.new_event_loop, crowd())


def test_the_body_of_a_request_is_not_opened() -> None:
    """One of 1 MiB that opens to a GiB kept the health check out for seconds."""
    body = b"not gzip, which would be told"
    first = b"GET /healthz HTTP/1.1\r\nHost: here\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"

    async def ask() -> None:
        async with status_service() as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(first % len(body) + body + HEALTH)
            async with asyncio.timeout(WAIT_S):
                assert (await reader.read()).count(b"HTTP/1.1 200") == 2
            writer.close()

    run(uvloop.new_event_loop, ask())


@asynccontextmanager
async def service(
    health: Handler, tls: ssl.SSLContext | None = None, limits: ConnectionLimits | None = None
) -> AsyncIterator[HttpServer]:
    application = web.Application()
    application.router.add_get("/healthz", health)
    runner = web.AppRunner(application, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        yield await listen(runner, service="test", host="127.0.0.1", port=0, ssl_context=tls, limits=limits)
    finally:
        await runner.cleanup()


@asynccontextmanager
async def tls_service(tls: ssl.SSLContext, limits: ConnectionLimits) -> AsyncIterator[HttpServer]:
    async def health(request: web.Request) -> web.Response:
        return web.Response(text="alive")

    async with service(health, tls, limits) as server:
        yield server


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_handshakes_that_do_not_go_on_count_give_way_and_end(new_loop: NewLoop, tmp_path: Path) -> None:
    """They were counted nowhere: strangers could take all descriptors of the process."""
    authority = CertificateAuthority(tmp_path)
    issued = authority.issue("localhost")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(issued.certificate_path, issued.key_path)
    trusting = ssl.create_default_context(cafile=str(issued.authority_path))

    async def crowd() -> None:
        async with tls_service(tls, ConnectionLimits(most=4, head_timeout_s=1.0)) as server:
            held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(8)]
            assert (await answer(server, trusting)).startswith(b"HTTP/1.1 200")
            async with asyncio.timeout(WAIT_S):
                for reader, writer in held:
                    assert await ending(reader) == b""
                    writer.close()
            assert (await answer(server, trusting)).startswith(b"HTTP/1.1 200")
            _, unfinished = await asyncio.open_connection("127.0.0.1", server.port)
        unfinished.close()  # the service has ended with it

    run(new_loop, crowd())


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_of_many_requests_few_begin_in_one_round_of_the_loop(new_loop: NewLoop) -> None:
    """1,024 connections that asked on and on left everything else in the process a turn every half second."""
    begun = Counter[int]()
    crowd, asked = 64, 3

    async def go_round(rounds: list[int]) -> None:
        while True:
            rounds[0] += 1
            await asyncio.sleep(0)

    async def ask_all() -> None:
        rounds = [0]

        async def health(request: web.Request) -> web.Response:
            begun[rounds[0]] += 1
            return web.Response(text="alive")

        async with service(health) as server:
            held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(crowd)]
            counting = asyncio.create_task(go_round(rounds))
            for _, writer in held:
                writer.write(HEALTH.replace(b"Connection: close\r\n", b"") * (asked - 1) + HEALTH)
            for reader, writer in held:
                async with asyncio.timeout(WAIT_S):
                    assert (await reader.read()).count(b"alive") == asked
                writer.close()
            counting.cancel()

    run(new_loop, ask_all())
    assert begun.total() == crowd * asked
    assert max(begun.values()) <= 8, "four, counted before and after the round's own turn"


async def ending(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


def run(new_loop: NewLoop, main: Any) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main)
