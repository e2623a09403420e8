"""The status service over HTTP: metrics, health, readiness, status.

``/metrics[?partitions=1]`` · ``/healthz`` · ``/readyz`` · ``/status[?topic=NAME][&halted=1]`` · ``/``
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from tiersidecar.ports.clock import Blocking
from tiersidecar.services.http_listener import IDLE_TIMEOUT_S, HttpServer, listen
from tiersidecar.services.status.documents import in_order, partition_document, summary_document
from tiersidecar.services.status.page import render_page
from tiersidecar.services.status.source import PartitionStatus, RenderMetrics, StatusSource

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
_ON = frozenset({"1", "true", "yes"})
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
) -> AsyncIterator[HttpServer]:
    """Serve until left; entered means listening.

    Raises:
        ListenError: the address cannot be listened on.
    """
    service = _Service(source=source, metrics=metrics, blocking=blocking, always_per_partition=always_per_partition)
    runner = web.AppRunner(
        service.application(),
        access_log=None,
        handle_signals=False,
        keepalive_timeout=IDLE_TIMEOUT_S,
        shutdown_timeout=1.0,
    )
    await runner.setup()
    try:
        yield await listen(runner, service="status service", host=host, port=port)
    finally:
        await runner.cleanup()


class _Service:
    def __init__(
        self, *, source: StatusSource, metrics: RenderMetrics, blocking: Blocking, always_per_partition: bool
    ) -> None:
        self._source, self._metrics, self._blocking = source, metrics, blocking
        self._always_per_partition = always_per_partition

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_get("/", self._page)
        application.router.add_get("/metrics", self._exposition)
        application.router.add_get("/healthz", self._health)
        application.router.add_get("/readyz", self._readiness)
        application.router.add_get("/status", self._status)
        application.on_response_prepare.append(_add_headers)
        return application

    async def _exposition(self, request: web.Request) -> web.Response:
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
        warnings = [f"{log_dirs}: {why}" for log_dirs, why in self._source.summary().disk_troubles.items()]
        document = {"ready": not reasons, "reasons": reasons, "warnings": warnings}
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

    async def _page(self, request: web.Request) -> web.Response:
        text = render_page(self._source.summary(), self._source.ready_reasons(), self._source.partitions())
        return web.Response(text=text, content_type="text/html", headers=_PAGE_HEADERS)


def _asked_for(status: PartitionStatus, topic: str | None, halted: bool) -> bool:
    if topic is not None and status.topic_id_partition.topic != topic:
        return False
    return not halted or status.halted_reason is not None


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
