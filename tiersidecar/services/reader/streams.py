"""Write bodies of unknown length as fast as the client reads them, and no faster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus

import structlog
from aiohttp import web

from tiersidecar.ports.broker import CallerNotAuthenticatedError
from tiersidecar.ports.metrics.reading import READ_RETURNED_BYTES
from tiersidecar.ports.store import Buffer
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.services.client_limits import LeastPace
from tiersidecar.services.reader.problems import Problem, ProblemError, problem_of
from tiersidecar.services.reader.routes import NDJSON

log = structlog.get_logger(__name__)

_PIECE_BYTES = 256 * 1024
"""Most bytes passed to the transport at once: it copies what the socket does not take."""


class SlowClientError(Exception):
    """The client took nothing for too long, or too little."""


class BrokenStreamError(Exception):
    """An error, its cause, after the status had been sent.  The connection has been cut."""

    def __init__(self, response: web.StreamResponse) -> None:
        super().__init__(response)
        self.response = response


class NoMore:
    """The rest of a body that is there whole."""

    def __aiter__(self) -> NoMore:
        return self

    async def __anext__(self) -> Buffer:
        raise StopAsyncIteration


class BodyWriter:
    """Write bodies, and count what clients took of them.  ``name_of`` returns the user of a request."""

    def __init__(
        self,
        *,
        write_timeout_s: float,
        least_taken_bytes_per_s: int,
        name_of: Callable[[web.Request], str],
        telemetry: Telemetry,
    ) -> None:
        self._write_timeout_s, self._least_taken_bytes_per_s = write_timeout_s, least_taken_bytes_per_s
        self._name_of, self._telemetry = name_of, telemetry

    async def write(
        self,
        request: web.Request,
        first: Buffer | None,
        rest: AsyncIterator[Buffer],
        *,
        media_type: str,
        headers: Mapping[str, str],
        status: HTTPStatus = HTTPStatus.OK,
    ) -> web.StreamResponse:
        """Answer ``status`` with ``first`` and the ``rest``.

        The caller has waited for the first part already, so that an error at the beginning has got its own response.
        A later error ends the connection in the middle of the body: the client must not take the part for the whole.

        Raises:
            BrokenStreamError: a later error.
        """
        response = web.StreamResponse(status=status, headers={**headers, "Content-Type": media_type})
        await response.prepare(request)
        pace = LeastPace(bytes_per_s=self._least_taken_bytes_per_s, over_s=self._write_timeout_s)
        try:
            if first is not None:
                await self._write(response, first, pace)
            async for part in rest:
                await self._write(response, part, pace)
            await self._taken(response.write_eof())
        except (ProblemError, CallerNotAuthenticatedError) as error:
            await self._refuse_rest(request, response, media_type, problem_of(error))
            raise BrokenStreamError(response) from error
        except Exception as error:
            if isinstance(error, SlowClientError):
                self._log_cut(request, error)
            _cut(request)
            raise BrokenStreamError(response) from error
        except asyncio.CancelledError:
            _cut(request)
            raise
        return response

    async def _refuse_rest(
        self, request: web.Request, response: web.StreamResponse, media_type: str, problem: Problem
    ) -> None:
        """End a body whose rest the caller may no longer read: JSON lines with one that says so, others unfinished."""
        if media_type == NDJSON:
            line = {"problem": {"type": problem.name, "status": int(problem.status), "detail": problem.detail}}
            with suppress(SlowClientError, ConnectionError):
                await self._taken(response.write(json.dumps(line, separators=(",", ":")).encode() + b"\n"))
            if request.transport is not None:
                request.transport.close()  # after the bytes already written
            return
        _cut(request)

    async def deliver(self, request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
        """Send a complete document, and return ``response``.  A client that does not take it in time is cut off: aiohttp alone
        would wait for it without end."""
        try:
            await self._taken(self._send(request, response))
        except SlowClientError as error:
            self._log_cut(request, error)
            _cut(request)
        except ConnectionError:
            return response  # aiohttp finds out by itself
        return response

    def _log_cut(self, request: web.Request, error: SlowClientError) -> None:
        """Log it at once: the handler may be cancelled when its connection ends."""
        caller, address = self._name_of(request), request.remote
        log.warning("read.cut.off", path=request.path, caller=caller, address=address, reason=str(error))

    async def _send(self, request: web.Request, response: web.StreamResponse) -> None:
        await response.prepare(request)
        await response.write_eof()

    async def _write(self, response: web.StreamResponse, part: Buffer, pace: LeastPace) -> None:
        now_s = asyncio.get_running_loop().time
        for piece in pieces(part):
            began_s = now_s()
            await self._taken(response.write(piece))
            self._telemetry.count(READ_RETURNED_BYTES, len(piece))
            slowness = pace.took(len(piece), now_s() - began_s)
            if slowness:
                raise SlowClientError(slowness)

    async def _taken(self, writing: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._write_timeout_s):
                await writing
        except TimeoutError as error:
            raise SlowClientError(f"the client took nothing for {self._write_timeout_s} s") from error


def pieces(part: Buffer) -> Iterator[memoryview]:
    """Yield ``part`` in pieces for the transport, uncopied."""
    view = memoryview(part)
    return (view[begin : begin + _PIECE_BYTES] for begin in range(0, len(view), _PIECE_BYTES))


def _cut(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
