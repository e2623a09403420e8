from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.adapters.kafka.scram_server import ScramServer
from tiersidecar.adapters.kafka.sasl import ScramClient, ScramError
from tiersidecar.adapters.kafka.security import SaslMechanism

SHA_256, SHA_512 = SaslMechanism.SCRAM_SHA_256, SaslMechanism.SCRAM_SHA_512
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def rfc_7677_client() -> ScramClient:
    return ScramClient(SHA_256, "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")


def test_the_exchange_of_rfc_7677() -> None:
    client = rfc_7677_client()

    assert client.first_message == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.answer(SERVER_FIRST) == CLIENT_FINAL
    client.verify(SERVER_FINAL)


@pytest.mark.parametrize(("mechanism", "hash_name"), [(SHA_256, "sha256"), (SHA_512, "sha512")])
def test_client_and_server_agree_when_both_know_the_password(mechanism: SaslMechanism, hash_name: str) -> None:
    client, server = ScramClient(mechanism, "alice", "pässwörd"), ScramServer(hash_name, "pässwörd")

    signature, known = server.final(client.answer(server.first(client.first_message)))

    assert known
    client.verify(signature)


@given(st.text(min_size=1, max_size=8))
def test_commas_and_equal_signs_in_a_name_are_escaped(username: str) -> None:
    """RFC 5802 section 5.1."""
    first = ScramClient(SHA_256, username, "x", nonce="n").first_message.decode()

    quoted = first.removeprefix("n,,n=").removesuffix(",r=n")
    assert "," not in quoted
    assert quoted.replace("=2C", ",").replace("=3D", "=") == username


def test_each_exchange_has_a_nonce_of_its_own() -> None:
    first, second = (ScramClient(SHA_256, "user", "x").first_message for _ in range(2))
    assert first != second
    assert b"," not in first.split(b",r=")[1]


BAD_FIRST = {
    "a nonce that is not ours": b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    "our nonce with nothing added": b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    "fewer iterations than Kafka allows": SERVER_FIRST.replace(b"4096", b"4095"),
    "iterations that would keep a thread busy": SERVER_FIRST.replace(b"4096", b"100000000"),
    "iterations that are no number": SERVER_FIRST.replace(b"4096", b"-1"),
    "no salt": SERVER_FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==,", b""),
    "a salt that is not base64": SERVER_FIRST.replace(b"W22", b"*"),
    "an extension that must be understood": b"m=ext," + SERVER_FIRST,
    "not UTF-8": b"\xff",
    "nothing": b"",
}


@pytest.mark.parametrize("server_first", BAD_FIRST.values(), ids=BAD_FIRST.keys())
def test_a_first_message_of_the_server_that_is_refused(server_first: bytes) -> None:
    with pytest.raises(ScramError):
        rfc_7677_client().answer(server_first)


BAD_FINAL = {
    "a server that does not know the password": b"v=" + b"A" * 43 + b"=",
    "an error": b"e=invalid-proof",
    "no signature": b"x=1",
    "a signature that is not base64": b"v=*",
    "nothing": b"",
}


@pytest.mark.parametrize("server_final", BAD_FINAL.values(), ids=BAD_FINAL.keys())
def test_a_last_message_of_the_server_that_is_refused(server_final: bytes) -> None:
    client = rfc_7677_client()
    client.answer(SERVER_FIRST)

    with pytest.raises(ScramError):
        client.verify(server_final)


def test_a_signature_before_the_exchange_is_refused() -> None:
    """An empty signature must not equal the one that has not been computed."""
    with pytest.raises(ScramError):
        rfc_7677_client().verify(SERVER_FINAL)
