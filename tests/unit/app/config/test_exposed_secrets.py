"""Files with secrets that group or others can read are told, with what to run (issue 17)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from stat import S_IMODE

import pytest
from typer.testing import CliRunner

from tests.unit.app.config.config_files import load
from tiersidecar.app.cli import app
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.exposed_secrets import exposed_secrets
from tiersidecar.app.config.report import warnings_of

INLINE = """\
log.dirs: [/var/lib/kafka/data]
broker: {bootstrap.servers: "127.0.0.1:9092", security.protocol: SASL_SSL, sasl.mechanism: PLAIN, sasl.username: u,
  sasl.password: hunter2}
store: {type: s3, s3.bucket.name: b, s3.region: r, aws.access.key.id: {env: ID}, aws.secret.access.key: hunter3}
"""


def write(path: Path, text: str, mode: int) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def config_with(tmp_path: Path, mode: int) -> Config:
    """Password file, keys, token and certificates, all of ``mode``."""
    for name in ("password", "read.key", "both.pem", "private.pem", "public.pem", "token"):
        write(tmp_path / name, "hunter2\n", mode)
    text = f"""\
log.dirs: [/var/lib/kafka/data]
broker: {{bootstrap.servers: "127.0.0.1:9092", security.protocol: SASL_SSL, sasl.mechanism: OAUTHBEARER,
  sasl.oauthbearer.token.endpoint.url: "file://{tmp_path}/token", ssl.certificate.location: {tmp_path}/both.pem}}
read:
  ssl.certificate.location: {tmp_path}/public.pem
  ssl.key.location: {tmp_path}/read.key
  ssl.key.password: {{file: {tmp_path}/password}}
store:
  type: filesystem
  root: /srv/tier
  encryption.key.pairs: {{one: {{public.key.file: {tmp_path}/public.pem, private.key.file: {tmp_path}/private.pem}}}}
"""
    return load(tmp_path, text)


@pytest.mark.parametrize(
    ("mode", "readers"),
    [
        pytest.param(0o600, None, id="the owner alone"),
        pytest.param(0o400, None, id="the owner alone, for reading"),
        pytest.param(0o640, "group", id="the group too"),
        pytest.param(0o604, "others", id="others but the group"),
        pytest.param(0o644, "and others", id="all"),
    ],
)
def test_a_configuration_with_secrets_in_it_is_told_by_its_mode(tmp_path: Path, mode: int, readers: str | None) -> None:
    config = load(tmp_path, INLINE, {"ID": "id"})
    file = tmp_path / "t.yaml"
    file.chmod(mode)
    found = exposed_secrets(config.secret_places)
    if readers is None:
        assert found == ()
        return
    (one,) = found
    assert (one.file, one.mode, one.keys) == (str(file), mode, ("broker.sasl.password", "store.aws.secret.access.key"))
    assert readers in one.readers
    (warning,) = [text for text in warnings_of(config) if text.startswith("broker.sasl.password, store.aws")]
    assert str(file) in warning
    assert f"{mode:04o}" in warning
    assert f"chmod 600 {file}" in warning
    assert "hunter" not in warning


def test_a_configuration_without_secrets_in_it_may_be_read_by_all(tmp_path: Path) -> None:
    text = INLINE.replace("hunter2", "{env: A}").replace("hunter3", "{env: B}")
    config = load(tmp_path, text, {"A": "a", "B": "b", "ID": "id"})
    (tmp_path / "t.yaml").chmod(0o644)
    assert config.secret_places == ()
    assert exposed_secrets(config.secret_places) == ()


def test_password_files_private_keys_and_tokens_are_told_and_certificates_are_not(tmp_path: Path) -> None:
    found = exposed_secrets(config_with(tmp_path, 0o644).secret_places)
    assert {one.file: one.keys for one in found} == {
        str(tmp_path / "both.pem"): ("broker.ssl.certificate.location",),
        str(tmp_path / "password"): ("read.ssl.key.password",),
        str(tmp_path / "private.pem"): ("store.encryption.key.pairs.one.private.key.file",),
        str(tmp_path / "read.key"): ("read.ssl.key.location",),
        str(tmp_path / "token"): ("broker.sasl.oauthbearer.token.endpoint.url",),
    }
    assert exposed_secrets(config_with(tmp_path, 0o600).secret_places) == ()


def test_the_command_that_is_told_ends_the_warning(tmp_path: Path) -> None:
    odd = tmp_path / "with space; and 'quote'"
    odd.mkdir()
    config = config_with(odd, 0o644)
    for secret in exposed_secrets(config.secret_places):
        subprocess.run(["sh", "-c", secret.command], check=True)
        assert S_IMODE(Path(secret.file).stat().st_mode) == 0o600
    assert exposed_secrets(config.secret_places) == ()


def test_a_file_of_another_user_that_lets_this_one_in_by_its_group_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root:kafka 0640, or on Kubernetes by fsGroup: without the group the daemon could not read it."""
    config = load(tmp_path, INLINE, {"ID": "id"})
    file = tmp_path / "t.yaml"
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    monkeypatch.setattr(os, "getegid", lambda: file.stat().st_gid)
    file.chmod(0o640)
    assert exposed_secrets(config.secret_places) == ()
    file.chmod(0o644)
    (one,) = exposed_secrets(config.secret_places)
    assert one.command.startswith("chown ")
    assert one.command.endswith(f" && chmod 600 {file}")


def test_check_config_says_it_on_the_terminal_and_as_json(tmp_path: Path) -> None:
    file = write(tmp_path / "t.yaml", INLINE, 0o644)
    environ = {"ID": "id"}
    shown = CliRunner().invoke(app, ["check-config", str(file)], env=environ)
    assert shown.exit_code == 0, "a warning is no fault"
    assert f"{file} has mode 0644" in shown.stderr
    document = json.loads(CliRunner().invoke(app, ["check-config", "--json", str(file)], env=environ).stdout)
    assert document["exposed_secrets"] == [
        {
            "file": str(file),
            "mode": "0644",
            "keys": ["broker.sasl.password", "store.aws.secret.access.key"],
            "command": f"chmod 600 {file}",
        }
    ]
    assert any(f"chmod 600 {file}" in warning for warning in document["warnings"])
    file.chmod(0o600)
    document = json.loads(CliRunner().invoke(app, ["check-config", "--json", str(file)], env=environ).stdout)
    assert document["exposed_secrets"] == []
