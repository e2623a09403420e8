"""A hole is named once, and not while it may be lagging metadata."""

from __future__ import annotations

from structlog.testing import capture_logs

from tests.support.manual_clock import ManualClock
from tests.support.segments import TIP
from tiersidecar.services.gateway.holes import SETTLED_S, Holes


async def test_a_hole_that_stays_is_named_once_with_its_bounds() -> None:
    clock = ManualClock()
    holes = Holes(clock)
    with capture_logs() as logs:
        holes.met(TIP, 55, 50, 60)
        await clock.advance(SETTLED_S - 1)
        holes.met(TIP, 55, 50, 60)
        assert not logs
        await clock.advance(1)
        holes.met(TIP, 55, 50, 60)
        holes.met(TIP, 55, 50, 60)
    (told,) = logs
    named = {name: told[name] for name in ("event", "topic", "partition", "first_missing_offset", "next_offset")}
    assert named == {
        "event": "gateway.hole",
        "topic": TIP.topic,
        "partition": TIP.partition,
        "first_missing_offset": 50,
        "next_offset": 60,
    }


async def test_one_that_closes_or_moves_is_not_named() -> None:
    clock = ManualClock()
    holes = Holes(clock)
    with capture_logs() as logs:
        for start in (50, 55, 58):
            holes.met(TIP, 59, start, 60)
            await clock.advance(SETTLED_S)
        holes.passed(TIP)
        holes.met(TIP, 59, 58, 60)
    assert not logs
