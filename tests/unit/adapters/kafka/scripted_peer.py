"""A peer on loopback that plays a script, one per connection: what no honest broker would do, too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kio.index import load_request_schema
from kio.schema.api_versions.v0 import ApiVersionsResponse as OldestApiVersionsResponse
from kio.schema.api_versions.v0.response import ApiVersion as OldestApiVersion
from kio.schema.api_versions.v4 import ApiVersionsResponse
from kio.schema.api_versions.v4.response import ApiVersion
from kio.schema.errors import ErrorCode
from kio.static.protocol import ResponsePayload

from tiersidecar.formats.wire.framing import RequestHeader, read_request_header, write_response
from tiersidecar.formats.wire.messages import read_message

VERSIONS: Mapping[int, tuple[int, int]] = {
    2: (1, 11),
    3: (0, 13),
    8: (2, 9),
    17: (0, 1),
    18: (0, 4),
    19: (2, 7),
    21: (0, 2),
    32: (1, 4),
    36: (0, 2),
    44: (0, 1),
    9: (1, 10),
    10: (0, 6),
    16: (0, 5),
    60: (0, 2),
    90: (0, 1),
}
"""Of the APIs that we use, as Kafka 4.3 has them."""
NO_WAIT: Any = timedelta(0)


@dataclass(slots=True)
class Conversation:
    """One accepted connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def hear(self) -> tuple[RequestHeader, Any]:
        """The next request."""
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        payload = await self.reader.readexactly(size)
        header = read_request_header(payload)
        request, _ = read_message(load_request_schema(header.api_key, header.api_version), payload, header.body_offset)
        return header, request

    def say(self, octets: bytes) -> None:
        self.writer.write(octets)

    def answer(self, header: RequestHeader, response: ResponsePayload) -> None:
        self.say(write_response(response, correlation_id=header.correlation_id))

    async def tell_versions(self, versions: Mapping[int, tuple[int, int]] = VERSIONS) -> None:
        """Hear ApiVersions and answer it."""
        header, _ = await self.hear()
        self.answer(header, api_versions_response(versions))

    async def until_closed(self) -> bytes:
        """What else comes until the other side closes."""
        return await self.reader.read()


Script = Callable[[Conversation], Awaitable[None]]


@dataclass(slots=True)
class ScriptedPeer:
    """``connections`` counts those accepted so far."""

    address: str = ""
    connections: int = 0
    failures: list[BaseException] = field(default_factory=list)


@asynccontextmanager
async def scripted_peer(*scripts: Script) -> AsyncIterator[ScriptedPeer]:
    """A peer whose nth connection plays the nth script, the last one again for later ones; a script that fails fails the
    test."""
    peer = ScriptedPeer()
    playing: set[asyncio.Task[None]] = set()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = scripts[min(peer.connections, len(scripts) - 1)]
        peer.connections += 1
        try:
            await script(Conversation(reader, writer))
        except (AssertionError, ValueError, TypeError, AttributeError, KeyError) as error:
            peer.failures.append(error)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client went: scripts that care wait for it themselves
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(play(reader, writer))
        playing.add(task)
        task.add_done_callback(playing.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    peer.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield peer
    finally:
        server.close()
        for task in list(playing):
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
    if peer.failures:
        raise peer.failures[0]


def api_versions_response(
    versions: Mapping[int, tuple[int, int]], error_code: ErrorCode = ErrorCode.none
) -> ApiVersionsResponse:
    rows: Any = [ApiVersion(api_key=k, min_version=v[0], max_version=v[1]) for k, v in versions.items()]  # type: ignore[arg-type]
    return ApiVersionsResponse(error_code=error_code, api_keys=tuple(rows), throttle_time=NO_WAIT)


def oldest_api_versions_response(oldest: int, newest: int) -> OldestApiVersionsResponse:
    """What a broker says that does not know the version of our ApiVersions."""
    row: Any = OldestApiVersion(api_key=18, min_version=oldest, max_version=newest)  # type: ignore[arg-type]
    return OldestApiVersionsResponse(error_code=ErrorCode.unsupported_version, api_keys=(row,))
