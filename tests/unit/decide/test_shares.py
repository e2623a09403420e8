"""Limits that workers share hold for all of them together, though each decides alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiersidecar.decide.quota import RateQuota
from tiersidecar.decide.shares import allowance, free_bytes, part_bytes, reserve_bytes, within_window
from tiersidecar.domain.taken import NOTHING, Taken


@pytest.mark.parametrize(
    ("limit", "workers", "others", "most"),
    [
        pytest.param(100, 1, [], 100, id="one worker has all"),
        pytest.param(100, 2, [0], 100, id="what another does not use is lent"),
        pytest.param(100, 2, [30], 70, id="what it uses is not"),
        pytest.param(100, 2, [100], 50, id="a worker's part is its own, though it was lent"),
        pytest.param(100, 4, [25, 25, 25], 25, id="all use their part"),
        pytest.param(1, 2, [1], 1, id="each has one at least"),
    ],
)
def test_how_many_a_worker_may_have(limit: int, workers: int, others: list[int], most: int) -> None:
    assert allowance(limit, workers, [Taken(one) for one in others]) == most


@given(
    limit=st.integers(1, 100),
    wishes=st.lists(st.integers(0, 200), min_size=1, max_size=6),
    order=st.randoms(use_true_random=False),
)
def test_after_each_has_ended_what_is_too_much_the_limit_holds(
    limit: int, wishes: list[int], order: random.Random
) -> None:
    """Whatever they had before: a sweep of each, in any order, and it holds from then on.  None has less than its part."""
    have = list(wishes)
    turns = list(range(len(have)))
    order.shuffle(turns)
    for turn in turns:
        others = [Taken(one) for index, one in enumerate(have) if index != turn]
        have[turn] = min(have[turn], allowance(limit, len(have), others))
    assert sum(have) <= max(limit, len(have))
    assert all(kept >= min(wish, limit // len(have)) for kept, wish in zip(have, wishes, strict=True))


@given(
    size=st.integers(64, 10_000),
    workers=st.integers(1, 6),
    steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4000), st.booleans()), max_size=80),
)
def test_memory_for_responses_is_never_given_twice(size: int, workers: int, steps: list[tuple[int, int, bool]]) -> None:
    held = [0] * workers
    for worker, wanted, gives_back in steps:
        if worker >= workers:
            continue
        if gives_back:
            held[worker] -= min(wanted, held[worker])
            continue
        others = [Taken(one) for index, one in enumerate(held) if index != worker]
        if wanted <= free_bytes(size, held[worker], workers, others):
            held[worker] += wanted
        assert sum(held) <= size
    for worker in range(workers):
        others = [Taken(one) for index, one in enumerate(held) if index != worker]
        reserve = reserve_bytes(size, workers)
        assert free_bytes(size, held[worker], workers, others) >= reserve - held[worker], "its reserve is its own"
    assert part_bytes(size, workers) <= max(reserve_bytes(size, workers), 1), (
        "a response fits when its worker has nothing"
    )


def test_one_worker_has_the_memory_that_it_had_without_others() -> None:
    assert free_bytes(1000, 300, 1, []) == 700
    assert part_bytes(1000, 1) == 250


def test_of_two_workers_a_connection_has_as_much_as_of_one() -> None:
    assert part_bytes(1000, 2) == 250
    assert part_bytes(1000, 4) == 125


def test_what_began_too_long_ago_is_not_counted() -> None:
    """A process that stands still shows what it took an hour ago: of so long a time the rate would be low for all."""
    assert within_window([Taken(500, 10), Taken(70, 95)], now_s=100, horizon_s=11) == Taken(70, 95)
    assert within_window([Taken(500, 10)], now_s=100, horizon_s=11) is NOTHING
    for never in (float("inf"), float("nan"), 1e9):
        assert within_window([Taken(500, never), Taken(70, 95)], now_s=100, horizon_s=11) == Taken(70, 95)


def test_a_quota_is_one_for_all() -> None:
    """Each process that asks sees what all have taken, and the rate is that of one."""
    shown = dict.fromkeys("ab", NOTHING)

    def quota(name: str, other: str) -> RateQuota:
        return RateQuota(bytes_per_s=50, others=lambda: [shown[other]], show=lambda taken: shown.update({name: taken}))

    alone, first, second = RateQuota(bytes_per_s=50), quota("a", "b"), quota("b", "a")
    for at_s, amount in ((100, 200), (103, 100), (104.5, 250)):
        alone.record(amount, at_s)
        (first if at_s < 104 else second).record(amount, at_s)
    for now_s in (104.5, 108, 110.5):
        for one in (first, second):
            one.look_again(now_s)
        expected = alone.throttle_s(now_s)
        assert [one.throttle_s(now_s) for one in (first, second)] == [pytest.approx(expected)] * 2
    assert first.throttle_s(1000) == 0


def test_one_busy_process_gets_all_of_a_quota() -> None:
    busy = RateQuota(bytes_per_s=50, others=lambda: [NOTHING, NOTHING])
    busy.record(500, 100)
    assert busy.throttle_s(109) == pytest.approx(1)
    assert busy.throttle_s(110) == 0
