"""A hole is named once, and not while it may be lagging metadata."""

from __future__ import annotations

from structlog.testing import capture_logs

from tests.support.manual_clock import ManualClock
from tests.support.segments import TOPIC_ID_PARTITION
from tiersidecar.reading.holes import GIVE_UP_AT_SOURCE, SETTLED_S, Holes


async def test_a_hole_that_stays_is_named_once_with_its_borders() -> None:
    clock = ManualClock()
    holes = Holes(clock, "a.hole")
    with capture_logs() as logs:
        holes.met(TOPIC_ID_PARTITION, 55, 50, 60)
        await clock.advance(SETTLED_S - 1)
        holes.met(TOPIC_ID_PARTITION, 52, 50, 60)
        assert not logs
        await clock.advance(1)
        holes.met(TOPIC_ID_PARTITION, 55, 50, 60)
        holes.met(TOPIC_ID_PARTITION, 55, 50, 60)
    (told,) = logs
    named = {
        name: told[name] for name in ("event", "topic", "partition", "offset", "first_missing_offset", "next_offset")
    }
    assert named == {
        "event": "a.hole",
        "topic": TOPIC_ID_PARTITION.topic,
        "partition": TOPIC_ID_PARTITION.partition,
        "offset": 55,
        "first_missing_offset": 50,
        "next_offset": 60,
    }


async def test_one_that_closes_bit_by_bit_is_not_named() -> None:
    clock = ManualClock()
    holes = Holes(clock, "a.hole")
    with capture_logs() as logs:
        for start in (50, 55, 58):
            holes.met(TOPIC_ID_PARTITION, 59, start, 60)
            await clock.advance(SETTLED_S)
    assert not logs


async def test_each_of_several_holes_of_a_partition_is_named() -> None:
    """Two readers by turns: neither makes the other's hole look young."""
    clock = ManualClock()
    holes = Holes(clock, "a.hole")
    with capture_logs() as logs:
        for _ in range(3):
            for start in (10, 50):
                holes.met(TOPIC_ID_PARTITION, start, start, start + 5)
            await clock.advance(SETTLED_S / 2)
    assert [told["first_missing_offset"] for told in logs] == [10, 50]


async def test_what_is_remembered_is_bounded() -> None:
    holes = Holes(ManualClock(), "a.hole")
    for start in range(5000):
        holes.met(TOPIC_ID_PARTITION, start, start, start + 1)
    assert len(holes._since_s) <= 1000


async def test_of_too_many_the_one_that_was_met_first_is_forgotten_and_waits_anew() -> None:
    clock = ManualClock()
    holes = Holes(clock, "a.hole")
    for start in range(1001):
        holes.met(TOPIC_ID_PARTITION, start, start, start + 1)
    await clock.advance(SETTLED_S)
    with capture_logs() as logs:
        for start in (1, 1000, 2):
            holes.met(TOPIC_ID_PARTITION, start, start, start + 1)
        assert [told["offset"] for told in logs] == [1, 1000, 2]
        holes.met(TOPIC_ID_PARTITION, 0, 0, 1)
    assert len(logs) == 3


async def test_the_advice_is_what_the_operator_can_do_there() -> None:
    clock = ManualClock()
    holes = Holes(clock, "a.hole", GIVE_UP_AT_SOURCE)
    with capture_logs() as logs:
        holes.met(TOPIC_ID_PARTITION, 55, 50, 60)
        await clock.advance(SETTLED_S)
        holes.met(TOPIC_ID_PARTITION, 55, 50, 60)
    assert [one["advice"] for one in logs] == [GIVE_UP_AT_SOURCE]
