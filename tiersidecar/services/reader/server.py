"""Run the read service over HTTP: both tiers, for callers that the broker authorizes."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version

import structlog
from aiohttp import web

from tiersidecar.decide.reader_quotas import ColdReader
from tiersidecar.domain.errors import (
    DataKeyError,
    KeyRefusedError,
    PartitionHaltedError,
    QuotaExceededError,
    TiersidecarError,
)
from tiersidecar.ports.broker import AuthorizeRead, CallerNotAuthenticatedError, ReadLocal
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.metrics.reading import READS_SHED
from tiersidecar.ports.pins import PendingCopies
from tiersidecar.ports.telemetry import NoTelemetry, Telemetry
from tiersidecar.reading.read_path import ReadPath
from tiersidecar.reading.reader_limits import ASKER, READER
from tiersidecar.services.client_limits import HostCheck
from tiersidecar.services.failed_logins import FailedLogins
from tiersidecar.services.http_listener import (
    HEAD_TIMEOUT_S,
    IDLE_TIMEOUT_S,
    MAX_CONNECTIONS,
    ConnectionLimits,
    HttpServer,
    listen,
)
from tiersidecar.services.reader.callers import Callers, KnownCallers
from tiersidecar.services.reader.compacted_topics import CompactedTopics
from tiersidecar.services.reader.log import LogOperations
from tiersidecar.services.reader.logins import Logins
from tiersidecar.services.reader.openapi import openapi_document
from tiersidecar.services.reader.partitions import PartitionCatalogue, PartitionsOperations
from tiersidecar.services.reader.problems import ProblemError, misdirected, problem_of
from tiersidecar.services.reader.routes import ROUTES, Route, refuse_others
from tiersidecar.services.reader.segments import SegmentOperations
from tiersidecar.services.reader.streams import BodyWriter, BrokenStreamError, SlowClientError

log = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_MAX_LINE_BYTES = 8190
_HTTP = "http"
"""Stands in for the client id, which HTTP does not have."""
_MAX_BODY_BYTES = 1024
_SMALL_BYTES = 64 * 1024
"""A document of at most this size is sent once its request has given up its place among ``max_requests``."""
_HEADERS = {"Server": "tiersidecar", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderServiceSettings:
    """Address and limits of the service.

    ``port`` 0 takes a free one.  ``max_requests`` are served at once, the others are shed: each may hold a chunk until its
    client has taken it.  A client that takes nothing for ``write_timeout_s`` is cut off, or less than
    ``least_taken_bytes_per_s`` on average over such a time, and so is one that has not sent a whole request ``head_timeout_s``
    after it connected, or ``idle_timeout_s`` after the one before.  While a body is sent, the
    broker is asked every ``recheck_s`` whether the caller may still read the topic.  For a connection above
    ``max_connections`` one that waits for a request makes room.
    """

    host: str = "127.0.0.1"
    port: int = 8090
    ssl_context: ssl.SSLContext | None = None
    requires_credentials: bool = False
    known_callers: KnownCallers = field(default_factory=KnownCallers)
    max_requests: int = 64
    max_connections: int = MAX_CONNECTIONS
    head_timeout_s: float = HEAD_TIMEOUT_S
    idle_timeout_s: float = IDLE_TIMEOUT_S
    write_timeout_s: float = 60.0
    least_taken_bytes_per_s: int = 4096
    recheck_s: float = 60.0
    shutdown_timeout_s: float = 1.0


@asynccontextmanager
async def serve_reader(
    *,
    path: ReadPath,
    catalogue: PartitionCatalogue,
    authorize: AuthorizeRead,
    blocking: Blocking,
    local: ReadLocal | None = None,
    pending: PendingCopies | None = None,
    compacted: CompactedTopics | None = None,
    telemetry: Telemetry | None = None,
    settings: ReaderServiceSettings | None = None,
    failed_logins: FailedLogins | None = None,
) -> AsyncIterator[HttpServer]:
    """Serve until left; entered means listening.  Without ``local`` only the remote tier is read; ``pending`` knows what
    is in neither tier for now, and ``compacted`` which topics are compacted.  ``failed_logins`` may be another listener's, too.

    Raises:
        ListenError: the address cannot be listened on.
    """
    settings = settings or ReaderServiceSettings()
    application = reader_application(
        path=path,
        catalogue=catalogue,
        authorize=authorize,
        blocking=blocking,
        local=local,
        pending=pending,
        compacted=compacted,
        telemetry=telemetry or NoTelemetry(),
        settings=settings,
        failed_logins=failed_logins,
    )
    runner = web.AppRunner(
        application,
        access_log=None,
        handle_signals=False,
        auto_decompress=False,  # no handler reads a body, and a MiB of one would be a GiB to open, on the event loop
        # A client that is gone cancels its handler, and with that all that is read only for it.
        handler_cancellation=True,
        keepalive_timeout=settings.idle_timeout_s,
        shutdown_timeout=settings.shutdown_timeout_s,
        max_line_size=_MAX_LINE_BYTES,
        max_field_size=_MAX_LINE_BYTES,
    )
    await runner.setup()
    try:
        yield await listen(
            runner,
            service="read service",
            host=settings.host,
            port=settings.port,
            ssl_context=settings.ssl_context,
            limits=ConnectionLimits(
                most=settings.max_connections,
                head_timeout_s=settings.head_timeout_s,
                idle_timeout_s=settings.idle_timeout_s,
            ),
        )
    finally:
        await runner.cleanup()


def reader_application(
    *,
    path: ReadPath,
    catalogue: PartitionCatalogue,
    authorize: AuthorizeRead,
    blocking: Blocking,
    local: ReadLocal | None,
    pending: PendingCopies | None,
    compacted: CompactedTopics | None,
    telemetry: Telemetry,
    settings: ReaderServiceSettings,
    failed_logins: FailedLogins | None = None,
) -> web.Application:
    """Return the application, without a listener."""
    callers = Callers(
        authorize,
        known=settings.known_callers,
        requires_credentials=settings.requires_credentials,
        recheck_s=settings.recheck_s,
    )
    partitions = PartitionsOperations(path=path, catalogue=catalogue, callers=callers)
    bodies = BodyWriter(
        write_timeout_s=settings.write_timeout_s,
        least_taken_bytes_per_s=settings.least_taken_bytes_per_s,
        name_of=callers.name_of,
        telemetry=telemetry,
    )
    reads = LogOperations(
        path=path,
        local=local,
        pending=pending,
        compacted=compacted,
        callers=callers,
        partition_of=partitions.authorized_partition,
        blocking=blocking,
        bodies=bodies,
    )
    segments = SegmentOperations(
        path=path, partition_of=partitions.authorized_partition, callers=callers, bodies=bodies
    )
    description = openapi_document(ROUTES, version=version("tiersidecar"))

    async def describe(request: web.Request) -> web.StreamResponse:
        return web.json_response(description)

    handlers: dict[str, Handler] = {
        "describe": describe,
        "list_topics": partitions.list_topics,
        "list_partitions": partitions.list_partitions,
        "list_segments": partitions.list_segments,
        "read_segment_log": segments.read_log,
        "read_segment_index": segments.read_index,
        "read_batches": reads.read_batches,
        "read_records": reads.read_records,
        "find_offset": reads.find_offset,
    }
    logins = Logins(authorize, monotonic_s=asyncio.get_running_loop().time, failed=failed_logins)
    gate = _Gate(settings.max_requests, callers, telemetry)
    # With TLS a browser itself finds out that it was led to another site.
    hosts = HostCheck(settings.host) if settings.ssl_context is None else None
    middlewares = [_Problems(bodies).respond, _LoggedIn(callers, logins, hosts).admit, gate.admit]
    application = web.Application(middlewares=middlewares, client_max_size=_MAX_BODY_BYTES)
    for route in ROUTES:
        handler = _checked(route, handlers[route.operation], bodies)
        # No HEAD: it would read data that it then does not send.
        application.router.add_get(route.path, handler, name=route.operation, allow_head=False)
    application.on_response_prepare.append(_add_headers)
    return application


class _LoggedIn:
    """Checks a request's credentials with the broker before anything else of it is done."""

    def __init__(self, callers: Callers, logins: Logins, hosts: HostCheck | None) -> None:
        self._callers, self._logins, self._hosts = callers, logins, hosts

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if "Authorization" not in request.headers:
            if self._hosts is not None and self._hosts.is_foreign(request):
                raise misdirected()
            return await handler(request)
        credentials = self._callers.credentials(request)
        await self._logins.check(request.remote or "", credentials, request.task)
        try:
            return await handler(request)
        except CallerNotAuthenticatedError:
            self._logins.forget(credentials)
            raise


