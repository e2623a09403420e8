"""Build a program written in Go into the user's cache, once, and print its path: ``scripts/go_tool.py versitygw``."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from tests.support.build_cache import MissingProgramError, build_once, require_program  # noqa: E402


@dataclass(frozen=True, slots=True, kw_only=True)
class GoTool:
    """A command of a Go module at a fixed version; ``binary`` is what ``go install`` calls it."""

    package: str
    version: str
    binary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GoSource:
    """A program of our own, or one that ``go install`` refuses because its own go.mod replaces modules.

    ``directory`` has in go.mod and go.sum which modules it takes, and the source unless ``package`` is another module's.
    """

    directory: Path
    binary: str
    package: str = "."
    tags: str = ""


# Without its service discovery, which would be most of the build: AWS, Azure, Kubernetes and so on.
_PROMETHEUS = GoSource(
    directory=REPOSITORY / "tests" / "support" / "prometheus_server",
    package="github.com/prometheus/prometheus/cmd/prometheus",
    binary="prometheus",
    tags="remove_all_sd",
)


GO_TOOLS: dict[str, GoTool | GoSource] = {
    "franz-reader": GoSource(directory=REPOSITORY / "tests" / "support" / "franz_reader", binary="franz-reader"),
    "dockerfile-instructions": GoSource(
        directory=REPOSITORY / "tests" / "support" / "dockerfile_instructions", binary="dockerfile-instructions"
    ),
    "kubernetes-objects": GoSource(
        directory=REPOSITORY / "tests" / "support" / "kubernetes_objects", binary="kubernetes-objects"
    ),
    "kustomize": GoTool(package="sigs.k8s.io/kustomize/kustomize/v5", version="v5.7.1", binary="kustomize"),
    "prometheus": _PROMETHEUS,
    "promtool": replace(_PROMETHEUS, package="github.com/prometheus/prometheus/cmd/promtool", binary="promtool"),
    "versitygw": GoTool(package="github.com/versity/versitygw/cmd/versitygw", version="v1.8.0", binary="versitygw"),
    "toxiproxy": GoTool(package="github.com/Shopify/toxiproxy/v2/cmd/server", version="v2.5.0", binary="server"),
}


def go_tool(name: str) -> Path:
    """The path of the program: a minute or two the first time (S3 by versitygw, faults by toxiproxy, a consumer by franz-go),
    and some more for the first of Prometheus' two.

    Raises:
        MissingProgramError: Go is needed and not there.
        RuntimeError: it could not be built; the message ends with what Go said.
    """
    tool = GO_TOOLS[name]
    match tool:
        case GoTool():
            built = build_once(f"{name}-{tool.version}", lambda directory: _install(tool, directory))
        case GoSource():
            built = build_once(f"{name}-{_fingerprint(tool)}", lambda directory: _build(tool, directory))
        case _:
            assert_never(tool)
    return built / tool.binary


def _install(tool: GoTool, directory: Path) -> None:
    _go(["install", f"{tool.package}@{tool.version}"], tool.package, {"GOBIN": str(directory)}, directory)


def _build(tool: GoSource, directory: Path) -> None:
    _go(
        [
            *("build", "-buildvcs=false", "-mod=readonly", "-tags", tool.tags),
            *("-o", str(directory / tool.binary), tool.package),
        ],
        tool.binary,
        {},
        tool.directory,
    )


def _fingerprint(tool: GoSource) -> str:
    found = hashlib.sha256()
    for path in sorted(tool.directory.iterdir()):
        if path.suffix in {".go", ".mod", ".sum"}:
            found.update(path.read_bytes())
    return found.hexdigest()[:12]


def _go(arguments: list[str], what: str, environment: dict[str, str], directory: Path) -> None:
    go = require_program("go", debian="golang-go", rpm="golang")
    done = subprocess.run(
        [go, *arguments],
        env={**os.environ, **environment},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{what} could not be built:\n{done.stderr[-2000:]}")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in GO_TOOLS:
        print(f"usage: go_tool.py {'|'.join(GO_TOOLS)}", file=sys.stderr)
        return 2
    try:
        print(go_tool(arguments[0]))
    except (MissingProgramError, RuntimeError) as failed:
        print(failed, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
