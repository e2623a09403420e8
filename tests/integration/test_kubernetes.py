"""What is shipped for Kubernetes, by Kubernetes' own code: manifests read strictly into its types, the patch applied by
kustomize.  No cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from scripts.go_tool import go_tool

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]  # both programs are built the first time

MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes"


def read_strictly(text: str) -> tuple[int, list[str]]:
    """What Kubernetes' types make of the documents: 0 and their names, or 1 and what is wrong."""
    done = subprocess.run([go_tool("kubernetes-objects")], input=text, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def test_manifests_are_objects_of_kubernetes_without_a_field_too_many() -> None:
    """The Spark operator's resource is no part of Kubernetes, and kustomization.yaml none of its objects."""
    names = ("configmap", "reconcile-cronjob", "sidecar-patch", "statefulset-example")
    text = "\n---\n".join((MANIFESTS / f"{name}.yaml").read_text() for name in names)
    assert read_strictly(text) == (
        0,
        [
            *("ConfigMap/tiersidecar", "CronJob/tiersidecar-reconcile"),
            *("StatefulSet/kafka", "Service/kafka", "StatefulSet/kafka"),
        ],
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("startupProbe:", "startupProb:", id="a field that there is not"),
        pytest.param("periodSeconds: 2", 'periodSeconds: "2s"', id="a field of another type"),
    ],
)
def test_a_mistake_in_a_manifest_is_told(before: str, after: str) -> None:
    text = (MANIFESTS / "sidecar-patch.yaml").read_text()
    assert before in text
    code, told = read_strictly(text.replace(before, after))
    assert code == 1
    assert before.split(":")[0][:-1] in told[0]


def test_kustomize_puts_the_sidecar_beside_the_broker_and_leaves_the_broker_as_it_was() -> None:
    done = subprocess.run(
        [go_tool("kustomize"), "build", MANIFESTS],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert read_strictly(done.stdout)[0] == 0
    built = {document["kind"]: document for document in YAML(typ="safe", pure=True).load_all(done.stdout)}
    assert built.keys() == {"Service", "StatefulSet", "ConfigMap", "CronJob"}
    [patch] = loaded("sidecar-patch.yaml")
    _, example = loaded("statefulset-example.yaml")
    pod, sidecars, brokers = (document["spec"]["template"] for document in (built["StatefulSet"], patch, example))
    containers = {one["name"]: one for one in pod["spec"]["containers"]}
    assert list(containers.values()) == [*sidecars["spec"]["containers"], *brokers["spec"]["containers"]]
    assert pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] == "kafka"
    [claim] = built["StatefulSet"]["spec"]["volumeClaimTemplates"]
    volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
    assert volumes["tiersidecar-config"]["configMap"]["name"] == built["ConfigMap"]["metadata"]["name"]
    for container in containers.values():
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted <= {*volumes, claim["metadata"]["name"]}


def test_kustomize_adds_the_gateway_and_takes_its_role_from_the_sidecar() -> None:
    done = subprocess.run(
        [go_tool("kustomize"), "build", MANIFESTS.with_name("kubernetes-gateway")],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert read_strictly(done.stdout)[0] == 0
    built = {document["kind"]: document for document in YAML(typ="safe", pure=True).load_all(done.stdout)}
    pod = built["StatefulSet"]["spec"]["template"]["spec"]
    containers = {one["name"]: one for one in pod["containers"]}
    assert containers.keys() == {"tiersidecar", "tiersidecar-gateway", "kafka"}
    assert "tier,read" in containers["tiersidecar"]["args"]
    assert containers["tiersidecar"]["image"] == containers["tiersidecar-gateway"]["image"]
    [claim] = built["StatefulSet"]["spec"]["volumeClaimTemplates"]
    volumes = {*(one["name"] for one in pod["volumes"]), claim["metadata"]["name"]}
    assert {mount["name"] for mount in containers["tiersidecar-gateway"]["volumeMounts"]} <= volumes
    assert [port["name"] for port in built["Service"]["spec"]["ports"]] == ["gateway", "kafka"]
    assert "advertised.pattern" in built["ConfigMap"]["data"]["tiersidecar.yaml"]


def loaded(name: str) -> list[Any]:
    return list(YAML(typ="safe", pure=True).load_all((MANIFESTS / name).read_text()))
