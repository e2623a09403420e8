"""What is fetched is held by its sum, and the bill of materials says what is in the product (issue 17)."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from scripts.go_tool import GO_TOOLS, DebianPackage
from scripts.node_tool import NODE_PROGRAMS
from tests.support.kafka_jars import KAFKA_3, KAFKA_4, KAFKA_SCRIPTS, STREAMS_SCRIPTS

ROOT = Path(__file__).resolve().parents[3]
LOCK = tomllib.loads((ROOT / "uv.lock").read_text())
SBOM = json.loads((ROOT / "sbom.cdx.json").read_text())
OURS = ("tiersidecar", "tiersidecar-native")
SHA256 = re.compile(r"sha256:[0-9a-f]{64}\b")


def packages() -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in LOCK["package"]}


def needed() -> set[str]:
    """All that the product without its extras brings along, on some platform."""
    known, found, waiting = packages(), set[str](), ["tiersidecar"]
    while waiting:
        for dependency in known[waiting.pop()].get("dependencies", ()):
            wanted = [*dependency.get("extra", ()), None]
            extras = known[dependency["name"]].get("optional-dependencies", {})
            waiting += [one["name"] for extra in wanted if extra for one in extras[extra] if one["name"] not in found]
            found |= {one["name"] for extra in wanted if extra for one in extras[extra]}
            if dependency["name"] not in found:
                found.add(dependency["name"])
                waiting.append(dependency["name"])
    return found


def test_the_bill_of_materials_is_what_the_lock_says() -> None:
    """Else: ``make sbom``."""
    listed = {one["name"]: one["version"] for one in SBOM["components"]}
    assert listed == {name: packages()[name]["version"] for name in needed()}
    assert SBOM["bomFormat"] == "CycloneDX"
    assert SBOM["metadata"]["component"]["version"] == packages()["tiersidecar"]["version"]


def test_each_component_of_the_bill_has_the_sums_of_the_lock() -> None:
    for one in SBOM["components"]:
        sums = {f"sha256:{hash_['content']}" for file in one["externalReferences"] for hash_ in file.get("hashes", ())}
        package = packages()[one["name"]]
        files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else [])]
        assert sums == {file["hash"] for file in files}, one["name"]


def test_every_locked_library_has_sums() -> None:
    for name, package in packages().items():
        if name not in OURS:
            files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else [])]
            assert files, name
            assert all(SHA256.fullmatch(file["hash"]) for file in files), name


def test_every_locked_crate_has_a_sum() -> None:
    for crate in tomllib.loads((ROOT / "native" / "Cargo.lock").read_text())["package"]:
        assert crate["name"] in OURS or re.fullmatch("[0-9a-f]{64}", crate["checksum"]), crate["name"]


@pytest.mark.parametrize("name", ["Dockerfile", "Makefile"])
def test_uv_is_installed_by_its_sums(name: str) -> None:
    installs = re.findall(r"pip install[^\n]*", (ROOT / name).read_text())
    assert installs
    for line in installs:
        assert "--require-hashes" in line, line


def test_uv_is_one_version_and_has_sums() -> None:
    text = (ROOT / "scripts" / "uv.txt").read_text()
    assert re.findall(r"^[a-z][^\s]*", text, re.MULTILINE) == [re.search(r"^uv==\S+", text, re.MULTILINE)[0]]  # type: ignore[index]
    assert len(SHA256.findall(text)) > 10


def test_base_images_and_the_builders_frontend_are_held_by_digest() -> None:
    text = (ROOT / "Dockerfile").read_text()
    (base,) = re.findall(r"^ARG BASE=(.*)$", text, re.MULTILINE)
    assert SHA256.search(base)
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}"}
    assert SHA256.search(text.splitlines()[0])
    assert "# syntax=" in text.splitlines()[0]


@pytest.mark.parametrize(
    ("sums", "count"),
    [
        pytest.param(KAFKA_SCRIPTS / f"kafka-{KAFKA_4}.sha256", 40, id="the brokers of the tests"),
        pytest.param(KAFKA_SCRIPTS / f"kafka-{KAFKA_3}.sha256", 40, id="the older ones"),
        pytest.param(STREAMS_SCRIPTS / f"kafka-streams-{KAFKA_4}.sha256", 0, id="Kafka Streams"),
        pytest.param(ROOT / "tiersidecar" / "spark" / "maven" / "jars.sha256", 3, id="Spark's connector"),
    ],
)
def test_jars_have_sums(sums: Path, count: int) -> None:
    lines = sums.read_text().splitlines()
    assert len(lines) > count
    assert all(re.fullmatch(r"[0-9a-f]{64}  \S+\.jar", line) for line in lines)


@pytest.mark.parametrize("name", sorted(GO_TOOLS))
def test_programs_in_go_have_their_modules_sums(name: str) -> None:
    """``-mod=readonly`` refuses what is not in go.sum; a package of Debian is checked by apt against signed lists."""
    tool = GO_TOOLS[name]
    directory = (tool.otherwise if isinstance(tool, DebianPackage) else tool).directory
    assert (directory / "go.mod").is_file()
    assert "h1:" in (directory / "go.sum").read_text()


@pytest.mark.parametrize("name", sorted(NODE_PROGRAMS))
def test_programs_for_node_have_their_packages_sums(name: str) -> None:
    """``npm ci`` installs what the lock file has, and compares; where each comes from is the registry's business."""
    lock = json.loads((NODE_PROGRAMS[name].directory / "package-lock.json").read_text())
    packages = {path: package for path, package in lock["packages"].items() if path}
    assert len(packages) > 1
    assert [path for path, package in packages.items() if not package.get("integrity", "").startswith("sha512-")] == []
    assert [path for path, package in packages.items() if "resolved" in package] == []


def test_what_builds_the_wheel_is_held() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    held = project["tool"]["uv"]["build-constraint-dependencies"]
    assert project["build-system"]["requires"] == [next(one for one in held if one.startswith("hatchling=="))]
    assert all("==" in one for one in held)
