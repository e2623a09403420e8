from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.adapters.kafka import answers
from tests.unit.adapters.kafka.scripted_peer import Conversation, Script, scripted_peer
from tiersidecar.adapters.kafka.authorizer import CallerListener, open_authorizer
from tiersidecar.adapters.kafka.security import SaslMechanism, SecurityProtocol
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError
from tiersidecar.ports.broker import CallerNotAuthenticatedError, Credentials

ANONYMOUS = Credentials()
ALICE = Credentials(username="alice", password="secret")
BOB = Credentials(username="bob", password="secret")


class ManualClock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def sasl(address: str) -> CallerListener:
    return CallerListener(
        bootstrap_servers=address,
        security_protocol=SecurityProtocol.SASL_PLAINTEXT,
        sasl_mechanism=SaslMechanism.PLAIN,
    )


def topics(operations: int, error_code: ErrorCode = ErrorCode.none) -> Script:
    """A listener without SASL that says the same of every topic."""

    async def script(talk: Conversation) -> None:
        await talk.tell_versions()
        while True:
            header, request = await talk.hear()
            assert request.include_topic_authorized_operations
            assert not request.allow_auto_topic_creation
            (topic,) = request.topics
            talk.answer(header, answers.metadata(header, errors={topic.name: error_code}, operations=operations))

    return script


def with_login(users: dict[str, str], logins: list[str], operations: Callable[[str], int]) -> Script:
    """A listener with PLAIN; what a user may do is ``operations(user)``."""

    async def script(talk: Conversation) -> None:
        await talk.tell_versions()
        header, _ = await talk.hear()
        talk.answer(header, answers.handshake(ErrorCode.none, "PLAIN"))
        header, request = await talk.hear()
        _, user, password = request.auth_bytes.decode().split("\0")
        logins.append(user)
        known = users.get(user) == password
        talk.answer(
            header,
            answers.authenticated(error_code=ErrorCode.none if known else ErrorCode.sasl_authentication_failed),
        )
        while True:
            header, request = await talk.hear()
            (topic,) = request.topics
            talk.answer(header, answers.metadata(header, leaders={topic.name: [1]}, operations=operations(user)))

    return script


READING = {
    "READ is among the operations": (answers.READ | answers.DESCRIBE, ErrorCode.none, True),
    "only DESCRIBE is": (answers.DESCRIBE, ErrorCode.none, False),
    "the topic must stay unseen": (0, ErrorCode.topic_authorization_failed, False),
    "the topic does not exist": (0, ErrorCode.unknown_topic_or_partition, False),
    "the topic has no leader, but READ is there": (answers.READ, ErrorCode.leader_not_available, True),
}


@pytest.mark.parametrize(("operations", "error_code", "allowed"), READING.values(), ids=READING.keys())
async def test_the_brokers_read_bit_decides(operations: int, error_code: ErrorCode, *, allowed: bool) -> None:
    """DESIGN section 4, rule 7."""
    async with (
        scripted_peer(topics(operations, error_code)) as peer,
        open_authorizer(CallerListener(bootstrap_servers=peer.address)) as authorizer,
    ):
        assert await authorizer.may_read(ANONYMOUS, "t") is allowed


async def test_operations_that_were_not_told_are_no_permission() -> None:
    """Integer.MIN_VALUE has all low bits clear, but means: not answered."""
    async with (
        scripted_peer(topics(-(2**31))) as peer,
        open_authorizer(CallerListener(bootstrap_servers=peer.address)) as authorizer,
    ):
        with pytest.raises(BrokerRefusedError):
            await authorizer.may_read(ANONYMOUS, "t")


async def test_each_caller_is_asked_for_as_himself_over_his_own_login() -> None:
    logins: list[str] = []
    script = with_login(
        {"alice": "secret", "bob": "secret"}, logins, lambda user: answers.READ if user == "alice" else answers.DESCRIBE
    )
    async with scripted_peer(script) as peer, open_authorizer(sasl(peer.address)) as authorizer:
        assert await authorizer.may_read(ALICE, "t")
        assert not await authorizer.may_read(BOB, "t")
        assert await authorizer.may_read(ALICE, "u")
    assert logins == ["alice", "bob"]


async def test_a_changed_acl_holds_at_once() -> None:
    allowed = True
    script = with_login({"alice": "secret"}, [], lambda _: answers.READ if allowed else answers.DESCRIBE)
    async with scripted_peer(script) as peer, open_authorizer(sasl(peer.address)) as authorizer:
        assert await authorizer.may_read(ALICE, "t")
        allowed = False
        assert not await authorizer.may_read(ALICE, "t")


async def test_a_withdrawn_password_ends_with_the_login() -> None:
    clock, users = ManualClock(), {"alice": "secret"}
    script = with_login(users, [], lambda _: answers.READ)
    async with (
        scripted_peer(script) as peer,
        open_authorizer(sasl(peer.address), connection_ttl_s=5, monotonic_s=clock) as authorizer,
    ):
        assert await authorizer.may_read(ALICE, "t")
        users["alice"] = "changed"
        clock.now_s += 4.9
        assert await authorizer.may_read(ALICE, "t")
        clock.now_s += 0.1
        with pytest.raises(CallerNotAuthenticatedError):
            await authorizer.may_read(ALICE, "t")


