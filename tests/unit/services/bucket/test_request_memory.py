"""What the requests of clients that are logged in take in memory: one budget, half of it for one user."""

from __future__ import annotations

import asyncio
import gc
import struct
import tracemalloc
from collections.abc import Iterator
from dataclasses import is_dataclass
from itertools import product
from string import ascii_letters
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from tests.support.served_bucket import AUDITOR, NARROW, KafkaTalk, serving
from tests.unit.services.bucket.test_listener import LIST_OFFSETS, METADATA, log_in
from tiersidecar.formats.wire.framing import write_request
from tiersidecar.formats.wire.messages import write_message
from tiersidecar.ports.metrics.bucket import BUCKET_CONNECTIONS_CLOSED
from tiersidecar.services.bucket import connection
from tiersidecar.services.bucket.answers import Asked, items, made
from tiersidecar.services.bucket.apis import Api
from tiersidecar.services.bucket.connection import BucketConnection, ClientLimits
from tiersidecar.services.bucket.listener import BucketListenerSettings
from tiersidecar.services.bucket.memory_budget import Share
from tiersidecar.services.bucket.users import User

ROWS = 3000
FACTOR = 96
NAMES = ["".join(letters) for letters in product(ascii_letters, repeat=3)][:ROWS]


def large() -> bytes:
    """Of some 20 KiB, whose answer is small."""
    topic_type = items(load_request_schema(METADATA, 9), "topics")
    rows = (made(topic_type, name="nobody-has-it"),) * 1500
    request: Any = made(load_request_schema(METADATA, 9), topics=rows)
    return write_request(request, correlation_id=1, client_id=None)


async def logged_in(talk: KafkaTalk, user: Any) -> KafkaTalk:
    assert await log_in(talk, user.name, user.password) is ErrorCode.none
    return talk


def bound(most_bytes: int, timeout_s: float = 30.0) -> BucketListenerSettings:
    limits = ClientLimits(request_timeout_s=timeout_s)
    return BucketListenerSettings(host="127.0.0.1", port=0, request_memory_bytes=most_bytes, limits=limits)


async def is_silent(talk: KafkaTalk) -> bool:
    try:
        async with asyncio.timeout(0.1):
            await talk.reader.readexactly(1)
    except TimeoutError:
        return True
    return False


class Held:
    """Requests that need memory are answered once ``let_go`` is set; ``begun`` counts those that have it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.let_go, self.begun = asyncio.Event(), 0
        answer = BucketConnection._answer

        async def held(connection: BucketConnection, payload: bytes, user: User, room: Share | None) -> None:
            if room is not None:
                self.begun += 1
                await self.let_go.wait()
            await answer(connection, payload, user, room)

        monkeypatch.setattr(BucketConnection, "_answer", held)


async def test_requests_of_one_user_wait_for_one_another_and_not_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each connection could have one of 1 MiB, parsed to seventy times that: of 1000 connections all at once."""
    request, held = large(), Held(monkeypatch)
    async with serving(users=(AUDITOR, NARROW), settings=bound(2 * FACTOR * len(request))) as served:
        first, second, third = [await logged_in(await served.connect(), AUDITOR) for _ in range(3)]
        other = await logged_in(await served.connect(), NARROW)
        first.writer.write(request)
        await asyncio.sleep(0.05)
        second.writer.write(request)
        assert await is_silent(second)
        assert held.begun == 1
        other.writer.write(request)
        await asyncio.sleep(0.05)
        assert held.begun == 2
        assert (await third.ask(METADATA, 9, topics=None)).topics, "a small one needs none"
        held.let_go.set()
        assert all([await talk.frame() for talk in (first, second, other)])
        for talk in (first, second, third, other):
            talk.close()


async def test_a_request_that_finds_no_memory_in_time_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    request, held = large(), Held(monkeypatch)
    async with serving(users=(AUDITOR,), settings=bound(2 * FACTOR * len(request), timeout_s=0.3)) as served:
        talks = [await logged_in(await served.connect(), AUDITOR) for _ in range(8)]
        for talk in talks:
            talk.writer.write(request)
        assert sum([await talk.is_closed() for talk in talks[1:]]) == len(talks) - 1
        assert served.telemetry.by_label(BUCKET_CONNECTIONS_CLOSED, "reason") == {"request_memory": len(talks) - 1}
        held.let_go.set()
        assert await talks[0].frame()
        talks[0].close()


async def test_who_declares_much_and_sends_nothing_holds_up_nobody() -> None:
    """Six such connections of 36 bytes each held all of the memory for half a minute."""
    request = large()
    async with serving(users=(AUDITOR,), settings=bound(2 * FACTOR * len(request))) as served:
        silent = [await logged_in(await served.connect(), AUDITOR) for _ in range(12)]
        for talk in silent:
            talk.writer.write(struct.pack(">ihhi", 1_000_000, METADATA, 9, 1))
        other = await logged_in(await served.connect(), AUDITOR)
        await asyncio.sleep(0.05)
        other.writer.write(request)
        async with asyncio.timeout(5):
            assert await other.frame()
        for talk in (*silent, other):
            talk.close()


async def test_a_request_that_stops_in_its_midst_ends_its_connection_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has arrived of it is held meanwhile: 64 of 512 KiB each held up a user's others for half a minute."""
    monkeypatch.setattr(connection, "_STALLED_S", 0.1)
    async with serving(users=(AUDITOR,), settings=bound(1 << 20)) as served:
        talk = await logged_in(await served.connect(), AUDITOR)
        talk.writer.write(struct.pack(">ihhi", 1_000_000, METADATA, 9, 1) + bytes(100_000))
        async with asyncio.timeout(5):
            assert await talk.is_closed()


