"""The ``Range`` header (RFC 9110, section 14)."""

from __future__ import annotations

import re

from aiohttp import web

from tiersidecar.domain.offsets import ByteRange
from tiersidecar.services.reader.problems import range_not_satisfiable

_ONE_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})", re.ASCII)


def requested_range(request: web.Request, *, size_bytes: int, etag: str) -> ByteRange | None:
    """The part that is asked for of a file that has ``size_bytes`` and ``etag``; None for all of it.

    A header that is not one range of bytes is ignored, as the RFC allows, and so is every one where ``If-Range`` names
    another file.

    Raises:
        ProblemError: 416, the range begins past the end, or the last 0 bytes are wanted.
    """
    match = _ONE_RANGE.fullmatch(request.headers.get("Range", "").strip())
    if match is None or request.headers.get("If-Range", etag) != etag:
        return None
    first, last = match.groups()
    if not first and not last:
        return None
    if not first:
        wanted = ByteRange(max(size_bytes - int(last), 0), size_bytes)
    elif last and int(last) < int(first):
        return None
    else:
        stop = min(int(last) + 1, size_bytes) if last else size_bytes
        wanted = ByteRange(min(int(first), stop), stop)
    if not len(wanted):
        raise range_not_satisfiable(size_bytes)
    return wanted
