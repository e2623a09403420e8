"""The configuration of ``tiersidecar serve``: nobody reads unasked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tiersidecar.app.config.serve import ServeConfig, load_serve_config
from tiersidecar.domain.errors import ConfigError

USER = {"name": "auditor", "password": "auditor-password"}
OPEN = "0.0.0.0:9192"


def load(tmp_path: Path, **settings: Any) -> ServeConfig:
    path = tmp_path / "serve.yaml"
    with path.open("w") as file:
        YAML().dump({"store": {"type": "filesystem", "root": "/srv/tier"}, **settings}, file)
    return load_serve_config(path, {})


def test_a_store_is_enough(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert config.kafka.listen.is_loopback
    assert config.http.listen.is_loopback
    assert config.mechanisms == ()
    assert config.warnings == ()


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        pytest.param({"kafka": {"listen": OPEN}}, "kafka.listen: 0.0.0.0:9192 can be reached", id="Kafka, no users"),
        pytest.param({"http": {"listen": OPEN}}, "http.listen: 0.0.0.0:9192 can be reached", id="HTTP, no users"),
        pytest.param(
            {"users": [USER], "http": {"listen": OPEN}}, "http.listen: passwords would pass", id="HTTP without TLS"
        ),
        pytest.param(
            {"users": [USER], "kafka": {"listen": OPEN, "sasl.enabled.mechanisms": ["PLAIN"]}},
            "kafka.sasl.enabled.mechanisms: PLAIN needs TLS",
            id="PLAIN without TLS",
        ),
        pytest.param({"users": [USER, USER]}, "users: auditor is there 2 times", id="a user twice"),
        pytest.param({"users": [{"name": "a", "password": "short"}]}, "12 or more characters", id="a short password"),
        pytest.param(
            {"kafka": {"enabled": False}, "http": {"enabled": False}}, "nothing would be served", id="nothing at all"
        ),
        pytest.param({"broker": {"bootstrap.servers": "b:9092"}}, "broker: unknown key", id="a broker"),
    ],
)
def test_what_is_refused(tmp_path: Path, settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, **settings)
    assert fault in str(refused.value)


def test_plain_is_left_out_where_the_password_would_be_seen(tmp_path: Path) -> None:
    config = load(tmp_path, users=[USER], kafka={"listen": OPEN})
    assert config.mechanisms == ("SCRAM-SHA-512", "SCRAM-SHA-256")
    assert config.warnings == ("kafka.listen: records pass to 0.0.0.0:9192 in the clear; a certificate turns TLS on",)
    certificate = {"ssl.certificate.location": "/etc/tiersidecar/serve.pem"}
    assert "PLAIN" in load(tmp_path, users=[USER], kafka={"listen": OPEN, **certificate}).mechanisms
    assert "PLAIN" in load(tmp_path, users=[USER]).mechanisms
