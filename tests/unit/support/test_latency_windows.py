"""What benchmarks/produce_latency.py says of two conditions: a ratio, and how sure it is."""

from __future__ import annotations

import random

from benchmarks.support.latency_windows import LatencyPair, LatencyPairs, LatencyWindows


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


def pairs(seed: int, *, slowed: float, loud: float = 1.0, count: int = 24) -> LatencyPairs:
    """Every other pair was measured in company, which makes both of its windows ``loud`` by chance."""
    draw, found = random.Random(seed), LatencyPairs()
    for number in range(count):
        alone = number % 2 == 0
        base, other = (
            [draw.expovariate(1) * (1 if alone else draw.uniform(1, loud)) for _ in range(500)] for _ in "bo"
        )
        other = [latency * slowed for latency in other]
        found.pairs.append(LatencyPair(base=base, other=other, foreign_cpus=0.02 if alone else 1.5))
    return found


def test_a_difference_shows_in_the_median_of_pairs_though_half_of_them_are_loud() -> None:
    quieter = pairs(3, slowed=1.3, loud=30).quieter_half()
    assert len(quieter.pairs) == 12
    assert all(pair.foreign_cpus < 1 for pair in quieter.pairs)
    assert 1.2 < quieter.ratio(0.99) < 1.4
    assert quieter.likely_ratio(0.99).low > 1.1


def test_one_pair_that_is_spoiled_changes_nothing() -> None:
    sound = pairs(4, slowed=1.0)
    ratio = sound.ratio(0.99)
    spoiled = LatencyPair(base=sound.pairs[0].base, other=[1000.0] * 500, foreign_cpus=0.0)
    assert abs(LatencyPairs([*sound.pairs[1:], spoiled]).ratio(0.99) - ratio) < 0.1


def test_windows_that_do_not_differ_tell_a_noise_around_one() -> None:
    noise, likely = pairs(5, slowed=2.0).noise(0.99)
    assert likely.low < 1 < likely.high
    assert likely.low <= noise <= likely.high


def test_a_ratio_is_held_against_the_noise_of_the_same_windows() -> None:
    slower = pairs(5, slowed=1.3)
    of_noise, likely = slower.of_noise(0.99)
    assert of_noise == slower.ratio(0.99) / slower.noise(0.99)[0]
    assert 1 < likely.low < of_noise < likely.high, "the difference shows"
    alike, likely = pairs(6, slowed=1.0).of_noise(0.99)
    assert likely.low < 1 < likely.high
    assert likely.low <= alike <= likely.high
