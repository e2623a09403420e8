"""The window of a reader: latency times rate, and never more than what is proved, allowed or left (U3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from tiersidecar.decide.read_ahead import ReadAheadView, ReadRate, UsualTimes, Window, WindowBound, decide_window

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
        pytest.param(
            {"has_waited": False, "bytes_per_s": MIB, "window_bytes": 8 * MIB},
            2,
            "reader",
            id="a slow reader has two chunks",
        ),
        pytest.param(
            {"has_waited": False, "bytes_per_s": 1.0, "window_bytes": 8 * MIB},
            2,
            "reader",
            id="one that has stopped for hours too",
        ),
        pytest.param(
            {"has_waited": False, "bytes_per_s": 1.0}, 6, "reader", id="a window shrinks by a quarter in a round"
        ),
        pytest.param(
            {"has_waited": False, "bytes_per_s": 1.0, "is_round": False}, 8, "reader", id="and not within one"
        ),
        pytest.param(
            {"has_waited": False, "bytes_per_s": 10 * MIB, "window_bytes": 4 * MIB},
            2,
            "proof",
            id="one that is faster grows to more than it needs",
        ),
        pytest.param(
            {"has_waited": False, "bytes_per_s": 15 * MIB, "window_bytes": 8 * MIB},
            4,
            "reader",
            id="for some fetches take longer than others: four times as much",
        ),
        pytest.param(
            {"has_waited": False, "bytes_per_s": 50 * MIB, "window_bytes": 16 * MIB},
            4,
            "reader",
            id="but no more than the unknown get",
        ),
        pytest.param(
            {"fetch_s": 0.01},
            4,
            "store",
            id="who waits gets no less than one of which nothing is known",
        ),
        pytest.param(
            {"is_probing": True}, 2, "store", id="half of what its rate needs while the latency is looked for"
        ),
        pytest.param({"is_probing": True, "fetch_s": 0.8}, 10, "store", id="the same of a far store"),
        pytest.param({"is_probing": True, "fetch_s": 0.07}, 2, "store", id="but half of the least"),
        pytest.param(
            {"is_probing": True, "fetch_s": 0.01}, 4, "store", id="who has the least anyway has it all the time"
        ),
        pytest.param({"is_probing": True, "fetch_s": 0.06}, 4, "store", id="so has who wants just the least"),
        pytest.param(
            {"is_probing": True, "has_waited": False},
            6,
            "reader",
            id="who does not wait fills nothing that could drain",
        ),
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


def rate_of_endless_reader(unit_bytes: int, latency_s: Callable[[Random], float], *, most_bytes_per_s: float) -> float:
    """Bytes per second of a reader of chunks in their order, each of which takes as long as it happens to; of a store whose
    bandwidth has no end, with as much in flight as is decided, from its fifth second to its fifteenth."""
    random, times, rate = Random(1), UsualTimes(), ReadRate(0.0)
    now_s, window_bytes, begun, halfway = 0.0, 0, 0, (0, 0.0)
    pending = dict[int, tuple[float, float]]()
    index = 0
    while now_s < 15:
        for number in range(begun, index + 1 + window_bytes // unit_bytes):
            one_s = latency_s(random)
            pending[number] = now_s + one_s, one_s
        begun = max(begun, index + 1 + window_bytes // unit_bytes)
        end_s, one_s = pending.pop(index)
        waited_s = max(0.0, end_s - now_s)
        now_s += waited_s + unit_bytes / most_bytes_per_s
        times.add(unit_bytes, one_s, now_s)
        index += 1
        is_round = rate.add(unit_bytes, waited_s=waited_s, round_bytes=max(window_bytes, unit_bytes), now_s=now_s)
        view = replace(
            BASE,
            unit_bytes=unit_bytes,
            fetch_s=times.usual_s(unit_bytes, now_s),
            bytes_per_s=rate.bytes_per_s,
            has_waited=rate.has_waited,
            is_round=is_round,
            window_bytes=window_bytes,
            read_bytes=index * unit_bytes,
            is_probing=times.is_probing(unit_bytes, now_s),
        )
        window_bytes = decide_window(view).size_bytes
        if not halfway[0] and now_s >= 5:
            halfway = index, now_s
    return (index - halfway[0]) * unit_bytes / (now_s - halfway[1])


LATENCIES: dict[str, Callable[[Random], float]] = {
    "50 ms": lambda random: 0.05,
    "30 to 70 ms": lambda random: random.uniform(0.03, 0.07),
    "log-normal around 50 ms": lambda random: max(0.015, random.lognormvariate(-3.0, 0.5)),
    "50 ms, and 2 % of them 3 ms": lambda random: 0.003 if random.random() < 0.02 else 0.05,
    "50 ms, and a third of them 3 ms": lambda random: 0.003 if random.random() < 1 / 3 else 0.05,
    "2 ms": lambda random: 0.002,
}


@pytest.mark.parametrize("most_mb_per_s", [100, 400])
@pytest.mark.parametrize("unit_bytes", [128 * 1024, CHUNK])
@pytest.mark.parametrize("name", LATENCIES)
def test_no_store_is_read_slower_than_by_a_fixed_window(
    name: str, unit_bytes: int, most_mb_per_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former window was 16 MiB, whatever the store."""
    rate = rate_of_endless_reader(unit_bytes, LATENCIES[name], most_bytes_per_s=most_mb_per_s * 1e6)
    fixed = Window(16 * MIB, WindowBound.STORE)
    monkeypatch.setitem(rate_of_endless_reader.__globals__, "decide_window", lambda view: fixed)
    assert rate >= 0.9 * rate_of_endless_reader(unit_bytes, LATENCIES[name], most_bytes_per_s=most_mb_per_s * 1e6)


