"""The byte rate quota (S-161 to S-163, T-74)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiersidecar.decide.quota import RateQuota


def test_throttle_time_follows_kafka() -> None:
    """T-74: 50 B/s over 11 windows of 1 s: 500 bytes at once throttle for 9 s, 8 s later for 1 s, then not."""
    quota = RateQuota(bytes_per_s=50)
    quota.record(500, 0)
    assert quota.throttle_s(1) == 9
    assert quota.throttle_s(9) == pytest.approx(1)
    assert quota.throttle_s(10) == 0


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
