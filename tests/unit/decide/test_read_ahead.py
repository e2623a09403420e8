"""The window of a reader: latency times rate, and never more than what is proved, allowed or left (U3)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiersidecar.decide.read_ahead import ReadAheadView, ReadRate, ShortestTimes, WindowBound, decide_window

MIB = 1024 * 1024
CHUNK = 4 * MIB
BASE = ReadAheadView(
    unit_bytes=CHUNK,
    fetch_s=0.2,
    bytes_per_s=100 * MIB,
    has_waited=True,
    window_bytes=32 * MIB,
    read_bytes=1024 * MIB,
    first_bytes=16 * MIB,
    most_bytes=64 * MIB,
    left_bytes=1024 * MIB,
    is_probing=False,
)
"""A chunk takes 0.2 s, and 100 MiB/s come: 20 MiB are in flight, and twice that and a chunk are wanted: 44 MiB."""


@pytest.mark.parametrize(
    ("changes", "chunks", "bound"),
    [
        pytest.param({}, 11, "store", id="a reader that waits gets twice what its rate needs, and one"),
        pytest.param({"has_waited": False}, 6, "reader", id="one that never waits gets what its rate needs, and one"),
        pytest.param({"has_waited": False, "bytes_per_s": MIB}, 2, "reader", id="a slow reader has two chunks"),
        pytest.param({"has_waited": False, "bytes_per_s": 1.0}, 2, "reader", id="one that has stopped for hours too"),
        pytest.param({"fetch_s": 0.05}, 4, "store", id="of a near store less is in flight at the same rate"),
        pytest.param({"is_probing": True}, 6, "store", id="half as much while the latency is looked for"),
        pytest.param({"bytes_per_s": 1024 * MIB}, 16, "proof", id="at most twice the present window"),
        pytest.param(
            {"bytes_per_s": 1024 * MIB, "window_bytes": 64 * MIB}, 16, "maximum", id="at most what one may have"
        ),
        pytest.param({"most_bytes": 18 * MIB}, 4, "maximum", id="a maximum between two chunks counts as the lower one"),
        pytest.param({"most_bytes": 0}, 0, "maximum", id="a maximum of nothing"),
        pytest.param({"read_bytes": 12 * MIB}, 6, "proof", id="no further ahead than twice what it has read"),
        pytest.param({"read_bytes": CHUNK}, 4, "proof", id="but as far as a reader of which nothing is known"),
        pytest.param({"window_bytes": 0}, 1, "proof", id="the first step is one chunk"),
        pytest.param({"window_bytes": CHUNK}, 2, "proof", id="the second step doubles it"),
        pytest.param({"fetch_s": None}, 4, "unknown", id="without a measured latency the window of the unknown"),
        pytest.param({"bytes_per_s": None}, 4, "unknown", id="without a measured rate too"),
        pytest.param(
            {"fetch_s": None, "most_bytes": 8 * MIB}, 2, "maximum", id="the unknown may not have more than the maximum"
        ),
        pytest.param({"left_bytes": 32 * MIB}, 6, "memory", id="three quarters of what the others leave"),
        pytest.param({"left_bytes": 5 * MIB}, 1, "memory", id="a chunk where just one is left"),
        pytest.param({"left_bytes": CHUNK - 1}, 0, "memory", id="nothing where less than a chunk is left"),
        pytest.param({"left_bytes": 0}, 0, "memory", id="nothing where nothing is left"),
    ],
)
def test_window(changes: dict[str, float | None], chunks: int, bound: str) -> None:
    window = decide_window(replace(BASE, **changes))  # type: ignore[arg-type]
    assert (window.size_bytes / CHUNK, window.bound) == (chunks, WindowBound(bound))


@pytest.mark.parametrize("readers", [1, 2, 5, 12])
def test_all_who_want_much_come_to_about_equal_shares(readers: int) -> None:
    total_bytes, unit_bytes = 64 * MIB, 64 * 1024
    windows = [0] * readers
    for _ in range(50):
        for number in range(readers):
            view = replace(
                BASE,
                unit_bytes=unit_bytes,
                bytes_per_s=1e12,
                window_bytes=windows[number],
                left_bytes=total_bytes - sum(windows) + windows[number],
            )
            windows[number] = decide_window(view).size_bytes
            assert sum(windows) <= total_bytes
    assert max(windows) <= 1.15 * min(windows)
    assert sum(windows) >= 0.7 * total_bytes


def test_who_comes_late_gets_a_share_though_the_first_has_stopped_reading() -> None:
    first = decide_window(replace(BASE, bytes_per_s=1e12, window_bytes=64 * MIB, left_bytes=64 * MIB)).size_bytes
    second = decide_window(replace(BASE, bytes_per_s=1e12, left_bytes=64 * MIB - first)).size_bytes
    assert (first // MIB, second // MIB) == (48, 12)


@pytest.mark.parametrize(
    ("bandwidth_mib_per_s", "latency_s", "least", "most"),
    [
        pytest.param(100, 0.05, 2, 6, id="what a link of 50 ms takes is found, and no queue is built before it"),
        pytest.param(1000, 0.05, 13, 32, id="a fast link of 50 ms takes more"),
        pytest.param(1000, 0.002, 1, 4, id="a near one hardly anything"),
    ],
)
def test_a_shared_link_is_filled_and_not_flooded(
    bandwidth_mib_per_s: float, latency_s: float, least: int, most: int
) -> None:
    """A link of which all fetches have to share the bandwidth; the shortest time is that of a chunk alone on it."""
    alone_s = latency_s + CHUNK / MIB / bandwidth_mib_per_s
    window_bytes = CHUNK
    for _ in range(100):
        in_flight = window_bytes / CHUNK
        rate = min(in_flight * CHUNK / alone_s, bandwidth_mib_per_s * MIB)
        view = replace(BASE, fetch_s=alone_s, bytes_per_s=rate, window_bytes=window_bytes, most_bytes=1024 * MIB)
        window_bytes = decide_window(view).size_bytes
    assert least <= window_bytes / CHUNK <= most
    assert window_bytes / alone_s >= bandwidth_mib_per_s * MIB


def test_the_shortest_time_is_that_of_this_period_and_the_one_before() -> None:
    times = ShortestTimes()
    times.add(CHUNK, 0.3, now_s=100.0)
    times.add(CHUNK, 0.2, now_s=105.0)
    times.add(CHUNK, 0.5, now_s=112.0)
    assert times.shortest_s(CHUNK, 119.0) == 0.2
    assert times.shortest_s(CHUNK, 120.0) == 0.5
    assert times.shortest_s(CHUNK, 130.0) is None
    times.add(CHUNK, 0.1, now_s=131.0)
    assert times.shortest_s(CHUNK, 1000.0) is None


@pytest.mark.parametrize(
    ("size_bytes", "shortest_s"),
    [
        pytest.param(CHUNK, 0.2, id="of the same size"),
        pytest.param(CHUNK * 3 // 4, 0.2, id="of about the same size"),
        pytest.param(16 * 1024, 0.05, id="of a small one"),
        pytest.param(256 * 1024, 0.2, id="of one between: the next larger that is known"),
        pytest.param(64 * MIB, 0.2, id="of one larger than all: the largest that is known"),
    ],
)
def test_times_are_kept_by_size(size_bytes: int, shortest_s: float) -> None:
    times = ShortestTimes()
    times.add(CHUNK, 0.2, now_s=100.0)
    times.add(16 * 1024, 0.05, now_s=100.0)
    assert times.shortest_s(size_bytes, 101.0) == shortest_s


@pytest.mark.parametrize(
    ("now_s", "is_probing"),
    [
        pytest.param(110.1, True, id="as a period begins"),
        pytest.param(110.5, True, id="until two fetches could be made"),
        pytest.param(110.7, False, id="not after that"),
        pytest.param(119.9, False, id="nor as it ends"),
    ],
)
def test_each_period_begins_with_less_in_flight(now_s: float, *, is_probing: bool) -> None:
    times = ShortestTimes()
    times.add(CHUNK, 0.3, now_s=105.0)
    assert times.is_probing(CHUNK, now_s) == is_probing
    assert not ShortestTimes().is_probing(CHUNK, now_s)


def test_the_rate_is_that_of_a_round() -> None:
    rate = ReadRate(now_s=10.0)
    assert not rate.add(CHUNK, waited_s=0.05, round_bytes=2 * CHUNK, now_s=10.5)
    assert (rate.bytes_per_s, rate.has_waited) == (None, False)
    assert rate.add(CHUNK, waited_s=0.05, round_bytes=2 * CHUNK, now_s=11.0)
    assert (rate.bytes_per_s, rate.has_waited) == (2 * CHUNK, True)
    assert rate.add(CHUNK, waited_s=0.0, round_bytes=CHUNK, now_s=13.0)
    assert (rate.bytes_per_s, rate.has_waited) == (CHUNK / 2, False)


def test_where_time_stands_still_there_is_no_rate() -> None:
    rate = ReadRate(now_s=10.0)
    assert not rate.add(CHUNK, waited_s=0.0, round_bytes=CHUNK, now_s=10.0)
    assert rate.bytes_per_s is None