def times_of(*elapsed_s: float, now_s: float = 105.0, size_bytes: int = CHUNK) -> UsualTimes:
    times = UsualTimes()
    for one_s in elapsed_s:
        times.add(size_bytes, one_s, now_s)
    return times


@pytest.mark.parametrize(
    ("elapsed_s", "usual_s"),
    [
        pytest.param([0.3], 0.3, id="the first one"),
        pytest.param([0.1, 0.3, 0.2], 0.2, id="of a few the median"),
        pytest.param([0.05] * 16, 0.05, id="of equal ones that"),
        pytest.param([0.05] * 8 + [0.003] * 7 + [0.05] * 8, 0.05, id="what fewer than half took is luck"),
        pytest.param([0.05] * 16 + [0.5] * 100, 0.05, id="what all took before they waited for each other counts"),
        pytest.param(
            [0.5] * 100 + [0.05] * 8 + [0.5] * 100, 0.05, id="and what half of a batch took once they did not"
        ),
    ],
)
def test_the_usual_time_is_that_of_the_quietest_moment(elapsed_s: list[float], usual_s: float) -> None:
    assert times_of(*elapsed_s).usual_s(CHUNK, 106.0) == usual_s


def test_the_usual_time_is_that_of_this_period_and_the_one_before() -> None:
    times = times_of(*[0.2] * 16, now_s=100.0)
    for _ in range(16):
        times.add(CHUNK, 0.5, now_s=112.0)
    assert times.usual_s(CHUNK, 119.0) == 0.2
    assert times.usual_s(CHUNK, 120.0) == 0.5
    assert times.usual_s(CHUNK, 130.0) is None
    assert times_of(0.2, now_s=105.0).usual_s(CHUNK, 120.0) is None, "nor is that of the one before it"


@pytest.mark.parametrize(
    ("size_bytes", "usual_s"),
    [
        pytest.param(CHUNK, 0.2, id="of the same size"),
        pytest.param(CHUNK * 3 // 4, 0.2, id="of about the same size"),
        pytest.param(16 * 1024, 0.05, id="of a small one"),
        pytest.param(256 * 1024, 0.2, id="of one between: the next larger that is known"),
        pytest.param(64 * MIB, 0.2, id="of one larger than all: the largest that is known"),
    ],
)
def test_times_are_kept_by_size(size_bytes: int, usual_s: float) -> None:
    times = times_of(0.2, now_s=100.0)
    times.add(16 * 1024, 0.05, now_s=100.0)
    assert times.usual_s(size_bytes, 101.0) == usual_s


def test_sizes_within_a_factor_of_four_share_their_times() -> None:
    times = times_of(0.2, now_s=100.0, size_bytes=CHUNK)
    times.add(CHUNK // 2, 0.1, now_s=100.0)
    assert (times.usual_s(CHUNK, 101.0), times.usual_s(CHUNK // 2, 101.0)) == (0.1, 0.1)
    times.add(CHUNK // 4, 0.05, now_s=100.0)
    assert (times.usual_s(CHUNK, 101.0), times.usual_s(CHUNK // 4, 101.0)) == (0.1, 0.05), (
        "four times as large does not"
    )


@pytest.mark.parametrize(
    ("fetches", "now_s", "is_probing"),
    [
        pytest.param(0, 110.1, True, id="as a period begins"),
        pytest.param(15, 110.9, True, id="until sixteen were fetched in it"),
        pytest.param(16, 110.9, False, id="not after that"),
        pytest.param(15, 111.1, False, id="and no longer than a second"),
        pytest.param(15, 111.0, False, id="which ends as the next one begins"),
        pytest.param(0, 119.9, False, id="nor as it ends"),
    ],
)
def test_each_period_begins_with_less_in_flight(fetches: int, now_s: float, *, is_probing: bool) -> None:
    times = times_of(*[0.1] * 16)
    times.add(CHUNK, 0.3, now_s=110.1)  # begun before
    times.add(CHUNK, 0.1, now_s=110.25)  # begun in it, and behind what was in flight by then
    for _ in range(fetches):
        times.add(CHUNK, 0.1, now_s=110.35)
    assert times.is_probing(CHUNK, now_s) == is_probing
    assert not UsualTimes().is_probing(CHUNK, now_s)


def test_the_rate_is_that_of_a_round() -> None:
    rate = ReadRate(now_s=10.0)
    assert not rate.add(CHUNK, waited_s=0.05, round_bytes=2 * CHUNK, now_s=10.5)
    assert (rate.bytes_per_s, rate.has_waited) == (None, False)
    assert rate.add(CHUNK, waited_s=0.05, round_bytes=2 * CHUNK, now_s=11.0)
    assert (rate.bytes_per_s, rate.has_waited) == (2 * CHUNK, True)
    assert rate.add(CHUNK, waited_s=0.0, round_bytes=CHUNK, now_s=13.0)
    assert (rate.bytes_per_s, rate.has_waited) == (CHUNK / 2, False)


def test_a_reader_that_never_waited_has_not_waited_in_its_first_round_either() -> None:
    rate = ReadRate(now_s=10.0)
    assert rate.add(CHUNK, waited_s=0.0, round_bytes=CHUNK, now_s=11.0)
    assert not rate.has_waited


def test_where_time_stands_still_there_is_no_rate() -> None:
    rate = ReadRate(now_s=10.0)
    assert not rate.add(CHUNK, waited_s=0.0, round_bytes=CHUNK, now_s=10.0)
    assert rate.bytes_per_s is None
