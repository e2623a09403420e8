"""The broker's answers alone change where a login stands (issue 17)."""

from __future__ import annotations

import pytest

from tiersidecar.services.gateway.exchange import ANONYMOUS, NOT_KNOWN, Login, LoginState, claimed_user

PLAIN, FIRST = b"\0alice\0secret", b"n,,n=al=2Cice=3D,r=nonce"


def shaken(mechanism: str, *, is_raw: bool = False) -> Login:
    login = Login()
    login.shaken(mechanism, 0, is_raw=is_raw)
    return login


def test_a_handshake_that_the_broker_refuses_begins_nothing() -> None:
    login = Login()
    login.shaken("PLAIN", 34, is_raw=True)
    assert (login.state, login.is_raw, bool(login.refusal)) == (LoginState.BEFORE, False, True)


def test_one_that_it_refuses_after_a_login_ends_what_was_ready() -> None:
    login = shaken("PLAIN")
    login.authenticated(PLAIN, 0, b"")
    login.shaken("GSSAPI", 34, is_raw=True)
    assert (login.state, login.is_raw, login.principal) == (LoginState.READY, False, "User:alice")
    assert login.refusal


@pytest.mark.parametrize(
    ("mechanism", "rounds", "principal"),
    [
        pytest.param("PLAIN", [(PLAIN, b"")], "User:alice", id="PLAIN tells the name, and takes one round"),
        pytest.param("SCRAM-SHA-512", [(FIRST, b"r=,s="), (b"c=", b"v=x")], "User:al,ice=", id="SCRAM takes two"),
        pytest.param("SCRAM-SHA-256", [(FIRST, b"r=,s=")], None, id="SCRAM is not over after one"),
        pytest.param(
            "SCRAM-SHA-256", [(FIRST + b",tokenauth=true", b"v=x")], NOT_KNOWN, id="a delegation token is no user"
        ),
        pytest.param(
            "SCRAM-SHA-256", [(FIRST + b",tokenauth=True", b"v=x")], NOT_KNOWN, id="nor one that is said in capitals"
        ),
        pytest.param("OAUTHBEARER", [(b"n,,", b"")], NOT_KNOWN, id="OAUTHBEARER is not read"),
        pytest.param(
            "OAUTHBEARER", [(b"n,,", b'{"status":"invalid_token"}')], None, id="OAUTHBEARER says what is wrong"
        ),
        pytest.param("GSSAPI", [(b"\x60", b"\x60"), (b"\x05", b"")], None, id="of GSSAPI the next request tells"),
    ],
)
def test_who_is_let_in(mechanism: str, rounds: list[tuple[bytes, bytes]], principal: str | None) -> None:
    login = shaken(mechanism)
    for token, answer in rounds:
        login.authenticated(token, 0, answer)
    expected = (LoginState.EXCHANGING, ANONYMOUS) if principal is None else (LoginState.READY, principal)
    assert (login.state, login.principal) == expected
    assert not login.refusal


def test_an_answered_request_ends_a_login_whose_tokens_do_not() -> None:
    login = shaken("GSSAPI")
    login.answered(needs_login=False)
    assert login.state is LoginState.EXCHANGING
    login.answered(needs_login=True)
    assert (login.state, login.principal) == (LoginState.READY, NOT_KNOWN)


def test_an_answer_in_the_midst_of_a_login_that_tells_its_end_is_a_refusal_of_the_broker_s() -> None:
    login = shaken("PLAIN")
    login.answered(needs_login=True)
    assert (login.state, login.principal) == (LoginState.EXCHANGING, ANONYMOUS)


def test_a_login_that_is_renewed_and_fails_ends() -> None:
    login = shaken("PLAIN")
    login.authenticated(PLAIN, 0, b"")
    login.shaken("PLAIN", 0, is_raw=False)
    assert login.state is LoginState.RENEWING
    login.authenticated(b"\0bob\0x", 58, b"")
    assert (login.principal, bool(login.refusal)) == ("User:alice", True)


def test_a_token_phase_ends_with_the_first_answer_that_has_a_header() -> None:
    login = shaken("PLAIN", is_raw=True)
    assert login.is_raw
    login.answered(needs_login=False)
    assert (login.is_raw, login.state) == (False, LoginState.READY)


@pytest.mark.parametrize("token", [b"", b"alice", b"\0alice", b"\xff\xfe", b"n,,", b"\0" * 9])
def test_tokens_of_any_bytes_name_nobody(token: bytes) -> None:
    assert [claimed_user(one, token) for one in ("PLAIN", "SCRAM-SHA-256", "GSSAPI")] == ["", "", ""]
