"""What runs the gateway as a process of its own, beside the sidecar and with the sidecar's configuration."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.unit.deploy.test_reconcile_deploy import options_of
from tiersidecar.app.commands.complaints import WRONG_USAGE
from tiersidecar.app.config.config import Config, load_config
from tiersidecar.app.config.values import Address

DEPLOY = Path(__file__).parents[3] / "deploy"


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    # The one key that systemd takes several times: each later file adds to the former.
    text = (DEPLOY / "systemd" / f"{name}.service").read_text()
    parser.read_string(re.sub(r"^EnvironmentFile=.*\n", "", text, flags=re.MULTILINE))
    parser["Service"]["EnvironmentFile"] = " ".join(re.findall(r"^EnvironmentFile=(.*)$", text, re.MULTILINE))
    return parser


def patch(directory: str, name: str) -> dict[str, Any]:
    (found,) = YAML(typ="safe", pure=True).load_all(DEPLOY / directory / name)
    assert isinstance(found, dict)
    return found


def containers() -> dict[str, dict[str, Any]]:
    pod = patch("kubernetes-gateway", "gateway-patch.yaml")["spec"]["template"]["spec"]
    return {one["name"]: one for one in pod["containers"]}


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def settings_of(directory: str, name: str) -> dict[str, Any]:
    (settings,) = YAML(typ="safe", pure=True).load_all(patch(directory, name)["data"]["tiersidecar.yaml"])
    assert isinstance(settings, dict)
    return settings


def shipped_config(tmp_path: Path) -> Config:
    file = tmp_path / "tiersidecar.yaml"
    file.write_text(patch("kubernetes-gateway", "configmap-patch.yaml")["data"]["tiersidecar.yaml"])
    return load_config(file, {})


def test_the_unit_runs_the_role_alone_with_the_sidecars_configuration_and_a_status_address_of_its_own() -> None:
    """That both of them run is in tests/integration/test_two_processes.py."""
    sidecar = shlex.split(unit("tiersidecar")["Service"]["ExecStart"])
    gateway = shlex.split(unit("tiersidecar-gateway")["Service"]["ExecStart"])
    assert gateway[: len(sidecar)] == sidecar
    assert option(gateway, "--roles") == "gateway"
    assert option(gateway, "--status-listen") != str(Config.model_fields["status"].default.listen)
    assert {one for one in gateway if one.startswith("--")} <= options_of("run")


def test_neither_unit_pulls_the_other_or_the_broker_down() -> None:
    section = unit("tiersidecar-gateway")["Unit"]
    assert "kafka.service" in section["After"]
    assert not {"Requires", "BindsTo", "PartOf", "Requisite", "Conflicts"} & set(section)


def test_clients_wait_for_it_so_it_is_no_background_work() -> None:
    service = unit("tiersidecar-gateway")["Service"]
    assert not {"Nice", "CPUWeight"} & set(service)
    assert 0 < int(service["OOMScoreAdjust"]) < int(unit("tiersidecar")["Service"]["OOMScoreAdjust"])
    assert int(service["TimeoutStopSec"]) * 1000 > Config.model_fields["shutdown_grace_ms"].default
    assert (service["Restart"], int(service["RestartPreventExitStatus"])) == ("on-failure", WRONG_USAGE)


@pytest.mark.parametrize("key", ["User", "Group", "StateDirectory", "StateDirectoryMode", "UMask"])
def test_both_units_agree_on(key: str) -> None:
    """One owner of ``state.dir`` and of what only pins hold."""
    assert unit("tiersidecar-gateway")["Service"][key] == unit("tiersidecar")["Service"][key]


def test_the_gateway_may_have_a_user_and_a_store_key_of_its_own_beside_the_sidecars_file() -> None:
    """The later file counts."""
    own, shared = unit("tiersidecar-gateway")["Service"], unit("tiersidecar")["Service"]["EnvironmentFile"]
    assert own["EnvironmentFile"].split() == [shared, "-/etc/tiersidecar/gateway.environment"]


def test_everything_but_its_state_is_read_only_to_the_gateway() -> None:
    """Unlike the sidecar it makes no hard links, so that mounts may stand between."""
    assert unit("tiersidecar-gateway")["Service"]["ProtectSystem"] == "strict"
    writable = {
        mount["name"] for mount in containers()["tiersidecar-gateway"]["volumeMounts"] if "readOnly" not in mount
    }
    assert writable == {"tiersidecar-state", "tiersidecar-tmp"}


def test_only_one_container_has_the_gateways_role() -> None:
    assert option(containers()["tiersidecar"]["args"], "--roles") == "tier,read"
    assert option(containers()["tiersidecar-gateway"]["args"], "--roles") == "gateway"
    for container in containers().values():
        command, *arguments = container["args"]
        assert {argument for argument in arguments if argument.startswith("--")} <= options_of(command)


def test_ports_of_container_service_and_configuration_are_the_same(tmp_path: Path) -> None:
    (listener,) = shipped_config(tmp_path).gateway.listeners
    container = containers()["tiersidecar-gateway"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    status = Address.parse(option(container["args"], "--status-listen"))
    assert ports == {"gateway": listener.listen.port, "gateway-status": status.port}
    assert status.port != shipped_config(tmp_path).status.listen.port
    (service_port,) = patch("kubernetes-gateway", "service-patch.yaml")["spec"]["ports"]
    assert service_port == {"name": "gateway", "port": listener.listen.port}
    for probe in (container["startupProbe"], container["livenessProbe"]):
        assert probe["httpGet"] == {"path": "/healthz", "port": "gateway-status"}
    assert "readinessProbe" not in container


def test_the_configuration_is_that_of_the_sidecar_and_a_listener() -> None:
    with_gateway = settings_of("kubernetes-gateway", "configmap-patch.yaml")
    assert with_gateway.pop("gateway")["listeners"]
    assert with_gateway == settings_of("kubernetes", "configmap.yaml")


def test_the_gateways_container_mounts_what_the_sidecars_does() -> None:
    """Log dirs, store, configuration and state, at the same places: they read one configuration."""
    pod = patch("kubernetes", "sidecar-patch.yaml")["spec"]["template"]["spec"]
    (sidecar,) = pod["containers"]
    gateway = containers()["tiersidecar-gateway"]
    places = [{(mount["name"], mount["mountPath"]) for mount in one["volumeMounts"]} for one in (sidecar, gateway)]
    assert places[0] == places[1]
    assert gateway["image"] == sidecar["image"]
    assert gateway["securityContext"] == sidecar["securityContext"]
