"""A side with TLS, by asyncio's transport."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from typing import cast

from tiersidecar.services.gateway.exchange import Buffer
from tiersidecar.services.gateway.side import SideEvents, has_ended

_WRITE_BUFFER_BYTES = 256 * 1024
"""Encrypted bytes that may wait for a peer slower than the other, and the bytes handed to the transport at once.

The transport encrypts all that it is given, and passes it on to the one below without counting what waits there: a whole
response would seem to be taken while its client has not begun to read."""


class TlsSide(asyncio.Protocol):
    """Implements :class:`Side`.  ``server_hostname`` is what the peer's certificate must be for; None for a side that is the
    server itself."""

    def __init__(
        self, events: SideEvents, context: ssl.SSLContext, *, server_hostname: str | None, timeout_s: float
    ) -> None:
        self._events, self._context = events, context
        self._server_hostname, self._timeout_s = server_hostname, timeout_s
        self._transport: asyncio.Transport | None = None
        self._reading = True
        self._closing = False
        self._waiting: deque[Buffer] = deque()
        self.full_since_s: float | None = None
        self.owes_since_s: float | None = None
        self.taken_bytes = 0
        self.is_gone = True  # until it is there

    @property
    def is_full(self) -> bool:
        """Return whether something waits."""
        return self.full_since_s is not None

    @property
    def waiting_bytes(self) -> int:
        """Return what waits to be sent."""
        return sum(map(len, self._waiting)) if self._waiting else 0

    @property
    def has_hung_up(self) -> bool:
        """Return whether the peer has ended the connection."""
        peer = None if self._transport is None or self.is_gone else self._transport.get_extra_info("socket")
        return peer is None or has_ended(peer)

    async def take(self, connected: socket.socket) -> None:
        """Begin, with a connected socket that does not block."""
        loop = asyncio.get_running_loop()
        if self._server_hostname is None:
            await loop.connect_accepted_socket(
                lambda: self, connected, ssl=self._context, ssl_handshake_timeout=self._timeout_s
            )
            return
        await loop.create_connection(
            lambda: self,
            sock=connected,
            ssl=self._context,
            server_hostname=self._server_hostname,
            ssl_handshake_timeout=self._timeout_s,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self.is_gone = False
        if self._closing:
            self._transport.abort()
            return
        self.read(wanted=False)

    def data_received(self, data: bytes) -> None:
        self._events.received(data)

    def pause_writing(self) -> None:
        is_news, self.full_since_s = self.full_since_s is None, asyncio.get_running_loop().time()
        if self.owes_since_s is None:
            self.owes_since_s = self.full_since_s
        if is_news:
            self._events.changed()

    def resume_writing(self) -> None:
        self.full_since_s = None
        if not self._hand_on():
            return
        self.owes_since_s = None
        if self._closing:
            self._close()
        else:
            self._events.changed()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_gone, self.full_since_s, self.owes_since_s = True, None, None
        self._waiting.clear()
        self._events.lost()

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
        """Send now what the socket takes; a copy of the rest waits."""
        self.write_all((data if isinstance(data, bytes) else bytes(data),))

    def write_all(self, pieces: Sequence[Buffer]) -> None:
        """Write pieces that are not changed any more: they are not copied."""
        if self._transport is None or self._closing:
            return
        self._waiting.extend(pieces)
        self._hand_on()

    def close(self) -> None:
        """Close once what has been written has gone."""
        self.read(wanted=False)
        self._closing = True
        if not self._waiting:
            self._close()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _hand_on(self) -> bool:
        """Hand on as much as the transport takes before it is full; return whether it is not full."""
        while self._transport is not None and self._waiting and self.full_since_s is None:
            taken, size = list[Buffer](), 0
            while self._waiting and size < _WRITE_BUFFER_BYTES:
                piece = memoryview(self._waiting.popleft())
                taken.append(piece[: _WRITE_BUFFER_BYTES - size])
                if len(piece) > _WRITE_BUFFER_BYTES - size:
                    self._waiting.appendleft(piece[_WRITE_BUFFER_BYTES - size :])
                size += len(taken[-1])
            self.taken_bytes += size  # or what came before, to make room for it
            self._transport.writelines(taken)
        return self.full_since_s is None

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None and not self.is_gone:
            self._transport.abort()
