"""What check-config shows, and what it warns of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tiersidecar.app.config.config import Config, load_config
from tiersidecar.app.config.report import MASK, effective_settings, render_yaml, warnings_of

SASL = {
    "bootstrap.servers": "kafka-1:9092",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "u",
    "sasl.password": {"env": "PASSWORD"},
}
SOURCE = SASL | {"mount.plan": "/etc/mount.json"}


def config_of(tmp_path: Path, **sections: Any) -> Config:
    log_dir, root = tmp_path / "data", tmp_path / "tier"
    for directory in (log_dir, root):
        directory.mkdir(exist_ok=True)
    data = {
        "log.dirs": [str(log_dir)],
        "broker": {"bootstrap.servers": "127.0.0.1:9092"},
        "store": {"type": "filesystem", "root": str(root)},
        "topics": [{"name": "orders"}],
    } | {key.replace("_", "."): value for key, value in sections.items()}
    file = tmp_path / "t.yaml"
    with file.open("w") as out:
        YAML(typ="safe", pure=True).dump(data, out)
    return load_config(file, {"PASSWORD": "hunter2"})


def test_settings_show_every_value_with_units_and_no_secret(tmp_path: Path) -> None:
    config = config_of(tmp_path, broker=SASL)
    text = render_yaml(effective_settings(config, units=True))
    assert "hunter2" not in text
    shown = YAML(typ="safe", pure=True).load(text)
    assert shown["broker"]["sasl.password"] == MASK
    assert shown["store"]["chunk.size"] == "4MiB"
    assert shown["remote.log.manager.task.interval.ms"] == "30s"
    assert shown["read"]["listen"] == "127.0.0.1:8090"
    assert shown["topics"][0]["mode"] == "strict"
    assert "kafka.version" not in shown


def test_settings_without_units_are_numbers(tmp_path: Path) -> None:
    settings = effective_settings(config_of(tmp_path), units=False)
    assert settings["store"]["chunk.size"] == 4194304
    assert settings["remote.log.manager.task.interval.ms"] == 30_000


def test_shown_settings_load_to_the_same_configuration(tmp_path: Path) -> None:
    config = config_of(tmp_path, topics=[{"pattern": "a.*", "retention.ms": "7d", "exclude": ["ab"]}])
    file = tmp_path / "shown.yaml"
    file.write_text(render_yaml(effective_settings(config, units=True)))
    assert load_config(file, {}) == config.read_from(file)


def test_a_usual_configuration_warns_of_nothing(tmp_path: Path) -> None:
    assert warnings_of(config_of(tmp_path)) == ()


S3 = {"type": "s3", "s3.bucket.name": "b", "s3.region": "r"}


@pytest.mark.parametrize(
    ("sections", "warning"),
    [
        pytest.param({"mode": "observe"}, "mode: observe decides", id="observe"),
        pytest.param({"deletes_enabled": False}, "deletes.enabled: false stops all trims", id="deletes off"),
        pytest.param(
            {"log_dirs": ["/no/such/dir"]}, "log.dirs: /no/such/dir is not a directory", id="a missing log dir"
        ),
        pytest.param(
            {"store": {"type": "filesystem", "root": "/no/such/tier"}},
            "store.root: /no/such/tier is not a directory",
            id="a missing store",
        ),
        pytest.param({"topics": []}, "topics: no rule", id="no topics"),
        pytest.param({"topics": [{"name": "a"}, {"name": "a"}]}, "topics[1]: never used", id="a topic twice"),
        pytest.param(
            {"topics": [{"pattern": ".*"}, {"name": "a"}]},
            "topics[1]: never used, topics[0] matches first",
            id="a rule behind a catch-all",
        ),
        pytest.param(
            {"topics": [{"name": "a", "mode": "race"}], "pins.enabled": False},
            "topics[0].mode: race loses",
            id="race without pins",
        ),
        pytest.param(
            {"broker": SASL | {"security.protocol": "SASL_PLAINTEXT"}},
            "broker.security.protocol: SASL_PLAINTEXT sends credentials to kafka-1:9092",
            id="credentials in the clear",
        ),
        pytest.param(
            {"gateway": {"listeners": [{"listen": "0.0.0.0:9192"}]}},
            "gateway.listeners[0]: 0.0.0.0:9192 takes clients without TLS",
            id="a gateway in the clear",
        ),
        pytest.param(
            {"broker": SASL | {"ssl.endpoint.identification.algorithm": ""}},
            "broker.ssl.endpoint.identification.algorithm",
            id="host name not checked",
        ),
        pytest.param(
            {"source": SOURCE | {"security.protocol": "SASL_PLAINTEXT"}, "topics": []},
            "source.security.protocol: SASL_PLAINTEXT sends credentials to kafka-1:9092",
            id="credentials in the clear, to the source of a mount",
        ),
        pytest.param(
            {"source": SOURCE | {"ssl.endpoint.identification.algorithm": ""}, "topics": []},
            "source.ssl.endpoint.identification.algorithm",
            id="host name of the source not checked",
        ),
        pytest.param(
            {"store": {"type": "filesystem", "root": "/r", "key.prefix": "tier"}}, "store.key.prefix", id="no slash"
        ),
        pytest.param(
            {"store": {"type": "filesystem", "root": "/r", "custom.metadata.fields.include": ["OBJECT_KEY"]}},
            "store.custom.metadata.fields.include",
            id="object keys in 128 bytes",
        ),
        pytest.param(
            {
                "store": {
                    "type": "filesystem",
                    "root": "/r",
                    "encryption.key.pairs": {"k": {"public.key.file": "/no/p", "private.key.file": "/no/q"}},
                }
            },
            "store.encryption.key.pairs.k: /no/p is not a file",
            id="a key file that is not there",
        ),
        pytest.param(
            {"store": S3 | {"aws.certificate.check.enabled": False}},
            "store.aws.certificate.check.enabled",
            id="certificates not checked",
        ),
        pytest.param(
            {
                "store": S3
                | {
                    "encryption.enabled": True,
                    "encryption.key.wrapping": "aws-kms",
                    "encryption.key.wrapping.options": {
                        "key.id": "k",
                        "region": "r",
                        "endpoint.url": "http://kms:8080",
                    },
                }
            },
            "store.encryption.key.wrapping.options.endpoint.url: http sends data keys as they are",
            id="data keys without TLS",
        ),
    ],
)
def test_what_may_not_be_meant_is_warned_of(tmp_path: Path, sections: dict[str, Any], warning: str) -> None:
    warnings = warnings_of(config_of(tmp_path, **sections))
    assert [text for text in warnings if text.startswith(warning)]
