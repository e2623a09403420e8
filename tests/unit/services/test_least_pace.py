"""Clients that take a byte now and then."""

from __future__ import annotations

import pytest

from tiersidecar.services.client_limits import LeastPace


@pytest.mark.parametrize(
    ("steps", "is_slow"),
    [
        pytest.param([(0, 59)], False, id="nothing, and the time is not over"),
        pytest.param([(0, 60)], True, id="nothing"),
        pytest.param([(1, 30), (1, 30)], True, id="a byte now and then"),
        pytest.param([(0, 59), (6000, 1)], False, id="all of it in the last second"),
        pytest.param([(100, 1)] * 60, False, id="just the least"),
        pytest.param([(100, 1)] * 59 + [(99, 1)], True, id="a byte less"),
        pytest.param([(10**6, 60), (0, 60)], True, id="much at first, and nothing then"),
        pytest.param([(0, 40), (6000, 20), (0, 40), (6000, 20)], False, id="each minute counts by itself"),
        pytest.param([(11_999, 120)], True, id="a longer time needs more"),
    ],
)
def test_the_average_over_each_minute_counts(steps: list[tuple[int, float]], is_slow: bool) -> None:
    pace = LeastPace(bytes_per_s=100, over_s=60)
    told = [pace.took(size_bytes, waited_s) for size_bytes, waited_s in steps]
    assert not any(told[:-1])
    assert bool(told[-1]) is is_slow


def test_what_was_taken_whole_is_settled() -> None:
    pace = LeastPace(bytes_per_s=100, over_s=60)
    for _ in range(10):
        assert not pace.took(1, 59)
        pace.begin_anew()


def test_0_is_no_limit() -> None:
    assert not LeastPace(bytes_per_s=0, over_s=1).took(0, 3600)


def test_the_reason_names_the_numbers() -> None:
    told = LeastPace(bytes_per_s=100, over_s=60).took(17, 61)
    assert told == "the client took 17 bytes in 61 s of what was waiting for it: 100 a second are the least"
