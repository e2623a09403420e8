from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError

from tests.support.certificates import CertificateAuthority
from tiersidecar.adapters.kafka.aiokafka_settings import aiokafka_kwargs
from tiersidecar.adapters.kafka.security import (
    PLAINTEXT,
    SaslMechanism,
    SecurityProtocol,
    SecuritySettings,
    TokenFile,
)


def test_plaintext_is_nothing_but_that() -> None:
    assert aiokafka_kwargs(PLAINTEXT) == {"security_protocol": "PLAINTEXT", "ssl_context": None}


def test_tls_and_password() -> None:
    found = aiokafka_kwargs(
        SecuritySettings(
            security_protocol=SecurityProtocol.SASL_SSL,
            sasl_mechanism=SaslMechanism.SCRAM_SHA_512,
            username="alice",
            password="secret",
        )
    )

    assert isinstance(found.pop("ssl_context"), ssl.SSLContext)
    assert found == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "secret",
    }


async def test_aiokafka_takes_them_all(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    for mechanism in SaslMechanism:
        for protocol in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL):
            settings = SecuritySettings(
                security_protocol=protocol,
                sasl_mechanism=mechanism,
                username="alice",
                password="secret",
                oauth_token_source=TokenFile(path=str(tmp_path / "token")),
                ssl_ca_file=str(authority.authority_path),
            )
            AIOKafkaProducer(bootstrap_servers="127.0.0.1:1", **aiokafka_kwargs(settings))


async def test_tokens_come_from_the_source_and_failures_are_such_that_aiokafka_tries_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    settings = SecuritySettings(
        security_protocol=SecurityProtocol.SASL_PLAINTEXT,
        sasl_mechanism=SaslMechanism.OAUTHBEARER,
        oauth_token_source=TokenFile(path=str(path)),
    )
    provider = aiokafka_kwargs(settings)["sasl_oauth_token_provider"]

    assert isinstance(provider, AbstractTokenProvider)
    with pytest.raises(KafkaConnectionError, match="no token"):
        await provider.token()
    path.write_text("abc")
    assert await provider.token() == "abc"
