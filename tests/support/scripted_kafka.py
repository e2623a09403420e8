"""The two ends of a gateway in one event loop: a broker that a test scripts, and a client that sends bytes."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from tests.support.recorded_telemetry import RecordedTelemetry
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.ports.shares import Shares
from tiersidecar.services.gateway.advertised import AdvertisedAddresses
from tiersidecar.services.gateway.exchange import Rewrite
from tiersidecar.services.gateway.frames import ResponseMemory
from tiersidecar.services.gateway.limits import GatewayLimits
from tiersidecar.services.gateway.listener import ListenerSettings, serve_gateway
from tiersidecar.services.gateway.rewrites import ApiVersionsRewrite, frame_rewrites
from tiersidecar.services.gateway.unauthenticated import Unauthenticated

WAIT_S = 30.0
ADVERTISED = AdvertisedAddresses(pattern="gateway-{node.id}:9092")


def request(api_key: int, version: int, correlation_id: int, body: bytes = b"", *, client_id: bytes = b"c") -> bytes:
    """Return a whole frame with a header of the old kind, which is enough where it is not read."""
    payload = struct.pack(">hhih", api_key, version, correlation_id, len(client_id)) + client_id + body
    return struct.pack(">i", len(payload)) + payload


def response(correlation_id: int, body: bytes = b"") -> bytes:
    """Return a whole frame, with a header of the old kind."""
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


class Ids:
    """The correlation ids of one connection: the gateway sends requests whose answers it reads under ids of its own.

    So that a test reads and writes its client's ids on both ends: a request is the first one of its API and version that the
    client has sent, and that has not arrived.  What the gateway itself asks keeps its id.
    """

    def __init__(self) -> None:
        self._sent: list[tuple[bytes, bytes]] = []
        self._on_wire: dict[bytes, list[bytes]] = {}
        self._requests, self._answers = bytearray(), bytearray()
        self._passing = 0

    def sent(self, data: bytes) -> None:
        """Take what the client has sent."""
        self._requests += data
        while len(self._requests) >= 4:
            (size,) = struct.unpack_from(">i", self._requests)
            if not 0 <= size <= len(self._requests) - 4:
                return
            if size >= 8:
                self._sent.append((bytes(self._requests[4:8]), bytes(self._requests[8:12])))
            del self._requests[: 4 + size]

    def arrived(self, frame: bytes) -> bytes:
        """Return a request at the broker, with the client's id."""
        found = next((one for one in self._sent if one[0] == frame[4:8]), None)
        if found is None:
            return frame
        self._sent.remove(found)
        self._on_wire.setdefault(found[1], []).append(frame[8:12])
        return frame[:8] + found[1] + frame[12:]

    def answered(self, data: bytes) -> bytes:
        """Return, of what the broker says, with the ids of the wire, what can be passed on already."""
        self._answers += data
        passed = bytearray()
        while self._answers:
            if not self._passing:
                if len(self._answers) < 8:
                    (size,) = struct.unpack(">i", self._answers[:4]) if len(self._answers) >= 4 else (4,)
                    if size >= 4:
                        break
                self._passing = max(4 + struct.unpack_from(">i", self._answers)[0], 4)
                waiting = self._on_wire.get(bytes(self._answers[4:8]))
                if waiting and self._passing >= 8:
                    self._answers[4:8] = waiting.pop(0)
            step = min(self._passing, len(self._answers))
            passed += self._answers[:step]
            del self._answers[:step]
            self._passing -= step
        return bytes(passed)


