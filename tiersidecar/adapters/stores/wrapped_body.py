"""A body with something between it and the store."""

from __future__ import annotations

from tiersidecar.ports.store import Buffer, ObjectBody, SourceFile


class WrappedBody:
    """Passes everything on to ``body``: a wrapper says only what it does otherwise."""

    def __init__(self, body: ObjectBody) -> None:
        self._body = body

    @property
    def size_bytes(self) -> int | None:
        return self._body.size_bytes

    @property
    def piece_count(self) -> int:
        return self._body.piece_count

    @property
    def source_file(self) -> SourceFile | None:
        return self._body.source_file

    async def piece(self, index: int) -> Buffer:
        return await self._body.piece(index)

    async def grant(self, wanted_bytes: int) -> int:
        return await self._body.grant(wanted_bytes)
