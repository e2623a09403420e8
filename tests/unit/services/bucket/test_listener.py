"""The read-only listener over real sockets: what it answers, what it refuses, and what strangers get (issue 21)."""

from __future__ import annotations

import asyncio
import struct
import uuid
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from tests.support.served_bucket import AUDITOR, NARROW, KafkaTalk, serving
from tiersidecar.formats.wire.fetch import FetchResponse, read_fetch_response, write_single_fetch
from tiersidecar.formats.wire.framing import write_frame, write_request
from tiersidecar.ports.metrics.bucket import BUCKET_LOGINS
from tiersidecar.ports.store import BytesBody
from tiersidecar.services.bucket.answers import items, made
from tiersidecar.services.bucket.apis import BEFORE_LOGIN, api_table, api_versions_body
from tiersidecar.services.bucket.connection import ClientLimits
from tiersidecar.services.bucket.listener import BucketListenerSettings
from tiersidecar.services.bucket.refusals import NO_GROUPS, READ_ONLY
from tiersidecar.services.failed_logins import Budget, FailedLoginLimits, FailedLogins

FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = 1, 2, 3, 18
QUICK = ClientLimits(failed_login_delay_s=0.0)


def asking(version: int, topic: Any, partition: int, offset: int, **others: Any) -> bytes:
    """A Fetch request's frame."""
    values = {"max_wait_ms": 0, "max_bytes": 1 << 20, "read_committed": False, **others}
    body = write_single_fetch(version, (topic, partition), offset, **values)
    header = struct.pack(">hhih", FETCH, version, 7, 4) + b"talk" + (b"\0" if version >= 12 else b"")
    return write_frame(header + body)


async def fetched(talk: KafkaTalk, version: int, *arguments: Any, **others: Any) -> FetchResponse:
    talk.writer.write(asking(version, *arguments, **others))
    answer = await talk.frame()
    return read_fetch_response(memoryview(answer)[5 if version >= 12 else 4 :], version)


async def log_in(talk: KafkaTalk, name: str, password: str) -> ErrorCode:
    """By PLAIN; gives how it was answered."""
    assert (await talk.ask(17, 1, mechanism="PLAIN")).error_code is ErrorCode.none
    answer = await talk.ask(36, 2, auth_bytes=f"\0{name}\0{password}".encode())
    error: ErrorCode = answer.error_code
    return error


async def test_every_version_that_is_offered_is_answered() -> None:
    async with serving() as served:
        topic_id = served.picture.topic("plain")[0].topic_id
        talk = await served.connect()
        offered = {key.api_key: key for key in (await talk.ask(API_VERSIONS, 3)).api_keys}
        for version in range(offered[METADATA].min_version, offered[METADATA].max_version + 1):
            known = await talk.ask(METADATA, version, **({"topics": None} if version else {}))
            assert [one.name for one in known.topics] == list(served.picture.topics())
        for version in range(offered[LIST_OFFSETS].min_version, offered[LIST_OFFSETS].max_version + 1):
            topic_type = items(load_request_schema(LIST_OFFSETS, version), "topics")
            row = made(items(topic_type, "partitions"), partition_index=1, timestamp=-1)
            answer = await talk.ask(LIST_OFFSETS, version, topics=(made(topic_type, name="plain", partitions=(row,)),))
            assert answer.topics[0].partitions[0].offset == 196
        for version in range(offered[FETCH].min_version, offered[FETCH].max_version + 1):
            topic = "plain" if version < 13 else topic_id
            (row,) = (await fetched(talk, version, topic, 0, 100)).partitions
            assert (row.error_code, row.high_watermark) == (0, 245)
            assert row.records_bytes > 1000
        for version in range(offered[23].min_version, offered[23].max_version + 1):
            topic_type = items(load_request_schema(23, version), "topics")
            row = made(items(topic_type, "partitions"), partition=0, leader_epoch=0)
            answer = await talk.ask(23, version, topics=(made(topic_type, topic="plain", partitions=(row,)),))
            assert answer.topics[0].partitions[0].error_code is ErrorCode.none
        talk.close()


async def test_an_api_versions_of_the_future_is_answered_with_what_there_is() -> None:
    async with serving() as served:
        talk = await served.connect()
        talk.writer.write(write_frame(struct.pack(">hhi", API_VERSIONS, 99, 7) + b"whatever may come"))
        answer = await talk.frame()
        assert answer[4:] == b"".join(api_versions_body(_offered(), 99))
        assert struct.unpack_from(">ih", answer) == (7, ErrorCode.unsupported_version.value)
        assert (await talk.ask(API_VERSIONS, 3)).error_code is ErrorCode.none
        talk.close()


