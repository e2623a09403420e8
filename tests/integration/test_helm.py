"""The chart, rendered by Helm's own engine, and every manifest against Kubernetes' published schemas and its own types
(U27, U36).
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from scripts.go_tool import go_tool
from tests.integration.test_kubernetes import read_strictly
from tests.unit.deploy.test_reconcile_deploy import options_of
from tiersidecar.app.config.config import Config, load_config

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]  # the program is built the first time

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "tiersidecar"
STRIMZI = CHART / "strimzi-values.yaml"
KUBERNETES = ("1.31", "1.34")
PATCH, COMPANION, GATEWAY = "sidecar.patch=true", "companion.enabled=true", "gateway.enabled=true"


def template(*settings: str, values: Path | None = None) -> subprocess.CompletedProcess[str]:
    arguments = [part for one in settings for part in ("-set", one)]
    arguments += ["-f", str(values)] if values else []
    command = [str(go_tool("helm-template")), "-n", "kafka", *arguments, "tier", str(CHART)]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def rendered(*settings: str, values: Path | None = None) -> dict[str, dict[str, Any]]:
    """What the chart makes, by kind and name."""
    done = template(*settings, values=values)
    assert done.returncode == 0, done.stderr
    documents = [one for one in YAML(typ="safe", pure=True).load_all(done.stdout) if one]
    return {f"{document['kind']}/{document['metadata']['name']}": document for document in documents}


def container_of(workload: dict[str, Any]) -> dict[str, Any]:
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def config_of(config_map: dict[str, Any], tmp_path: Path, environment: dict[str, str] | None = None) -> Config:
    file = tmp_path / f"{config_map['metadata']['name']}.yaml"
    file.write_text(config_map["data"]["tiersidecar.yaml"])
    return load_config(file, environment or {})


FORMS = [
    pytest.param((), None, id="as it comes"),
    pytest.param((COMPANION,), None, id="companions"),
    pytest.param((GATEWAY,), None, id="gateways"),
    pytest.param((COMPANION, GATEWAY), STRIMZI, id="Strimzi with gateways"),
    pytest.param(("reconcile.enabled=false",), None, id="no reconcile"),
]


@pytest.mark.parametrize(("settings", "values"), FORMS)
def test_what_the_chart_makes_is_valid_by_kubernetes_types_and_schemas(
    settings: tuple[str, ...], values: Path | None
) -> None:
    done = template(*settings, values=values)
    assert done.returncode == 0, done.stderr
    assert read_strictly(done.stdout)[0] == 0, read_strictly(done.stdout)[1]
    for document in rendered(*settings, values=values).values():
        for version in KUBERNETES:
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("manifest", sorted(DEPLOY.glob("kubernetes*/*.yaml")), ids=lambda path: path.name)
def test_plain_manifests_are_valid_by_the_schemas(manifest: Path) -> None:
    """Patches lack what the objects have that they are applied to; the whole is checked in test_kubernetes.py."""
    own = ("v1", "apps/v1", "batch/v1")
    for document in YAML(typ="safe", pure=True).load_all(manifest):
        if document["apiVersion"] in own and "patch" not in manifest.name:
            kubernetes_validate.validate(document, KUBERNETES[-1], strict=True)


def test_a_mistake_in_a_manifest_is_found_by_the_schemas() -> None:
    job = rendered()["CronJob/tier-reconcile"]
    job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["imagePullPolcy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError, match="imagePullPolcy"):
        kubernetes_validate.validate(job, KUBERNETES[-1], strict=True)


def test_reconcile_runs_once_for_the_cluster_unless_it_is_switched_off() -> None:
    assert [one for one in rendered() if one.startswith("CronJob/")] == ["CronJob/tier-reconcile"]
    assert [one for one in rendered(COMPANION, GATEWAY) if one.startswith("CronJob/")] == ["CronJob/tier-reconcile"]
    assert not [one for one in rendered("reconcile.enabled=false") if "reconcile" in one]
    job = rendered("reconcile.arguments={--deep}")["CronJob/tier-reconcile"]["spec"]["jobTemplate"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    assert container["args"][0] == "reconcile"
    assert {one.partition("=")[0] for one in container["args"][1:]} - options_of("reconcile") == set()
    assert "--put-report" in container["args"]


def test_the_patch_is_rendered_only_when_asked_for_and_changes_nothing_of_the_broker() -> None:
    assert not [one for one in rendered() if one.startswith("StatefulSet/")]
    patch = rendered(PATCH)["StatefulSet/kafka"]
    assert read_strictly(template(PATCH).stdout)[0] == 0
    container = container_of(patch)
    assert container["name"] == "tiersidecar"
    assert "readinessProbe" not in container
    assert {"name": "data", "mountPath": "/var/lib/kafka"} in container["volumeMounts"]
    assert (container["securityContext"]["runAsUser"], container["securityContext"]["runAsNonRoot"]) == (1000, True)


def test_each_companion_is_on_its_brokers_node_and_volume_as_its_user(tmp_path: Path) -> None:
    made = rendered(values=STRIMZI)
    for node in range(3):
        deployment, config_map = made[f"Deployment/tier-companion-{node}"], made[f"ConfigMap/tier-broker-{node}"]
        pod, container = deployment["spec"]["template"]["spec"], container_of(deployment)
        (term,) = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert term["labelSelector"]["matchLabels"] == {"strimzi.io/pod-name": f"my-cluster-broker-{node}"}
        assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == f"data-0-my-cluster-broker-{node}"
        assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]["type"]) == (1, "Recreate")
        assert (container["securityContext"]["runAsUser"], pod["securityContext"]["fsGroup"]) == (1001, 0)
        (mount,) = [one for one in container["volumeMounts"] if one["name"] == "data"]
        assert mount == {"name": "data", "mountPath": "/var/lib/kafka/data-0"}
        secrets = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        config = config_of(config_map, tmp_path, secrets)
        assert list(config.log_dirs) == [f"/var/lib/kafka/data-0/kafka-log{node}"]
        assert [str(one) for one in config.broker.bootstrap_servers] == [
            f"my-cluster-broker-{node}.my-cluster-kafka-brokers.kafka.svc:9093"
        ]


def test_each_gateway_tells_clients_the_service_in_front_of_each_broker(tmp_path: Path) -> None:
    made = rendered(GATEWAY)
    for node in range(3):
        config = config_of(made[f"ConfigMap/tier-broker-{node}"], tmp_path)
        (listener,) = config.gateway.listeners
        assert listener.advertised_pattern == "tier-gateway-{node.id}.kafka:9192"
        service, deployment = made[f"Service/tier-gateway-{node}"], made[f"Deployment/tier-gateway-{node}"]
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
        assert made["Service/tier-gateway"]["spec"]["selector"].items() <= labels.items()
        container = container_of(deployment)
        assert [one["containerPort"] for one in container["ports"] if one["name"] == "gateway"] == [
            listener.listen.port
        ]
        writable = {one["name"] for one in container["volumeMounts"] if "readOnly" not in one}
        assert "data" not in writable


@pytest.mark.parametrize("settings", [(), (COMPANION,), (GATEWAY,)], ids=["as it comes", "companions", "gateways"])
def test_the_configurations_of_the_chart_are_valid(settings: tuple[str, ...], tmp_path: Path) -> None:
    found = [one for name, one in rendered(*settings).items() if name.startswith("ConfigMap/")]
    assert len(found) == (2 if not settings else 5)
    for config_map in found:
        assert config_of(config_map, tmp_path).store.type == "filesystem"


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        pytest.param("broker.pod=kafka", "pod", id="a pod's name without the broker's id"),
        pytest.param("broker.uid=0", "uid", id="root"),
        pytest.param("brokr.uid=1000", "brokr", id="a value that there is not"),
        pytest.param("broker.ids=null", "ids", id="no brokers"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_the_charts_schema(setting: str, complaint: str) -> None:
    done = template(setting)
    assert done.returncode == 1
    assert complaint in done.stderr