async def test_a_wrong_password_never_uses_the_login_of_the_right_one() -> None:
    logins: list[str] = []
    async with (
        scripted_peer(with_login({"alice": "secret"}, logins, lambda _: answers.READ)) as peer,
        open_authorizer(sasl(peer.address)) as authorizer,
    ):
        assert await authorizer.may_read(ALICE, "t")
        for wrong in ("Secret", "secret ", "secre"):
            with pytest.raises(CallerNotAuthenticatedError):
                await authorizer.may_read(Credentials(username="alice", password=wrong), "t")
        with pytest.raises(CallerNotAuthenticatedError):
            await authorizer.may_read(Credentials(username="alic", password="esecret"), "t")
    assert len(logins) == 5


async def test_credentials_are_kept_nowhere_in_clear() -> None:
    async with (
        scripted_peer(with_login({"alice": "secret"}, [], lambda _: answers.READ)) as peer,
        open_authorizer(sasl(peer.address)) as authorizer,
    ):
        await authorizer.may_read(ALICE, "t")
        assert all(isinstance(key, bytes) and len(key) == 32 for key in authorizer._pool._connections)


NOT_EVEN_TRIED = {
    "nothing given where a password is demanded": ANONYMOUS,
    "a name alone": Credentials(username="alice"),
    "an empty password": Credentials(username="alice", password=""),
    "a NUL that would forge another user's login": Credentials(username="alice\0admin", password="x"),
}


@pytest.mark.parametrize("credentials", NOT_EVEN_TRIED.values(), ids=NOT_EVEN_TRIED.keys())
async def test_credentials_that_no_broker_could_accept(credentials: Credentials) -> None:
    async with open_authorizer(sasl("127.0.0.1:1")) as authorizer:
        with pytest.raises(CallerNotAuthenticatedError):
            await authorizer.may_read(credentials, "t")


async def test_a_password_that_nobody_would_check_is_not_accepted() -> None:
    """A listener without SASL takes anyone as ANONYMOUS: that must not look like a successful login."""
    async with open_authorizer(CallerListener(bootstrap_servers="127.0.0.1:1")) as authorizer:
        with pytest.raises(CallerNotAuthenticatedError, match="checks no credentials"):
            await authorizer.may_read(ALICE, "t")


BEARER = CallerListener(
    bootstrap_servers="127.0.0.1:1",
    security_protocol=SecurityProtocol.SASL_SSL,
    sasl_mechanism=SaslMechanism.OAUTHBEARER,
)


@pytest.mark.parametrize(
    ("listener", "credentials"),
    [
        pytest.param(sasl("127.0.0.1:1"), Credentials(token="abc"), id="a token where passwords are checked"),
        pytest.param(BEARER, ALICE, id="a password where tokens are checked"),
        pytest.param(BEARER, ANONYMOUS, id="nothing where tokens are checked"),
        pytest.param(BEARER, Credentials(token="a\1auth=Bearer b"), id="a token that would end its field"),
        pytest.param(
            CallerListener(bootstrap_servers="127.0.0.1:1"), Credentials(token="abc"), id="a token nobody checks"
        ),
    ],
)
async def test_credentials_of_another_kind_are_refused_without_asking(
    listener: CallerListener, credentials: Credentials
) -> None:
    async with open_authorizer(listener) as authorizer:
        with pytest.raises(CallerNotAuthenticatedError):
            await authorizer.may_read(credentials, "t")


async def test_a_broker_that_is_away_is_not_a_refusal() -> None:
    async with open_authorizer(sasl("127.0.0.1:1")) as authorizer:
        with pytest.raises(BrokerUnreachableError):
            await authorizer.may_read(ALICE, "t")


async def test_logins_are_bounded() -> None:
    """DESIGN section 4, rule 8."""
    users = {f"user-{number}": "x" for number in range(6)}
    async with (
        scripted_peer(with_login(users, [], lambda _: answers.READ)) as peer,
        open_authorizer(sasl(peer.address), max_connections=2) as authorizer,
    ):
        callers = [Credentials(username=user, password="x") for user in users]
        assert all(await asyncio.gather(*(authorizer.may_read(caller, "t") for caller in callers)))
        assert len(authorizer._pool._connections) == 2


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        (SecurityProtocol.SASL_SSL, None),
        (SecurityProtocol.PLAINTEXT, SaslMechanism.OAUTHBEARER),
        (SecurityProtocol.SSL, SaslMechanism.PLAIN),
    ],
)
def test_a_listener_must_take_what_callers_have(protocol: SecurityProtocol, mechanism: SaslMechanism | None) -> None:
    with pytest.raises(ValueError, match="for callers"):
        CallerListener(bootstrap_servers="a:1", security_protocol=protocol, sasl_mechanism=mechanism)
