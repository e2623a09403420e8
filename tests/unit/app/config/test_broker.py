"""Broker settings: what each security protocol needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.app.config.config_files import LEAST, faults_of, load


@pytest.mark.parametrize(
    ("broker", "faults"),
    [
        pytest.param(
            "security.protocol: SASL_SSL",
            ["line 1: broker.sasl.mechanism: is required with security.protocol SASL_SSL"],
            id="SASL without a mechanism",
        ),
        pytest.param(
            "security.protocol: SASL_SSL, sasl.mechanism: PLAIN",
            [
                "line 1: broker.sasl.password: is required with sasl.mechanism PLAIN",
                "line 1: broker.sasl.username: is required with sasl.mechanism PLAIN",
            ],
            id="PLAIN without user and password",
        ),
        pytest.param(
            "sasl.username: u",
            ["line 1: broker.sasl.username: has no effect with security.protocol PLAINTEXT"],
            id="a user that no connection would present",
        ),
        pytest.param(
            "ssl.ca.location: /ca",
            ["line 1: broker.ssl.ca.location: has no effect with security.protocol PLAINTEXT"],
            id="authorities that no connection would check",
        ),
        pytest.param(
            "security.protocol: SSL, ssl.key.location: /k",
            ["line 1: broker.ssl.certificate.location: is required with ssl.key.location"],
            id="a key without a certificate",
        ),
        pytest.param(
            "security.protocol: SASL_SSL, sasl.mechanism: OAUTHBEARER",
            ["line 1: broker.sasl.oauthbearer.token.endpoint.url: is required with sasl.mechanism OAUTHBEARER"],
            id="OAUTHBEARER without a source of tokens",
        ),
        pytest.param(
            "security.protocol: SASL_SSL, sasl.mechanism: OAUTHBEARER, "
            "sasl.oauthbearer.token.endpoint.url: 'https://idp/token'",
            [
                "line 1: broker.sasl.oauthbearer.client.credentials.client.id: is required to ask a token endpoint",
                "line 1: broker.sasl.oauthbearer.client.credentials.client.secret: is required to ask a token endpoint",
            ],
            id="a token endpoint without a client",
        ),
        pytest.param(
            "security.protocol: SASL_SSL, sasl.mechanism: GSSAPI",
            [
                "line 1: broker.sasl.mechanism: expected PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER, got 'GSSAPI'"
            ],
            id="a mechanism that the sidecar lacks",
        ),
        pytest.param("bootstrap.servers: []", ["line 1: broker.bootstrap.servers: must not be empty"], id="no server"),
    ],
)
def test_broker_settings_fit_together(tmp_path: Path, broker: str, faults: list[str]) -> None:
    servers = "" if "bootstrap" in broker else "bootstrap.servers: h:1, "
    text = f"broker: {{{servers}{broker}}}\nlog.dirs: [/d]\nstore: {{type: filesystem, root: /r}}\n"
    assert faults_of(tmp_path, text) == faults


def test_oauthbearer_from_a_file_needs_no_client(tmp_path: Path) -> None:
    text = LEAST.replace(
        "127.0.0.1:9092",
        "h:1\n  security.protocol: SASL_SSL\n  sasl.mechanism: OAUTHBEARER\n"
        "  sasl.oauthbearer.token.endpoint.url: file:///run/token",
    )
    assert load(tmp_path, text).broker.sasl_oauthbearer_token_endpoint_url == "file:///run/token"


def test_secrets_are_not_in_the_representation(tmp_path: Path) -> None:
    text = LEAST.replace(
        "127.0.0.1:9092",
        "h:1\n  security.protocol: SASL_SSL\n  sasl.mechanism: PLAIN\n  sasl.username: u\n  sasl.password: {env: P}",
    )
    config = load(tmp_path, text, {"P": "hunter2"})
    assert config.broker.sasl_password is not None
    assert config.broker.sasl_password.get_secret_value() == "hunter2"
    assert "hunter2" not in repr(config) + str(config) + config.model_dump_json()
