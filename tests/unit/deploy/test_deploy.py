"""What is shipped to run the daemon: parsed, and held to what the design demands of it."""

from __future__ import annotations

import configparser
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.support.dashboard import PanelQuery, dashboard, panel_queries
from tiersidecar.app.commands.complaints import WRONG_USAGE
from tiersidecar.app.config.config import Config, load_config
from tiersidecar.app.config.store import FilesystemStore
from tiersidecar.ports.metrics.catalogue import CATALOGUE

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
OPERATIONS = ROOT / "docs" / "operations"
OF_PROMETHEUS = {
    *("up", "ALERTS"),
    *("process_start_time_seconds", "process_resident_memory_bytes", "process_cpu_seconds_total"),
}
OF_TARGETS = {"job", "instance"}


def documents(path: Path) -> list[Any]:
    return list(YAML(typ="safe", pure=True).load_all(path))


def rules() -> list[dict[str, Any]]:
    (document,) = documents(DEPLOY / "prometheus" / "tiersidecar.rules.yaml")
    return [rule for group in document["groups"] for rule in group["rules"]]


def sidecar() -> dict[str, Any]:
    (patch,) = documents(DEPLOY / "kubernetes" / "sidecar-patch.yaml")
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def shipped_config(tmp_path: Path) -> Config:
    (config_map,) = documents(DEPLOY / "kubernetes" / "configmap.yaml")
    file = tmp_path / "tiersidecar.yaml"
    file.write_text(config_map["data"]["tiersidecar.yaml"])
    return load_config(file, {})


def without_texts(expression: str) -> str:
    return re.sub(r'"[^"]*"', '""', expression)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_a_rule_uses_only_metrics_and_labels_that_there_are(rule: dict[str, Any]) -> None:
    told = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    assert_of_the_catalogue(rule["expr"], told)


def assert_of_the_catalogue(text: str, shown: Collection[str]) -> None:
    """The expression's metrics exist, and have the labels that it groups or matches by, or that are ``shown``."""
    expression = without_texts(text)
    known = {metric.name: metric for metric in CATALOGUE}
    found = re.findall(r"\b(?:tiersidecar|kafka|process|python)_\w+|\bup\b|\bALERTS\b", expression)
    named = {re.sub(r"_bucket$", "", name) for name in found}
    assert named
    assert named <= known.keys() | OF_PROMETHEUS
    labels = {label for metric in named & known.keys() for label in known[metric].labels} | OF_TARGETS
    labels |= {"le"} if any(name.endswith("_bucket") for name in found) else set()
    labels |= {"alertname", "alertstate"} if "ALERTS" in named else set()
    grouped = re.findall(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)", expression)
    matched = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression)
    assert {name.strip() for group in grouped for name in group.split(",")} | set(matched) | set(shown) <= labels


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_a_rule_says_how_grave_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"]
    assert f"\n## {rule['alert']}\n" in (OPERATIONS / "alerts.md").read_text()


def test_every_alert_explained_is_an_alert() -> None:
    explained = re.findall(r"^## (Tiersidecar\w+)$", (OPERATIONS / "alerts.md").read_text(), re.MULTILINE)
    assert sorted(explained) == sorted(rule["alert"] for rule in rules())


def test_every_rule_fires_in_a_test_of_promtools_and_says_what_is_written_there() -> None:
    """Run by tests/integration/test_prometheus_rules.py."""
    (document,) = documents(DEPLOY / "prometheus" / "tiersidecar.rules.test.yaml")
    fired = {
        one["alertname"] for test in document["tests"] for one in test.get("alert_rule_test", ()) if one["exp_alerts"]
    }
    assert fired == {rule["alert"] for rule in rules()}


@pytest.mark.parametrize("query", panel_queries(), ids=lambda query: f"{query.panel}: {query.expression[:40]}")
def test_a_panel_uses_only_metrics_and_labels_that_there_are(query: PanelQuery) -> None:
    assert_of_the_catalogue(query.expression, query.labels_shown)


def test_panels_of_the_dashboard_have_names_of_their_own_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["title"] for panel in panels}) == len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in panels):
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_the_signals_of_the_design_have_a_rule() -> None:
    named = " ".join(rule["expr"] for rule in rules())
    for metric in (
        "kafka_remote_copy_lag_bytes",
        "tiersidecar_halted_partitions",
        "tiersidecar_unsafe_topics",
        "tiersidecar_log_dir_faults",
        "tiersidecar_metadata_ready",
        "tiersidecar_copy_in_flight_oldest_age_seconds",
        "up{",
    ):
        assert metric in named


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read(DEPLOY / "systemd" / "tiersidecar.service")
    return parser


def test_the_unit_gives_the_broker_the_first_turn() -> None:
    """U14; ``benchmarks/produce_latency.py`` measures with its Nice, so that must say what the weight says: 1.25 a step."""
    service = unit()["Service"]
    weight = int(service["CPUWeight"])
    assert weight <= 20, "of 100"
    assert 100 * 1.25 ** -int(service["Nice"]) == pytest.approx(weight, rel=0.1)
    assert int(service["IOWeight"]) <= 20


def test_the_unit_restarts_failures_but_not_wrong_configurations() -> None:
    service = unit()["Service"]
    assert service["Restart"] == "on-failure"
    assert int(service["RestartPreventExitStatus"]) == WRONG_USAGE
    assert unit()["Unit"]["StartLimitIntervalSec"] == "0"