def _offered() -> dict[int, range]:
    apis = api_table(*[_Anything()] * 3)  # type: ignore[arg-type]
    return {**{key: api.versions for key, api in apis.items()}, **BEFORE_LOGIN}


class _Anything:
    def __getattr__(self, name: str) -> Any:
        return None


REFUSALS = {
    "Produce": (0, {"acks": 1}, "topic_data", "partition_data", ErrorCode.topic_authorization_failed, READ_ONLY),
    "OffsetCommit": (8, {}, "topics", "partitions", ErrorCode.group_authorization_failed, None),
    "DeleteRecords": (21, {}, "topics", "partitions", ErrorCode.topic_authorization_failed, None),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_writes_are_refused_row_by_row(name: str) -> None:
    key, values, outer, inner, error, message = REFUSALS[name]
    async with serving() as served:
        talk = await served.connect()
        offered = {one.api_key: one for one in (await talk.ask(API_VERSIONS, 3)).api_keys}[key]
        for version in range(offered.min_version, offered.max_version + 1):
            topic_type = items(load_request_schema(key, version), outer)
            rows = tuple(made(items(topic_type, inner), index=one, partition_index=one) for one in (0, 1))
            topic = made(topic_type, **{"name": "plain", "topic_id": uuid.UUID(int=5), inner: rows})
            answer = await talk.ask(key, version, **values, **{outer: (topic,)})
            (answered,) = answer.responses if key == 0 else answer.topics
            rows = answered.partition_responses if key == 0 else answered.partitions
            assert [row.error_code for row in rows] == [error, error]
            if message is not None and hasattr(rows[0], "error_message"):
                assert rows[0].error_message == message
        talk.close()


async def test_groups_topics_and_producer_ids_are_refused() -> None:
    async with serving() as served:
        talk = await served.connect()
        for version in range(7):
            told = await talk.ask(10, version, key="group", coordinator_keys=("group",))
            told = told.coordinators[0] if version >= 4 else told
            assert told.error_code is ErrorCode.group_authorization_failed
            assert getattr(told, "error_message", NO_GROUPS) == NO_GROUPS
        for version in range(10):
            assert (await talk.ask(11, version, group_id="g")).error_code is ErrorCode.group_authorization_failed
        for version in range(6):
            assert (await talk.ask(16, version)).error_code is ErrorCode.group_authorization_failed
        for version in range(7):
            assert (await talk.ask(22, version)).error_code is ErrorCode.cluster_authorization_failed
        for version in range(2, 8):
            topic_type = items(load_request_schema(19, version), "topics")
            answer = await talk.ask(19, version, topics=(made(topic_type, name="new"),))
            assert answer.topics[0].error_code is ErrorCode.topic_authorization_failed
            assert answer.topics[0].error_message == READ_ONLY
        for version in range(1, 7):
            named: dict[str, object] = {"topic_names": ("plain",)}
            if version == 6:
                named = {"topics": (made(items(load_request_schema(20, 6), "topics"), name="plain"),)}
            (row,) = (await talk.ask(20, version, **named)).responses
            assert (row.name, row.error_code) == ("plain", ErrorCode.topic_authorization_failed)
        talk.close()


async def test_a_produce_that_wants_no_answer_gets_none() -> None:
    async with serving() as served:
        talk = await served.connect()
        request: Any = made(load_request_schema(0, 9), acks=0)
        talk.writer.write(write_request(request, correlation_id=1, client_id=None))
        assert (await talk.ask(API_VERSIONS, 3)).error_code is ErrorCode.none
        talk.close()


@pytest.mark.parametrize(
    ("topic", "partition", "offset", "error"),
    [
        pytest.param("deleted-prefix", 0, 39, ErrorCode.offset_out_of_range, id="below the first segment"),
        pytest.param("plain", 0, 246, ErrorCode.offset_out_of_range, id="past the end"),
        pytest.param("plain", 0, 245, ErrorCode.none, id="at the end"),
        pytest.param("plain", 7, 0, ErrorCode.unknown_topic_or_partition, id="no such partition"),
        pytest.param("nothing", 0, 0, ErrorCode.unknown_topic_or_partition, id="no such topic"),
    ],
)
async def test_fetches_without_records(topic: str, partition: int, offset: int, error: ErrorCode) -> None:
    async with serving() as served:
        talk = await served.connect()
        (row,) = (await fetched(talk, 11, topic, partition, offset)).partitions
        assert (row.error_code, row.records_bytes) == (error.value, 0)
        talk.close()


async def test_the_first_batch_comes_whatever_its_size() -> None:
    async with serving() as served:
        talk = await served.connect()
        (row,) = (await fetched(talk, 11, "plain", 0, 0, max_bytes=1)).partitions
        assert row.records_bytes > 1
        talk.close()


async def test_a_reader_at_the_end_is_answered_when_the_bucket_grows() -> None:
    async with serving() as served:
        last = [one.key async for one in served.run.store.list_objects("transactions-") if "/0/" in one.key][-3:]
        later = {key: await served.run.store.fetch_object(key, max_bytes=2**30) for key in last}
        await served.run.store.delete_objects(last)
        await served.follower.look()
        talk = await served.connect()
        request = bytearray(asking(11, "transactions", 0, 133, max_wait_ms=5000))
        struct.pack_into(">i", request, 26, 1)  # min_bytes: with 0 it would not wait
        talk.writer.write(request)
        waiting = asyncio.create_task(talk.frame())
        assert (await fetched(await served.connect(), 11, "transactions", 0, 0)).records_bytes > 0
        assert not waiting.done()
        for key, data in later.items():
            await served.run.store.put_object(key, BytesBody(data))
        await served.follower.look()
        (row,) = read_fetch_response(memoryview(await waiting)[4:], 11).partitions
        assert row.high_watermark == 180
        assert row.records_bytes > 0


async def test_users_see_the_topics_that_they_may_read() -> None:
    async with serving(users=(AUDITOR, NARROW)) as served:
        talk = await served.connect()
        assert await log_in(talk, "narrow", "narrow-password") is ErrorCode.none
        known = await talk.ask(METADATA, 9, topics=None)
        assert [one.name for one in known.topics] == ["plain", "plain1m"]
        for topic in ("transactions", "nothing"):
            (row,) = (await fetched(talk, 11, topic, 0, 0)).partitions
            assert row.error_code == ErrorCode.topic_authorization_failed.value
        hidden = served.picture.topic("transactions")[0].topic_id
        (row,) = (await fetched(talk, 13, hidden, 0, 0)).partitions
        assert row.error_code == ErrorCode.unknown_topic_id.value
        talk.close()


# -- strangers


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(struct.pack(">i", 65_537) + b"x" * 100, id="a request of more than 64 KiB"),
        pytest.param(struct.pack(">i", -5), id="a negative size"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="HTTP"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 64, id="TLS"),
        pytest.param(write_frame(struct.pack(">hhih", 3, 9, 1, -1) + b"\0\1\0\0\0\0"), id="Metadata before a login"),
        pytest.param(
            write_frame(struct.pack(">hhih", 17, 0, 1, -1) + b"\0\5PLAIN"), id="a handshake before bare tokens"
        ),
        pytest.param(write_frame(struct.pack(">hhi", 999, 0, 1)), id="an API that nobody knows"),
        pytest.param(write_frame(struct.pack(">hhih", 36, 2, 1, 30_000)), id="a client id longer than the request"),
        pytest.param(write_frame(b"\0" * 8), id="Produce of version 0, empty"),
    ],
)
async def test_strangers_are_cut_off(sent: bytes) -> None:
    async with serving(users=(AUDITOR,)) as served:
        talk = await served.connect()
        talk.writer.write(sent)
        assert await talk.is_closed()
        friend = await served.connect()
        assert await log_in(friend, "auditor", "auditor-password") is ErrorCode.none
        friend.close()


