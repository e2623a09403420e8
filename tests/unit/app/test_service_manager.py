"""What has stopped, for the watchdog, and sd_notify over a real datagram socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support.manual_clock import ManualClock
from tiersidecar.app.service_manager import Progress, ServiceManager, reporting


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
    async with reporting(manager, progress=Progress(clock), waits_for=lambda: waits, clock=clock):
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
        async with reporting(manager, progress=progress, waits_for=str, clock=clock):
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
        async with reporting(manager, progress=Progress(clock), waits_for=str, clock=clock):
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


@pytest.mark.parametrize(
    ("steps", "stopped"),
    [
        pytest.param([(59, 0, True)], "", id="a counter that stood still for less than its limit has not stopped"),
        pytest.param([(60, 0, True)], "lanes: nothing has moved for 60 s", id="one that stood still for it has"),
        pytest.param([(50, 1, True), (50, 0, True)], "", id="each count begins the time anew"),
        pytest.param([(100, 0, False)], "", id="what has nothing to do may stand still"),
        pytest.param([(100, 0, False), (59, 0, True)], "", id="time without work does not count"),
        pytest.param([(100, 0, True), (1, 1, True)], "", id="what moves again has not stopped any more"),
    ],
)
async def test_a_counter(steps: list[tuple[float, int, bool]], stopped: str) -> None:
    clock, turns, busy = ManualClock(), 0, True
    progress = Progress(clock)
    with progress.counting("lanes", lambda: turns, limit_s=60, busy=lambda: busy):
        said = ""
        for seconds, more, busy in steps:  # noqa: B007  the lambda above reads it
            turns += more
            await clock.advance(seconds)
            said = progress.stopped()
        assert said == stopped
    assert progress.stopped() == ""


async def test_each_that_stopped_is_named() -> None:
    clock = ManualClock()
    progress = Progress(clock)
    with progress.counting("a", lambda: 0, limit_s=5), progress.counting("b", lambda: 0, limit_s=7):
        await clock.advance(6)
        assert progress.stopped() == "a: nothing has moved for 6 s"
        await clock.advance(1)
        assert progress.stopped() == "a: nothing has moved for 7 s; b: nothing has moved for 7 s"
