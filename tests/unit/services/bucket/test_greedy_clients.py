"""Clients that ask for little and cost much: strangers before a login, and users after it."""

from __future__ import annotations

import asyncio
import hashlib
import struct
import uuid
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from tests.support.served_bucket import ALL_MECHANISMS, AUDITOR, KafkaTalk, serving
from tests.unit.services.bucket.test_listener import METADATA, asking
from tiersidecar.formats.wire.framing import write_frame, write_request
from tiersidecar.formats.wire.messages import read_message, write_message
from tiersidecar.reading.reader_limits import ASKER
from tiersidecar.services.bucket.answers import Asked, items, made
from tiersidecar.services.bucket.offsets_api import OffsetsApi
from tiersidecar.services.bucket.places import Places
from tiersidecar.services.bucket.sasl import Mechanisms
from tiersidecar.services.bucket.users import Users

API_VERSIONS = write_frame(struct.pack(">hhi", 18, 0, 1))


def shake(mechanism: str) -> bytes:
    request: Any = made(load_request_schema(17, 1), mechanism=mechanism)
    return write_request(request, correlation_id=1, client_id=None)


@pytest.mark.parametrize(
    "request_bytes", [API_VERSIONS, shake("GSSAPI"), shake("PLAIN")], ids=["versions", "no mechanism", "mechanism"]
)
async def test_a_stranger_that_asks_on_and_on_without_a_login_is_cut_off(request_bytes: bytes) -> None:
    async with serving(users=(AUDITOR,)) as served:
        talk = await served.connect()
        talk.writer.write(request_bytes * 200)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await _take(talk, 50)


async def _take(talk: KafkaTalk, responses: int) -> None:
    for _ in range(responses):
        await talk.frame()


async def test_requests_in_one_piece_are_answered_in_turn_with_those_of_others() -> None:
    async with serving() as served:
        crowd, other = await served.connect(), await served.connect()
        request: Any = made(load_request_schema(0, 9), acks=0)
        silent = write_request(request, correlation_id=1, client_id=None)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        crowd.writer.write(silent * 2000 + API_VERSIONS)
        await crowd.frame()
        counting.cancel()
        assert turns > 1000
        crowd.close()
        other.close()


def test_scram_derives_all_keys_before_the_first_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """A login of a name that exists would take some milliseconds longer the first time, which tells that it does."""
    mechanisms = Mechanisms(Users([AUDITOR]), ALL_MECHANISMS)
    monkeypatch.delattr(hashlib, "pbkdf2_hmac")
    for name in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        login = mechanisms.begin(name)
        assert login is not None
        assert login.step(b"n,,n=auditor,r=abc").user is None


async def test_a_topic_that_is_named_many_times_is_told_once() -> None:
    async with serving() as served:
        talk = await served.connect()
        topic_type = items(load_request_schema(METADATA, 12), "topics")
        topic_id = served.picture.topic("plain")[0].topic_id
        by_id = made(topic_type, name=None, topic_id=uuid.UUID(bytes=bytes(topic_id)))
        named = made(topic_type, name="plain", topic_id=None)
        answer = await talk.ask(METADATA, 12, topics=(named,) * 500 + (by_id,) * 500)
        assert [one.name for one in answer.topics] == ["plain"]
        talk.close()


async def test_a_fetch_that_wants_nothing_does_not_wait() -> None:
    async with serving() as served:
        talk = await served.connect()
        at_end = asking(11, "plain", 0, 245, max_wait_ms=4000)
        assert (await _immediate(talk, at_end)) is not None  # write_single_fetch has min_bytes 0
        empty = struct.pack(">hhih", 1, 11, 7, -1) + struct.pack(">iiiibii", -1, 4000, 1, 1000, 0, 0, -1)
        assert (await _immediate(talk, write_frame(empty + struct.pack(">iih", 0, 0, 0)))) is not None
        talk.close()


async def _immediate(talk: KafkaTalk, request: bytes) -> bytes:
    talk.writer.write(request)
    async with asyncio.timeout(2):
        return await talk.frame()


async def test_other_clients_are_served_while_one_names_thousands_of_partitions() -> None:
    async with serving() as served:
        talk = await served.connect()
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        topic_type = items(load_request_schema(2, 7), "topics")
        row_type = items(topic_type, "partitions")
        rows = tuple(made(row_type, partition_index=number, timestamp=-1) for number in range(1000, 3000))
        request: Any = made(load_request_schema(2, 7), topics=(made(topic_type, name="plain", partitions=rows),))
        frame = write_request(request, correlation_id=1, client_id=None)
        counting = asyncio.create_task(count())
        talk.writer.write(frame)
        await talk.frame()
        counting.cancel()
        assert turns > 10
        talk.close()


async def test_list_offsets_reads_as_its_user_and_each_partition_once() -> None:
    async with serving() as served:
        api = OffsetsApi(Places(served.picture), served.path, served.lineages)
        topic_type = items(load_request_schema(2, 7), "topics")
        row_type = items(topic_type, "partitions")
        rows = [made(row_type, partition_index=number, timestamp=1_700_000_000_000) for number in (0, 1, 1)]
        request: Any = made(load_request_schema(2, 7), topics=(made(topic_type, name="plain", partitions=tuple(rows)),))
        body = write_message(request)
        asked = Asked(api_key=2, version=7, correlation_id=1, client_id="c", body=body, user=AUDITOR)
        answer, _ = read_message(asked.response_type, bytes((await api.list_offsets(asked))[0]))
        told = [partition.error_code for partition in answer.topics[0].partitions]
        assert told == [ErrorCode.none, ErrorCode.invalid_request, ErrorCode.invalid_request]
        assert ASKER.get() == "user auditor"
