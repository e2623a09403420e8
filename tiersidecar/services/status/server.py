"""The status service over HTTP: metrics, health, readiness, status.

``/metrics[?partitions=1]`` · ``/healthz`` · ``/readyz`` · ``/status[?topic=NAME][&halted=1]`` ·
``/sidecars`` · ``/segments?topic=NAME&partition=N`` · ``/explain?topic=NAME&partition=N[&offset=N]`` · ``/``
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tiersidecar.domain.errors import MetadataNotReadyError, NotLedHereError, QuotaExceededError, TiersidecarError
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.metrics.process import READY
from tiersidecar.services.http_listener import ConnectionLimits, HttpServer, listen
from tiersidecar.services.status.documents import (
    explanation_document,
    in_order,
    partition_document,
    row_document,
    sidecars_document,
    summary_document,
)
from tiersidecar.services.status.page import render_page
from tiersidecar.services.status.shares import Share
from tiersidecar.services.status.source import PartitionStatus, RenderMetrics, StatusSource

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
_ANSWER_S = 60.0
"""For an answer to be made, and for its client to take it."""
_FREE = frozenset({"/healthz", "/readyz"})
_ASKING = frozenset({"/segments", "/explain"})
"""These ask the broker and the store; the others show what the process knows."""
_ON = frozenset({"1", "true", "yes"})
_DIGITS = 20
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_PAGE_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


@asynccontextmanager
async def serve_status(
    *,
    host: str,
    port: int,
    source: StatusSource,
    metrics: RenderMetrics,
    blocking: Blocking,
    always_per_partition: bool = False,
    limits: ConnectionLimits | None = None,
) -> AsyncIterator[HttpServer]:
    """Serve until left; entered means listening.

    Raises:
        ListenError: the address cannot be listened on.
    """
    limits = limits or ConnectionLimits()
    service = _Service(source=source, metrics=metrics, blocking=blocking, always_per_partition=always_per_partition)
    runner = web.AppRunner(
        service.application(),
        access_log=None,
        handle_signals=False,
        auto_decompress=False,  # nobody reads a body, and a MiB of one would be a GiB to open, on the event loop
        keepalive_timeout=limits.idle_timeout_s,
        shutdown_timeout=1.0,
    )
    await runner.setup()
    try:
        yield await listen(runner, service="status service", host=host, port=port, limits=limits)
    finally:
        await runner.cleanup()


class _Service:
    def __init__(
        self, *, source: StatusSource, metrics: RenderMetrics, blocking: Blocking, always_per_partition: bool
    ) -> None:
        self._source, self._metrics, self._blocking = source, metrics, blocking
        self._always_per_partition = always_per_partition

    def application(self) -> web.Application:
        application = web.Application(middlewares=[_take_in_time, _Shares().admit])
        application.router.add_get("/", self._page)
        application.router.add_get("/metrics", self._exposition)
        application.router.add_get("/healthz", self._health)
        application.router.add_get("/readyz", self._readiness)
        application.router.add_get("/status", self._status)
        application.router.add_get("/sidecars", self._sidecars)
        application.router.add_get("/segments", self._segments)
        application.router.add_get("/explain", self._explain)
        application.on_response_prepare.append(_add_headers)
        return application

    async def _exposition(self, request: web.Request) -> web.Response:
        self._metrics.gauge(READY, 0 if self._source.ready_reasons() else 1)
        partitions = self._always_per_partition or request.query.get("partitions", "") in _ON
        # Off the loop: at 4,000 partitions the text takes 150 ms to make.
        body = await self._blocking.run(lambda: self._metrics.render(partitions=partitions))
        return web.Response(body=body, headers={"Content-Type": EXPOSITION})

    async def _health(self, request: web.Request) -> web.Response:
        # That the loop answers at all is what is asked; whether the outside is well is readiness.
        return web.json_response({"alive": True})

    async def _readiness(self, request: web.Request) -> web.Response:
        reasons = list(self._source.ready_reasons())
        # A full disk is no reason to take a pod out of its service: a warning beside the answer.
        document = {"ready": not reasons, "reasons": reasons, "warnings": self._source.summary().warnings}
        return web.json_response(document, status=503 if reasons else 200)

    async def _status(self, request: web.Request) -> web.Response:
        topic, halted = request.query.get("topic"), request.query.get("halted", "") in _ON
        shown = [status for status in self._source.partitions() if _asked_for(status, topic, halted)]
        reasons = list(self._source.ready_reasons())
        document = summary_document(self._source.summary()) | {
            "ready": not reasons,
            "reasons": reasons,
            "partitions": [partition_document(status) for status in in_order(shown)],
        }
        return web.json_response(document)

    async def _sidecars(self, request: web.Request) -> web.Response:
        try:
            return web.json_response(sidecars_document(self._source.sidecars()))
        except MetadataNotReadyError as error:
            return web.json_response({"problem": str(error)}, status=503)

    async def _segments(self, request: web.Request) -> web.Response:
        topic, partition = _partition_of(request)

        async def answer() -> dict[str, Any]:
            rows = await self._source.segment_rows(topic, partition)
            return {"topic": topic, "partition": partition, "segments": [row_document(row) for row in rows]}

        return await _answered(answer())

    async def _explain(self, request: web.Request) -> web.Response:
        topic, partition = _partition_of(request)
        offset = _number_of(request, "offset") if "offset" in request.query else None

        async def answer() -> dict[str, Any]:
            explanation = await self._source.explanation(topic, partition, offset)
            return {"topic": topic, "partition": partition, "offset": offset, **explanation_document(explanation)}

        return await _answered(answer())

    async def _page(self, request: web.Request) -> web.Response:
        text = render_page(self._source.summary(), self._source.ready_reasons(), self._source.partitions())
        return web.Response(text=text, content_type="text/html", headers=_PAGE_HEADERS)


class _Shares:
    """Of the process's time: a quarter for what it shows, and two requests that ask elsewhere."""

    def __init__(self) -> None:
        self._shown = Share(at_once=1, waiting=16, rest=3.0)
        self._asked = Share(at_once=2, waiting=8, rest=1.0)

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in _FREE:
            return await handler(request)
        share = self._asked if request.path in _ASKING else self._shown
        try:
            async with asyncio.timeout(_ANSWER_S), share.place():
                return await handler(request)
        except QuotaExceededError as error:
            return web.json_response({"problem": str(error)}, status=503, headers={"Retry-After": "1"})
        except TimeoutError:
            return web.json_response({"problem": f"no answer within {_ANSWER_S:g} s"}, status=503)


@web.middleware
async def _take_in_time(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A client that does not take its answer is cut off: left to aiohttp it would be waited for without end."""
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


def _partition_of(request: web.Request) -> tuple[str, int]:
    return request.query.get("topic", ""), _number_of(request, "partition")


def _number_of(request: web.Request, name: str) -> int:
    text = request.query.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < _DIGITS):
        raise web.HTTPBadRequest(text=f"{name} is {text!r}, must be a number")
    return int(text)


async def _answered(document: Awaitable[dict[str, Any]]) -> web.Response:
    try:
        return web.json_response(await document)
    except NotLedHereError as error:
        return web.json_response({"problem": str(error), "leader_id": error.leader_id}, status=404)
    except TiersidecarError as error:
        return web.json_response({"problem": str(error)}, status=503)


def _asked_for(status: PartitionStatus, topic: str | None, halted: bool) -> bool:
    if topic is not None and status.topic_id_partition.topic != topic:
        return False
    return not halted or status.halted_reason is not None


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
