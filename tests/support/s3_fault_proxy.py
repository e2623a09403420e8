"""A proxy between a store and a real server of its protocol that fails the requests that a test picks.

It also never says "100 Continue", as some servers do not.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

_LISTED = re.compile(r"<(Contents|Blob)>.*?<(?:Key|Name)>(?P<key>.*?)</.*?</\1>", re.DOTALL)
"""One object in the answer to a list, of S3 or of Azure."""
_STALE_FOR_MS = 10_000
_HOP_BY_HOP = frozenset({"connection", "transfer-encoding", "expect", "keep-alive"})


class FaultKind(StrEnum):
    """``REFUSE``: answer with ``status`` and the protocol's error ``code``, and do nothing; a ``status`` below 400 is a lie.
    ``RESET``: take the request and drop the connection.  ``LOSE_ANSWER``: let the server do it, then drop the connection.
    ``CUT``: drop it in the middle of the answer's body.  ``STALL``: read nothing and never answer.  ``GARBLE``: change a byte
    in the middle of the answer's body.  ``SPOIL``: likewise of the request's body, before the server has it.  ``STALE``: list
    nothing that was written in the last seconds."""

    REFUSE = "refuse"
    RESET = "reset"
    LOSE_ANSWER = "lose answer"
    CUT = "cut"
    STALL = "stall"
    GARBLE = "garble"
    SPOIL = "spoil"
    STALE = "stale"


@dataclass(slots=True, kw_only=True)
class Fault:
    """Strikes the next ``times`` requests of ``method`` whose query has ``query`` in it (and not ``without``)."""

    kind: FaultKind
    method: str
    query: str = ""
    without: str = "\0"
    header: str = ""
    times: int = 1
    status: int = 503
    code: str = "SlowDown"

    def strikes(self, request: web.BaseRequest) -> bool:
        """Return whether this request is one of them; counts it."""
        query = request.rel_url.raw_query_string
        is_meant = request.method == self.method and self.query in query and self.without not in query
        if self.times <= 0 or not is_meant or (self.header and self.header not in request.headers):
            return False
        self.times -= 1
        return True


@dataclass(slots=True)
class S3FaultProxy:
    """``url`` for the store.  ``requests`` counts what came by method; ``most_at_once`` is of requests with a body.
    ``written_ms`` is, by path or as :meth:`name_of` says, when the server last answered a PUT or POST: its sender may be
    gone by then."""

    url: str
    faults: list[Fault] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    most_at_once: int = 0
    written_ms: dict[str, int] = field(default_factory=dict)
    _now: int = 0
    stalled_may_end: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(
        self, request: web.BaseRequest, upstream: str, session: aiohttp.ClientSession
    ) -> web.StreamResponse:
        self.requests[request.method] += 1
        self._now += 1
        if request.method == "PUT":
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            fault = next((fault for fault in self.faults if fault.strikes(request)), None)
            return await self._handle(request, upstream, session, fault)
        finally:
            self._now -= 1

    async def _handle(
        self, request: web.BaseRequest, upstream: str, session: aiohttp.ClientSession, fault: Fault | None
    ) -> web.StreamResponse:
        if fault is not None and fault.kind is FaultKind.STALL:
            await self.stalled_may_end.wait()
            return _reset(request)
        try:
            body = await request.content.read()
        except ConnectionError:
            return _reset(request)  # the client has given up
        if fault is not None and fault.kind is FaultKind.REFUSE:
            return self.refusal(fault)
        if fault is not None and fault.kind is FaultKind.RESET:
            return _reset(request)
        if fault is not None and fault.kind is FaultKind.SPOIL:
            return await self.forward(request, _with_another_byte(body), upstream, session)
        answer = await self.forward(request, body, upstream, session)
        if request.method in ("PUT", "POST"):
            self.written_ms[self.name_of(request)] = time.time_ns() // 1_000_000
        if fault is not None and fault.kind is FaultKind.CUT:
            return await _cut(request, answer)
        if fault is not None and fault.kind is FaultKind.GARBLE:
            return _garbled(answer)
        if fault is not None and fault.kind is FaultKind.STALE:
            return self._without_new_ones(answer)
        return _reset(request) if fault is not None else answer

    def refusal(self, fault: Fault) -> web.Response:
        """The answer of ``fault``, as the protocol has it."""
        return web.Response(status=fault.status, text=error_body(fault) if fault.status >= 400 else None)

    def _without_new_ones(self, answer: web.Response) -> web.Response:
        since_ms = time.time_ns() // 1_000_000 - _STALE_FOR_MS
        # Without the bucket, which a list's answer does not repeat.
        new = {name[1:].partition("/")[2] for name, written_ms in self.written_ms.items() if written_ms > since_ms}
        if isinstance(answer.body, bytes):
            said = _LISTED.sub(lambda one: "" if one["key"] in new else one[0], answer.body.decode())
            answer.body = said.encode()
        return answer

    def name_of(self, request: web.BaseRequest) -> str:
        """Return the bucket and the key that a request writes, as ``/bucket/key``."""
        return request.path

    async def forward(
        self, request: web.BaseRequest, body: bytes, upstream: str, session: aiohttp.ClientSession
    ) -> web.Response:
        """Return the server's answer; where a proxy makes up for what a server lacks, it does it here."""
        return await forward_request(request, body, upstream, session)


