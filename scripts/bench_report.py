"""Run the benchmarks and write ``docs/performance.md`` and its chart: ``make bench-report``.

Each figure stands beside its goal, and each benchmark's own table, with its peers, stands whole below.  The page says on which
machine and at which commit it was measured, so that a stranger can repeat it.  Run it while nothing else works: the figures are
ratios against peers of the same run, but a busy machine widens them all the same.
"""

from __future__ import annotations

import argparse
import ast
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from xml.sax.saxutils import escape

from tiersidecar.formats.native import core

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
CHART = ROOT / "docs" / "performance.svg"
MOST_S = 900
"""Seconds after which a benchmark is stopped and reported as such."""
MOST_OF_GOAL = 2.0
"""Where a bar of the chart ends: figures further beyond their goals look alike."""

_FIGURE = re.compile(r"(?P<name>\w+)=(?P<value>\S+) goal=(?P<goal>[<>]=\S+) (?P<verdict>ok|short)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """``goal`` as the benchmark prints it: ``>=0.8`` or ``<=1.3``."""

    name: str
    value: float
    goal: str
    is_met: bool

    @property
    def of_goal(self) -> float:
        """Give 1 where the goal is just met, and more the better the figure is, whichever way it counts."""
        bound = float(self.goal[2:])
        good, bad = (self.value, bound) if self.goal.startswith(">") else (bound, self.value)
        if bad <= 0:
            return MOST_OF_GOAL
        return min(MOST_OF_GOAL, max(0.0, good) / bad)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One benchmark's run; ``output`` is what it printed without the last line, ``problem`` why it has no figures."""

    name: str
    about: str
    command: str
    took_s: float
    output: str
    figures: Sequence[Figure]
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    cores: int
    processor: str
    memory_gib: float
    kernel: str
    python: str
    core: str
    commit: str
    day: str


def figures_of(last_line: str) -> list[Figure]:
    """Parse a benchmark's last line, ``figure=value goal=>=1 ok, …``; a part of another shape is an error.

    Raises:
        ValueError: the line, or a part of it, is no figure with a goal.
    """
    found = []
    for part in last_line.split(", "):
        match = _FIGURE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"no figure with a goal: {part!r}")
        found.append(
            Figure(
                name=match["name"],
                value=float(match["value"]),
                goal=match["goal"],
                is_met=match["verdict"] == "ok",
            )
        )
    return found


def page(machine: Machine, runs: Sequence[Run]) -> str:
    """Return the page: the machine, one table of all figures, the chart, and what each benchmark printed."""
    short = sum(not figure.is_met for run in runs for figure in run.figures)
    total = sum(len(run.figures) for run in runs)
    lines = [
        "# Performance",
        "",
        "`make bench-report` runs every benchmark and writes this page. Nothing on it is written by hand.",
        "",
        f"Measured on {machine.day} at commit `{machine.commit}`: {machine.cores} cores ({machine.processor}),"
        f" {machine.memory_gib:.0f} GiB, Linux {machine.kernel}, Python {machine.python}, {machine.core}.",
        "Broker, clients, stores and sidecar share these cores, so read the ratios against the peers of the same run,"
        " not the absolute rates.",
        "",
        f"**{total - short} of {total} goals are met.**",
        "",
        "![Each figure beside its goal](performance.svg)",
        "",
        "| benchmark | figure | value | goal | |",
        "| --- | --- | ---: | ---: | --- |",
        *(
            f"| [{run.name}](#{run.name}) | {figure.name} | {figure.value:g} | {_sign(figure.goal)} |"
            f" {'ok' if figure.is_met else '**short**'} |"
            for run in runs
            for figure in run.figures
        ),
        *(f"| [{run.name}](#{run.name}) | | | | **{run.problem}** |" for run in runs if run.problem),
    ]
    for run in runs:
        lines += ["", f"## {run.name}", "", run.about, "", f"`{run.command}`, {run.took_s:.0f} s:"]
        lines += ["", "```text", *_printable(run.output), "```"]
    return "\n".join(lines) + "\n"


def _sign(goal: str) -> str:
    return {">": "≥ ", "<": "≤ "}[goal[0]] + goal[2:]


