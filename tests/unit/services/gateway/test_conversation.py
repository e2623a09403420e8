"""Answers are bound to questions: by ids of the gateway's own, by their order, and by what was asked (issue 17)."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.gateway_attacker import CORRELATION_ID, delete_frame, fetch_frame
from tests.support.gateway_conversations import FillsAll, frame, handshake, rewrites_over, token_frame, with_size
from tests.support.gateway_core import Core
from tests.support.model_broker import DELETE_RECORDS, HEARTBEAT, METADATA, OWN, ModelBroker, delete_row
from tests.support.scripted_kafka import ADVERTISED
from tiersidecar.domain.ids import Uuid
from tiersidecar.services.gateway.host import Refusal
from tiersidecar.services.gateway.rewrites import ApiVersionsRewrite, frame_rewrites

FORMER, LATTER = Uuid(b"f" * 16), Uuid(b"l" * 16)


def opened(*, raw_tokens: bool = False) -> Core:
    return Core(rewrites_over(FillsAll(), raw_tokens=raw_tokens))


def wire_id(core: Core) -> bytes:
    """Of the last request at the broker, which is taken."""
    return core.broker.take()[8:12]


def test_a_request_whose_answer_is_read_goes_under_another_id_each_time() -> None:
    seen = set()
    for _ in range(20):
        core = opened()
        core.conversation.from_client(fetch_frame(OWN))
        seen.add(wire_id(core))
    assert len(seen) == 20
    assert struct.pack(">i", CORRELATION_ID) not in seen


def test_an_answer_to_the_client_s_own_id_is_not_one_to_the_request() -> None:
    core = opened()
    core.conversation.from_client(fetch_frame(OWN))
    core.conversation.from_broker(with_size(struct.pack(">i", CORRELATION_ID) + bytes(14)))
    assert core.refusal is Refusal.UNBOUND
    assert core.client.take() == b""


@pytest.mark.parametrize("request_frame", [frame(HEARTBEAT), frame(METADATA), fetch_frame(OWN), delete_frame(OWN, 1)])
def test_between_requests_none_is_unfinished_however_the_last_one_came(request_frame: bytes) -> None:
    """Or an idle connection would be cut off, as one whose request does not arrive."""
    core = opened()
    for number in range(len(request_frame)):
        core.conversation.from_client(request_frame[number : number + 1])
        is_whole = number == len(request_frame) - 1
        assert (core.conversation.unfinished_request[1] == 0) is is_whole
    assert core.conversation.kept_bytes == 0


def test_the_client_s_id_is_put_back() -> None:
    core = opened()
    core.conversation.from_client(frame(METADATA))
    core.conversation.from_broker(with_size(wire_id(core) + struct.pack(">iii", 0, 1, 0)))
    assert core.client.take() == with_size(struct.pack(">iiii", CORRELATION_ID, 0, 1, 0))


def test_the_principal_is_the_one_that_the_broker_let_in() -> None:
    core, broker = opened(), ModelBroker()
    for step in (handshake("PLAIN", 1), token_frame(b"\0mallory\0mallory-secret", 1)):
        assert core.state.login.principal == "User:ANONYMOUS"
        core.conversation.from_client(step)
        core.conversation.from_broker(broker.feed(core.broker.take()))
    assert core.state.login.principal == "User:mallory"


@pytest.mark.parametrize("is_first", [True, False], ids=["of a first login", "of another one"])
async def test_amid_a_sasl_exchange_nothing_but_tokens_is_read(is_first: bool) -> None:
    """Else who has no password has requests decoded that the broker would answer by ending the connection."""
    core, broker = opened(), ModelBroker(renews=True)
    login = [handshake("PLAIN", 1), token_frame(b"\0mallory\0mallory-secret", 1)]
    for step in (*(() if is_first else login), handshake("PLAIN", 1)):
        broker.tick()
        core.conversation.from_client(step)
        core.conversation.from_broker(broker.feed(core.broker.take()))
    assert not core.has_ended
    core.conversation.from_client(delete_frame(OWN, 150))
    assert (core.refusal, core.broker.take()) == (Refusal.MALFORMED, b"")


def test_nothing_is_judged_while_a_handshake_has_no_answer() -> None:
    """Whatever it may turn out to be by then."""
    core = opened(raw_tokens=True)
    core.conversation.from_client(handshake("PLAIN", 0) + with_size(b"\0mallory\0mallory-secret") + frame(HEARTBEAT))
    assert not core.conversation.wants_request_bytes
    broker = ModelBroker()
    for _ in range(3):
        core.conversation.from_broker(broker.feed(core.broker.take()))
    assert core.refusal is None
    assert len(broker.answers) == 3


def test_a_token_without_an_answer_is_told_by_the_id_of_the_next_answer() -> None:
    core, broker = opened(raw_tokens=True), ModelBroker()
    for step in (handshake("GSSAPI", 0), with_size(b"\x60a"), with_size(b"\x05\x04b")):
        core.conversation.from_client(step)
        core.conversation.from_broker(broker.feed(core.broker.take()))
    core.client.take()
    core.conversation.from_client(with_size(b"\x05\x04c") + frame(HEARTBEAT))
    core.conversation.from_broker(broker.feed(core.broker.take()))
    assert core.refusal is None
    assert core.client.take() == with_size(struct.pack(">ih", CORRELATION_ID, 0))


async def test_a_delete_of_one_partition_twice_does_not_reach_the_broker() -> None:
    core, twice = opened(), delete_frame(OWN, 150)
    body_at = len(twice) - 4 - 4 - 12 - 2 - len(OWN) - 4
    topic = twice[body_at + 4 : -4]
    doubled = twice[4:body_at] + struct.pack(">i", 2) + topic * 2 + twice[-4:]
    core.conversation.from_client(with_size(doubled))
    assert (core.refusal, core.broker.take()) == (Refusal.MALFORMED, b"")


async def answered(core: Core, broker: ModelBroker) -> None:
    """What the gateway has asked, which may have it ask once more."""
    core.conversation.from_broker(bytearray(broker.feed(core.broker.take())))
    await core.settled()


async def test_a_delete_is_audited_with_principal_and_address() -> None:
    core, broker = opened(), ModelBroker()
    with capture_logs() as events:
        for step in (handshake("PLAIN", 1), token_frame(b"\0mallory\0mallory-secret", 1), delete_frame(OWN, 150)):
            core.conversation.from_client(step)
            await answered(core, broker)
        await answered(core, broker)
    (event,) = [one for one in events if one["event"] == "gateway.audit.delete"]
    about = {"principal": "User:mallory", "client": "127.0.0.1:1", "client_id": "attacker"}
    what = {"topic": OWN, "partition": 0, "offset": 150, "outcome": "none"}
    assert (about | what).items() <= event.items()


async def test_an_answer_that_is_none_is_not_held_against_the_client() -> None:
    core = Core(rewrites_over(FillsAll(), raw_tokens=False))
    core.conversation.from_client(delete_frame(OWN, 150))
    core.conversation.from_broker(with_size(wire_id(core) + b"\x00\x00\x00\x00\x00\x00\x00\x09"))
    await core.idle()
    assert core.refusal is Refusal.UNBOUND


async def test_a_delete_that_was_not_asked_for_ends_the_conversation() -> None:
    tier = FillsAll()
    core = Core(rewrites_over(tier, raw_tokens=False))
    core.conversation.from_client(delete_frame(OWN, 150))
    answer = struct.pack(">ii", 0, 1) + delete_row("secret", 0, 150, 0)
    core.conversation.from_broker(with_size(wire_id(core) + answer))
    await core.idle()
    assert core.refusal is Refusal.UNBOUND
    assert not tier.state.partition_states
    assert DELETE_RECORDS in rewrites_over(tier, raw_tokens=False)


@pytest.mark.parametrize(
    ("told", "expected"), [(LATTER, {"anew": LATTER}), (FORMER, {})], ids=["another id", "the one that is known"]
)
def test_another_id_than_the_known_one_is_remembered_for_this_client(told: Uuid, expected: dict[str, Uuid]) -> None:
    rewrites = frame_rewrites(ADVERTISED, topic_id=lambda name: FORMER)
    rewrites[18] = ApiVersionsRewrite(rewrites)
    core = Core(rewrites)
    core.conversation.from_client(with_size(struct.pack(">hhih", METADATA, 12, 1, 0) + b"\0\0\0\0\0"))
    brokers = b"\2" + struct.pack(">i", 1) + b"\2h" + struct.pack(">i", 9092) + b"\0\0"
    row = b"\2" + struct.pack(">hiii", 0, 0, 1, 5) + (b"\2" + struct.pack(">i", 1)) * 2 + b"\1\0"
    topic = struct.pack(">h", 0) + b"\5anew" + told + b"\0" + row + struct.pack(">i", -1) + b"\0"
    body = b"\0" + bytes(4) + brokers + b"\0" + struct.pack(">i", 1) + b"\2" + topic + b"\0"
    core.conversation.from_broker(with_size(wire_id(core) + body))
    assert core.refusal is None, core.error
    assert core.state.asker.topic_ids == expected


HELD = pytest.mark.parametrize("request_frame", [fetch_frame(OWN), delete_frame(OWN, 1)], ids=["fetch", "delete"])


@HELD
def test_nothing_is_asked_for_a_client_that_does_not_take_its_answers(request_frame: bytes) -> None:
    """Rule 7: the answer would lie unread, and be acted upon whenever the client likes, whatever has been revoked by then."""
    core = opened()
    core.client.is_full = True
    core.conversation.from_client(request_frame)
    assert core.broker.take() == b""
    assert not core.conversation.wants_request_bytes
    assert core.conversation.unfinished_request[1] == 0
    core.client.is_full = False
    core.conversation.taken()
    assert core.broker.take()


@HELD
def test_an_answer_that_is_acted_upon_never_stands_behind_others(request_frame: bytes) -> None:
    core, broker = opened(), ModelBroker(sasl=False)
    core.conversation.from_client(frame(METADATA) + frame(HEARTBEAT) + request_frame)
    first = core.broker.take()
    answers = broker.feed(first)
    core.conversation.from_broker(answers[:-1])
    assert core.broker.take() == b""
    core.client.is_full = True
    core.conversation.from_broker(answers[-1:])
    assert core.broker.take() == b""
    core.client.is_full = False
    core.conversation.taken()
    assert core.broker.take()


@pytest.mark.parametrize("gone", ["before the answer", "before it is acted upon", "after it"])
async def test_a_delete_of_a_client_that_goes_away_is_audited(gone: str) -> None:
    """The broker may have deleted, so an event says so: exactly one."""
    core, broker = opened(), ModelBroker(sasl=False)
    with capture_logs() as events:
        core.conversation.from_client(delete_frame(OWN, 150))
        await answered(core, broker)
        answer = broker.feed(core.broker.take())
        assert broker.accepted_deletes == [(OWN, 150)]
        if gone != "before the answer":
            core.conversation.from_broker(bytearray(answer))
        if gone == "after it":
            await core.idle()
        core.close()
        await core.idle()
    (event,) = [one for one in events if one["event"] == "gateway.audit.delete"]
    assert (event["topic"], event["offset"]) == (OWN, 150)
    assert event["outcome"] == ("none" if gone == "after it" else "unknown")


def named_delete_frame(client_id: bytes) -> bytes:
    head = struct.pack(">hhih", DELETE_RECORDS, 1, CORRELATION_ID, len(client_id)) + client_id
    topics = struct.pack(">ih", 1, len(OWN)) + OWN.encode() + struct.pack(">iiq", 1, 0, 150)
    return with_size(head + topics + struct.pack(">i", 10_000))


@pytest.mark.parametrize(
    ("client_id", "sent"),
    [
        pytest.param(b"its own", b"its own", id="by which the broker counts what it asks for"),
        pytest.param(b"\xff" * 12_000, "\ufffd".encode() * (32767 // 3) + b"\xef", id="cut, where it is no text"),
    ],
)
async def test_what_is_asked_once_more_has_the_client_s_own_id(client_id: bytes, sent: bytes) -> None:
    core, broker = opened(), ModelBroker(sasl=False)
    core.conversation.from_client(named_delete_frame(client_id))
    await answered(core, broker)
    second = core.broker.take()
    assert core.refusal is None
    assert second[14 : 14 + len(sent)] == sent


async def test_a_client_that_goes_away_before_the_second_step_has_deleted_nothing() -> None:
    core, broker = opened(), ModelBroker(sasl=False)
    with capture_logs() as events:
        core.conversation.from_client(delete_frame(OWN, 150))
        core.client.has_hung_up = True
        await answered(core, broker)
    assert (core.refusal, broker.accepted_deletes, core.broker.take()) == (Refusal.BROKER_GONE, [], b"")
    assert [event for event in events if event["event"] == "gateway.audit.delete"] == []


def large_delete_frame(topic: str, partitions: int) -> bytes:
    """DeleteRecords version 1, of each partition up to its number."""
    name = topic.encode()
    head = struct.pack(">hhih", DELETE_RECORDS, 1, CORRELATION_ID, -1)
    rows = b"".join(struct.pack(">iq", one, one) for one in range(partitions))
    topics = struct.pack(">ih", 1, len(name)) + name + struct.pack(">i", partitions) + rows
    return with_size(head + topics + struct.pack(">i", 10_000))


async def test_many_deletes_of_a_client_that_goes_away_are_one_event() -> None:
    """16 KiB from a client without any right were 1,300 events: 0.4 MB of log, the loop for a while, and much of what waits for
    the audit topic."""
    core = opened()
    with capture_logs() as events:
        core.conversation.from_client(large_delete_frame("not-tiered", 1000))
        assert core.broker.take()
        core.close()
    (event,) = [one for one in events if one["event"] == "gateway.audit.delete"]
    assert event["deletes"] == {"not-tiered": [(one, one) for one in range(1000)]}
    assert event["outcome"] == "unknown"
    assert event["principal"] == "User:ANONYMOUS"


async def test_a_delete_of_no_partition_of_a_topic_ends_the_conversation() -> None:
    core = opened()
    core.conversation.from_client(large_delete_frame("secret", 0))
    assert core.broker.take() == b""
    assert core.refusal is Refusal.MALFORMED


async def test_what_the_broker_has_refused_is_no_delete_whenever_its_client_goes() -> None:
    core, broker = opened(), ModelBroker(sasl=False)
    with capture_logs() as events:
        core.conversation.from_client(delete_frame("secret", 150))
        core.conversation.from_broker(bytearray(broker.feed(core.broker.take())))
        await core.idle()
        core.close()
    assert [event for event in events if event["event"] == "gateway.audit.delete"] == []


@pytest.mark.parametrize(("late_s", "outcome"), [(15.0, "none"), (100.0, "request_timed_out")])
async def test_an_answer_that_was_read_long_after_its_request_deletes_nothing_remotely(
    late_s: float, outcome: str
) -> None:
    tier = FillsAll()
    rewrites: Any = rewrites_over(tier, raw_tokens=False)
    core, broker = Core(rewrites), ModelBroker(sasl=False)
    with capture_logs() as events:
        core.conversation.from_client(delete_frame(OWN, 150))
        await answered(core, broker)
        await rewrites[DELETE_RECORDS]._clock.advance(late_s)
        await answered(core, broker)
    (event,) = [one for one in events if one["event"] == "gateway.audit.delete"]
    assert event["outcome"] == outcome
    assert bool(tier.sidecar.proposed) is (outcome == "none")
