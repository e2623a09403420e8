"""``tiersidecar handover files`` as an operator gives it, with right and with wrong input (issue 21)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.daemon import daemon_settings
from tests.unit.app.handover.test_files import CLUSTER, log_dir, plan
from tiersidecar.app.cli import app
from tiersidecar.app.handover.plan import Plan, write_plan

__all__ = ["log_dir"]
PLUGIN = {"rsm.config.key.prefix": "tier/", "rsm.config.storage.s3.bucket.name": "kafka-tier"}


@pytest.fixture
def config(tmp_path: Path, log_dir: Path) -> Path:
    settings = daemon_settings(tmp_path, bootstrap_servers="127.0.0.1:1", log_dirs=[log_dir], topics=[])
    path = tmp_path / "tiersidecar.yaml"
    path.write_text(json.dumps(settings))
    return path


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    made = plan()
    write_plan(Plan(made_ms=1, cluster_id=CLUSTER, partitions=made.partitions, plugin=PLUGIN), tmp_path / "plan.json")
    return tmp_path / "plan.json"


def run(config: Path, *arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["handover", *map(str, arguments), "--config", str(config)])
    return done.exit_code, done.stdout, done.stderr


def test_dry_then_done_then_undone(config: Path, plan_file: Path, log_dir: Path) -> None:
    epochs = log_dir / "orders-0" / "leader-epoch-checkpoint"
    before = epochs.read_bytes()
    code, out, _ = run(config, "files", plan_file)
    assert (code, epochs.read_bytes()) == (0, before)
    assert "3 from 30, 4 from 80" in out
    assert "0 from 0, 3 from 20, 4 from 80" in out
    assert out.endswith("broker 1: 2 files to write; --carry-out writes them\n")
    code, out, _ = run(config, "files", plan_file, "--carry-out")
    assert (code, out.splitlines()[-1]) == (0, "broker 1: 2 files written")
    assert sorted(path.name for path in (plan_file.parent / "plan.json.broker-1").iterdir()) == [
        "000000-leader-epoch-checkpoint",
        "000001-log-start-offset-checkpoint",
        "backup.json",
    ]
    code, _, err = run(config, "files", plan_file, "--undo")
    assert (code, epochs.read_bytes()) == (0, before)
    assert "2 files given back" in err


def test_what_the_brokers_properties_say_otherwise(
    config: Path, plan_file: Path, tmp_path: Path, log_dir: Path
) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("rsm.config.key.prefix=tier/\nrsm.config.storage.s3.bucket.name=another\n")
    epochs = (log_dir / "orders-0" / "leader-epoch-checkpoint").read_bytes()
    code, _, err = run(config, "files", plan_file, "--broker-properties", properties, "--carry-out")
    assert code == 1
    assert "rsm.config.storage.s3.bucket.name is 'another', must be 'kafka-tier'" in " ".join(err.split())
    assert (log_dir / "orders-0" / "leader-epoch-checkpoint").read_bytes() == epochs
    properties.write_text("rsm.config.key.prefix=tier/\nrsm.config.storage.s3.bucket.name=kafka-tier\n")
    assert run(config, "files", plan_file, "--broker-properties", properties)[0] == 0


def test_a_fault_of_the_log_dir_changes_nothing(config: Path, plan_file: Path, log_dir: Path) -> None:
    (log_dir / ".kafka_cleanshutdown").unlink()
    code, _, err = run(config, "files", plan_file, "--carry-out")
    assert code == 1
    assert "was killed before it had closed its logs" in " ".join(err.split())
    code, out, _ = run(config, "files", plan_file, "--carry-out", "--json")
    document = json.loads(out)
    assert (code, document["written"], len(document["faults"])) == (1, None, 1)


def test_a_broker_without_these_partitions(config: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    write_plan(Plan(made_ms=1, cluster_id=CLUSTER, partitions=(), plugin={}), path)
    code, out, _ = run(config, "files", path)
    assert (code, out.splitlines()[0]) == (0, "broker 1 has no replica of the plan's partitions")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("files", "PLAN", "--carry-out", "--undo"), 2, "give --carry-out or --undo, not both"),
        (("files", "PLAN.none"), 1, "No such file"),
        (("files", "CONFIG"), 1, "it is no plan of a hand-over"),
        (("files", "PLAN", "--broker-properties", "PLAN.none"), 1, "No such file"),
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