class _Gate:
    """Sheds requests above a number, and one caller's above half of it."""

    def __init__(self, max_requests: int, callers: Callers, telemetry: Telemetry) -> None:
        self._free, self._each, self._telemetry = max_requests, max(max_requests // 2, 1), telemetry
        self._callers = callers
        self._in_hand: Counter[str] = Counter()

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        caller = self._callers.share_of(request)
        if self._free == 0 or (caller and self._in_hand[caller] >= self._each):
            self._telemetry.count(READS_SHED, reason="requests")
            raise QuotaExceededError(what="the number of requests at once", retry_after_ms=1000)
        self._free -= 1
        self._in_hand[caller] += 1
        ASKER.set(caller or "this machine")
        READER.set(ColdReader(principal=self._callers.principal_of(request), client_id=_HTTP))
        try:
            return await handler(request)
        finally:
            self._free += 1
            self._in_hand[caller] -= 1
            if not self._in_hand[caller]:
                del self._in_hand[caller]


class _Problems:
    """Turns errors into responses."""

    def __init__(self, bodies: BodyWriter) -> None:
        self._bodies = bodies

    @web.middleware
    async def respond(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await self._bodies.deliver(request, await handler(request))
        except BrokenStreamError as broken:
            cause = broken.__cause__ or broken
            if not isinstance(cause, SlowClientError):  # that has been reported
                _log(request, cause)
            return broken.response
        except Exception as error:  # noqa: BLE001 - the last stop: whatever it is, the caller and the log get it
            _log(request, error)
            return await self._bodies.deliver(request, problem_of(error).response())


def _log(request: web.Request, error: BaseException) -> None:
    match error:
        case KeyRefusedError():
            log.warning("read.key.refused", path=request.path, reason=str(error))
        case DataKeyError():
            log.warning("read.key.unopened", path=request.path, reason=str(error))
        case PartitionHaltedError():
            log.warning("read.corrupt", path=request.path, reason=str(error))
        case QuotaExceededError():
            log.debug(
                "read.shed", path=request.path
            )  # a line for each would be the next overload; a metric counts them
        case TiersidecarError() | ConnectionError():
            log.info("read.failed", path=request.path, reason=str(error))
        case ProblemError() | web.HTTPException() | CallerNotAuthenticatedError():
            log.debug("read.refused", path=request.path)
        case _:
            log.error("read.unexpected", path=request.path, exc_info=error)


def _checked(route: Route, handler: Handler, bodies: BodyWriter) -> Handler:
    async def checked(request: web.Request) -> web.StreamResponse:
        refuse_others(request, route.query_names)
        response = await handler(request)
        if isinstance(response, web.Response) and (response.content_length or 0) <= _SMALL_BYTES:
            # Unknown callers may ask for it, and leave it unread: that holds no place of others.
            return response
        return await bodies.deliver(request, response)

    return checked


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
