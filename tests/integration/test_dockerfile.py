"""The image's install steps, run here without Docker: the daemon they leave behind starts, small and by itself."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.dockerfile import Instruction, ScratchImage, read_dockerfile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
REPOSITORY = Path(__file__).resolve().parents[2]
STAGES = read_dockerfile((REPOSITORY / "Dockerfile").read_text())
FINAL = STAGES[-1]


def the_only(keyword: str) -> Instruction:
    [found] = [instruction for instruction in FINAL if instruction.keyword == keyword]
    return found


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> ScratchImage:
    built = ScratchImage.with_python(tmp_path_factory.mktemp("image"), REPOSITORY)
    for stage in STAGES:
        for instruction in stage:
            built.apply(instruction)
    built.workdir = built.root
    return built


def test_the_entry_point_runs(image: ScratchImage) -> None:
    assert "check-config" in image.run([*the_only("ENTRYPOINT").words, "--help"])
    assert "--config" in image.run([*the_only("ENTRYPOINT").words, "run", "--help"])


def test_it_is_installed_apart_from_the_sources_and_without_spark(image: ScratchImage) -> None:
    shown = image.run(
        [
            "python",
            "-c",
            "import importlib.metadata as m, json, tiersidecar;"
            "print(json.dumps([tiersidecar.__file__, [d.name for d in m.distributions()]]))",
        ]
    )
    where, distributions = json.loads(shown)
    assert Path(where).is_relative_to(image.root / "opt" / "tiersidecar")
    assert "tiersidecar" in distributions
    assert not {"pyspark", "pandas", "pyarrow", "pytest", "mypy", "ruff"} & set(distributions)


def test_the_image_has_the_bill_of_materials(image: ScratchImage) -> None:
    [found] = (image.root / "opt" / "tiersidecar").rglob("tiersidecar-*.dist-info/sboms/sbom.cdx.json")
    assert found.read_bytes() == (REPOSITORY / "sbom.cdx.json").read_bytes()


def test_it_runs_as_the_brokers_user_and_names_its_default_config() -> None:
    arguments = dict(i.arguments.split("=") for i in FINAL if i.keyword == "ARG")
    assert arguments == {"UID": "1000", "GID": "1000"}
    assert the_only("USER").arguments == "${UID}:${GID}"
    assert the_only("CMD").words == ["run", "--config", "/etc/tiersidecar/tiersidecar.yaml"]


@pytest.fixture
def health_server() -> Iterator[ThreadingHTTPServer]:
    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/healthz" else 503)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - so the base class calls it
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("path", "healthy"),
    [
        pytest.param("/healthz", True, id="an answer of 200 is healthy"),
        pytest.param("/elsewhere", False, id="an answer of 503 is not"),
    ],
)
def test_the_health_check_asks_the_status_service(
    image: ScratchImage, health_server: ThreadingHTTPServer, path: str, healthy: bool
) -> None:
    check = the_only("HEALTHCHECK").arguments.partition("CMD")[2].strip()
    url = f"http://127.0.0.1:{health_server.server_port}{path}"
    done = subprocess.run(
        json.loads(check),
        env={**image.environment, "TIERSIDECAR_HEALTH_URL": url},
        capture_output=True,
        check=False,
    )
    assert (done.returncode == 0) is healthy
