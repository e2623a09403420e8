"""A table for people, and a last line for machines: ``figure=value goal=value ok|short, …``."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from statistics import median

from benchmarks.support.measure import Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """``figure`` is met at or above ``least``, or at or below ``most``."""

    name: str
    figure: float
    least: float | None = None
    most: float | None = None

    @property
    def is_met(self) -> bool:
        return (self.least is None or self.figure >= self.least) and (self.most is None or self.figure <= self.most)

    def __str__(self) -> str:
        goal = f">={self.least:g}" if self.least is not None else f"<={self.most:g}"
        return f"{self.name}={self.figure:.3g} goal={goal} {'ok' if self.is_met else 'short'}"


def spread(values: Sequence[float], form: str) -> str:
    """The median, and between which they all lie; each as ``form`` says, ``.2f`` for instance."""
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


@dataclass(slots=True)
class Report:
    """Rows are printed as they come: a run of minutes should show that it moves."""

    goals: list[Goal] = field(default_factory=list)

    def begin(self, title: str) -> None:
        """What is measured, and with what."""
        print(f"{title}; Python {platform.python_version()}, tiersidecar {version('tiersidecar')}")
        print(f"{'':52}{'MiB/s':>9}{'s':>8}{'CPU s/GiB':>11}")

    def row(self, what: str, cost: Cost, note: str = "") -> None:
        print(
            f"{what:52}{cost.mib_per_s:9.0f}{cost.wall_s:8.2f}{cost.cpu_s_per_gib:11.2f}  {note}".rstrip(), flush=True
        )

    def line(self, text: str) -> None:
        print(text, flush=True)

    def end(self) -> int:
        """Print the last line; gives the exit code, 1 if a goal is missed."""
        print(", ".join(map(str, self.goals)))
        sys.stdout.flush()
        return 0 if all(goal.is_met for goal in self.goals) else 1
