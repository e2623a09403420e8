"""Build a program written in Go into the user's cache, once, and print its path: ``scripts/go_tool.py versitygw``."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from scripts.debian_package import unpack_debian  # noqa: E402
from tests.support.build_cache import MissingProgramError, build_once, require_program  # noqa: E402


@dataclass(frozen=True, slots=True, kw_only=True)
class GoSource:
    """A program of our own, or another module's.

    ``directory`` has in go.mod and go.sum which modules it takes, with their sums, and the source unless ``package`` is another
    module's: ``go install`` of that one would ask a server for the sums, or nobody.
    """

    directory: Path
    binary: str
    package: str = "."
    tags: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DebianPackage:
    """A program that Debian has built, unpacked beside nothing else; apt checks its signature.

    Where there is no apt, or none that reaches its archive, ``otherwise`` is built: the same program, and many minutes.
    """

    package: str
    binary: str
    otherwise: GoSource


# Without its service discovery, which would be most of the build: AWS, Azure, Kubernetes and so on.
_PROMETHEUS = GoSource(
    directory=REPOSITORY / "tests" / "support" / "prometheus_server",
    package="github.com/prometheus/prometheus/cmd/prometheus",
    binary="prometheus",
    tags="remove_all_sd",
)


_OTHERS = REPOSITORY / "tests" / "support" / "go_tools"

GO_TOOLS: dict[str, GoSource | DebianPackage] = {
    "franz-reader": GoSource(directory=REPOSITORY / "tests" / "support" / "franz_reader", binary="franz-reader"),
    "dockerfile-instructions": GoSource(
        directory=REPOSITORY / "tests" / "support" / "dockerfile_instructions", binary="dockerfile-instructions"
    ),
    "kubernetes-objects": GoSource(
        directory=REPOSITORY / "tests" / "support" / "kubernetes_objects", binary="kubernetes-objects"
    ),
    "helm-template": GoSource(directory=REPOSITORY / "tests" / "support" / "helm_template", binary="helm-template"),
    "kustomize": GoSource(
        directory=_OTHERS / "kustomize", package="sigs.k8s.io/kustomize/kustomize/v5", binary="kustomize"
    ),
    "prometheus": DebianPackage(package="prometheus", binary="prometheus", otherwise=_PROMETHEUS),
    "promtool": DebianPackage(
        package="prometheus",
        binary="promtool",
        otherwise=replace(_PROMETHEUS, package="github.com/prometheus/prometheus/cmd/promtool", binary="promtool"),
    ),
    "versitygw": GoSource(
        directory=_OTHERS / "versitygw", package="github.com/versity/versitygw/cmd/versitygw", binary="versitygw"
    ),
    "toxiproxy": GoSource(
        directory=_OTHERS / "toxiproxy", package="github.com/Shopify/toxiproxy/v2/cmd/server", binary="server"
    ),
    "fake-gcs-server": GoSource(
        directory=_OTHERS / "fake-gcs-server", package="github.com/fsouza/fake-gcs-server", binary="fake-gcs-server"
    ),
    "local-kms": GoSource(directory=_OTHERS / "local-kms", package="github.com/nsmithuk/local-kms", binary="local-kms"),
}


def go_tool(name: str) -> Path:
    """Return the path of the program, which takes a minute or two the first time.

    Raises:
        MissingProgramError: Go is needed and not there.
        RuntimeError: it could not be built; the message ends with what Go said.
    """
    return _bring(name, GO_TOOLS[name])


def _bring(name: str, tool: GoSource | DebianPackage) -> Path:
    if isinstance(tool, GoSource):
        return build_once(f"{name}-{_fingerprint(tool)}", lambda directory: _build(tool, directory)) / tool.binary
    try:
        unpacked = build_once(f"debian-{tool.package}", lambda directory: unpack_debian(tool.package, directory))
    except (MissingProgramError, RuntimeError):
        return _bring(name, tool.otherwise)
    return unpacked / "usr" / "bin" / tool.binary


def _build(tool: GoSource, directory: Path) -> None:
    _go(
        [
            *("build", "-buildvcs=false", "-mod=readonly", "-tags", tool.tags),
            *("-o", str(directory / tool.binary), tool.package),
        ],
        tool.binary,
        tool.directory,
    )


def _fingerprint(tool: GoSource) -> str:
    found = hashlib.sha256()
    for path in sorted(tool.directory.iterdir()):
        if path.suffix in {".go", ".mod", ".sum"}:
            found.update(path.read_bytes())
    return found.hexdigest()[:12]


def _go(arguments: list[str], what: str, directory: Path) -> None:
    go = require_program("go", debian="golang-go", rpm="golang")
    done = subprocess.run(
        [go, *arguments],
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
