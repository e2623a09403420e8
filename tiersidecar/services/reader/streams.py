"""Bodies of unknown length, written as fast as the client takes them and no faster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus

from aiohttp import web

from tiersidecar.ports.store import Buffer

_PIECE_BYTES = 256 * 1024
"""What is handed to the transport at once: it copies what the socket does not take."""


class SlowClientError(Exception):
    """The client took nothing for too long."""


class BrokenStreamError(Exception):
    """Something went wrong after the status had been sent; it is the cause.  The connection has been cut."""

    def __init__(self, response: web.StreamResponse) -> None:
        super().__init__(response)
        self.response = response


async def write_stream(
    request: web.Request,
    first: Buffer | None,
    rest: AsyncIterator[Buffer],
    *,
    media_type: str,
    headers: Mapping[str, str],
    write_timeout_s: float,
    status: HTTPStatus = HTTPStatus.OK,
) -> web.StreamResponse:
    """Answer ``status`` with ``first`` and the ``rest``.

    The caller has waited for the first part already, so that what is wrong from the beginning has been told properly.
    What goes wrong later ends the connection in the middle of the body: the client must not take the part for the whole.

    Raises:
        BrokenStreamError: something did.
    """
    response = web.StreamResponse(status=status, headers={**headers, "Content-Type": media_type})
    await response.prepare(request)
    try:
        if first is not None:
            await _write(response, first, write_timeout_s)
        async for part in rest:
            await _write(response, part, write_timeout_s)
        await response.write_eof()
    except Exception as error:
        _cut(request)
        raise BrokenStreamError(response) from error
    except asyncio.CancelledError:
        _cut(request)
        raise
    return response


def _cut(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


async def _write(response: web.StreamResponse, part: Buffer, write_timeout_s: float) -> None:
    view = memoryview(part)
    for begin in range(0, len(view), _PIECE_BYTES):
        try:
            async with asyncio.timeout(write_timeout_s):
                await response.write(view[begin : begin + _PIECE_BYTES])
        except TimeoutError as error:
            raise SlowClientError(f"the client took nothing for {write_timeout_s} s") from error
