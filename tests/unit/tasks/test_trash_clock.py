"""What a start says of the time that delays count."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.expiry import HOUR_MS, NOW_MS
from tests.support.expiry_world import StoppedClock, run
from tests.support.manual_clock import ManualClock
from tiersidecar.domain.errors import StateDirError
from tiersidecar.domain.seen_time import SeenTime, UnseenTime
from tiersidecar.ports.seen_times import NoSeenTimes
from tiersidecar.tasks.trash_clock import TrashClock

A_RESTART = SeenTime(until_ms=NOW_MS - 1000)
AN_HOUR_AGO = SeenTime(until_ms=NOW_MS - HOUR_MS)
UNSEEN = ("clock.unseen", {"from_ms": NOW_MS - HOUR_MS, "to_ms": NOW_MS})
BEGUN = ("clock.begun", {"delays_count_from_ms": NOW_MS})
CONTINUED = "clock.continued"


@pytest.mark.parametrize(
    ("known", "former", "events"),
    [
        pytest.param(None, None, [BEGUN], id="a new state.dir, and no lease that tells"),
        pytest.param(AN_HOUR_AGO, None, [UNSEEN], id="away for an hour"),
        pytest.param(A_RESTART, A_RESTART, [], id="a restart"),
        pytest.param(
            None,
            A_RESTART,
            [(CONTINUED, {"seen_until_ms": NOW_MS - 1000})],
            id="a new state.dir, and a lease that tells",
        ),
        pytest.param(
            None,
            AN_HOUR_AGO,
            [(CONTINUED, {"seen_until_ms": NOW_MS - HOUR_MS}), UNSEEN],
            id="a new state.dir, and a lease of an hour ago",
        ),
        pytest.param(
            None, SeenTime(until_ms=NOW_MS + 1), [BEGUN], id="a new state.dir, and this clock is behind the lease"
        ),
        pytest.param(A_RESTART, AN_HOUR_AGO, [UNSEEN], id="the last holder's clock was behind"),
    ],
)
def test_a_start_says_what_time_does_not_count(
    known: SeenTime | None, former: SeenTime | None, events: list[tuple[str, dict[str, Any]]]
) -> None:
    with capture_logs() as told:
        TrashClock(clock=StoppedClock(), times=NoSeenTimes(), known=known).succeed(former)
    assert [one["event"] for one in told] == [event for event, _ in events]
    for one, (_, facts) in zip(told, events, strict=True):
        assert facts.items() <= one.items()


class Disk(NoSeenTimes):
    """``full`` says why it takes nothing."""

    def __init__(self) -> None:
        self.kept: list[SeenTime] = []
        self.full = ""

    async def write(self, seen: SeenTime) -> None:
        if self.full:
            raise StateDirError(path="/state", reason=self.full)
        self.kept.append(seen)


AWAY = UnseenTime(from_ms=NOW_MS - 3_600_000, to_ms=NOW_MS)


def begun(disk: Disk, clock: ManualClock) -> TrashClock:
    """A process that begins after an hour in which none was there."""
    return TrashClock(clock=clock, times=disk, known=SeenTime(until_ms=AWAY.from_ms))


async def test_what_is_seen_is_kept_each_minute_with_what_was_not() -> None:
    disk, clock = Disk(), ManualClock(NOW_MS)
    keeping = asyncio.create_task(begun(disk, clock).keep())
    await clock.advance(121)
    assert disk.kept == [SeenTime(until_ms=NOW_MS + minute * 60_000, unseen=(AWAY,)) for minute in range(3)]
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping


@pytest.mark.parametrize("jumped_s", [pytest.param(86_400, id="ahead"), pytest.param(-86_400, id="back")])
async def test_a_jump_of_the_wall_clock_is_no_time_that_was_seen(jumped_s: float) -> None:
    disk, clock = Disk(), ManualClock(NOW_MS)
    lasting = begun(disk, clock)
    await clock.advance(60)
    clock.jump(jumped_s)
    await lasting.note()
    assert [time.until_ms for time in disk.kept] == [NOW_MS + 60_000]
    doubted = lasting.now()
    assert (doubted.seen_ms, doubted.now_ms) == (NOW_MS + 60_000, NOW_MS + 60_000 + int(jumped_s * 1000))
    assert doubted.unseen == (AWAY,)
    clock.jump(-jumped_s)
    assert lasting.now().doubt == doubted.doubt != "", "set right again, what was decided meanwhile has a doubtful time"


async def test_a_clock_that_goes_right_is_not_doubted() -> None:
    clock = ManualClock(NOW_MS)
    lasting = begun(Disk(), clock)
    await clock.advance(86_400)
    assert lasting.now().doubt == ""


async def test_a_disk_that_takes_nothing_is_told_of_once_for_each_reason() -> None:
    disk = Disk()
    lasting = begun(disk, ManualClock(NOW_MS))
    with capture_logs() as told:
        for reason in ("no space left", "no space left", "read-only", "", "read-only"):
            disk.full = reason
            await lasting.note()
    assert [one["event"] for one in told] == ["seen_time.not_written"] * 3
    assert [str(one["error"]).rsplit(": ", 1)[-1] for one in told] == ["no space left", "read-only", "read-only"]
    assert len(disk.kept) == 1


def test_a_process_that_never_had_the_lease_keeps_nothing_that_hides_what_the_lease_tells() -> None:
    """Its container is started again, with the same state.dir, before it could claim the lease."""
    disk, clock = Disk(), StoppedClock()
    process = TrashClock(clock=clock, times=disk, known=None)
    run(process.note())
    assert disk.kept == []
    process.succeed(AN_HOUR_AGO)
    run(process.note())
    assert disk.kept == [SeenTime(until_ms=NOW_MS, unseen=(UnseenTime(from_ms=NOW_MS - HOUR_MS, to_ms=NOW_MS),))]
