"""A few lines of HTTP in the place of Google Cloud Storage, for answers that no server gives when it is asked to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from aiohttp import web
from aiohttp.test_utils import TestServer
from crc32c import crc32c

from tests.support.inline_blocking import InlineBlocking
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.gcs import GcsStore, open_gcs_store
from tiersidecar.adapters.stores.gcs_objects import encode_crc32c
from tiersidecar.adapters.stores.gcs_settings import GcsSettings

CHUNK_BYTES = 256 * 1024
SETTINGS = GcsSettings(
    bucket="b", login="anonymous", chunk_size_bytes=CHUNK_BYTES, max_attempts=1, attempt_timeout_s=5.0
)


class ScriptedGcs:
    """``answer`` is the test's: the response to one request; ``asked`` has method and path with query of all."""

    def __init__(self, answer: Callable[[web.Request], web.StreamResponse]) -> None:
        self._answer = answer
        self.asked: list[str] = []

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, web.Request)
        await request.read()
        self.asked.append(f"{request.method} {request.raw_path}")
        return self._answer(request)

    @property
    def methods(self) -> list[str]:
        return [asked.partition(" ")[0] for asked in self.asked]


def description(key: str, data: bytes, *, generation: str | None = "7", writer: str | None = None) -> bytes:
    """Return what the service says of an object."""
    document: dict[str, object] = {
        "kind": "storage#object",
        "name": key,
        "size": str(len(data)),
        "updated": "2026-01-01T00:00:00Z",
        "crc32c": encode_crc32c(crc32c(data)),
    }
    if generation is not None:
        document["generation"] = generation
    if writer is not None:
        document["metadata"] = {"tiersidecar-upload": writer}
    return json.dumps(document).encode()


def refusal(code: int, message: str, reason: str) -> web.Response:
    """Return the service's own error document."""
    error = {"code": code, "message": message, "errors": [{"reason": reason, "message": message}]}
    return web.json_response({"error": error}, status=code)


@asynccontextmanager
async def scripted_gcs_store(
    answer: Callable[[web.Request], web.StreamResponse], settings: GcsSettings = SETTINGS
) -> AsyncIterator[tuple[GcsStore, ScriptedGcs]]:
    """Yield a store whose service answers as ``answer`` says."""
    service = ScriptedGcs(answer)
    app = web.Application(client_max_size=64 * CHUNK_BYTES)
    app.router.add_route("*", "/{rest:.*}", service.handle)
    async with TestServer(app) as server:
        wanted = replace(settings, endpoint_url=f"http://127.0.0.1:{server.port}")
        async with open_gcs_store(wanted, blocking=InlineBlocking(), ids=SystemIds()) as store:
            yield store, service
