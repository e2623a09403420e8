"""The status service over HTTP: metrics, health, readiness, status, and the page of the whole cluster.

``/metrics[?partitions=1]`` · ``/healthz`` · ``/readyz`` · ``/status[?topic=NAME][&halted=1]`` · ``/overview`` ·
``/sidecars`` · ``/segments?topic=NAME&partition=N`` · ``/explain?topic=NAME&partition=N[&offset=N]`` ·
pages: ``/`` · ``/topic?name=NAME`` · ``/partition?topic=NAME&partition=N[&offset=N]``
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web

from tiersidecar.domain.errors import MetadataNotReadyError, NotLedHereError, QuotaExceededError, TiersidecarError
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.metrics.process import READY
from tiersidecar.services.client_limits import HostCheck
from tiersidecar.services.http_listener import ConnectionLimits, HttpServer, listen
from tiersidecar.services.status.access import Access, Secrets
from tiersidecar.services.status.asker import ClusterAsker
from tiersidecar.services.status.documents import (
    explanation_document,
    in_order,
    partition_document,
    row_document,
    sidecars_document,
    summary_document,
)
from tiersidecar.services.status.history import INTERVAL_MS, History
from tiersidecar.services.status.overview import PARTITIONS_AT_ONCE, Overview
from tiersidecar.services.status.pages import Pages
from tiersidecar.services.status.peers import Peers
from tiersidecar.services.status.shares import Share
from tiersidecar.services.status.source import PartitionStatus, RenderMetrics, StatusSource

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
_ANSWER_S = 60.0
"""Time for an answer to be made, and for its client to take it."""
_FREE = frozenset({"/healthz", "/readyz"})
_ASKING = frozenset({"/segments", "/explain"})
"""Paths that ask the broker and the store; the others show what the process knows."""
_PAGES = frozenset({"/", "/topic", "/partition"})
"""Paths that wait for other sidecars."""
_FINDING = "/sidecars"
"""Path that a command asks first; its answer is short."""
_ON = frozenset({"1", "true", "yes"})
_DIGITS = 20
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


@asynccontextmanager
async def serve_status(
    *,
    host: str,
    port: int,
    source: StatusSource,
    metrics: RenderMetrics,
    blocking: Blocking,
    always_per_partition: bool = False,
    secrets: Secrets | None = None,
    also_ask: Sequence[str] = (),
    history: History | None = None,
    limits: ConnectionLimits | None = None,
    names: Sequence[str] = (),
) -> AsyncIterator[HttpServer]:
    """Serve until left; entered means listening.  ``also_ask`` are status services of the cluster that have no lease;
    ``history`` goes on with earlier samples; ``names`` are names of this service in requests.

    Raises:
        ListenError: the address cannot be listened on.
    """
    limits, secrets, history = limits or ConnectionLimits(), secrets or Secrets(), history or History(metrics)
    overview = Overview(source=source, metrics=metrics, history=history)
    async with Peers(blocking=blocking, secret=secrets.cluster) as peers:
        asker = ClusterAsker(source=source, overview=overview, peers=peers, blocking=blocking, also=also_ask)
        service = _Service(
            source=source,
            metrics=metrics,
            blocking=blocking,
            always_per_partition=always_per_partition,
            overview=overview,
            pages=Pages(asker, blocking=blocking, version=source.summary().version),
            access=Access(secrets, HostCheck(host, names=names)),
        )
        runner = web.AppRunner(
            service.application(),
            access_log=None,
            handle_signals=False,
            auto_decompress=False,  # no handler reads a body, and a MiB of one would be a GiB to open, on the event loop
            keepalive_timeout=limits.idle_timeout_s,
            shutdown_timeout=1.0,
        )
        await runner.setup()
        sampling = asyncio.create_task(_sample(history), name="status history")
        try:
            yield await listen(runner, service="status service", host=host, port=port, limits=limits)
        finally:
            await runner.cleanup()
            asker.close()
            overview.close()
            sampling.cancel()
            with suppress(asyncio.CancelledError):
                await sampling


async def _sample(history: History) -> None:
    """Sample at each whole interval, until cancelled."""
    while True:
        now_ms = time.time_ns() // 1_000_000
        history.take(now_ms)
        await asyncio.sleep((INTERVAL_MS - now_ms % INTERVAL_MS) / 1000)


class _Service:
    def __init__(
        self,
        *,
        source: StatusSource,
        metrics: RenderMetrics,
        blocking: Blocking,
        always_per_partition: bool,
        overview: Overview,
        pages: Pages,
        access: Access,
    ) -> None:
        self._source, self._metrics, self._blocking = source, metrics, blocking
        self._always_per_partition = always_per_partition
        self._overview, self._pages, self._access = overview, pages, access

    def application(self) -> web.Application:
        middlewares = [_take_in_time, self._access.admit, _Shares(self._access).admit]
        application = web.Application(middlewares=middlewares)
        for path, handler in (
            ("/", self._pages.cluster),
            ("/topic", self._pages.topic),
            ("/partition", self._pages.partition),
            ("/metrics", self._exposition),
            ("/healthz", self._health),
            ("/readyz", self._readiness),
            ("/status", self._status),
            ("/overview", self._own_overview),
            ("/sidecars", self._sidecars),
            ("/segments", self._segments),
            ("/explain", self._explain),
        ):
            application.router.add_get(path, handler)
        application.on_response_prepare.append(_add_headers)
        return application

    async def _own_overview(self, request: web.Request) -> web.Response:
        document = await self._overview.document()
        body = await self._blocking.run(lambda: json.dumps(document).encode())
        return web.Response(body=body, content_type="application/json")

    async def _exposition(self, request: web.Request) -> web.Response:
        self._metrics.gauge(READY, 0 if self._source.ready_reasons() else 1)
        partitions = self._always_per_partition or request.query.get("partitions", "") in _ON
        # Off the loop: at 4,000 partitions the text takes 150 ms to make.
        body = await self._blocking.run(lambda: self._metrics.render(partitions=partitions))
        return web.Response(body=body, headers={"Content-Type": EXPOSITION})

    async def _health(self, request: web.Request) -> web.Response:
        # An answer at all shows that the loop lives; whether broker and store are well is readiness.
        return web.json_response({"alive": True})

    async def _readiness(self, request: web.Request) -> web.Response:
        reasons = list(self._source.ready_reasons())
        # A full disk is no reason to take a pod out of its service: a warning beside the answer.
        document = {"ready": not reasons, "reasons": reasons, "warnings": self._source.summary().warnings}
        return web.json_response(document, status=503 if reasons else 200)

    async def _status(self, request: web.Request) -> web.Response:
        topic, halted = request.query.get("topic"), request.query.get("halted", "") in _ON
        shown: list[PartitionStatus] = []
        for number, status in enumerate(self._source.partitions(topic)):
            if number % PARTITIONS_AT_ONCE == 0:
                await asyncio.sleep(0)  # thousands take a good part of a second, and the loop has other work
            if not halted or status.halted_reason is not None:
                shown.append(status)
        reasons = list(self._source.ready_reasons())
        document = summary_document(self._source.summary()) | {"ready": not reasons, "reasons": reasons}
        body = await self._blocking.run(lambda: _status_body(document, shown))
        return web.Response(body=body, content_type="application/json")

    async def _sidecars(self, request: web.Request) -> web.Response:
        try:
            return web.json_response(sidecars_document(self._source.sidecars(), self._source.summary().cluster_id))
        except MetadataNotReadyError as error:
            return web.json_response({"problem": str(error)}, status=503)

    async def _segments(self, request: web.Request) -> web.Response:
        topic, partition = _partition_of(request)

        async def answer() -> dict[str, Any]:
            rows = await self._source.segment_rows(topic, partition)
            return {"topic": topic, "partition": partition, "segments": [row_document(row) for row in rows]}

        return await self._answered(answer())

    async def _explain(self, request: web.Request) -> web.Response:
        topic, partition = _partition_of(request)
        offset = _number_of(request, "offset") if "offset" in request.query else None

        async def answer() -> dict[str, Any]:
            explanation = await self._source.explanation(topic, partition, offset)
            return {"topic": topic, "partition": partition, "offset": offset, **explanation_document(explanation)}

        return await self._answered(answer())

    async def _answered(self, document: Awaitable[dict[str, Any]]) -> web.Response:
        # With the cluster in each answer, a caller that asked at a wrong address knows.
        whose = {"cluster_id": self._source.summary().cluster_id}
        try:
            return web.json_response(whose | await document)
        except NotLedHereError as error:
            return web.json_response(whose | {"problem": str(error), "leader_id": error.leader_id}, status=404)
        except TiersidecarError as error:
            return web.json_response(whose | {"problem": str(error)}, status=503)


class _Shares:
    """Shares of the process's time: a quarter for what any caller may see; the list of sidecars, which must not wait for a rest
    after that; two requests that ask elsewhere; the pages, which mostly wait, and come from a result kept for a second; and
    other sidecars, which have proved their identity."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._shown = Share(at_once=1, waiting=16, rest=3.0)
        self._found = Share(at_once=1, waiting=16, rest=3.0)
        self._asked = Share(at_once=2, waiting=8, rest=1.0)
        self._pages = Share(at_once=8, waiting=32, rest=0.0)
        self._peers = Share(at_once=4, waiting=64, rest=0.0)

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in _FREE:
            return await handler(request)
        try:
            async with asyncio.timeout(_ANSWER_S), self._share(request).place():
                return await handler(request)
        except QuotaExceededError as error:
            return web.json_response({"problem": str(error)}, status=503, headers={"Retry-After": "1"})
        except TimeoutError:
            return web.json_response({"problem": f"no answer within {_ANSWER_S:g} s"}, status=503)

    def _share(self, request: web.Request) -> Share:
        if request.path in _ASKING:
            return self._asked
        if request.path in _PAGES:
            return self._pages
        if self._access.is_signed():
            return self._peers
        return self._found if request.path == _FINDING else self._shown


@web.middleware
async def _take_in_time(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Cut off a client that does not take its answer: aiohttp alone would wait for it without end."""
    response = await handler(request)
    try:
        async with asyncio.timeout(_ANSWER_S):
            await response.prepare(request)
            await response.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    except ConnectionError:
        return response  # aiohttp finds out by itself
    return response


def _status_body(document: dict[str, Any], shown: list[PartitionStatus]) -> bytes:
    partitions = [partition_document(status) for status in in_order(shown)]
    return json.dumps(document | {"partitions": partitions}).encode()


def _partition_of(request: web.Request) -> tuple[str, int]:
    return request.query.get("topic", ""), _number_of(request, "partition")


def _number_of(request: web.Request, name: str) -> int:
    text = request.query.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < _DIGITS):
        raise web.HTTPBadRequest(text=f"{name} is {text!r}, must be a number")
    return int(text)


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
