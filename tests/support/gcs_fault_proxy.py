"""A proxy in front of fake-gcs-server that fails requests that a test picks, and keeps resumable uploads as the service does.

fake-gcs-server takes a question for the state of an upload for its end, appends bytes that it has already, and compares no
checksum that comes with the last chunk.  The proxy answers the question itself, passes on only what is new, and refuses an
upload whose sum is another one: as https://cloud.google.com/storage/docs/performing-resumable-uploads has it.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import aiohttp
import google_crc32c
from aiohttp import web

from tests.support.s3_fault_proxy import S3FaultProxy, forward_request, running_fault_proxy


@dataclass(slots=True)
class _Session:
    """An upload: the bytes that the server has, and the answer that ended it."""

    kept_bytes: int = 0
    crc32c: int = 0
    ended_by: tuple[int, bytes] | None = None
    is_cancelled: bool = False


@dataclass(slots=True)
class GcsFaultProxy(S3FaultProxy):
    """``keeps_at_once`` is the most that is kept of one chunk; the client is to send the rest again.  ``questions`` counts
    those for the state of an upload."""

    keeps_at_once: int | None = None
    questions: int = 0
    sessions: dict[str, _Session] = field(default_factory=dict)

    @property
    def unfinished(self) -> int:
        """Return how many uploads were neither ended nor cancelled."""
        return sum(session.ended_by is None and not session.is_cancelled for session in self.sessions.values())

    def name_of(self, request: web.BaseRequest) -> str:
        """Return the path as ``/bucket/key``; the path of an upload has the bucket alone."""
        bucket = request.path.partition("/b/")[2].partition("/")[0]
        return f"/{bucket}/{request.query.get('name', '')}"

    async def forward(
        self, request: web.BaseRequest, body: bytes, upstream: str, session: aiohttp.ClientSession
    ) -> web.Response:
        upload = self.sessions.get(_upload_id_in(str(request.rel_url)))
        if upload is not None and request.method == "DELETE":
            upload.is_cancelled = True
        if upload is not None and request.method == "PUT":
            return await self._chunk(upload, request, body, upstream, session)
        answer = await forward_request(request, body, upstream, session)
        if "Location" in answer.headers:
            self.sessions[_upload_id_in(answer.headers["Location"])] = _Session()
        return answer

    async def _chunk(
        self,
        upload: _Session,
        request: web.BaseRequest,
        body: bytes,
        upstream: str,
        session: aiohttp.ClientSession,
    ) -> web.Response:
        span, _, total = request.headers["Content-Range"].removeprefix("bytes ").partition("/")
        is_question = (span, total) == ("*", "*")
        self.questions += is_question
        if upload.ended_by is not None:
            return web.Response(status=upload.ended_by[0], body=upload.ended_by[1])
        if is_question:
            return _go_on(upload)
        start = upload.kept_bytes if span == "*" else int(span.partition("-")[0])
        if start > upload.kept_bytes:
            return web.Response(status=503, text="bytes before these are missing")
        fresh = body[upload.kept_bytes - start :]
        if self.keeps_at_once is not None and len(fresh) > self.keeps_at_once:
            fresh, total = fresh[: self.keeps_at_once], "*"
        if not fresh and total == "*":
            return _go_on(upload)
        crc = google_crc32c.extend(upload.crc32c, fresh)
        stop = upload.kept_bytes + len(fresh)
        declared = request.headers.get("X-Goog-Hash", "")
        if total != "*" and declared and declared != f"crc32c={base64.b64encode(crc.to_bytes(4, 'big')).decode()}":
            return web.Response(status=400, text="Provided CRC32C does not match calculated CRC32C")
        kept = f"{upload.kept_bytes}-{stop - 1}" if fresh else "*"
        changed = {"Content-Range": f"bytes {kept}/{total}", "Content-Length": str(len(fresh))}
        answer = await forward_request(request, fresh, upstream, session, changed)
        upload.kept_bytes, upload.crc32c = stop, crc
        if answer.status != 308:
            upload.ended_by = answer.status, answer.body if isinstance(answer.body, bytes) else b""
        return answer


def _go_on(upload: _Session) -> web.Response:
    headers = {"Range": f"bytes=0-{upload.kept_bytes - 1}"} if upload.kept_bytes else {}
    return web.Response(status=308, headers=headers)


def _upload_id_in(url: str) -> str:
    return parse_qs(urlsplit(url).query).get("upload_id", [""])[0]


@asynccontextmanager
async def running_gcs_fault_proxy(upstream: str) -> AsyncIterator[GcsFaultProxy]:
    """Run the proxy in this process's event loop, on a free port of loopback."""
    async with running_fault_proxy(GcsFaultProxy(url=""), upstream) as proxy:
        yield proxy
