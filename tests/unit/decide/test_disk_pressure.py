"""When a disk will be full, and when that is an alarm (issue 6: "disk-pressure alarm with a time to full")."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from tiersidecar.decide.disk_pressure import (
    WINDOW_S,
    DiskSample,
    DiskState,
    decide_state,
    seconds_to_full,
    with_sample,
)
from tiersidecar.decide.pin_room import Disk, PinLimits

STEP_S = 30
GIB = 1024**3


def samples(free: Callable[[int], float], count: int = 60) -> tuple[DiskSample, ...]:
    """``free`` by the number of the sample, in bytes."""
    return tuple(DiskSample(at_s=n * STEP_S, free_bytes=int(free(n))) for n in range(count))


def at_rate(per_s: float, *trims: tuple[int, int]) -> Callable[[int], float]:
    """100 GiB free at first, ``per_s`` bytes written each second, and trims of so many bytes at some samples."""
    return lambda n: 100 * GIB - per_s * n * STEP_S + sum(size for at, size in trims if n >= at)


MIB = 1024**2


@pytest.mark.parametrize(
    ("given", "expected_rate"),
    [
        pytest.param(samples(at_rate(MIB)), MIB, id="a disk that fills evenly"),
        pytest.param(samples(at_rate(0.5)), 0.5, id="a disk that fills by a byte every other second"),
        pytest.param(samples(at_rate(0)), 0, id="nothing is written"),
        pytest.param(samples(at_rate(-MIB)), 0, id="a disk that empties is never full"),
        pytest.param(samples(at_rate(MIB, (3, 50 * GIB))), MIB, id="one large trim early in the window hides nothing"),
        pytest.param(samples(at_rate(MIB, (30, 50 * GIB))), MIB, id="nor does one in its middle"),
        pytest.param(samples(at_rate(MIB, (57, 50 * GIB))), MIB, id="nor a late one"),
        pytest.param(samples(at_rate(MIB, (57, -50 * GIB))), MIB, id="one large file is not a rate"),
        pytest.param(
            samples(at_rate(MIB, *((n, 4 * STEP_S * MIB) for n in range(4, 60, 4)))),
            0,
            id="what is trimmed as fast as it is written does not fill",
        ),
        pytest.param(
            samples(at_rate(MIB, *((n, 4 * STEP_S * MIB) for n in range(4, 20, 4)))),
            MIB,
            id="trims that stopped twenty minutes ago: it fills",
        ),
    ],
)
def test_the_rate_of_a_window(given: Sequence[DiskSample], expected_rate: float) -> None:
    free = given[-1].free_bytes
    found = seconds_to_full(given, free)
    if expected_rate == 0:
        assert found > 40 * 3600
    else:
        assert found == pytest.approx(free / expected_rate, rel=0.05)


def test_of_the_slopes_between_all_pairs_the_one_just_below_the_middle_counts() -> None:
    """Six samples, 30 s apart, fill the disk by 1, 2, 4, 8 and 16 KiB in turn: of the fifteen rates the seventh highest."""
    steps = (0, 1, 3, 7, 15, 31)
    given = samples(lambda n: 100 * GIB - steps[n] * 1024, 6)
    rates = sorted((steps[b] - steps[a]) * 1024 / (b - a) / STEP_S for a in range(6) for b in range(a + 1, 6))
    assert seconds_to_full(given, GIB) == pytest.approx(GIB / rates[8])


def test_a_few_samples_tell_nothing() -> None:
    assert math.isnan(seconds_to_full(samples(at_rate(MIB), 5), GIB))
    assert not math.isnan(seconds_to_full(samples(at_rate(MIB), 6), GIB))


def test_the_window_is_bounded_in_time_and_number() -> None:
    window: tuple[DiskSample, ...] = ()
    for n in range(5000):
        window = with_sample(window, DiskSample(at_s=n * 5.0, free_bytes=n))
    assert len(window) >= 60
    window = ()
    for n in range(100):
        window = with_sample(window, DiskSample(at_s=n * 30.0, free_bytes=n))
    assert len(window) == 61, "both ends of the window are in it"
    assert window[-1].at_s - window[0].at_s <= WINDOW_S
    later = with_sample(window, DiskSample(at_s=1e6, free_bytes=0))
    assert len(later) == 1, "a process that slept has no rate"


HOUR_S = 3600.0
OK, FILLING, LOW = DiskState.OK, DiskState.FILLING, DiskState.BELOW_RESERVE


@pytest.mark.parametrize(
    ("before", "free", "full_in_s", "expected"),
    [
        pytest.param(OK, 50, math.inf, OK, id="half full and calm"),
        pytest.param(OK, 50, math.nan, OK, id="nothing is known of the rate yet"),
        pytest.param(OK, 50, 6 * HOUR_S, OK, id="full in exactly as long as the alarm looks ahead"),
        pytest.param(OK, 50, 6 * HOUR_S - 1, FILLING, id="full a second sooner"),
        pytest.param(FILLING, 50, 8 * HOUR_S, FILLING, id="an alarm does not end at its limit"),
        pytest.param(FILLING, 50, 9 * HOUR_S, OK, id="but half as much again beyond it"),
        pytest.param(FILLING, 50, math.nan, OK, id="nor does it outlive its evidence"),
        pytest.param(OK, 10, math.inf, OK, id="exactly the reserve is free"),
        pytest.param(OK, 9, math.inf, LOW, id="less than the reserve is free"),
        pytest.param(LOW, 10, math.inf, LOW, id="one percent more is needed to be well again"),
        pytest.param(LOW, 11, math.inf, OK, id="one percent more is there"),
        pytest.param(LOW, 11, HOUR_S, FILLING, id="above the reserve, and filling"),
    ],
)
def test_states(before: DiskState, free: int, full_in_s: float, expected: DiskState) -> None:
    disk = Disk(log_dirs=frozenset({"/d"}), size_bytes=100 * GIB, free_bytes=free * GIB)
    assert decide_state(before, disk, PinLimits(), full_in_s, 6 * HOUR_S) is expected


def test_the_alarm_of_a_full_disk_ends_at_the_last_byte_of_one_percent_more() -> None:
    just_below = Disk(log_dirs=frozenset({"/d"}), size_bytes=100 * GIB, free_bytes=11 * GIB - 1)
    assert decide_state(LOW, just_below, PinLimits(), math.inf, 6 * HOUR_S) is LOW
