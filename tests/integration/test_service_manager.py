"""The daemon as a process that systemd has started, with its notification socket: no broker is needed for that."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, daemon_settings

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]


def hear(systemd: socket.socket, wanted: Callable[[list[str]], bool], timeout_s: float = 60.0) -> list[str]:
    """The first datagram that is ``wanted``."""
    end_s = time.monotonic() + timeout_s
    while (left_s := end_s - time.monotonic()) > 0:
        systemd.settimeout(left_s)
        said = systemd.recv(4096).decode().splitlines()
        if wanted(said):
            return said
    raise AssertionError("systemd heard nothing of it")


def test_systemd_hears_that_it_runs_what_it_waits_for_and_that_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kafka").mkdir()
    settings = daemon_settings(
        tmp_path / "sidecar",
        bootstrap_servers="127.0.0.1:1",
        log_dirs=[tmp_path / "kafka"],
        topics=[{"name": "orders"}],
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        with Daemon(tmp_path / "sidecar", settings) as daemon:
            assert hear(systemd, lambda said: "READY=1" in said)
            alive = hear(systemd, lambda said: any("meta.properties" in line for line in said))
            assert alive[0] == "WATCHDOG=1"
            assert daemon.stop() == 0
            assert hear(systemd, lambda said: said[0] == "STOPPING=1")
