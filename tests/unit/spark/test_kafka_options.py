"""Our security settings become Java's: secrets escaped, certificates as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.certificates import CertificateAuthority
from tiersidecar.adapters.kafka.security import (
    ClientCredentials,
    SaslMechanism,
    SecurityProtocol,
    SecuritySettings,
    TokenFile,
)
from tiersidecar.domain.errors import ConfigError
from tiersidecar.spark.kafka_options import kafka_options


def test_without_security() -> None:
    assert kafka_options("one:9092,two:9092", SecuritySettings()) == {
        "kafka.bootstrap.servers": "one:9092,two:9092",
        "kafka.security.protocol": "PLAINTEXT",
    }


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        (SaslMechanism.PLAIN, "org.apache.kafka.common.security.plain.PlainLoginModule"),
        (SaslMechanism.SCRAM_SHA_512, "org.apache.kafka.common.security.scram.ScramLoginModule"),
    ],
)
def test_a_password_with_quotes_and_backslashes(mechanism: SaslMechanism, module: str) -> None:
    options = kafka_options(
        "one:9092",
        SecuritySettings(
            security_protocol=SecurityProtocol.SASL_PLAINTEXT,
            sasl_mechanism=mechanism,
            username="me",
            password='a"b\\c',
        ),
    )
    assert options["kafka.sasl.mechanism"] == mechanism.value
    assert options["kafka.sasl.jaas.config"] == f'{module} required username="me" password="a\\"b\\\\c";'


def test_tokens_come_from_a_file_or_an_endpoint() -> None:
    from_file = _oauth(TokenFile(path="/run/token"))
    assert from_file["kafka.sasl.oauthbearer.token.endpoint.url"] == "file:///run/token"
    source = ClientCredentials(
        token_endpoint_url="https://login/token", client_id="me", client_secret="s", scope="kafka"
    )
    asked = _oauth(source)
    assert asked["kafka.sasl.oauthbearer.token.endpoint.url"] == "https://login/token"
    assert 'clientId="me" clientSecret="s" scope="kafka";' in asked["kafka.sasl.jaas.config"]


def test_certificates_travel_as_text(tmp_path: Path) -> None:
    issued = CertificateAuthority(tmp_path).issue("me")
    options = kafka_options(
        "one:9092",
        SecuritySettings(
            security_protocol=SecurityProtocol.SSL,
            ssl_ca_file=str(issued.authority_path),
            ssl_certificate_file=str(issued.certificate_path),
            ssl_key_file=str(issued.key_path),
        ),
    )
    assert options["kafka.ssl.truststore.certificates"] == issued.authority_path.read_text()
    assert options["kafka.ssl.keystore.certificate.chain"] == issued.certificate_path.read_text()
    assert options["kafka.ssl.keystore.key"] == issued.key_path.read_text()


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "ca.pem")
    with pytest.raises(ConfigError, match=r"ca\.pem: No such file"):
        kafka_options("one:9092", SecuritySettings(security_protocol=SecurityProtocol.SSL, ssl_ca_file=missing))


def _oauth(source: TokenFile | ClientCredentials) -> dict[str, str]:
    return kafka_options(
        "one:9092",
        SecuritySettings(
            security_protocol=SecurityProtocol.SASL_SSL,
            sasl_mechanism=SaslMechanism.OAUTHBEARER,
            oauth_token_source=source,
        ),
    )
