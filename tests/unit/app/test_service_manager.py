"""sd_notify over a real datagram socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support.manual_clock import ManualClock
from tiersidecar.app.progress import Progress
from tiersidecar.app.service_manager import ServiceManager, telling


class Systemd:
    """The socket at the other end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self.socket.settimeout(0)

    def heard(self) -> list[list[str]]:
        found = []
        while True:
            try:
                found.append(self.socket.recv(4096).decode().splitlines())
            except BlockingIOError:
                return found


@pytest.fixture(params=["a path", "an abstract address"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Systemd]:
    is_path = request.param == "a path"
    found = Systemd(str(tmp_path / "notify") if is_path else f"@tiersidecar-test-{tmp_path.name}-{id(request)}")
    yield found
    found.socket.close()


async def test_ready_then_alive_then_stopping(systemd: Systemd) -> None:
    clock, waits = ManualClock(), "waiting for\nthe broker"
    manager = ServiceManager(address=systemd.address, watchdog_s=8)
    async with telling(manager, progress=Progress(clock), waits_for=lambda: waits, clock=clock):
        assert systemd.heard() == [["READY=1", "STATUS=waiting for the broker"]]
        await clock.advance(0)
        assert systemd.heard() == [["WATCHDOG=1", "STATUS=waiting for the broker"]]
        waits = ""
        await clock.advance(8)
        assert systemd.heard() == [["WATCHDOG=1", "STATUS=ready"]] * 2
    assert systemd.heard() == [["STOPPING=1", "STATUS=stopping"]]


async def test_the_watchdog_hears_nothing_while_work_has_stopped(systemd: Systemd) -> None:
    clock, turns = ManualClock(), 0
    manager, progress = ServiceManager(address=systemd.address, watchdog_s=8), Progress(clock)
    with progress.counting("the watch", lambda: turns, limit_s=30):
        async with telling(manager, progress=progress, waits_for=str, clock=clock):
            await clock.advance(29)
            assert ["WATCHDOG=1", "STATUS=ready"] in systemd.heard()
            with capture_logs() as logged:
                await clock.advance(8)
            assert {line for said in systemd.heard() for line in said if line.startswith("WATCHDOG")} == set()
            assert [one["event"] for one in logged][:1] == ["watchdog.withheld"]
            turns += 1
            await clock.advance(4)
            assert ["WATCHDOG=1", "STATUS=ready"] in systemd.heard()


async def test_a_service_manager_that_is_gone_does_not_end_the_daemon(tmp_path: Path) -> None:
    clock = ManualClock()
    manager = ServiceManager(address=str(tmp_path / "nobody"), watchdog_s=8)
    with capture_logs() as logged:
        async with telling(manager, progress=Progress(clock), waits_for=str, clock=clock):
            await clock.advance(8)
    assert {one["event"] for one in logged} == {"service_manager.unreachable"}


@pytest.mark.parametrize(
    ("given", "listens", "watchdog_s"),
    [
        pytest.param({}, False, None, id="no systemd"),
        pytest.param({"NOTIFY_SOCKET": "/n"}, True, None, id="a unit without a watchdog"),
        pytest.param({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "120000000"}, True, 120.0, id="a unit with one"),
        pytest.param(
            {"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "120000000", "WATCHDOG_PID": "7"},
            True,
            120.0,
            id="ours by its pid",
        ),
        pytest.param(
            {"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "120000000", "WATCHDOG_PID": "8"},
            True,
            None,
            id="another process's",
        ),
        pytest.param({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "soon"}, True, None, id="no number"),
    ],
)
def test_what_systemd_says_in_the_environment_is_ours_alone(
    given: dict[str, str], listens: bool, watchdog_s: float | None
) -> None:
    environment = {**given, "PATH": "/bin"}
    manager = ServiceManager.take_from(environment, 7)
    assert (manager.listens, manager.watchdog_s) == (listens, watchdog_s)
    assert environment == {"PATH": "/bin"}
