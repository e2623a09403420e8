"""Serve one remote segment: its .log, whole or a ``Range`` of it (RFC 9110, section 14), and its indexes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from http import HTTPStatus

from aiohttp import web

from tiersidecar.domain.ids import TopicIdPartition, format_uuid
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.index_blob import IndexKind
from tiersidecar.reading.read_path import ReadPath
from tiersidecar.services.reader.callers import Callers
from tiersidecar.services.reader.problems import not_found, range_not_satisfiable
from tiersidecar.services.reader.routes import OCTETS, IndexName, segment_of
from tiersidecar.services.reader.streams import BodyWriter, NoMore

_ONE_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})", re.ASCII)


def requested_range(request: web.Request, *, size_bytes: int, etag: str) -> ByteRange | None:
    """Return the range that is asked for of a file that has ``size_bytes`` and ``etag``; None for all of it.

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


_KINDS: dict[str, IndexKind] = {
    IndexName.OFFSET: IndexKind.OFFSET,
    IndexName.TIMESTAMP: IndexKind.TIMESTAMP,
    IndexName.TRANSACTION: IndexKind.TRANSACTION,
    IndexName.PRODUCER_SNAPSHOT: IndexKind.PRODUCER_SNAPSHOT,
    IndexName.LEADER_EPOCH: IndexKind.LEADER_EPOCH,
}


class SegmentOperations:
    """Serve files that never change under their id, so that a download can be resumed."""

    def __init__(
        self,
        *,
        path: ReadPath,
        partition_of: Callable[[web.Request], Awaitable[TopicIdPartition]],
        callers: Callers,
        bodies: BodyWriter,
    ) -> None:
        self._path = path
        self._callers = callers
        self._partition_of = partition_of
        self._bodies = bodies

    async def read_log(self, request: web.Request) -> web.StreamResponse:
        """Serve ``read_segment_log``."""
        segment = await self._segment(request)
        etag, size_bytes = _etag(segment), segment.segment_size_in_bytes
        part = requested_range(request, size_bytes=size_bytes, etag=etag)
        wanted = part or ByteRange(0, size_bytes)
        headers = {"ETag": etag, "Accept-Ranges": "bytes", "Content-Length": str(len(wanted))}
        if part is not None:
            headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{size_bytes}"
        async with aclosing(self._path.files.stream_log(segment, wanted)) as parts:
            return await self._bodies.write(
                request,
                None,
                self._callers.while_allowed(request, segment.topic_id_partition.topic, await anext(parts, None), parts),
                media_type=OCTETS,
                headers=headers,
                status=HTTPStatus.OK if part is None else HTTPStatus.PARTIAL_CONTENT,
            )

    async def read_index(self, request: web.Request) -> web.StreamResponse:
        """Serve ``read_segment_index``."""
        segment = await self._segment(request)
        kind = _KINDS.get(request.match_info["kind"])
        if kind is None:
            raise not_found(f"indexes are {', '.join(IndexName)}")
        data = await self._path.files.read_index(segment, kind)
        headers = {"ETag": _etag(segment), "Content-Length": str(len(data))}
        return await self._bodies.write(request, data, NoMore(), media_type=OCTETS, headers=headers)

    async def _segment(self, request: web.Request) -> RemoteLogSegmentMetadata:
        partition = await self._partition_of(request)
        segment = await self._path.lookup.segment(partition, segment_of(request))
        if segment is None:
            raise not_found("the partition has no such segment that is finished and may be read whole")
        return segment


def _etag(segment: RemoteLogSegmentMetadata) -> str:
    return f'"{format_uuid(segment.remote_log_segment_id.uuid)}"'
