"""Clients that send nothing, take nothing, come in crowds or guess: what they cost the read service."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Mapping

import aiohttp
import pytest

from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.scripted_authorizer import ScriptedAuthorizer
from tests.support.scripted_kafka import Peer
from tests.unit.services.reader.service import ALL_TOPICS, Service, open_service
from tiersidecar.ports.broker import CallerNotAuthenticatedError, Credentials
from tiersidecar.ports.metrics.reading import READS_SHED
from tiersidecar.services.reader.server import ReaderServiceSettings

WAIT_S = 30.0
SEGMENTS = b"GET /topics/plain/partitions/0/segments HTTP/1.1\r\nHost: here\r\n\r\n"
DESCRIBE = b"GET /openapi.json HTTP/1.1\r\nHost: here\r\n\r\n"


async def connect(service: Service) -> Peer:
    return Peer(*await asyncio.open_connection(service.server.host, service.server.port))


@pytest.mark.parametrize("sent", [b"", b"GET /topics HTTP/1.1\r\nHost: he"], ids=["nothing", "half a request"])
async def test_a_connection_without_a_whole_request_ends(sent: bytes) -> None:
    """Slow loris: they were kept for an hour, each with a descriptor that copying needs."""
    async with open_service(settings=ReaderServiceSettings(port=0, head_timeout_s=0.2)) as service:
        client = await connect(service)
        client.send(sent)
        assert await client.ends() == b""
        client.close()


async def test_of_connections_too_many_the_longest_waiting_makes_room() -> None:
    """They kept everybody else out."""
    async with open_service(settings=ReaderServiceSettings(port=0, max_connections=2)) as service:
        first, second, third = [await connect(service) for _ in range(3)]
        assert await first.ends() == b""
        for one in (second, third):
            one.send(DESCRIBE)
            async with asyncio.timeout(WAIT_S):
                assert (await one.reader.readline()).startswith(b"HTTP/1.1 200")
        for one in (first, second, third):
            one.close()


async def test_a_connection_with_a_request_in_hand_makes_no_room() -> None:
    authorizer = Waiting()
    settings = ReaderServiceSettings(port=0, max_connections=1)
    async with open_service(authorizer=authorizer, settings=settings) as service:
        asked = asyncio.create_task(service.get("/topics/plain/partitions"))
        await authorizer.began.wait()
        refused = await connect(service)
        assert await refused.ends() == b""
        refused.close()
        authorizer.may_go_on.set()
        assert (await asked)[0] == 200


async def test_a_connection_between_requests_ends() -> None:
    settings = ReaderServiceSettings(port=0, head_timeout_s=30, idle_timeout_s=0.2)
    async with open_service(settings=settings) as service:
        client = await connect(service)
        client.send(DESCRIBE)
        assert (await client.ends()).startswith(b"HTTP/1.1 200")
        client.close()


@pytest.mark.slow
async def test_a_client_that_takes_no_documents_is_cut_off() -> None:
    """Documents that are there whole were waited for without end, and held their place in ``max_requests``."""
    settings = ReaderServiceSettings(port=0, write_timeout_s=0.2, max_requests=1)
    async with open_service(settings=settings) as service:
        client = await connect(service)
        client.stop_taking()
        document = (await service.get("/openapi.json"))[1]
        asked = 32 * 2**20 // len(document)
        client.send(DESCRIBE * asked)
        await asyncio.sleep(1.5)
        assert (await service.get("/topics"))[0] == 200, "its place is free"
        client.take_again()
        assert len(await client.ends()) < asked * len(document) // 2
        client.close()


async def leaves_unread(service: Service, request: bytes) -> Peer:
    """A client that asks again and again, and takes so little that its answers pile up; connected, and behind with them."""
    raw = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.settimeout(0)
    await asyncio.get_running_loop().sock_connect(raw, (service.server.host, service.server.port))
    client = Peer(*await asyncio.open_connection(sock=raw))
    client.stop_taking()
    client.send(request * (32 * 2**20 // len(request)))
    asked = service.authorizer.asked
    async with asyncio.timeout(WAIT_S):
        seen = 0
        while not asked or len(asked) > seen:
            seen = len(asked)
            await asyncio.sleep(0.2)
    return client


async def test_documents_left_unread_hold_no_place() -> None:
    """80 connections from two addresses, without a login, turned all requests of others into 429."""
    async with open_service(settings=ReaderServiceSettings(port=0, max_requests=1)) as service:
        client = await leaves_unread(service, 9 * DESCRIBE + SEGMENTS)
        assert [(await service.get("/topics"))[0] for _ in range(3)] == [200, 200, 200]
        client.close()


async def test_a_connection_whose_client_leaves_documents_unread_makes_room() -> None:
    """1,024 of them kept everybody else out, for as long as they liked."""
    async with open_service(settings=ReaderServiceSettings(port=0, max_connections=1)) as service:
        client = await leaves_unread(service, 9 * DESCRIBE + SEGMENTS)
        assert (await service.get("/topics"))[0] == 200
        client.close()


async def test_a_body_is_not_opened() -> None:
    """One of 1 MiB that opens to a GiB, from anybody, kept the whole process from everything else for seconds."""
    body = b"not gzip, which would be told"
    head = b"GET /openapi.json HTTP/1.1\r\nHost: here\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    async with open_service() as service:
        client = await connect(service)
        client.send(head % len(body) + body + b"GET /topics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        answers = await client.ends()
        client.close()
    assert answers.count(b"HTTP/1.1 200") == 2


async def test_requests_that_are_turned_away_are_counted() -> None:
    telemetry = RecordedTelemetry()
    authorizer = Waiting()
    async with open_service(
        authorizer=authorizer, telemetry=telemetry, settings=ReaderServiceSettings(port=0, max_requests=1)
    ) as service:
        first = asyncio.create_task(service.get("/topics/plain/partitions"))
        await authorizer.began.wait()
        assert (await service.get("/topics"))[0] == 429
        authorizer.may_go_on.set()
        assert (await first)[0] == 200
    assert telemetry.value(READS_SHED, reason="requests") == 1


async def test_one_caller_has_half_of_the_places() -> None:
    """One that may read one topic kept all others out."""
    authorizer = WaitingForOne(users={"greedy": ("g", ALL_TOPICS), "other": ("o", ALL_TOPICS)})
    greedy, other = ({"Authorization": aiohttp.encode_basic_auth(who, who[0])} for who in ("greedy", "other"))
    async with open_service(authorizer=authorizer, settings=ReaderServiceSettings(port=0, max_requests=4)) as service:
        partitions = "/topics/plain/partitions/0/segments"
        held = [asyncio.create_task(service.get(partitions, headers=greedy)) for _ in range(2)]
        await authorizer.both_began.wait()
        assert (await service.get(partitions, headers=greedy))[0] == 429
        assert (await service.get(partitions, headers=other))[0] == 200
        authorizer.may_go_on.set()
        assert [(await one)[0] for one in held] == [200, 200]
        assert (await service.get(partitions, headers=greedy))[0] == 200


class Waiting(ScriptedAuthorizer):
    """Says yes, when it may."""

    def __init__(self) -> None:
        super().__init__(anonymous=ALL_TOPICS)
        self.began, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def may_read(self, credentials: Credentials, topic: str) -> bool:
        self.began.set()
        await self.may_go_on.wait()
        return await super().may_read(credentials, topic)


class WaitingForOne(ScriptedAuthorizer):
    """Says yes to the greedy, of whom there are two, when it may; to others at once."""

    def __init__(self, users: Mapping[str, tuple[str, Collection[str]]]) -> None:
        super().__init__(users=users)
        self.both_began, self.may_go_on = asyncio.Event(), asyncio.Event()
        self._began = 0

    async def may_read(self, credentials: Credentials, topic: str) -> bool:
        if credentials.username == "greedy":
            self._began += 1
            if self._began == 2:
                self.both_began.set()
            await self.may_go_on.wait()
        return await super().may_read(credentials, topic)


class RefusingOneByOne(ScriptedAuthorizer):
    """A broker that takes its time to refuse, one login after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = asyncio.Lock()
        self.logins = 0

    async def may_read(self, credentials: Credentials, topic: str) -> bool:
        async with self._turn:
            self.logins += 1
            await asyncio.sleep(0.01)
        raise CallerNotAuthenticatedError


async def test_a_wrong_password_is_not_tried_once_for_each_topic() -> None:
    """One request for /topics was as many logins at the broker as there are topics, after it had been answered."""
    authorizer = RefusingOneByOne()
    async with open_service(authorizer=authorizer) as service:
        assert (await service.get("/topics"))[0] == 401
        await asyncio.sleep(0.3)
    assert authorizer.logins < len(ALL_TOPICS) // 2
