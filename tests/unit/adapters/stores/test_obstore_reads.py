"""A server that sends more than it was asked for is cut off: nobody's memory is for it to fill.

It is a few lines of HTTP, for no server does so when it is asked to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from obstore.store import AzureStore, S3Store

from tiersidecar.adapters.stores import obstore_reads, watched_bodies
from tiersidecar.adapters.stores.obstore_reads import RangeReads, get_object
from tiersidecar.adapters.stores.watched_bodies import WatchedBodies
from tiersidecar.domain.errors import ObjectTooLargeError, StoreError
from tiersidecar.domain.offsets import ByteRange

MIB = 1 << 20
STAMP = 'Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\nETag: "x"\r\nConnection: close\r\n\r\n'
"""The connection ends with the answer, and without that header the next request may be sent on it."""
WITHOUT_END = "Content-Length: 10\r\nTransfer-Encoding: chunked\r\n"
"""Two lengths: the one that counts has no end."""


class Server:
    """Answers with ``head``; after ``pause_s`` with ``body``, and up to ``most`` MiB, in chunks where ``head`` says so."""

    def __init__(self, head: str, *, most: int = 0, body: bytes = b"", pause_s: float = 0) -> None:
        self._head, self._most, self._body, self._pause_s = head, most, body, pause_s
        self.asked = self.sent_bytes = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.asked += 1
            writer.write(f"HTTP/1.1 {self._head}{STAMP}".encode())
            await asyncio.sleep(self._pause_s)
            writer.write(self._body)
            is_chunked = "chunked" in self._head
            for _ in range(self._most):
                writer.write((b"100000\r\n" if is_chunked else b"") + bytes(MIB) + (b"\r\n" if is_chunked else b""))
                await writer.drain()
                self.sent_bytes += MIB
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def store_of(kind: str, server: Server) -> AsyncIterator[AzureStore | S3Store]:
    listening = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    if kind == "azure":
        yield AzureStore(
            "c", account_name="a", account_key="aGVsbG8=", endpoint=f"{address}/a",
            client_options={"allow_http": True}, retry_config={"max_retries": 0},
        )  # fmt: skip
    else:
        yield S3Store(
            "b", endpoint=address, access_key_id="a", secret_access_key="b", region="us-east-1",
            client_options={"allow_http": True}, retry_config={"max_retries": 0},
        )  # fmt: skip
    listening.close()
    await listening.wait_closed()


@pytest.mark.parametrize("kind", ["azure", "s3"])
async def test_an_object_that_does_not_end_is_cut_off(kind: str) -> None:
    server = Server(f"200 OK\r\n{WITHOUT_END}", most=100)
    async with store_of(kind, server) as store:
        with pytest.raises(ObjectTooLargeError, match="'k': it has more than 1000 bytes"):
            await get_object(store, "k", 1000)
    assert server.sent_bytes < 50 * MIB


TEN_OF_TEN = "206 Partial Content\r\nContent-Range: bytes 0-9/10\r\n"


@pytest.mark.parametrize("kind", ["azure", "s3"])
async def test_a_range_that_does_not_end_is_cut_off_when_memory_grows(kind: str) -> None:
    server = Server(f"{TEN_OF_TEN}Content-Length: {4000 * MIB}\r\n", most=4000)
    async with store_of(kind, server) as store:
        reads = RangeReads(store, watch=WatchedBodies(slack_bytes=64 * MIB))
        with pytest.raises(ObjectTooLargeError, match="'k': it has more than 10 bytes"):
            await reads.get("k", ByteRange(0, 10))
        assert server.sent_bytes < 1000 * MIB
        server.sent_bytes = 0
        with pytest.raises(ObjectTooLargeError):
            await reads.get("k", ByteRange(0, 10))
    assert server.sent_bytes < 50 * MIB, "the second time nothing is collected without a bound"


@pytest.mark.parametrize("kind", ["azure", "s3"])
async def test_a_range_with_more_than_was_asked_for_is_refused(kind: str) -> None:
    async with store_of(kind, Server(f"{TEN_OF_TEN}Content-Length: 11\r\n", body=bytes(11))) as store:
        with pytest.raises(ObjectTooLargeError, match="'k': it has more than 10 bytes"):
            await RangeReads(store).get("k", ByteRange(0, 10))


@pytest.mark.parametrize("kind", ["azure", "s3"])
@pytest.mark.parametrize("why", ["memory grows for another reason", "the system does not tell what memory there is"])
async def test_a_range_is_read_although(kind: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    grows = iter(range(0, 1 << 60, 1 << 40)).__next__
    for module in (watched_bodies, obstore_reads):
        monkeypatch.setattr(module, "anonymous_bytes", grows if why.startswith("memory") else lambda: None)
    server = Server(f"{TEN_OF_TEN}Content-Length: 10\r\n", body=b"0123456789", pause_s=0.1)
    async with store_of(kind, server) as store:
        assert bytes(await RangeReads(store).get("k", ByteRange(0, 10))) == b"0123456789"
    assert server.asked == (2 if why.startswith("memory") else 1)


async def test_a_read_that_its_caller_gives_up_is_not_read_again() -> None:
    server = Server(f"{TEN_OF_TEN}Content-Length: 10\r\n", pause_s=5)
    async with store_of("s3", server) as store:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await RangeReads(store).get("k", ByteRange(0, 10))
    assert server.asked == 1


@pytest.mark.parametrize("kind", ["azure", "s3"])
@pytest.mark.parametrize("size", [0, 1, 1000])
async def test_what_keeps_to_its_size_is_read(kind: str, size: int) -> None:
    async with store_of(kind, Server(f"200 OK\r\nContent-Length: {size}\r\n", body=bytes(size))) as store:
        assert await get_object(store, "k", 1000) == bytes(size)


@pytest.mark.parametrize("kind", ["azure", "s3"])
async def test_a_large_object_is_refused_by_what_the_server_says(kind: str) -> None:
    async with store_of(kind, Server("200 OK\r\nContent-Length: 1001\r\n", body=bytes(1001))) as store:
        with pytest.raises(ObjectTooLargeError):
            await get_object(store, "k", 1000)


@pytest.mark.parametrize("kind", ["azure", "s3"])
async def test_fewer_bytes_than_the_server_says_are_an_error(kind: str) -> None:
    body = b"2\r\nxx\r\n0\r\n\r\n"
    async with store_of(kind, Server(f"200 OK\r\n{WITHOUT_END}", body=body)) as store:
        with pytest.raises(StoreError, match="2 bytes came of 10"):
            await get_object(store, "k", 1000)
