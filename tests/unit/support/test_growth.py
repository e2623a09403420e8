"""What benchmarks/scale.py says of growth: an exponent, a table, and goals at the largest size."""

from __future__ import annotations

import pytest

from benchmarks.support.growth import Figure, Growth

CPU = Figure(name="cpu_s", what="CPU, s", form=".1f", most=10)
SIZE = Figure(name="mib", what="size, MiB", form=",.0f", grows=False)


def grown(*cpu_s: float) -> Growth:
    growth = Growth((1, 4, 16), (CPU, SIZE))
    for one in cpu_s:
        growth.add({"cpu_s": one, "mib": 1_000})
    return growth


@pytest.mark.parametrize(
    ("cpu_s", "exponent"),
    [
        pytest.param((1, 4, 16), 1.0, id="in proportion"),
        pytest.param((3, 3, 3), 0.0, id="not at all"),
        pytest.param((0.1, 1.6, 25.6), 2.0, id="with the square"),
        pytest.param((2, 3, 8), 0.5, id="with the root, whatever is between"),
        pytest.param((0, 0, 0), 0.0, id="too small to be seen"),
        pytest.param((0, 1, 4), float("inf"), id="from too small to be seen: a goal is missed"),
    ],
)
def test_an_exponent_is_of_the_smallest_and_the_largest_size(cpu_s: tuple[float, ...], exponent: float) -> None:
    assert grown(*cpu_s).exponent("cpu_s") == pytest.approx(exponent)


def test_a_row_has_a_column_for_each_size_and_the_exponent() -> None:
    head, cpu, size = grown(1, 4, 16).table()
    assert head.split() == ["1x", "4x", "16x", "exponent"]
    assert cpu.split() == ["CPU,", "s", "1.0", "4.0", "16.0", "1.00"]
    assert size.split() == ["size,", "MiB", "1,000", "1,000", "1,000", "0.00"]


def test_goals_are_of_the_largest_size_and_of_what_grows() -> None:
    assert [str(goal) for goal in grown(1, 4, 25.6).goals()] == [
        "cpu_s=25.6 goal=<=10 short",
        "cpu_s_exponent=1.17 goal=<=1.1 short",
    ]


def test_a_column_that_lacks_a_figure_is_refused() -> None:
    with pytest.raises(ValueError, match="mib"):
        Growth((1, 16), (CPU, SIZE)).add({"cpu_s": 1})
