"""A real Prometheus on loopback that scrapes what a test names, and promtool."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from scripts.go_tool import go_tool
from tests.support.kafka_admin import wait_until
from tests.support.loopback_ports import free_port

_UP_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    """Its HTTP API (``/api/v1``) at ``url``."""

    url: str

    def query(self, expression: str) -> list[Sample]:
        """Return the instant vector that ``expression`` is now; a scalar as one sample without labels.

        Raises:
            AssertionError: Prometheus refuses it; the message has the expression and its answer.
        """
        answered = self.ask("query", query=expression)
        if answered["resultType"] == "scalar":
            return [Sample(labels={}, value=float(answered["result"][1]))]
        return [Sample(labels=one["metric"], value=float(one["value"][1])) for one in answered["result"]]

    def rules(self) -> list[dict[str, Any]]:
        """Return every rule, with ``health``, ``lastError`` and ``state`` as of its last evaluation."""
        return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]

    def targets(self) -> list[dict[str, Any]]:
        """Return what is scraped, with ``health`` and ``lastError``."""
        targets: list[dict[str, Any]] = self.ask("targets")["activeTargets"]
        return targets

    def ask(self, what: str, **parameters: str) -> Any:
        """Return the data of an answer; raises as :meth:`query`."""
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                document = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters or what}: {error.read().decode()}") from None
        assert document["status"] == "success", document
        assert not document.get("warnings"), f"{parameters}: {document['warnings']}"
        return document["data"]


@contextmanager
def running_prometheus(directory: Path, *, targets: Mapping[str, str], rules: Path) -> Iterator[Prometheus]:
    """Scrapes each of ``targets`` (host and port, by job) every second, and evaluates ``rules`` as often; killed at the end.

    Raises:
        TimeoutError: it did not come up; its log is ``prometheus.log`` in ``directory``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    configuration = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [address]}]} for job, address in targets.items()
        ],
    }
    with (directory / "prometheus.yml").open("w") as file:
        YAML().dump(configuration, file)
    port = free_port()
    prometheus = Prometheus(url=f"http://127.0.0.1:{port}")
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                go_tool("prometheus"), f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_until(lambda: _is_ready(prometheus.url), "Prometheus is ready", _UP_WITHIN_S)
        yield prometheus
    finally:
        process.kill()
        process.wait()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=2):
            return True
    except OSError:
        return False


def promtool(*arguments: str | Path, given: bytes = b"") -> str:
    """Return what ``promtool`` says, with ``given`` on its standard input.

    Raises:
        AssertionError: it found fault; the message is what it said.
    """
    done = subprocess.run(
        [go_tool("promtool"), *arguments], input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    said = done.stdout.decode()
    assert done.returncode == 0, f"promtool {' '.join(map(str, arguments))} ended with {done.returncode}:\n{said}"
    return said
