"""The byte rate quota (S-161, S-162, S-163, T-74)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiersidecar.decide.quota import RateQuota


@pytest.mark.parametrize("begun_s", [pytest.param(0, id="a clock at 0"), pytest.param(86_400, id="one that runs")])
def test_throttle_time_follows_kafka(begun_s: float) -> None:
    """T-74: 50 B/s over 11 windows of 1 s: 500 bytes at once throttle for 9 s, 8 s later for 1 s, then not."""
    quota = RateQuota(bytes_per_s=50)
    quota.record(500, begun_s)
    assert quota.throttle_s(begun_s + 1) == 9
    assert quota.throttle_s(begun_s + 9) == pytest.approx(1)
    assert quota.throttle_s(begun_s + 10) == 0


@pytest.mark.parametrize(
    ("amounts", "now_s", "wait_s"),
    [
        pytest.param([(100, 500)], 110.999, 0, id="what was sent eleven windows ago still counts in the rate"),
        pytest.param([(100, 600)], 110.999, 1.001, id="and holds up what is too much"),
        pytest.param([(100, 600)], 111, 0, id="until the eleventh window is over"),
        pytest.param([(100, 30), (100.5, 600)], 111, 0, id="with all that was sent within it"),
        pytest.param([(100, 30), (101, 600)], 111, 2, id="and not with what was sent when it was over"),
        pytest.param([(100, 50)], 100, 0, id="a window's worth at once"),
        pytest.param([(100, 51)], 100, 1.02, id="a byte more"),
        pytest.param([(100, 30), (100.5, 30)], 100.5, 0.7, id="within one window it is one"),
        pytest.param([(100, 100), (104, 400)], 104, 6, id="from the oldest window on"),
    ],
)
def test_how_long_a_transfer_waits(amounts: list[tuple[float, float]], now_s: float, wait_s: float) -> None:
    """At 50 bytes in a second."""
    quota = RateQuota(bytes_per_s=50)
    for at_s, amount_bytes in amounts:
        quota.record(amount_bytes, at_s)
    assert quota.throttle_s(now_s) == pytest.approx(wait_s)


def test_windows_may_be_longer_than_a_second() -> None:
    """Five of two seconds each, at 50 bytes in a second: what was sent ten seconds ago is over."""
    quota = RateQuota(bytes_per_s=50, window_num=5, window_size_s=2)
    quota.record(100, 100)
    assert quota.throttle_s(100) == 0, "a window's worth"
    quota.record(800, 101.9)
    assert quota.throttle_s(105) == pytest.approx(13)
    assert quota.throttle_s(109.9) == pytest.approx(8.1)
    assert quota.throttle_s(110) == 0


def test_an_update_takes_effect_at_once() -> None:
    quota = RateQuota(bytes_per_s=50)
    quota.record(500, 0)
    quota.bytes_per_s = 500
    assert quota.throttle_s(1) == 0


def test_unlimited_never_throttles() -> None:
    quota = RateQuota()
    quota.record(10**15, 0)
    assert quota.throttle_s(0) == 0


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=50), st.integers(1, 1000))
def test_waiting_as_told_always_ends_the_throttling(sizes: list[int], rate: int) -> None:
    quota, now_s = RateQuota(bytes_per_s=rate), 0.0
    for size in sizes:
        waits = 0
        while (wait_s := quota.throttle_s(now_s)) > 0:
            now_s += max(wait_s, 1e-6)
            waits += 1
            assert waits < 100
        quota.record(size, now_s)
