"""The page of the benchmarks: figures beside their goals, and nothing of the machine's paths."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from scripts.bench_report import MOST_OF_GOAL, Figure, Machine, Run, chart, figures_of, page, run

MACHINE = Machine(
    cores=2,
    processor="a <quick> one",
    memory_gib=23.5,
    kernel="6.1.0",
    python="3.11.7",
    core="native core 0.1.0",
    commit="abc1234",
    day="2026-01-02",
)
LAST_LINE = "read_of_peer=0.75 goal=>=0.8 short, cpu_of_peer=1.2 goal=<=1.3 ok"


def a_run(*, output: str = "ours 1.2", problem: str = "") -> Run:
    return Run(
        name="read",
        about="What reading costs.",
        command="make bench NAME=read QUICK=1",
        took_s=41.2,
        output=output,
        figures=[] if problem else figures_of(LAST_LINE),
        problem=problem,
    )


def test_a_last_line_is_its_figures() -> None:
    short, met = figures_of(LAST_LINE)
    assert short == Figure(name="read_of_peer", value=0.75, goal=">=0.8", is_met=False)
    assert (met.name, met.value, met.goal, met.is_met) == ("cpu_of_peer", 1.2, "<=1.3", True)


@pytest.mark.parametrize("line", ["", "all went well", "read=0.75 goal=0.8 ok", LAST_LINE + ", and more"])
def test_a_line_of_another_shape_is_no_figures(line: str) -> None:
    with pytest.raises(ValueError, match="no figure with a goal"):
        figures_of(line)


@pytest.mark.parametrize(
    ("value", "goal", "part"),
    [
        (0.8, ">=0.8", 1.0),  # just met
        (0.4, ">=0.8", 0.5),  # half of what it should be
        (2.6, "<=1.3", 0.5),  # twice what it may cost
        (0.65, "<=1.3", 2.0),  # half of what it may cost
        (90.0, ">=1", MOST_OF_GOAL),  # far beyond
        (0.0, "<=1", MOST_OF_GOAL),  # costs nothing
        (-0.3, "<=1", MOST_OF_GOAL),  # less than the noise
        (-0.3, ">=1", 0.0),
    ],
)
def test_a_bar_is_longer_the_better_its_figure_is(value: float, goal: str, part: float) -> None:
    assert Figure(name="x", value=value, goal=goal, is_met=True).of_goal == pytest.approx(part)


def test_the_page_has_every_figure_beside_its_goal() -> None:
    text = page(MACHINE, [a_run()])
    assert "| [read](#read) | read_of_peer | 0.75 | ≥ 0.8 | **short** |" in text
    assert "| [read](#read) | cpu_of_peer | 1.2 | ≤ 1.3 | ok |" in text
    assert "**1 of 2 goals are met.**" in text
    assert "at commit `abc1234`: 2 cores" in text
    assert "`make bench NAME=read QUICK=1`, 41 s:" in text


def test_a_run_without_figures_is_named() -> None:
    assert "| [read](#read) | | | | **ended with 1 and without figures** |" in page(
        MACHINE, [a_run(problem="ended with 1 and without figures")]
    )


def test_paths_and_colours_of_the_terminal_stay_out_of_the_page() -> None:
    text = page(MACHINE, [a_run(output="\x1b[1mbucket\x1b[0m /tmp/bench-1/bucket 3 MiB/s")])
    assert "bucket … 3 MiB/s" in text
    assert "/tmp" not in text


def test_the_chart_is_svg_with_a_bar_for_each_figure() -> None:
    root = ElementTree.fromstring(chart([a_run()]))
    bars = [each for each in root.iter() if each.tag.endswith("rect")]
    assert [bar.get("class") for bar in bars] == ["short", "ok"]


def test_a_benchmark_that_fails_has_a_problem_instead_of_figures(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text('"""Measure nothing."""\n')
    failed = run(broken, quick=True)
    assert failed.problem.startswith("ended with 2")
    assert failed.figures == []
    assert "can't open file" in capfd.readouterr().err
