"""The real daemon as a process of its own, beside a real broker."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ruamel.yaml import YAML

from tests.support.command_line import program_environment
from tests.support.kafka_admin import wait_until
from tests.support.loopback_ports import free_port
from tests.support.patience import patient_s

READY_TIMEOUT_S = 60.0


def daemon_settings(
    directory: Path, *, bootstrap_servers: str, log_dirs: list[Path], topics: list[dict[str, Any]], **others: Any
) -> dict[str, Any]:
    """Return a whole configuration as YAML data: short intervals, one replica, everything below ``directory``.

    Deletes are done at once, unlike by default: most tests that delete ask what is left of objects and metadata.  Those of
    the trash itself set the delays.
    """
    store = directory / "store"
    store.mkdir(parents=True, exist_ok=True)
    return {
        "log.dirs": [str(path) for path in log_dirs],
        "state.dir": str(directory / "state"),
        "broker": {"bootstrap.servers": bootstrap_servers},
        "store": {"type": "filesystem", "root": str(store)},
        "topics": topics,
        "remote.log.manager.task.interval.ms": 300,
        "remote.log.manager.task.retry.backoff.ms": 100,
        "remote.log.manager.task.retry.backoff.max.ms": 1000,
        "remote.log.metadata.topic.num.partitions": 5,
        "remote.log.metadata.topic.replication.factor": 1,
        "remote.log.metadata.topic.min.isr": 1,
        "delete.delay": 0,
        "user.delete.delay": 0,
        # Most tests run fewer sidecars than brokers.
        "deletes.brokers.without.sidecar": [1, 2, 3],
        "lease.duration.ms": 10_000,
        "read": {"listen": f"127.0.0.1:{free_port()}"},
        "status": {"listen": f"127.0.0.1:{free_port()}"},
        "logging": {"level": "info", "format": "json"},
        **others,
    }


class Daemon:
    """``tiersidecar run`` with ``settings``; ``failpoints`` as in TIERSIDECAR_FAILPOINTS."""

    def __init__(
        self, directory: Path, settings: Mapping[str, Any], *, failpoints: str = "", roles: str = "tier,read"
    ) -> None:
        self.directory, self.settings = directory, dict(settings)
        self.failpoints, self.roles = failpoints, roles
        self.credentials = ""
        """User and password with which its status service is asked, apart by a colon."""
        self.store_root = Path(self.settings["store"].get("root", directory))
        """Where the objects lie as files; for a store that is a server, the test says."""
        self.config_path = directory / "tiersidecar.yaml"
        self.log_path = directory / "daemon.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def command(self) -> list[str]:
        program = [sys.executable, "-m", "tiersidecar"]
        return [*program, "run", "--config", str(self.config_path), "--roles", self.roles]

    @property
    def pid(self) -> int:
        assert self._process is not None, "the daemon has not been started"
        return self._process.pid

    @property
    def read_url(self) -> str:
        return f"http://{self.settings['read']['listen']}"

    @property
    def status_url(self) -> str:
        return f"http://{self.settings['status']['listen']}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill9()

    def start(self) -> None:
        """Write the configuration and start the process; does not wait for it."""
        self.write_config()
        environment = {**program_environment(), "TIERSIDECAR_FAILPOINTS": self.failpoints}
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def write_config(self) -> None:
        """Write the configuration, for commands of an operator whose daemon does not run."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.config_path.open("w") as file:
            YAML().dump(self.settings, file)

    def stop(self, timeout_s: float = 30.0) -> int:
        """Send SIGTERM once the process catches it, and return the exit code.

        One that was only just started, to do what a former one had done already, would die of the signal.
        """
        assert self._process is not None
        wait_until(lambda: not self.is_running or self._catches_sigterm, "the daemon catches SIGTERM")
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(patient_s(timeout_s))

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, which must have been started."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill9(self) -> None:
        """Send SIGKILL, if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        if self._process is not None:
            self._process.wait()

    def wait_for_exit(self, timeout_s: float = 60.0) -> int:
        """Return the exit code of a daemon that ends by itself (negative: by a signal)."""
        assert self._process is not None
        return self._process.wait(patient_s(timeout_s))

    @property
    def _catches_sigterm(self) -> bool:
        return bool(int(self._of_kernel("SigCgt"), 16) >> signal.SIGTERM - 1 & 1)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_frozen(self) -> bool:
        """Return whether it stands still, by SIGSTOP."""
        return self.is_running and Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def wait_until_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until /readyz answers 200."""

        def ready() -> bool:
            assert self.is_running, f"the daemon ended:\n{self.log_tail()}"
            return self.status("/readyz")[0] == 200

        wait_until(ready, f"the daemon is ready; its log:\n{self.log_tail()}", timeout_s=timeout_s)

    def status(self, path: str) -> tuple[int, str]:
        """Return code and body of a status page; (0, reason) while nothing listens."""
        basic = base64.b64encode(self.credentials.encode()).decode()
        return get(f"{self.status_url}{path}", headers={"Authorization": f"Basic {basic}"} if basic else None)

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of a metric that have these labels; 0 when there is none."""
        total = 0.0
        for line in self.status("/metrics")[1].splitlines():
            sample = line.rpartition(" ")
            if line.startswith((name + "{", name + " ")) and all(f'{k}="{v}"' in sample[0] for k, v in labels.items()):
                total += float(sample[2])
        return total

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """Return the log's events so far, of one name or all."""
        lines = self.log_path.read_text().splitlines() if self.log_path.exists() else []
        events = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in events if not name or event.get("event") == name]

    def log_tail(self, lines: int = 40) -> str:
        if not self.log_path.exists():
            return "(no log)"
        return "\n".join(self.log_path.read_text().splitlines()[-lines:])

    def peak_rss_bytes(self) -> int:
        """Return the most memory that was ever resident."""
        return self._memory_bytes("VmHWM")

    def rss_bytes(self) -> int:
        """Return the memory that is resident now."""
        return self._memory_bytes("VmRSS")

    def _memory_bytes(self, figure: str) -> int:
        return int(self._of_kernel(figure)) * 1024

    def _of_kernel(self, figure: str) -> str:
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith(f"{figure}:"))
        return line.split()[1]


def get(url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 30.0) -> tuple[int, str]:
    """Return code and body; (0, reason) when nothing answers."""
    try:
        request = urllib.request.Request(url, headers=dict(headers or {}))
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def wait_for(condition: Any, what: str, daemon: Daemon, timeout_s: float = 60.0) -> Any:
    """Wait as ``wait_until`` does, but a daemon that ended, or the time, fails with the daemon's log."""
    timeout_s = patient_s(timeout_s)
    deadline_s = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert daemon.is_running, f"the daemon ended before {what}:\n{daemon.log_tail()}"
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}\n{daemon.log_tail()}"
        time.sleep(0.05)
