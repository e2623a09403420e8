"""Bytes within a transfer go at the configured rate, in every stretch of time (S-169, U14)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiersidecar.decide.pace import TokenBucket

MIB = 1024 * 1024


def sent_at(
    bucket: TokenBucket, wanted: int, until_s: float, lateness: list[float] | None = None
) -> list[tuple[float, int]]:
    """(time, bytes) of every grant to a sender that always wants more; wake-ups are late by ``lateness`` in turn."""
    sent, now_s, turn = [], 0.0, 0
    while now_s < until_s:
        if count := bucket.take(wanted, now_s):
            sent.append((now_s, count))
            continue
        late_s = 0.0 if not lateness else lateness[turn % len(lateness)]
        now_s += max(bucket.wait_s(wanted), 1e-6) + late_s
        turn += 1
    return sent


def most_in_a_second(sent: list[tuple[float, int]]) -> int:
    """The most bytes in any window of one second, wherever it begins."""
    most = total = start = 0
    for at_s, count in sent:
        total += count
        while sent[start][0] <= at_s - 1:
            total -= sent[start][1]
            start += 1
        most = max(most, total)
    return most


@given(st.integers(MIB, 2000 * MIB), st.integers(1024, 16 * MIB), st.lists(st.floats(0, 0.035), max_size=5))
def test_the_rate_is_met_and_never_exceeded(rate: int, wanted: int, lateness: list[float]) -> None:
    """Within 3 % of Q over the time, never above 1.1 Q in any second; wake-ups may be late by 35 ms."""
    if rate > 50 * wanted:
        rate = 50 * wanted  # so that the test has few enough slices
    sent = sent_at(TokenBucket(rate), wanted, 10.0, lateness)
    assert 0.97 * rate * 10 <= sum(count for _, count in sent) <= 1.03 * rate * 10
    assert most_in_a_second(sent) <= 1.1 * rate


def test_an_idle_time_saves_up_no_burst() -> None:
    bucket = TokenBucket(100 * MIB)
    assert bucket.take(MIB, 0)
    taken = 0
    while count := bucket.take(16 * MIB, 3600):
        taken += count
    assert taken <= 0.08 * 100 * MIB


@pytest.mark.parametrize(
    ("rate", "size_bytes"),
    [
        pytest.param(20, 1, id="never nothing"),
        pytest.param(MIB, MIB // 25, id="less than 64 KiB"),
        pytest.param(16 * MIB, 10 * 64 * 1024, id="whole 64 KiB where it is more"),
        pytest.param(1000 * MIB, 40 * MIB, id="much"),
    ],
)
def test_a_slice_is_40_ms_worth(rate: int, size_bytes: int) -> None:
    assert TokenBucket(rate).take(64 * MIB, 0) == size_bytes


def test_how_long_the_next_slice_takes() -> None:
    bucket = TokenBucket(1000)
    assert bucket.take(10, 0) == 10
    assert bucket.wait_s(10) == 0, "there is more"
    while bucket.take(20, 0):
        pass
    wait_s = bucket.wait_s(20)
    assert 0 < wait_s <= 0.02
    assert bucket.take(20, wait_s + 1e-9) == 20


def test_without_a_limit_everything_goes_at_once() -> None:
    assert TokenBucket(None).take(10**12, 0) == 10**12
    assert TokenBucket(None).wait_s(10**12) == 0


def test_a_changed_rate_counts_at_once() -> None:
    bucket = TokenBucket(MIB)
    while bucket.take(MIB, 0):
        pass
    bucket.bytes_per_s = None
    assert bucket.take(MIB, 0) == MIB
    bucket.bytes_per_s = 10 * MIB
    assert 0 < bucket.take(MIB, 0.05) <= MIB
