"""What runs reconcile regularly: the command line that it gives is one that there is."""

from __future__ import annotations

import configparser
import shlex
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from typer.main import get_command

from tiersidecar.app.cli import app

DEPLOY = Path(__file__).parents[3] / "deploy"


def options_of(command: str) -> set[str]:
    commands: Any = get_command(app)
    return {text for parameter in commands.get_command(None, command).params for text in parameter.opts}


def assert_is_reconcile(arguments: list[str]) -> None:
    command, *rest = arguments
    assert command == "reconcile"
    given = {argument.partition("=")[0] for argument in rest if argument.startswith("--")}
    assert {"--config", "--put-report"} <= given <= options_of("reconcile")


def document(name: str) -> dict[str, Any]:
    (found,) = YAML(typ="safe", pure=True).load_all(DEPLOY / "kubernetes" / name)
    assert isinstance(found, dict)
    return found


def test_the_systemd_timer_starts_a_run_whose_findings_are_no_failure() -> None:
    units = {}
    for kind in ("service", "timer"):
        units[kind] = configparser.ConfigParser(strict=False, interpolation=None)
        units[kind].optionxform = str  # type: ignore[assignment,method-assign]
        units[kind].read(DEPLOY / "systemd" / f"tiersidecar-reconcile.{kind}")
    service = units["service"]["Service"]
    assert_is_reconcile(shlex.split(service["ExecStart"])[1:])
    assert (service["Type"], service["SuccessExitStatus"]) == ("oneshot", "3")
    assert units["timer"]["Timer"]["OnCalendar"]


def test_the_cron_job_does_not_repeat_a_run_that_found_something() -> None:
    job = document("reconcile-cronjob.yaml")["spec"]["jobTemplate"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert_is_reconcile(container["args"])
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert {2, 3} == set(rule["onExitCodes"]["values"])
    assert rule["onExitCodes"]["containerName"] == container["name"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_the_spark_application_gives_driver_and_executors_the_configuration() -> None:
    template = document("reconcile-sparkapplication.yaml")["spec"]["template"]
    assert_is_reconcile(template["arguments"])
    for part in ("driver", "executor"):
        assert [mount["mountPath"] for mount in template[part]["volumeMounts"]] == ["/etc/tiersidecar"]
    assert (DEPLOY / "spark" / Path(template["mainApplicationFile"]).name).exists()


def test_the_cron_jobs_pod_asks_a_broker_that_it_can_reach_about_the_sidecars_store() -> None:
    data = document("configmap.yaml")["data"]
    ours, sidecars = (YAML(typ="safe", pure=True).load(data[name]) for name in ("reconcile.yaml", "tiersidecar.yaml"))
    assert ours["store"] == sidecars["store"]
    host, _, _ = ours["broker"]["bootstrap.servers"].partition(":")
    example = YAML(typ="safe", pure=True).load_all(DEPLOY / "kubernetes" / "statefulset-example.yaml")
    assert host in {one["metadata"]["name"] for one in example if one["kind"] == "Service"}
    job = document("reconcile-cronjob.yaml")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert "--config=/etc/tiersidecar/reconcile.yaml" in job["containers"][0]["args"]


def test_reconcile_comes_with_every_form_of_deployment() -> None:
    kustomization = YAML(typ="safe", pure=True).load(DEPLOY / "kubernetes" / "kustomization.yaml")
    values = YAML(typ="safe", pure=True).load(DEPLOY / "helm" / "tiersidecar" / "values.yaml")
    assert "reconcile-cronjob.yaml" in kustomization["resources"]
    assert values["reconcile"]["enabled"] is True
    steps = (DEPLOY.parent / "docs" / "operations" / "install.md").read_text()
    assert "enable --now tiersidecar-reconcile.timer" in steps
