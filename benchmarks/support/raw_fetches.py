"""Clients that fetch as fast as they are served, and look at no more than the size of what comes: they cost next to no CPU."""

from __future__ import annotations

import socket
import struct
import threading
from dataclasses import dataclass, field

from tiersidecar.adapters.kafka import apis
from tiersidecar.formats.wire.framing import write_request

_FETCH_VERSION = 15
_TIMEOUT_S = 60.0


@dataclass(slots=True)
class RawFetches:
    """``clients`` connections to ``servers``: each fetches one partition below ``stop``, from another place on."""

    servers: str
    topic_id: bytes
    stop: int
    clients: int
    step: int
    max_bytes: int
    size_bytes: int = 0
    """What came so far, of all."""
    small: int = 0
    """Answers with less than half of ``max_bytes``: the gateway had nothing in time."""
    faults: list[str] = field(default_factory=list)
    _ends: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> RawFetches:
        for number in range(self.clients):
            thread = threading.Thread(target=self._run, args=(number,), name=f"fetches {number}")
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        host, _, port = self.servers.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as connection:
                self._fetch(connection, number * self.stop // self.clients)
        except (OSError, ValueError) as error:
            self.faults.append(repr(error))

    def _fetch(self, connection: socket.socket, offset: int) -> None:
        buffer = memoryview(bytearray(256 * 1024))
        while not self._ends.is_set():
            body = apis.fetch(_FETCH_VERSION, self.topic_id, 0, offset, max_bytes=self.max_bytes, read_committed=False)
            connection.sendall(write_request(body, correlation_id=1, client_id="raw"))
            left = size = struct.unpack(">i", _exactly(connection, 4))[0]
            while left:
                came = connection.recv_into(buffer, min(left, len(buffer)))
                if not came:
                    raise ValueError("the connection was closed")
                left -= came
            with self._lock:
                self.size_bytes += size
                self.small += size < self.max_bytes // 2
            if size >= self.max_bytes // 2:
                offset = (offset + self.step) % self.stop


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ValueError("the connection was closed")
        data += more
    return data
