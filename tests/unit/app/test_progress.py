"""What has stopped, for the watchdog."""

from __future__ import annotations

import pytest

from tests.support.manual_clock import ManualClock
from tiersidecar.app.progress import Progress


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