Proxy = TypeVar("Proxy", bound=S3FaultProxy)


def error_body(fault: Fault) -> str:
    """XML, alike in S3 and Azure."""
    return f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>so the test wants it</Message></Error>"


def _reset(request: web.BaseRequest) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)  # no client is there to read it


def _garbled(answer: web.Response) -> web.Response:
    if isinstance(answer.body, bytes):
        answer.body = _with_another_byte(answer.body)
    return answer


def _with_another_byte(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x55]) + data[middle + 1 :]


async def _cut(request: web.BaseRequest, answer: web.Response) -> web.StreamResponse:
    """Send the whole head, half the body, and an end."""
    assert isinstance(answer.body, bytes)
    cut = web.StreamResponse(status=answer.status, headers=answer.headers)
    cut.content_length = len(answer.body)
    await cut.prepare(request)
    await cut.write(answer.body[: len(answer.body) // 2])
    _reset(request)
    return cut


async def forward_request(
    request: web.BaseRequest,
    body: bytes,
    upstream: str,
    session: aiohttp.ClientSession,
    changed_headers: Mapping[str, str] | None = None,
) -> web.Response:
    """Return the server's own answer.  Host and path stay as they were signed."""
    headers = CIMultiDict((name, value) for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP)
    headers.update(changed_headers or {})
    url = URL(f"{upstream}{request.rel_url.raw_path_qs}", encoded=True)
    async with session.request(
        request.method, url, headers=headers, data=body, allow_redirects=False, skip_auto_headers=["Content-Type"]
    ) as answer:
        kept = CIMultiDict((name, value) for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP)
        data = await answer.read()
        if request.method != "HEAD":
            kept.popall("Content-Length", None)
        return web.Response(status=answer.status, headers=kept, body=data or None)


@asynccontextmanager
async def running_s3_fault_proxy(upstream: str) -> AsyncIterator[S3FaultProxy]:
    """Run the proxy in this process's event loop, on a free port of loopback."""
    async with running_fault_proxy(S3FaultProxy(url=""), upstream) as proxy:
        yield proxy


@asynccontextmanager
async def running_fault_proxy(proxy: Proxy, upstream: str) -> AsyncIterator[Proxy]:
    """``proxy``, which gets its address here, in front of ``upstream``."""
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(auto_decompress=False, timeout=timeout) as session:
        server = web.Server(lambda request: proxy.handle(request, upstream, session))
        runner = web.ServerRunner(server, shutdown_timeout=0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield proxy
        finally:
            proxy.stalled_may_end.set()
            await runner.cleanup()


@contextmanager
def fault_proxy_in_a_thread(proxy: Proxy, upstream: str) -> Iterator[Proxy]:
    """Yield the same for tests that are no coroutines."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fault proxy")
    thread.start()
    running = running_fault_proxy(proxy, upstream)
    try:
        asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result(20)
        try:
            yield proxy
        finally:
            asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result(20)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