@dataclass(slots=True)
class Peer:
    """One connection, seen from either end."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    ids: Ids | None = None
    is_broker: bool = False

    async def frame(self) -> bytes:
        """Return the next frame, with its size.

        Raises:
            IncompleteReadError: the connection has ended.
        """
        async with asyncio.timeout(WAIT_S):
            size = await self.reader.readexactly(4)
            frame = size + await self.reader.readexactly(struct.unpack(">i", size)[0])
        return self.ids.arrived(frame) if self.ids is not None and self.is_broker else frame

    def send(self, data: bytes) -> None:
        if self.ids is not None and self.is_broker:
            data = self.ids.answered(data)
        elif self.ids is not None:
            self.ids.sent(data)
        self.writer.write(data)

    async def ends(self) -> bytes:
        """Return what still comes before the connection ends."""
        async with asyncio.timeout(WAIT_S):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    def stop_taking(self) -> None:
        """Read nothing from the socket until :meth:`take_again`."""
        self._transport.pause_reading()

    def take_again(self) -> None:
        self._transport.resume_reading()

    @property
    def _transport(self) -> asyncio.Transport:
        transport = self.writer.transport
        assert isinstance(transport, asyncio.Transport)  # StreamWriter promises its writing half alone
        return transport

    def close(self) -> None:
        self.writer.close()


@dataclass(slots=True, kw_only=True)
class Ends:
    """A gateway between a listening broker and clients."""

    port: int
    memory: ResponseMemory
    telemetry: RecordedTelemetry
    arrived: asyncio.Queue[Peer]
    close_broker: Callable[[], None]
    client_tls: ssl.SSLContext | None = None
    opened: list[Peer] = field(default_factory=list)

    async def client(self) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**26, ssl=self.client_tls))
        self.opened.append(peer)
        return peer

    async def pair(self) -> tuple[Peer, Peer]:
        """Return a client, and the broker's end of its connection."""
        client = await self.client()
        async with asyncio.timeout(WAIT_S):
            broker = await self.arrived.get()
        client.ids = broker.ids = Ids()
        broker.is_broker = True
        return client, broker


@asynccontextmanager
async def gateway_between(
    *,
    limits: GatewayLimits | None = None,
    memory_bytes: int = 2**28,
    more: Callable[[dict[int, Rewrite]], None] | None = None,
    raw_tokens: bool = False,
    max_connections: int = 100,
    max_connections_per_ip: int = 100,
    tls: ssl.SSLContext | None = None,
    client_tls: ssl.SSLContext | None = None,
    unauthenticated: Unauthenticated | None = None,
    shares: Shares | None = None,
) -> AsyncIterator[Ends]:
    """``more`` may change the table of rewrites before ApiVersions is put in; clients meet ``tls``, and have ``client_tls``."""
    rewrites: dict[int, Rewrite] = frame_rewrites(ADVERTISED, raw_tokens=raw_tokens)
    if more is not None:
        more(rewrites)
    rewrites[ApiKey.API_VERSIONS] = ApiVersionsRewrite(rewrites)
    arrived: asyncio.Queue[Peer] = asyncio.Queue()
    server = await asyncio.start_server(
        lambda reader, writer: arrived.put_nowait(Peer(reader, writer)), "127.0.0.1", 0, limit=2**26
    )
    memory, telemetry = ResponseMemory(memory_bytes), RecordedTelemetry()
    settings = ListenerSettings(
        name="GATEWAY",
        host="127.0.0.1",
        port=0,
        broker_host="127.0.0.1",
        broker_port=server.sockets[0].getsockname()[1],
        max_connections=max_connections,
        max_connections_per_ip=max_connections_per_ip,
        tls=tls,
    )
    async with AsyncExitStack() as stack:
        stack.callback(server.close)
        listener = await stack.enter_async_context(
            serve_gateway(
                settings,
                rewrites=rewrites,
                limits=limits or GatewayLimits(),
                memory=memory,
                telemetry=telemetry,
                unauthenticated=unauthenticated,
                shares=shares,
            )
        )
        ends = Ends(
            port=listener.port,
            memory=memory,
            telemetry=telemetry,
            arrived=arrived,
            close_broker=server.close,
            client_tls=client_tls,
        )
        try:
            yield ends
        finally:
            while not arrived.empty():
                arrived.get_nowait().close()
            for peer in ends.opened:
                peer.close()
