"""``tiersidecar handover files`` as an operator gives it, with right and with wrong input (issue 21)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.daemon import daemon_settings
from tests.unit.app.handover.test_files import CLUSTER, log_dir, plan
from tiersidecar.adapters.clock import SystemClock
from tiersidecar.app.cli import app
from tiersidecar.app.handover.plan import Plan, write_plan
from tiersidecar.decide.native_settings import BLIND_SETTINGS, RLMM_PREFIX

__all__ = ["log_dir"]
PLUGIN = {"rsm.config.key.prefix": "tier/", "rsm.config.storage.root": "/srv/tier"}
BLIND = {RLMM_PREFIX + name: value for name, value in BLIND_SETTINGS.items()}


@pytest.fixture
def config(tmp_path: Path, log_dir: Path) -> Path:
    settings = daemon_settings(tmp_path, bootstrap_servers="127.0.0.1:1", log_dirs=[log_dir], topics=[])
    path = tmp_path / "tiersidecar.yaml"
    path.write_text(json.dumps(settings))
    return path


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    return write_plan_of(tmp_path / "plan.json", SystemClock().now_ms())


def write_plan_of(path: Path, made_ms: int) -> Path:
    write_plan(Plan(made_ms=made_ms, cluster_id=CLUSTER, partitions=plan().partitions, plugin=PLUGIN), path)
    return path


@pytest.fixture
def properties(tmp_path: Path, log_dir: Path) -> Path:
    """The server.properties of a broker that sees nothing."""
    return write_properties(tmp_path, {**PLUGIN, **BLIND, "log.dirs": str(log_dir)})


def write_properties(directory: Path, lines: Mapping[str, str]) -> Path:
    path = directory / "server.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return path


def run(config: Path, *arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["handover", *map(str, arguments), "--config", str(config)])
    return done.exit_code, done.stdout, done.stderr


def test_dry_then_done_then_undone(config: Path, plan_file: Path, properties: Path, log_dir: Path) -> None:
    epochs = log_dir / "orders-0" / "leader-epoch-checkpoint"
    before = epochs.read_bytes()
    code, out, _ = run(config, "files", plan_file)
    assert (code, epochs.read_bytes()) == (0, before)
    assert "3 from 30, 4 from 80" in out
    assert "0 from 0, 3 from 20, 4 from 80" in out
    assert out.endswith("broker 1: 2 files to write; --carry-out writes them\n")
    code, out, _ = run(config, "files", plan_file, "--carry-out", "--broker-properties", properties)
    assert (code, out.splitlines()[-1]) == (0, "broker 1: 2 files written")
    assert sorted(path.name for path in (plan_file.parent / "plan.json.broker-1").iterdir()) == [
        "000000-leader-epoch-checkpoint",
        "000001-log-start-offset-checkpoint",
        "backup.json",
    ]
    code, _, err = run(config, "files", plan_file, "--undo", "--broker-properties", properties)
    assert (code, epochs.read_bytes()) == (0, before)
    assert "2 files given back" in err


OTHERWISE: dict[str, tuple[dict[str, str | None], str | None, str | None]] = {
    "nothing": ({}, None, None),
    "the plugin's root": (
        {"rsm.config.storage.root": "/srv/another"},
        "rsm.config.storage.root is '/srv/another', must be '/srv/tier'",
        None,
    ),
    "another log dir": (
        {"log.dirs": "/srv/kafka"},
        "log.dirs is /srv/kafka, and the sidecar's configuration has",
        "same",
    ),
    "one more log dir": ({"log.dirs": "LOG_DIR, /srv/b"}, "/srv/b, and the sidecar's configuration has", "same"),
    "the older name of log.dirs": ({"log.dirs": None, "log.dir": "LOG_DIR"}, None, None),
    "no log dirs": ({"log.dirs": None}, "log.dirs is /tmp/kafka-logs, and the sidecar's", "same"),
    "a broker that sees": (
        dict.fromkeys(BLIND),
        "rlmm.config.remote.log.metadata.common.client.bootstrap.servers must be 127.0.0.1:1",
        "same",
    ),
    "a metadata manager that reads": (
        {"rlmm.config.remote.log.metadata.common.client.bootstrap.servers": "kafka:9092"},
        "rlmm.config.remote.log.metadata.common.client.bootstrap.servers must be 127.0.0.1:1",
        "same",
    ),
    "prefixes of its own": (
        {
            **dict.fromkeys([*BLIND, *PLUGIN]),
            "remote.log.metadata.manager.impl.prefix": "m.",
            "remote.log.storage.manager.impl.prefix": "s.",
            **{name.replace(RLMM_PREFIX, "m."): value for name, value in BLIND.items()},
            **{name.replace("rsm.config.", "s."): value for name, value in PLUGIN.items()},
        },
        None,
        None,
    ),
}
"""What differs, what --carry-out says to that, and whether --undo says the same."""


@pytest.mark.parametrize("sentence", OTHERWISE)
def test_what_the_brokers_properties_say_otherwise(
    sentence: str, config: Path, plan_file: Path, properties: Path, log_dir: Path
) -> None:
    lines, fault, undo_fault = OTHERWISE[sentence]
    epochs = log_dir / "orders-0" / "leader-epoch-checkpoint"
    before = epochs.read_bytes()
    asked = ("files", plan_file, "--broker-properties", properties)
    assert run(config, *asked, "--carry-out")[0] == 0
    assert run(config, *asked, "--undo")[0] == 0
    said = {**PLUGIN, **BLIND, "log.dirs": str(log_dir), **lines}
    write_properties(
        properties.parent,
        {name: value.replace("LOG_DIR", str(log_dir)) for name, value in said.items() if value is not None},
    )
    code, _, err = run(config, *asked, "--carry-out")
    assert (code, fault is None or fault in " ".join(err.split())) == (int(fault is not None), True), err
    assert (epochs.read_bytes() == before) == (fault is not None)
    code, _, err = run(config, *asked, "--undo")
    assert (code, undo_fault is None or str(fault) in " ".join(err.split())) == (int(undo_fault is not None), True), err


def test_a_plan_that_asks_for_secrets_is_not_shown_any(config: Path, plan_file: Path, properties: Path) -> None:
    """It is another who wrote the plan: by its settings, the broker's file could be read out (issue 21)."""
    secrets = {"rsm.config.storage.aws.secret.access.key": "SECRET123", "sasl.jaas.config": 'password="hunter2"'}
    document = json.loads(plan_file.read_text())
    document["plugin"].update(dict.fromkeys(secrets, "x"))
    plan_file.write_text(json.dumps(document))
    with properties.open("a") as file:
        file.writelines(f"{name}={value}\n" for name, value in secrets.items())
    for options in ((), ("--json",)):
        code, out, err = run(config, "files", plan_file, "--broker-properties", properties, *options)
        said = " ".join((out + err).split())
        assert code == 1
        assert (
            "sasl.jaas.config is not what the plan says; it is none of the settings that a hand-over compares" in said
        )
        assert "SECRET123" not in said
        assert "hunter2" not in said


