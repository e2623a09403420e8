"""The Compose file: its parts fit each other and the product.  Compose itself is not there where this is developed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.unit.deploy.test_reconcile_deploy import assert_is_reconcile, options_of
from tiersidecar.app.config.config import Config, load_config

COMPOSE = Path(__file__).parents[3] / "deploy" / "compose"
SIDECARS = ("sidecar", "gateway", "reconcile")


def loaded(name: str) -> dict[str, Any]:
    found = YAML(typ="safe", pure=True).load(COMPOSE / name)
    assert isinstance(found, dict)
    return found


def services() -> dict[str, Any]:
    found = loaded("compose.yaml")["services"]
    assert isinstance(found, dict)
    return found


def config() -> Config:
    return load_config(COMPOSE / "tiersidecar.yaml", {})


@pytest.mark.parametrize("name", sorted(services()))
def test_volumes_are_declared_and_files_are_there(name: str) -> None:
    declared = loaded("compose.yaml")["volumes"]
    for mount in services()[name].get("volumes", ()):
        source = mount.split(":")[0]
        assert (COMPOSE / source).exists() if source.startswith(".") else source in declared, mount


@pytest.mark.parametrize("name", sorted(services()))
def test_services_that_are_waited_for_are_there_and_ports_are_on_loopback(name: str) -> None:
    assert set(services()[name].get("depends_on", ())) <= services().keys()
    assert all(port.startswith("127.0.0.1:") for port in services()[name].get("ports", ()))


@pytest.mark.parametrize("name", SIDECARS)
def test_a_sidecar_has_the_brokers_volume_at_the_brokers_path_and_its_uid(name: str) -> None:
    (brokers,) = services()["kafka"]["volumes"]
    assert brokers in services()[name]["volumes"]
    assert services()[name]["user"] == "1000:1000"
    path = brokers.partition(":")[2]
    (log_dir,) = config().log_dirs
    assert services()["kafka"]["environment"]["KAFKA_LOG_DIRS"] == str(log_dir)
    assert Path(log_dir).parent == Path(path)


def test_the_commands_are_the_products_own() -> None:
    for name in ("sidecar", "gateway"):
        command, *arguments = services()[name]["command"]
        assert {argument for argument in arguments if argument.startswith("--")} <= options_of(command)
    (line,) = services()["reconcile"]["command"]
    assert_is_reconcile(re.search(r"tiersidecar (reconcile [^;]*);", line)[1].split())  # type: ignore[index]


def test_each_role_runs_once() -> None:
    roles = [services()[name]["command"][4] for name in ("sidecar", "gateway")]
    assert roles == ["tier,read", "gateway"]


def test_published_ports_are_those_of_the_configuration() -> None:
    listener = config().gateway.listeners[0]
    published = {port.split(":")[2] for name in ("sidecar", "gateway") for port in services()[name]["ports"]}
    status = services()["gateway"]["command"][-1].rpartition(":")[2]
    assert published == {str(config().status.listen.port), str(listener.listen.port), status}
    assert config().read.listen.host == "127.0.0.1"
    assert str(listener.advertised_nodes[int(services()["kafka"]["environment"]["KAFKA_NODE_ID"])]) == "localhost:9192"
    assert status in services()["gateway"]["environment"]["TIERSIDECAR_HEALTH_URL"]


def test_prometheus_scrapes_both_processes_under_the_rules_job_name() -> None:
    (job,) = loaded("prometheus.yml")["scrape_configs"]
    assert job["job_name"] == "tiersidecar"
    assert job["static_configs"] == [{"targets": ["sidecar:8091", "gateway:8092"]}]
    mounted = {service.split(":")[1] for service in services()["prometheus"]["volumes"]}
    assert set(loaded("prometheus.yml")["rule_files"]) <= mounted


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    (source,) = loaded("grafana/datasource.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = loaded("grafana/dashboards.yaml")["providers"]
    (dashboard,) = [service for service in services()["grafana"]["volumes"] if service.startswith("../grafana/")]
    assert Path(dashboard.split(":")[1]).parent == Path(provider["options"]["path"])
