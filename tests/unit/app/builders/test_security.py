from __future__ import annotations

from pathlib import Path

import pytest

from tiersidecar.adapters.kafka.authorizer import CallerListener
from tiersidecar.adapters.kafka.security import (
    PLAINTEXT,
    ClientCredentials,
    SaslMechanism,
    SecurityProtocol,
    SecuritySettings,
    TokenFile,
)
from tiersidecar.app.builders.security import broker_security, caller_listener
from tiersidecar.app.config.config import Config, load_config


def load(tmp_path: Path, *, broker: str = "", read: str = "") -> Config:
    file = tmp_path / "t.yaml"
    lines = ["log.dirs: [/data]", "store: {type: filesystem, root: /tier}"]
    lines.append(f"broker: {{bootstrap.servers: '127.0.0.1:9092', {broker}}}")
    lines += [f"read: {{{read}}}"] if read else []
    file.write_text("\n".join(lines))
    return load_config(file, {})


SCRAM = "security.protocol: SASL_SSL, sasl.mechanism: SCRAM-SHA-512, sasl.username: tier, sasl.password: pw"
BEARER = "security.protocol: SASL_PLAINTEXT, sasl.mechanism: OAUTHBEARER, sasl.oauthbearer.token.endpoint.url"

IDENTITIES = {
    "nothing is plaintext": ("", PLAINTEXT),
    "mutual TLS without the host name": (
        "security.protocol: SSL, ssl.ca.location: /ca, ssl.certificate.location: /c, ssl.key.location: /k,"
        " ssl.key.password: kp, ssl.endpoint.identification.algorithm: ''",
        SecuritySettings(
            security_protocol=SecurityProtocol.SSL,
            ssl_ca_file="/ca",
            ssl_certificate_file="/c",
            ssl_key_file="/k",
            ssl_key_password="kp",
            ssl_check_hostname=False,
        ),
    ),
    "a user and a password": (
        SCRAM,
        SecuritySettings(
            security_protocol=SecurityProtocol.SASL_SSL,
            sasl_mechanism=SaslMechanism.SCRAM_SHA_512,
            username="tier",
            password="pw",
        ),
    ),
    "a token in a file": (
        f"{BEARER}: 'file:///run/a%20token'",
        SecuritySettings(
            security_protocol=SecurityProtocol.SASL_PLAINTEXT,
            sasl_mechanism=SaslMechanism.OAUTHBEARER,
            oauth_token_source=TokenFile(path="/run/a token"),
        ),
    ),
    "tokens from an endpoint": (
        f"{BEARER}: 'https://id/token', sasl.oauthbearer.client.credentials.client.id: me,"
        " sasl.oauthbearer.client.credentials.client.secret: s, sasl.oauthbearer.scope: kafka",
        SecuritySettings(
            security_protocol=SecurityProtocol.SASL_PLAINTEXT,
            sasl_mechanism=SaslMechanism.OAUTHBEARER,
            oauth_token_source=ClientCredentials(
                token_endpoint_url="https://id/token", client_id="me", client_secret="s", scope="kafka"
            ),
        ),
    ),
}


@pytest.mark.parametrize(("broker", "expected"), IDENTITIES.values(), ids=IDENTITIES.keys())
def test_the_broker_section_is_our_identity(tmp_path: Path, broker: str, expected: SecuritySettings) -> None:
    assert broker_security(load(tmp_path, broker=broker).broker) == expected


LISTENERS = {
    "by default callers come by the broker's own listener": (
        "",
        "",
        CallerListener(bootstrap_servers="127.0.0.1:9092"),
    ),
    "our mechanism is theirs too, our password is not": (
        SCRAM,
        "",
        CallerListener(
            bootstrap_servers="127.0.0.1:9092",
            security_protocol=SecurityProtocol.SASL_SSL,
            sasl_mechanism=SaslMechanism.SCRAM_SHA_512,
        ),
    ),
    "callers of a broker that takes our token have passwords": (
        f"{BEARER}: 'file:///t'",
        "",
        CallerListener(
            bootstrap_servers="127.0.0.1:9092",
            security_protocol=SecurityProtocol.SASL_PLAINTEXT,
            sasl_mechanism=SaslMechanism.PLAIN,
        ),
    ),
    "a listener of their own": (
        "security.protocol: SSL, ssl.ca.location: /ca, ssl.certificate.location: /c",
        "authorization.bootstrap.servers: '127.0.0.1:9093', authorization.security.protocol: SASL_SSL,"
        " authorization.sasl.mechanism: SCRAM-SHA-256",
        CallerListener(
            bootstrap_servers="127.0.0.1:9093",
            security_protocol=SecurityProtocol.SASL_SSL,
            sasl_mechanism=SaslMechanism.SCRAM_SHA_256,
            ssl_ca_file="/ca",
        ),
    ),
    "a listener of their own without SASL": (
        SCRAM,
        "authorization.security.protocol: PLAINTEXT",
        CallerListener(bootstrap_servers="127.0.0.1:9092"),
    ),
}


@pytest.mark.parametrize(("broker", "read", "expected"), LISTENERS.values(), ids=LISTENERS.keys())
def test_callers_are_tried_with_nothing_of_ours(
    tmp_path: Path, broker: str, read: str, expected: CallerListener
) -> None:
    """DESIGN section 4, rule 7: the broker decides about the caller, not about us."""
    assert caller_listener(load(tmp_path, broker=broker, read=read)) == expected