def test_a_fault_of_the_log_dir_changes_nothing(config: Path, plan_file: Path, properties: Path, log_dir: Path) -> None:
    (log_dir / ".kafka_cleanshutdown").unlink()
    code, _, err = run(config, "files", plan_file, "--carry-out", "--broker-properties", properties)
    assert code == 1
    assert "was killed before it had closed its logs" in " ".join(err.split())
    code, out, _ = run(config, "files", plan_file, "--carry-out", "--broker-properties", properties, "--json")
    document = json.loads(out)
    assert (code, document["written"], len(document["faults"])) == (1, None, 1)


def test_a_plan_does_not_move_the_cursor(config: Path, plan_file: Path, properties: Path) -> None:
    """Neither in a fault nor in an error (issue 21)."""
    document = json.loads(plan_file.read_text())
    document["plugin"]["\x1b]0;title\x07"] = "\x1b[2J"
    document["plugin"]["rsm.config.storage.root"] = "\x1b[2J"
    plan_file.write_text(json.dumps(document))
    _, out, err = run(config, "files", plan_file, "--broker-properties", properties)
    assert "title" in err
    assert "\x1b" not in out + err
    plan_file.write_text(json.dumps(document | {"cluster_id": "\x1b[2Jdone"}))
    _, out, err = run(config, "files", plan_file)
    assert "done" in err
    assert "\x1b" not in out + err


HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("age_hours", "fault"),
    [(23, ""), (25, "is 1d 1h old: what was copied, trimmed or deleted since is not in it"), (-25, "is of the future")],
)
def test_a_plan_of_yesterday_is_shown_and_refused(age_hours: int, fault: str, config: Path, tmp_path: Path) -> None:
    path = write_plan_of(tmp_path / "plan.json", SystemClock().now_ms() - age_hours * HOUR_MS)
    code, out, err = run(config, "files", path)
    assert (code, fault in " ".join(err.split())) == (int(bool(fault)), True), err
    assert out.splitlines()[0].startswith("the plan is of 20")
    assert run(config, "files", path, "--old-plan")[0] == 0
    document = json.loads(run(config, "files", path, "--json")[1])
    assert (document["plan_age_ms"] // HOUR_MS, len(document["faults"])) == (age_hours, int(bool(fault)))


def test_a_broker_without_these_partitions(config: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    write_plan(Plan(made_ms=SystemClock().now_ms(), cluster_id=CLUSTER, partitions=(), plugin={}), path)
    code, out, _ = run(config, "files", path)
    assert (code, out.splitlines()[1]) == (0, "broker 1 has no replica of the plan's partitions")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("files", "PLAN", "--carry-out", "--undo"), 2, "give --carry-out or --undo, not both"),
        (("files", "PLAN.none"), 1, "No such file"),
        (("files", "CONFIG"), 1, "it is not a plan of a hand-over"),
        (("files", "PLAN", "--broker-properties", "PLAN.none"), 1, "No such file"),
        (("files", "PLAN", "--carry-out"), 2, "--carry-out and --undo need --broker-properties"),
        (("files", "PLAN", "--undo"), 2, "--carry-out and --undo need --broker-properties"),
        (("verify", "PLAN.none"), 1, "No such file"),
        (("verify", "PLAN"), 1, "broker at 127.0.0.1:1 could not be reached"),
        (("to-native", "orders"), 1, "broker at 127.0.0.1:1 could not be reached"),
        (("from-native", "orders"), 1, "broker at 127.0.0.1:1 could not be reached"),
        (("to-native", "orders", "--write-plan", "PLAN"), 2, "exists: give another name"),
        (("to-native", "orders", "--accept", "history"), 2, "is not one of"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_wrong_input(arguments: tuple[str, ...], code: int, said: str, config: Path, plan_file: Path) -> None:
    named = [one.replace("PLAN", str(plan_file)).replace("CONFIG", str(config)) for one in arguments]
    found, _, err = run(config, *named)
    assert (found, said in " ".join(err.replace("│", " ").split())) == (code, True), err
