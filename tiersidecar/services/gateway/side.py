"""One of the two connections of a gateway connection: to the client, or to its broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from tiersidecar.services.gateway.exchange import Buffer

_WRITE_BUFFER_BYTES = 256 * 1024
"""What may wait for a peer that takes less than the other gives, before the other is no longer read."""


class Side(asyncio.Protocol):
    """One of the two connections; ``full_since_s`` is when it began to take less than it gets, None while it takes all."""

    def __init__(
        self, received: Callable[[bytes], None], lost: Callable[[], None], changed: Callable[[], None]
    ) -> None:
        self._transport: asyncio.Transport | None = None
        self._received, self._lost, self._changed = received, lost, changed
        self._reading = True
        self._closing = False
        self.full_since_s: float | None = None
        self.is_gone = True  # until it is there

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self.is_gone = False
        if self._closing:
            self._transport.abort()
            return
        self.read(wanted=False)

    def data_received(self, data: bytes) -> None:
        self._received(data)

    def pause_writing(self) -> None:
        self.full_since_s = asyncio.get_running_loop().time()
        self._changed()

    def resume_writing(self) -> None:
        self.full_since_s = None
        self._changed()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_gone = True
        self._lost()

    def read(self, *, wanted: bool) -> None:
        """Begin or stop to read."""
        if self._transport is None or self._closing or wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def write(self, data: Buffer) -> None:
        if self._transport is not None and not self._closing:
            self._transport.write(data)

    def write_all(self, pieces: Sequence[Buffer]) -> None:
        if self._transport is not None and not self._closing:
            self._transport.writelines(pieces)

    def close(self) -> None:
        """After what has been written has gone."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None and not self.is_gone:
            self._transport.abort()
