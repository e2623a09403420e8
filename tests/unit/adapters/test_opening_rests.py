"""A thread that opens batches lets others have core and interpreter (issue 17)."""

from __future__ import annotations

import time

import pytest

from tiersidecar.adapters.opening_rests import OpeningRests


def work(seconds: float) -> None:
    """Of processor time."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def test_it_rests_for_half_as_long_as_it_works_a_millisecond_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a request beside a batch of small records took 120 ms."""
    slept, rests = list[float](), OpeningRests()
    monkeypatch.setattr(time, "sleep", slept.append)
    rests()
    began_s = time.thread_time()
    for _ in range(400):
        work(0.0001)
        rests()
    worked_s = time.thread_time() - began_s
    assert 10 < len(slept) <= worked_s * 1000
    assert 0.4 * worked_s < sum(slept) <= 0.5 * worked_s + 0.001
    assert min(slept) >= 0.0005


def test_what_else_the_thread_did_before_is_not_slept_off(monkeypatch: pytest.MonkeyPatch) -> None:
    slept, rests = list[float](), OpeningRests()
    monkeypatch.setattr(time, "sleep", slept.append)
    work(0.03)
    rests()
    assert slept == []
    work(0.03)
    rests()
    assert slept == [0.005]
