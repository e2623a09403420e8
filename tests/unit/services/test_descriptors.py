"""When descriptors run out, a process says so, keeps some for itself, and goes on when there are some again (issue 17)."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tiersidecar.services import descriptors

pytestmark = pytest.mark.slow
LIMIT = 200
_COMMON = """
import asyncio, os, resource, sys
from aiohttp import web
import uvloop
from tiersidecar.services.descriptors import reason_not_ready
from tiersidecar.services.gateway.limits import GatewayLimits
from tiersidecar.services.gateway.listener import ListenerSettings, serve_gateway
from tiersidecar.services.gateway.frames import ResponseMemory
from tiersidecar.services.http_listener import listen
from tiersidecar.ports.telemetry import NoTelemetry

resource.setrlimit(resource.RLIMIT_NOFILE, (%d, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

async def ready(request):
    reason = reason_not_ready()
    return web.Response(text=reason, status=503 if reason else 200)

async def commands(held):
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        if line.strip() == "fill":
            try:
                while True:
                    held.append(os.dup(0))
            except OSError:
                pass
        if line.strip() == "free":
            while held:
                os.close(held.pop())
        print("done", flush=True)

async def drop(reader, writer):
    await reader.read()
    writer.close()

async def main():
    application = web.Application()
    application.router.add_get("/readyz", ready)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    status = await listen(runner, service="status service", host="127.0.0.1", port=0)
    broker = await asyncio.start_server(drop, "127.0.0.1", 0)
    settings = ListenerSettings(
        name="CLIENTS", host="127.0.0.1", port=0, broker_host="127.0.0.1",
        broker_port=broker.sockets[0].getsockname()[1])
    async with serve_gateway(
        settings, rewrites={}, limits=GatewayLimits(), memory=ResponseMemory(1 << 20), telemetry=NoTelemetry()
    ) as gateway:
        print(status.port, gateway.port, flush=True)
        await commands([])

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
    loop.run(main())
"""


class Process:
    """A status service and a gateway in front of a broker that says nothing, with 200 descriptors."""

    def __init__(self, running: subprocess.Popen[str]) -> None:
        assert running.stdin is not None
        assert running.stdout is not None
        self._commands, self._answers = running.stdin, running.stdout
        self.status_port, self.gateway_port = (int(one) for one in self._answers.readline().split())

    def do(self, command: str) -> None:
        print(command, file=self._commands, flush=True)
        while (line := self._answers.readline()) != "done\n":
            assert line, "it has ended"  # anything else is its log

    def readiness(self) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.status_port}/readyz", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@contextmanager
def process() -> Iterator[Process]:
    command = [sys.executable, "-c", _COMMON % LIMIT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield Process(running)
        finally:
            running.kill()


def test_readyz_says_that_descriptors_have_run_out_and_when_there_are_some_again() -> None:
    with process() as one, ExitStack() as silent:
        assert one.readiness() == (200, "")
        one.do("fill")
        for _ in range(3):
            code, reason = one.readiness()
            assert code == 503
            assert "descriptors" in reason
            assert str(LIMIT) in reason
        for _ in range(6):  # who sends nothing may not keep health checks out either
            silent.enter_context(socket.create_connection(("127.0.0.1", one.status_port)))
        assert one.readiness()[0] == 503
        one.do("free")
        until_ready(one)


def test_a_gateway_s_clients_do_not_take_the_last_descriptors() -> None:
    with process() as one:
        with ExitStack() as clients:
            address = ("127.0.0.1", one.gateway_port)
            crowd = [clients.enter_context(socket.create_connection(address)) for _ in range(LIMIT)]
            crowd[-1].settimeout(20)
            assert crowd[-1].recv(1) == b"", "the last one is refused"
            code, reason = one.readiness()
            assert code == 503
            assert "descriptors" in reason
        until_ready(one)


def until_ready(one: Process) -> None:
    """The sockets of those that have gone are closed within the listener's next turns."""
    for _ in range(200):
        if one.readiness()[0] == 200:
            return
    raise AssertionError(one.readiness())


@pytest.mark.parametrize(("limit", "kept"), [(256, 32), (1024, 64), (4096, 256), (1 << 20, 256)])
def test_a_sixteenth_is_kept_back_within_bounds(limit: int, kept: int) -> None:
    assert descriptors.kept_of(limit) == kept