def test_the_unit_outlasts_the_grace_period() -> None:
    assert int(unit()["Service"]["TimeoutStopSec"]) * 1000 > Config.model_fields["shutdown_grace_ms"].default


def test_the_unit_starts_after_the_broker_and_is_not_bound_to_it() -> None:
    """Neither may pull the other down."""
    section = unit()["Unit"]
    assert "kafka.service" in section["After"]
    assert not {"Requires", "BindsTo", "PartOf", "Requisite", "Conflicts"} & set(section)


def test_the_unit_puts_no_mount_between_log_dirs_and_pins() -> None:
    """link(2) across two mounts of one file system fails."""
    service = unit()["Service"]
    mounts = {
        "ReadWritePaths",
        "ReadOnlyPaths",
        "BindPaths",
        "BindReadOnlyPaths",
        "InaccessiblePaths",
        "TemporaryFileSystem",
    }
    assert not mounts & set(service)
    assert service["ProtectSystem"] == "full"
    assert "@system-service" in service["SystemCallFilter"]
    assert service["User"] == "kafka"


def test_the_unit_lets_the_kernel_kill_the_sidecar_before_the_broker() -> None:
    assert int(unit()["Service"]["OOMScoreAdjust"]) > 0


def test_the_shipped_config_map_is_a_valid_configuration(tmp_path: Path) -> None:
    config = shipped_config(tmp_path)
    assert config.policy_for("orders.paid") is not None
    assert not config.status.listen.is_loopback


def test_the_containers_paths_are_mounted(tmp_path: Path) -> None:
    config, mounts = shipped_config(tmp_path), [mount["mountPath"] for mount in sidecar()["volumeMounts"]]
    assert isinstance(config.store, FilesystemStore)
    for path in (*config.log_dirs, config.state_dir, config.store.root, sidecar()["args"][2]):
        assert any(Path(path).is_relative_to(mount) for mount in mounts), path


def test_the_brokers_volume_is_mounted_once_whole_and_writable_above_its_log_dir(tmp_path: Path) -> None:
    """Pins lie beside the log dir on the same mount."""
    (data,) = [mount for mount in sidecar()["volumeMounts"] if mount["name"] == "data"]
    assert data.keys() == {"name", "mountPath"}
    _, example = documents(DEPLOY / "kubernetes" / "statefulset-example.yaml")
    (broker,) = example["spec"]["template"]["spec"]["containers"]
    assert data in broker["volumeMounts"]
    (log_dir,) = shipped_config(tmp_path).log_dirs
    assert Path(log_dir).parent.is_relative_to(data["mountPath"])


def test_the_container_runs_as_the_brokers_user_without_privileges() -> None:
    context = sidecar()["securityContext"]
    _, example = documents(DEPLOY / "kubernetes" / "statefulset-example.yaml")
    broker = example["spec"]["template"]["spec"]["containers"][0]["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (broker["runAsUser"], broker["runAsGroup"])
    assert context["runAsNonRoot"]
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}


def test_no_probe_of_the_sidecar_can_take_the_broker_out_of_service(tmp_path: Path) -> None:
    """Liveness asks for /healthz, and readiness is not the pod's."""
    container = sidecar()
    assert "readinessProbe" not in container
    port = shipped_config(tmp_path).status.listen.port
    assert {"name": "status", "containerPort": port} in container["ports"]
    for probe in (container["startupProbe"], container["livenessProbe"]):
        assert probe["httpGet"] == {"path": "/healthz", "port": "status"}
    (patch,) = documents(DEPLOY / "kubernetes" / "sidecar-patch.yaml")
    assert "initContainers" not in patch["spec"]["template"]["spec"]
    assert patch["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] == str(port)


def test_memory_is_limited_above_what_a_copy_needs() -> None:
    """Issue 1 of 8: copying a 1 GiB segment keeps the daemon below 200 MiB."""
    resources = sidecar()["resources"]
    assert resources["requests"]["memory"] == "256Mi"
    assert resources["limits"]["memory"] == "1Gi"


def logged_events() -> set[str]:
    """Return the names of all events that the product logs."""
    sources = (path.read_text() for path in (ROOT / "tiersidecar").rglob("*.py"))
    return {event for source in sources for event in re.findall(r'"([a-z_]+(?:\.[a-z_]+)+)"', source)}


@pytest.mark.parametrize("page", sorted(OPERATIONS.glob("*.md")), ids=lambda page: page.name)
def test_keys_named_by_a_page_are_keys(page: Path) -> None:
    """A renamed key is renamed in the documentation."""
    reference = (ROOT / "docs" / "configuration.md").read_text()
    keys = set(
        re.findall(
            r"`((?:remote\.log|log|read|status|store|state|shutdown|upload|encryption|deletes)\.[a-z.]+[a-z])[:`]",
            page.read_text(),
        )
    )
    brokers_own = {
        "log.dirs",
        "log.flush.start.offset.checkpoint.interval.ms",
        "remote.storage.enable",
        "remote.log.delete.on.disable",
    }
    unknown = [
        key
        for key in keys - brokers_own - logged_events()
        if f"`{key}`" not in reference and f"`{key.split('.', 1)[1]}`" not in reference
    ]
    assert unknown == []
