"""Health, readiness, metrics and what is served, over HTTP: ``/healthz`` · ``/readyz`` · ``/metrics`` · ``/status``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from aiohttp import web

from tiersidecar.domain.ids import format_uuid
from tiersidecar.ports.clock import Clock
from tiersidecar.services.bucket.follow import BucketFollower
from tiersidecar.services.bucket.picture import BucketPicture
from tiersidecar.services.client_limits import REFUSAL, HostCheck
from tiersidecar.services.http_listener import HttpServer, listen

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
_NAMED = 100
"""Refused manifests in ``/status``; all are counted."""


@asynccontextmanager
async def serve_bucket_status(
    *,
    host: str,
    port: int,
    picture: BucketPicture,
    follower: BucketFollower,
    render_metrics: Callable[[], bytes],
    clock: Clock,
    place: str,
) -> AsyncIterator[HttpServer]:
    """Serve until left; entered means listening.

    Raises:
        ListenError: the address cannot be listened on.
    """
    status = _Status(picture, follower, render_metrics, clock, place)
    hosts = HostCheck(host)
    application = web.Application(client_max_size=1024)
    for path, handler in (
        ("/healthz", status.healthz),
        ("/readyz", status.readyz),
        ("/metrics", _of_this_machine(hosts, status.metrics)),
        ("/status", _of_this_machine(hosts, status.status)),
    ):
        application.router.add_get(path, handler)
    runner = web.AppRunner(
        application, access_log=None, handle_signals=False, auto_decompress=False, shutdown_timeout=1.0
    )
    await runner.setup()
    try:
        yield await listen(runner, service="status service", host=host, port=port)
    finally:
        await runner.cleanup()


def _of_this_machine(hosts: HostCheck, handler: Handler) -> Handler:
    async def checked(request: web.Request) -> web.StreamResponse:
        if hosts.is_foreign(request):
            return web.json_response({"problem": REFUSAL}, status=HTTPStatus.MISDIRECTED_REQUEST)
        return await handler(request)

    return checked


class _Status:
    def __init__(
        self,
        picture: BucketPicture,
        follower: BucketFollower,
        render_metrics: Callable[[], bytes],
        clock: Clock,
        place: str,
    ) -> None:
        self._picture, self._follower = picture, follower
        self._render_metrics, self._clock, self._place = render_metrics, clock, place

    async def healthz(self, request: web.Request) -> web.StreamResponse:
        """Answer, which shows that the event loop turns."""
        return web.Response(text="ok\n")

    async def readyz(self, request: web.Request) -> web.StreamResponse:
        """Answer whether readers can connect; a listing that failed since is no reason to send them away."""
        state = self._follower.state
        if state.is_serving:
            return web.Response(text="ready\n")
        return web.Response(status=503, text=f"{state.trouble or 'starting'}; {state.read} manifests have been read\n")

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """Answer with the metrics in Prometheus' text format."""
        body = await asyncio.to_thread(self._render_metrics)
        return web.Response(body=body, headers={"Content-Type": EXPOSITION})

    async def status(self, request: web.Request) -> web.StreamResponse:
        """Answer with the topics, and what was left out."""
        state, picture = self._follower.state, self._picture
        segments, size_bytes = picture.totals()
        age_ms = self._clock.now_ms() - state.listed_ms if state.listed_ms >= 0 else None
        refused = list(state.refused.items())
        return web.json_response(
            {
                "store": self._place,
                "ready": state.is_serving,
                "trouble": state.trouble,
                "listed_ms_ago": age_ms,
                "segments": segments,
                "size_bytes": size_bytes,
                "topics": [self._topic(name) for name in picture.topics()],
                "shadowed_topics": [
                    {"topic": name, "topic_id": format_uuid(topic_id)} for name, topic_id in picture.shadowed
                ],
                "refused_manifests": len(refused),
                "refused": [{"key": key, "reason": one.reason} for key, one in refused[:_NAMED]],
            }
        )

    def _topic(self, name: str) -> dict[str, object]:
        partitions = self._picture.topic(name)
        topic_id = next(iter(partitions.values())).topic_id
        return {
            "topic": name,
            "topic_id": format_uuid(topic_id),
            "partitions": len(partitions),
            "segments": sum(map(self._picture.segment_count, partitions.values())),
            "size_bytes": sum(map(self._picture.remote_log_size_bytes, partitions.values())),
        }
