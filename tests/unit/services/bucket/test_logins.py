"""Logins at a listener without a broker: PLAIN, SCRAM against our own client's side, and who may read what."""

from __future__ import annotations

import pytest

from tests.support.served_bucket import ALL_MECHANISMS, AUDITOR, NARROW
from tiersidecar.adapters.kafka.sasl import ScramClient
from tiersidecar.adapters.kafka.security import SaslMechanism
from tiersidecar.ports.broker import CallerNotAuthenticatedError, Credentials
from tiersidecar.services.bucket.sasl import Login, LoginRefusedError, Mechanisms
from tiersidecar.services.bucket.users import Users

USERS = Users([AUDITOR, NARROW])
MECHANISMS = Mechanisms(USERS, ALL_MECHANISMS)
SCRAM = [SaslMechanism.SCRAM_SHA_256, SaslMechanism.SCRAM_SHA_512]


def begin(name: str) -> Login:
    login = MECHANISMS.begin(name)
    assert login is not None
    return login


def scram(mechanism: SaslMechanism, name: str, password: str) -> Login:
    """An exchange up to, not including, the client's proof; gives it as the login's next token."""
    client, login = ScramClient(mechanism, name, password), begin(mechanism.value)
    first = login.step(client.first_message)
    assert first.user is None
    last = login.step(client.answer(first.answer))
    client.verify(last.answer)
    assert last.user is not None
    assert last.user.name == name
    return login


@pytest.mark.parametrize("mechanism", SCRAM)
def test_scram_lets_in_by_the_password_and_proves_that_it_knows_it(mechanism: SaslMechanism) -> None:
    scram(mechanism, "auditor", "auditor-password")
    scram(mechanism, "narrow", "narrow-password")


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize(("name", "password"), [("auditor", "narrow-password"), ("nobody", "auditor-password")])
def test_scram_refuses_at_the_same_step_whoever_it_is(mechanism: SaslMechanism, name: str, password: str) -> None:
    with pytest.raises(LoginRefusedError, match="no such user, or a wrong password") as refused:
        scram(mechanism, name, password)
    assert refused.value.guessed == name


def test_plain_says_whose_password_was_guessed() -> None:
    for token, guessed in ((b"\0auditor\0wrong", "auditor"), (b"\0nobody\0wrong", "nobody"), (b"auditor", None)):
        with pytest.raises(LoginRefusedError) as refused:
            begin("PLAIN").step(token)
        assert refused.value.guessed == guessed


def test_an_unknown_name_has_the_same_salt_each_time() -> None:
    salts = set()
    for _ in range(2):
        answer = begin("SCRAM-SHA-256").step(b"n,,n=nobody,r=abc").answer.decode()
        salts.add(answer.split(",")[1])
    assert len(salts) == 1


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xff\xfe", id="not UTF-8"),
        pytest.param(b"p=tls-unique,,n=auditor,r=abc", id="with a channel binding"),
        pytest.param(b"n,,r=abc", id="without a name"),
        pytest.param(b"n,,n=auditor", id="without a nonce"),
        pytest.param(b"n,a=narrow,n=auditor,r=abc", id="for another user"),
        pytest.param(b"n,,n=auditor,r=abc,tokenauth=true", id="by a delegation token"),
        pytest.param(b"n,,n=auditor,m=ext,r=abc", id="with an extension that must be known"),
        pytest.param(b"n,,n=" + b"a" * 2000 + b",r=abc", id="of a very long name"),
    ],
)
def test_first_messages_that_are_refused(token: bytes) -> None:
    with pytest.raises(LoginRefusedError):
        begin("SCRAM-SHA-512").step(token)


@pytest.mark.parametrize("proof", ["c=biws,r={nonce},p=", "c=biws,r={nonce},p=AAAA", "c=biws,r=other,p=AAAA", "x"])
def test_final_messages_that_are_refused(proof: str) -> None:
    login = begin("SCRAM-SHA-512")
    nonce = login.step(b"n,,n=auditor,r=abc").answer.decode().split(",")[0].removeprefix("r=")
    with pytest.raises(LoginRefusedError):
        login.step(proof.format(nonce=nonce).encode())


@pytest.mark.parametrize(
    ("token", "is_right"),
    [
        pytest.param(b"\0auditor\0auditor-password", True, id="name and password"),
        pytest.param(b"auditor\0auditor\0auditor-password", True, id="for oneself"),
        pytest.param(b"narrow\0auditor\0auditor-password", False, id="for another user"),
        pytest.param(b"\0auditor\0narrow-password", False, id="a wrong password"),
        pytest.param(b"\0nobody\0auditor-password", False, id="no such user"),
        pytest.param(b"\0\0", False, id="without a name"),
        pytest.param(b"auditor", False, id="one field"),
    ],
)
def test_plain(token: bytes, is_right: bool) -> None:
    if is_right:
        assert begin("PLAIN").step(token).user == AUDITOR
    else:
        with pytest.raises(LoginRefusedError):
            begin("PLAIN").step(token)


async def test_the_http_service_asks_the_same_users() -> None:
    right = Credentials(username="narrow", password="narrow-password")
    await USERS.log_in(right)
    assert await USERS.may_read(right, "plain")
    assert not await USERS.may_read(right, "transactions")
    for wrong in (Credentials(), Credentials(token="t"), Credentials(username="narrow", password="x")):
        with pytest.raises(CallerNotAuthenticatedError):
            await USERS.may_read(wrong, "plain")
    assert await Users([]).may_read(Credentials(), "transactions")
