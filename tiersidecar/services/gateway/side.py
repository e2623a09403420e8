"""The two sides of a gateway connection, to the client and to its broker; and a side without TLS, on the socket itself.

What passes a plain side is read into one buffer and sent from it, and copied only where the other side does not take it at
once.
"""

from __future__ import annotations

import asyncio
import socket
from asyncio.trsock import TransportSocket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tiersidecar.services.gateway.exchange import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class SideEvents:
    """The callbacks of a side.

    ``received`` must be done with the bytes when it returns: they lie in a buffer that is read into again.  ``lost`` comes
    once, at the end; ``changed`` when the side begins or ceases to be full.
    """

    received: Callable[[Buffer], None]
    lost: Callable[[], None]
    changed: Callable[[], None]


class Side(Protocol):
    """One of the two connections.

    ``full_since_s`` is when it last took something while more was waiting for it, None while nothing waits; ``owes_since_s``
    when that began.  ``taken_bytes`` is what it has taken in all.  ``is_gone`` before :meth:`take`, and again at the end.
    """

    full_since_s: float | None
    owes_since_s: float | None
    taken_bytes: int
    is_gone: bool

    @property
    def is_full(self) -> bool:
        """Return whether something waits."""
        ...

    @property
    def waiting_bytes(self) -> int:
        """Return what waits to be sent."""
        ...

    @property
    def has_hung_up(self) -> bool:
        """Return whether the peer has ended the connection."""
        ...

    async def take(self, connected: socket.socket) -> None:
        """Begin, with a connected socket that does not block.  Reads nothing before it is wanted.

        Raises:
            OSError: the handshake failed.
        """
        ...

    def read(self, *, wanted: bool) -> None:
        """Begin or stop to read."""
        ...

    def write(self, data: Buffer) -> None:
        """Send now what the socket takes; a copy of the rest waits."""
        ...

    def write_all(self, pieces: Sequence[Buffer]) -> None:
        """Write pieces that are not changed any more: they are not copied."""
        ...

    def close(self) -> None:
        """Close once what has been written has gone."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


MakeSide = Callable[[SideEvents], Side]


READ_BUFFER_BYTES = 512 * 1024
"""Most that is read at once: a call costs little beside what it moves, and it all stays in the CPU's cache."""
_MOST_PIECES = 256
"""The most for one sendmsg(2); the kernel's limit is 1,024."""
_TRY_AGAIN = (BlockingIOError, InterruptedError)


def has_ended(peer: socket.socket | TransportSocket) -> bool:
    """Return whether ``peer`` has sent its end, or the connection is broken; by the kernel's state of it, which counts what has
    not been read too.  False of a socket that is not of TCP."""
    try:
        return peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED
    except OSError:
        return False


_ESTABLISHED = 1
"""tcp_info.tcpi_state, of linux/tcp.h and net/tcp_states.h."""


class PlainSide:
    """Implements :class:`Side`.  ``read_buffer`` may be shared by all sides of an event loop."""

    def __init__(self, events: SideEvents, read_buffer: bytearray) -> None:
        self._events, self._buffer = events, memoryview(read_buffer)
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._waiting: deque[Buffer] = deque()
        self._reading = self._watched = False
        self._closing = False
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
        return self._socket is None or has_ended(self._socket)

    async def take(self, connected: socket.socket) -> None:
        """Begin, with a connected socket that does not block."""
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self.is_gone = connected, False
        if self._closing:
            self._end()

    def read(self, *, wanted: bool) -> None:
        """Begin or stop to read."""
        if self._socket is None or self._closing:
            return
        self._reading = wanted
        if wanted and not self._watched:
            self._loop.add_reader(self._socket, self._readable)
            self._watched = True
        # Unwanted, it is watched on until something comes: a client that asks, and waits, is unwanted once a request.

    def write(self, data: Buffer) -> None:
        """Send now what the socket takes; a copy of the rest waits."""
        if self._socket is None or self._closing:
            return
        if self._waiting:
            self._waiting.append(bytes(data))
            return
        sent = self._send((data,))
        if sent is not None and sent < len(data):
            self._wait_with([bytes(memoryview(data)[sent:])])

    def write_all(self, pieces: Sequence[Buffer]) -> None:
        """Write pieces that are not changed any more: they are not copied."""
        if self._socket is None or self._closing:
            return
        if self._waiting:
            self._waiting.extend(pieces)
            return
        left = deque(pieces)
        sent = self._send(pieces[:_MOST_PIECES])
        if sent is None:
            return
        _drop(left, sent)
        if left:
            self._wait_with(left)

    def close(self) -> None:
        """Close once what has been written has gone."""
        self._unwatch()
        self._closing = True
        if not self._waiting:
            self._end()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self._end()

    def _unwatch(self) -> None:
        self._reading = False
        if self._watched and self._socket is not None:
            self._loop.remove_reader(self._socket)
        self._watched = False

    def _readable(self) -> None:
        if self._socket is None:
            return
        if not self._reading:
            self._unwatch()
            return
        try:
            size = self._socket.recv_into(self._buffer)
        except _TRY_AGAIN:
            return
        except OSError:
            self.abort()
            return
        if size:
            self._events.received(self._buffer[:size])
        else:
            self.close()

    def _send(self, pieces: Sequence[Buffer]) -> int | None:
        """Return how many bytes were taken; None if the connection is lost."""
        if self._socket is None:
            return None
        try:
            sent = self._socket.send(pieces[0]) if len(pieces) == 1 else self._socket.sendmsg(pieces)
        except _TRY_AGAIN:
            return 0
        except OSError:
            self.abort()
            return None
        self.taken_bytes += sent
        return sent

    def _wait_with(self, pieces: Sequence[Buffer] | deque[Buffer]) -> None:
        if self._socket is None:
            return
        self._waiting.extend(pieces)
        self._loop.add_writer(self._socket, self._writable)
        self.full_since_s = self.owes_since_s = self._loop.time()
        self._events.changed()

    def _writable(self) -> None:
        sent = self._send([self._waiting[number] for number in range(min(len(self._waiting), _MOST_PIECES))])
        if not sent:
            return
        _drop(self._waiting, sent)
        if self._waiting:
            self.full_since_s = self._loop.time()
            return
        if self._socket is not None:
            self._loop.remove_writer(self._socket)
        self.full_since_s = self.owes_since_s = None
        if self._closing:
            self._end()
        else:
            self._events.changed()

    def _end(self) -> None:
        ended, self._socket = self._socket, None
        if ended is None:
            return
        self._loop.remove_reader(ended)
        self._loop.remove_writer(ended)
        ended.close()
        self._waiting.clear()
        self.full_since_s = self.owes_since_s = None
        self.is_gone = True
        # Not now: the caller of write is in the middle of something.
        self._loop.call_soon(self._events.lost)


def _drop(pieces: deque[Buffer], size: int) -> None:
    """Take the first ``size`` bytes away, and what is empty before and after."""
    while pieces and size >= len(pieces[0]):
        size -= len(pieces.popleft())
    if size:
        pieces[0] = memoryview(pieces[0])[size:]
