"""A standalone Spark cluster on loopback: a master and one worker of the pyspark wheel, each a process of its own.

The worker starts an executor per application, in yet another process, with a working directory below ``worker_directory``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.kafka_admin import wait_until
from tests.support.loopback_ports import free_port
from tests.support.spark_submit import SPARK_HOME

_UP_WITHIN_S = 120.0
_DEPLOY = "org.apache.spark.deploy"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkCluster:
    """``master`` is its ``spark://`` address; ``directory`` has all that master, worker and executors wrote and logged."""

    master: str
    directory: Path

    @property
    def worker_directory(self) -> Path:
        """Return, for each executor ``<application>/<number>/``: the files it was given, its stdout and stderr."""
        return self.directory / "work"


@contextmanager
def running_spark_cluster(
    directory: Path, *, cores: int = 1, memory: str = "1g", environment: Mapping[str, str] | None = None
) -> Iterator[SparkCluster]:
    """Yield one worker with ``cores`` and ``memory`` to give; ``environment`` is the worker's, and so its executors'.

    All processes are gone at the end.

    Raises:
        TimeoutError: it did not come up.
    """
    directory.mkdir(parents=True)
    port, page = free_port(), free_port()
    cluster = SparkCluster(master=f"spark://127.0.0.1:{port}", directory=directory)
    asked = ["--cores", str(cores), "--memory", memory, "--work-dir", str(cluster.worker_directory)]
    with ExitStack() as stack:
        stack.enter_context(
            _daemon("master.Master", ["--port", str(port), "--webui-port", str(page)], directory / "master.log", {})
        )
        wait_until(lambda: _facts(page) is not None, "Spark's master answers", _UP_WITHIN_S)
        stack.enter_context(
            _daemon("worker.Worker", [*asked, cluster.master], directory / "worker.log", environment or {})
        )
        wait_until(lambda: (_facts(page) or {}).get("aliveworkers") == 1, "Spark's worker has come", _UP_WITHIN_S)
        yield cluster


@contextmanager
def _daemon(name: str, arguments: list[str], log_path: Path, environment: Mapping[str, str]) -> Iterator[None]:
    ours = {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
    }
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [SPARK_HOME / "bin" / "spark-class", f"{_DEPLOY}.{name}", "--host", "127.0.0.1", *arguments],
            env={**os.environ, **ours, **environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield
    finally:
        # A worker asked to end takes its executors down; spark-class has become Java itself by exec.
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _facts(page: int) -> dict[str, object] | None:
    """Return what the master says of itself, or None while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=2) as answer:
            facts: dict[str, object] = json.load(answer)
    except (OSError, ValueError):
        return None
    return facts