async def test_a_request_that_does_not_arrive_in_time_ends_its_connection() -> None:
    """However its pieces come."""
    async with serving(users=(AUDITOR,), settings=bound(1 << 20, timeout_s=0.3)) as served:
        talk = await logged_in(await served.connect(), AUDITOR)
        talk.writer.write(struct.pack(">ihhi", 1_000_000, METADATA, 9, 1))
        for _ in range(12):
            talk.writer.write(bytes(60_000))
            await asyncio.sleep(0.05)
        assert await talk.is_closed()
        assert served.telemetry.by_label(BUCKET_CONNECTIONS_CLOSED, "reason") == {"idle": 1}


def message(api_key: int, version: int, rows: str, row: dict[str, Any], **values: Any) -> tuple[int, int, bytes]:
    """A request of very many equal rows."""
    schema = load_request_schema(api_key, version)
    kind = items(schema, rows)
    one = made(kind, **row) if is_dataclass(kind) else ""
    return api_key, version, bytes(write_message(made(schema, **{rows: (one,) * ROWS}, **values)))


def nested(api_key: int, version: int, rows: str, inner: str, row: dict[str, Any]) -> tuple[int, int, bytes]:
    """A request of one topic with very many equal rows."""
    topic_type = items(load_request_schema(api_key, version), rows)
    parts = (made(items(topic_type, inner), **row),) * ROWS
    request = made(load_request_schema(api_key, version), **{rows: (made(topic_type, **{inner: parts}),)})
    return api_key, version, bytes(write_message(request))


def named(api_key: int, version: int, rows: str, field: str) -> tuple[int, int, bytes]:
    """A request with very many names, all of them different."""
    schema = load_request_schema(api_key, version)
    kind = items(schema, rows)
    names = tuple(NAMES) if not field else tuple(made(kind, **{field: name, "topic_id": None}) for name in NAMES)
    return api_key, version, bytes(write_message(made(schema, **{rows: names})))


def fetch(topics: int, partitions: int) -> tuple[int, int, bytes]:
    """Of version 4, whose rows are the smallest."""
    rows = b"".join(struct.pack(">iqi", number, 0, 1) for number in range(partitions))
    parts = (struct.pack(">h3si", 3, name.encode(), partitions) + rows for name in NAMES[:topics])
    return 1, 4, struct.pack(">iiiibi", -1, 0, 1, 1000, 0, topics) + b"".join(parts)


def worst() -> Iterator[tuple[int, int, bytes]]:
    yield named(METADATA, 1, "topics", "name")
    yield named(METADATA, 12, "topics", "name")
    yield named(10, 6, "coordinator_keys", "")
    yield named(20, 5, "topic_names", "")
    for version in (1, 7):
        yield message(LIST_OFFSETS, version, "topics", {"partitions": ()})
    yield message(23, 4, "topics", {"partitions": ()})
    yield message(8, 8, "topics", {"partitions": ()})
    yield message(21, 2, "topics", {"partitions": ()})
    yield message(0, 9, "topic_data", {"partition_data": ()}, acks=1)
    yield message(19, 7, "topics", {})
    yield message(10, 6, "coordinator_keys", {})
    yield message(20, 5, "topic_names", {})
    yield message(11, 9, "protocols", {})
    yield message(16, 4, "states_filter", {})
    yield nested(LIST_OFFSETS, 1, "topics", "partitions", {})
    yield nested(23, 4, "topics", "partitions", {})
    yield nested(8, 8, "topics", "partitions", {})
    yield nested(21, 2, "topics", "partitions", {})
    yield nested(0, 9, "topic_data", "partition_data", {"records": None})
    yield fetch(ROWS, 1)
    yield fetch(1, ROWS)


@pytest.mark.parametrize(
    ("api_key", "version", "body"), [pytest.param(*one, id=f"{one[0]} {one[1]}") for one in worst()]
)
async def test_no_request_takes_more_than_it_is_charged_for(api_key: int, version: int, body: bytes) -> None:
    async with serving() as served:
        api = served.apis[api_key]
        await taken(api, api_key, version, body)  # types are loaded the first time
        peak_bytes, left_bytes, answer_bytes = await taken(api, api_key, version, body)
        assert peak_bytes < (api.memory_factor - 2) * len(body), "beside the body, and the request that it is a part of"
        if not api.is_kept:
            assert left_bytes < answer_bytes + len(body), "what was parsed is gone while the response is sent"


async def taken(api: Api, api_key: int, version: int, body: bytes) -> tuple[int, int, int]:
    """Memory while it is answered, memory while the response is sent, and the size of that."""
    asked = Asked(api_key=api_key, version=version, correlation_id=1, client_id="", body=body, user=AUDITOR)
    gc.collect()
    tracemalloc.start()
    try:
        async with api.answer(asked) as answer:
            peak_bytes = tracemalloc.get_traced_memory()[1]
            answer_bytes = sum(map(len, answer or ()))
            left_bytes, tries = peak_bytes, 0 if api.is_kept else 100
            while left_bytes > answer_bytes + len(body) and tries:
                tries -= 1
                await asyncio.sleep(0.01)  # the thread that parsed it, if any, lets go of it
                gc.collect()
                left_bytes = tracemalloc.get_traced_memory()[0]
            return peak_bytes, left_bytes, answer_bytes
    finally:
        tracemalloc.stop()
