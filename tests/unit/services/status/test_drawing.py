"""A log drawn to scale, and an hour as a chart."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiersidecar.services.status.history import POINTS
from tiersidecar.services.status.page.drawing import hour_chart, segment_line, tier_line, to_scale
from tiersidecar.services.status.source import TierBytes


@pytest.mark.parametrize(
    ("amounts", "widths"),
    [
        pytest.param([1, 1], [500, 500], id="two of a size are of one width"),
        pytest.param(
            [3, 1], [747, 253], id="three times as much is three times as wide, but for what each has at least"
        ),
        pytest.param([10**15, 1], [993, 7], id="what is there is seen, however small its part"),
        pytest.param([0, 5, 0], [0, 1000, 0], id="what is not there has no width"),
        pytest.param([0, 0], [0, 0], id="an empty log has no line"),
        pytest.param([], [], id="no parts"),
    ],
)
def test_the_scale(amounts: list[int], widths: list[int]) -> None:
    assert to_scale(amounts) == widths


@given(st.lists(st.integers(min_value=0, max_value=2**60), max_size=50))
def test_parts_fill_the_line_and_larger_ones_are_never_narrower(amounts: list[int]) -> None:
    widths = to_scale(amounts)
    assert sum(widths) == (1000 if any(amounts) else 0)
    assert [width > 0 for width in widths] == [amount > 0 for amount in amounts]
    ordered = sorted(zip(amounts, widths, strict=True))
    # Rounding may cost one thousandth.
    assert all(one[1] <= other[1] + 1 for one, other in itertools.pairwise(ordered))


def drawn(svg: str) -> list[tuple[str, int, int]]:
    """Kind, start and width of each piece."""
    found = re.findall(r'<rect class="t-(\w+)" x="(\d+)" y="0" width="(\d+)"', svg)
    return [(kind, int(start), int(width)) for kind, start, width in found]


def test_a_log_is_drawn_from_its_start_to_its_end() -> None:
    svg = tier_line(TierBytes(trash=10, remote=50, both=20, pinned=5, local=5, active=10), label="orders")
    pieces = drawn(svg)
    assert [kind for kind, _, _ in pieces] == ["trash", "remote", "both", "pinned", "local", "active"]
    assert pieces[0][1] == 0
    assert [start + width for _, start, width in pieces] == [*(start for _, start, _ in pieces[1:]), 1000]
    assert 'aria-label="orders: trash 10 B, remote 50 B' in svg


def test_an_empty_log_is_an_empty_line() -> None:
    assert drawn(tier_line(TierBytes(), label="a")) == [("none", 0, 1000)]


def test_of_thousands_of_segments_neighbours_of_one_state_are_one_piece() -> None:
    few = [("remote", 10)] * 3 + [("both", 10)] * 2
    assert len(drawn(segment_line(few, label="a"))) == 5
    many = [("remote", 10)] * 3000 + [("both", 10)] * 1000 + [("active", 1)]
    pieces = drawn(segment_line(many, label="a"))
    assert [kind for kind, _, _ in pieces] == ["remote", "both", "active"]


def test_an_hour_has_its_highest_point_at_the_top_and_gaps_where_nothing_is_known() -> None:
    last = 1000
    points = {last: 30_000, last - 1: 60_000, last - 5: 15_000}
    chart = hour_chart(points, last, name="Copied to the store", kind="copied", is_rate=True)
    assert chart.count('class="area"') == 2
    assert f"L{POINTS - 2} 4 " in chart
    assert "most 2.0 KiB/s" in chart
    assert "<strong>1000 B/s</strong>" in chart


def test_an_hour_of_which_nothing_is_known_says_so() -> None:
    chart = hour_chart({}, 1000, name="Lag", kind="lag", is_rate=False)
    assert "no figures yet" in chart
    assert "area" not in chart