async def test_a_token_without_a_handshake_is_refused() -> None:
    async with serving(users=(AUDITOR,)) as served:
        talk = await served.connect()
        assert (await talk.ask(36, 2, auth_bytes=b"x")).error_code is ErrorCode.illegal_sasl_state
        assert await talk.is_closed()


async def test_a_token_that_claims_4_gib_is_malformed() -> None:
    async with serving(users=(AUDITOR,)) as served:
        talk = await served.connect()
        assert (await talk.ask(17, 1, mechanism="PLAIN")).error_code is ErrorCode.none
        talk.writer.write(write_frame(struct.pack(">hhihb", 36, 2, 1, -1, 0) + b"\xff\xff\xff\xff\x0f"))
        assert await talk.is_closed()


async def test_a_wrong_password_ends_the_connection() -> None:
    settings = BucketListenerSettings(host="127.0.0.1", port=0, limits=QUICK)
    async with serving(users=(AUDITOR,), settings=settings) as served:
        talk = await served.connect()
        assert await log_in(talk, "auditor", "wrong") is ErrorCode.sasl_authentication_failed
        assert await talk.is_closed()


class Held(FailedLogins):
    """Tells whose outcomes it is asked to hold back, and of the users in ``slowed`` never gives them."""

    def __init__(self, *, slowed: str = "") -> None:
        super().__init__()
        self.settled: list[tuple[str, bool]] = []
        self._slowed = slowed

    async def settle(self, address: str, user: str, *, is_right: bool, connection: object = None) -> None:
        assert (address, connection) == ("127.0.0.1", None)
        self.settled.append((user, is_right))
        if user == self._slowed:
            await asyncio.Event().wait()


