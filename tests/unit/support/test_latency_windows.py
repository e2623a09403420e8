"""What benchmarks/produce_latency.py says of two conditions: a ratio, and how sure it is."""

from __future__ import annotations

import random

from benchmarks.support.latency_windows import LatencyWindows


def windows(seed: int, *, count: int = 40, slowed: float = 1.0, uneven: float = 0.0) -> LatencyWindows:
    """Of 200 latencies each; ``uneven`` is how far whole windows are off."""
    draw = random.Random(seed)
    factors = [slowed * draw.lognormvariate(0, uneven) for _ in range(count)]
    return LatencyWindows([[draw.expovariate(1) * factor for _ in range(200)] for factor in factors])


def test_a_percentile_is_over_all_requests_not_over_windows() -> None:
    quiet, busy = [1.0] * 99, [1.0] * 90 + [50.0] * 9
    assert LatencyWindows([quiet, busy]).percentile(0.99) == 50.0
    assert LatencyWindows([quiet, quiet]).percentile(0.99) == 1.0


def test_conditions_that_do_not_differ_have_one_within_the_interval() -> None:
    odd, even = windows(1, uneven=0.2).halves()
    likely = odd.likely_ratio(even, 0.99)
    assert likely.low < odd.ratio(even, 0.99) < likely.high
    assert likely.low < 1 < likely.high


def test_a_difference_shows_where_windows_are_alike() -> None:
    base, slower = windows(1), windows(2, slowed=1.3)
    likely = slower.likely_ratio(base, 0.99)
    assert likely.low > 1.1
    assert likely.low < slower.ratio(base, 0.99) < likely.high


def test_uneven_windows_make_the_interval_wide() -> None:
    def width(uneven: float) -> float:
        likely = windows(1, uneven=uneven).likely_ratio(windows(2, uneven=uneven), 0.99)
        return likely.high - likely.low

    assert width(0.8) > 2 * width(0.0)
