from __future__ import annotations

from typing import Any

import pytest

from tiersidecar.adapters.kafka.security import (
    ClientCredentials,
    SaslMechanism,
    SecurityProtocol,
    SecuritySettings,
    TokenFile,
)

SASL: dict[str, Any] = {"security_protocol": SecurityProtocol.SASL_SSL}

FAULTS = {
    "SASL without a mechanism": (SASL, "SASL_SSL needs a SASL mechanism"),
    "a mechanism without SASL": (
        {"sasl_mechanism": SaslMechanism.PLAIN, "username": "a", "password": "b"},
        "PLAINTEXT has no SASL",
    ),
    "PLAIN without a password": (
        {**SASL, "sasl_mechanism": SaslMechanism.PLAIN, "username": "a"},
        "PLAIN needs a username and a password",
    ),
    "SCRAM with an empty user name": (
        {**SASL, "sasl_mechanism": SaslMechanism.SCRAM_SHA_512, "username": "", "password": "b"},
        "SCRAM-SHA-512 needs a username and a password",
    ),
    "a NUL that would forge another user's message": (
        {**SASL, "sasl_mechanism": SaslMechanism.PLAIN, "username": "a\0admin", "password": "b"},
        "no NUL character",
    ),
    "OAUTHBEARER without a source of tokens": (
        {**SASL, "sasl_mechanism": SaslMechanism.OAUTHBEARER},
        "OAUTHBEARER needs a token file or a token endpoint",
    ),
    "a client key without its certificate": (
        {"security_protocol": SecurityProtocol.SSL, "ssl_key_file": "/k"},
        "a client key needs its certificate",
    ),
}


@pytest.mark.parametrize(("fields", "fault"), FAULTS.values(), ids=FAULTS.keys())
def test_settings_that_cannot_work_are_refused(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        SecuritySettings(**fields)


def test_no_secret_shows_in_a_repr() -> None:
    """Settings end in logs and tracebacks."""
    source = ClientCredentials(token_endpoint_url="https://id", client_id="me", client_secret="s3cret")
    settings = SecuritySettings(
        security_protocol=SecurityProtocol.SASL_SSL,
        sasl_mechanism=SaslMechanism.OAUTHBEARER,
        password="s3cret",
        ssl_certificate_file="/c",
        ssl_key_password="s3cret",
        oauth_token_source=source,
    )

    assert "s3cret" not in f"{settings} {settings!r} {source!r}"
    assert "client_id='me'" in repr(settings)


@pytest.mark.parametrize(
    ("protocol", "has_tls", "has_sasl"),
    [
        (SecurityProtocol.PLAINTEXT, False, False),
        (SecurityProtocol.SSL, True, False),
        (SecurityProtocol.SASL_PLAINTEXT, False, True),
        (SecurityProtocol.SASL_SSL, True, True),
    ],
)
def test_protocols(protocol: SecurityProtocol, has_tls: bool, has_sasl: bool) -> None:
    assert (protocol.has_tls, protocol.has_sasl) == (has_tls, has_sasl)


def test_each_mechanism_goes_with_what_it_needs() -> None:
    for mechanism in (SaslMechanism.PLAIN, SaslMechanism.SCRAM_SHA_256, SaslMechanism.SCRAM_SHA_512):
        SecuritySettings(**SASL, sasl_mechanism=mechanism, username="a", password="b")
    SecuritySettings(**SASL, sasl_mechanism=SaslMechanism.OAUTHBEARER, oauth_token_source=TokenFile(path="/t"))


@pytest.mark.parametrize("url", ["id.example/token", "ftp://id/token", "https:///token", "https://me:pw@id/token"])
def test_a_token_endpoint_that_cannot_be_asked_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="token endpoint") as fault:
        ClientCredentials(token_endpoint_url=url, client_id="me", client_secret="s")
    assert "pw" not in str(fault.value)