def _printable(output: str) -> Iterable[str]:
    """Leave out what differs from machine to machine: paths, and the terminal's control characters."""
    for line in output.splitlines():
        yield re.sub(r"(?<!\S)/\w\S*", "…", re.sub(r"\x1b\[[0-9;]*m", "", line)).rstrip()


def chart(runs: Sequence[Run]) -> str:
    """Return an SVG of one bar per figure: its part of the goal, where the line at 1 is the goal and longer is better."""
    rows = [(run.name, figure) for run in runs for figure in run.figures]
    width, left, row_height, top = 860, 330, 22, 34
    scale = (width - left - 70) / MOST_OF_GOAL
    goal_x = left + scale
    height = top + row_height * len(rows) + 12
    bars = []
    for number, (name, figure) in enumerate(rows):
        y = top + row_height * number
        length, verdict = figure.of_goal * scale, "ok" if figure.is_met else "short"
        bars.append(
            f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(f"{name}: {figure.name}")}</text>'
            f'<rect class="{verdict}" x="{left}" y="{y + 3}" width="{length:.1f}" height="14" rx="2"/>'
            f'<text class="value" x="{left + length + 6:.1f}" y="{y + 14}">{figure.value:g}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        ' aria-label="Each figure as a part of its goal; longer is better">\n'
        "<style>text{font:12px system-ui,sans-serif;fill:#24292f}.value{fill:#57606a}.ok{fill:#2da44e}.short{fill:#cf222e}"
        ".goal{stroke:#57606a;stroke-dasharray:4 3}"
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.value{fill:#9198a1}.goal{stroke:#9198a1}}</style>\n"
        f'<text x="{goal_x:.1f}" y="20" text-anchor="middle">goal</text>\n'
        + "\n".join(bars)
        + f'\n<line class="goal" x1="{goal_x:.1f}" y1="26" x2="{goal_x:.1f}" y2="{height - 6}"/>\n</svg>\n'
    )


def run(path: Path, *, quick: bool) -> Run:
    """Run one benchmark in a process of its own; one that fails to print figures has a ``problem``."""
    print(f"{path.stem} …", file=sys.stderr, flush=True)
    began_s = time.monotonic()
    output, problem = _output_of([f"benchmarks/{path.name}", *(["--quick"] if quick else [])])
    table, _, last = output.rpartition("\n")
    figures: list[Figure] = []
    try:
        figures = figures_of(last)
        problem = ""
    except ValueError:
        table = output
    took_s = time.monotonic() - began_s
    print(f"{path.stem}: {problem or last} ({took_s:.0f} s)", file=sys.stderr, flush=True)
    return Run(
        name=path.stem,
        about=_first_paragraph(path),
        command=f"make bench NAME={path.stem}{' QUICK=1' if quick else ''}",
        took_s=took_s,
        output=table,
        figures=figures,
        problem=problem,
    )


def _output_of(words: list[str]) -> tuple[str, str]:
    """Return what a program printed, and what to say of it if that has no figures."""
    try:
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=MOST_S, check=False
        )
    except subprocess.TimeoutExpired as expired:
        return _text(expired.stdout).rstrip(), f"stopped after {MOST_S} s"
    return done.stdout.rstrip(), f"ended with {done.returncode} and without figures"


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def _first_paragraph(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split())


def machine() -> Machine:
    """Describe this machine, and what of the project was measured."""
    processor = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        processor=processor[1] if processor else platform.machine(),
        memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        kernel=platform.release().partition("-")[0],
        python=platform.python_version(),
        core=str(core),
        commit=subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip(),
        day=datetime.now(tz=UTC).date().isoformat(),
    )


def main() -> int:
    """Return 1 if a benchmark had no figures; a goal that is missed is a finding, and not a failure of the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="benchmarks to run (default: all)")
    parser.add_argument("--full", action="store_true", help="not the quick forms: an hour and more")
    asked = parser.parse_args()
    known = {path.stem: path for path in sorted((ROOT / "benchmarks").glob("*.py")) if path.stem != "__init__"}
    if unknown := set(asked.names) - set(known):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    runs = [run(known[name], quick=not asked.full) for name in asked.names or known]
    PAGE.write_text(page(machine(), runs))
    CHART.write_text(chart(runs))
    print(f"written: {PAGE.relative_to(ROOT)} and {CHART.relative_to(ROOT)}")
    return 1 if any(each.problem for each in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