@pytest.mark.parametrize("name", ["auditor", "nobody"])
async def test_guesses_have_a_budget(name: str) -> None:
    """Each took half a second, and a right one came at once: who did not wait so long could try as many as connect."""
    settings = BucketListenerSettings(host="127.0.0.1", port=0, limits=QUICK)
    held = Held(slowed=name)
    async with serving(users=(AUDITOR, NARROW), settings=settings, failed_logins=held) as served:
        guesses = [await served.connect() for _ in range(2)]
        for talk, password in zip(guesses, ("wrong", "auditor-password"), strict=True):
            assert (await talk.ask(17, 1, mechanism="PLAIN")).error_code is ErrorCode.none
            request: Any = made(load_request_schema(36, 2), auth_bytes=f"\0{name}\0{password}".encode())
            talk.writer.write(write_request(request, correlation_id=1, client_id=None))
        other = await served.connect()
        assert await log_in(other, "narrow", "narrow-password") is ErrorCode.none
        assert held.settled == [(name, False), (name, name == "auditor"), ("narrow", True)]
        for talk in guesses:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await talk.frame()
        assert served.telemetry.by_label(BUCKET_LOGINS, "outcome") == {"accepted": 1}, "metrics tell no more"
        for talk in (*guesses, other):
            talk.close()


async def test_where_too_many_outcomes_are_held_back_the_connection_ends_without_one() -> None:
    settings = BucketListenerSettings(host="127.0.0.1", port=0, limits=QUICK)
    none = FailedLogins(limits=FailedLoginLimits(by_address=Budget(free=0, forgotten_s=1000.0), held_back=1))
    async with serving(users=(AUDITOR,), settings=settings, failed_logins=none) as served:
        talks = [await served.connect() for _ in range(2)]
        for talk in talks:
            assert (await talk.ask(17, 1, mechanism="PLAIN")).error_code is ErrorCode.none
            request: Any = made(load_request_schema(36, 2), auth_bytes=b"\0auditor\0auditor-password")
            talk.writer.write(write_request(request, correlation_id=1, client_id=None))
        assert await talks[1].is_closed()
        assert await talks[0].frame()
        talks[0].close()


async def test_who_does_not_log_in_has_little_time() -> None:
    limits = ClientLimits(login_timeout_s=0.05)
    settings = BucketListenerSettings(host="127.0.0.1", port=0, limits=limits)
    async with serving(users=(AUDITOR,), settings=settings) as served:
        talk = await served.connect()
        assert await talk.is_closed()


async def test_a_crowd_of_strangers_costs_no_login_its_connection() -> None:
    settings = BucketListenerSettings(host="127.0.0.1", port=0, max_connections_before_login=3)
    async with serving(users=(AUDITOR,), settings=settings) as served:
        friend = await served.connect()
        assert await log_in(friend, "auditor", "auditor-password") is ErrorCode.none
        strangers = [await served.connect() for _ in range(6)]
        assert await strangers[0].is_closed()
        assert (await friend.ask(METADATA, 9, topics=None)).topics
        late = await served.connect()
        assert await log_in(late, "auditor", "auditor-password") is ErrorCode.none
        for one in (friend, late, *strangers):
            one.close()


async def test_one_user_has_half_of_the_connections() -> None:
    settings = BucketListenerSettings(host="127.0.0.1", port=0, max_connections=4)
    async with serving(users=(AUDITOR, NARROW), settings=settings) as served:
        talks = [await served.connect() for _ in range(3)]
        for talk in talks[:2]:
            assert await log_in(talk, "auditor", "auditor-password") is ErrorCode.none
        assert (await talks[2].ask(17, 1, mechanism="PLAIN")).error_code is ErrorCode.none
        request: Any = made(load_request_schema(36, 2), auth_bytes=b"\0auditor\0auditor-password")
        talks[2].writer.write(write_request(request, correlation_id=1, client_id=None))
        assert await talks[2].is_closed()
        other = await served.connect()
        assert await log_in(other, "narrow", "narrow-password") is ErrorCode.none
        for one in (*talks, other):
            one.close()


async def test_without_users_a_login_is_refused_and_needless() -> None:
    async with serving() as served:
        talk = await served.connect()
        assert (await talk.ask(17, 1, mechanism="PLAIN")).error_code is ErrorCode.illegal_sasl_state
        assert (await talk.ask(METADATA, 9, topics=None)).topics
        talk.close()
