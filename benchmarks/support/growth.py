"""How figures grow with the size of what is measured: a table of a column for each size, and the exponent of growth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.support.report import Goal

MOST_EXPONENT = 1.1
"""Of what grows in proportion, with room for what a run is off: 16 times as much is 21 times as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """``form`` is a format of the table, ``most`` the goal at the largest size; ``grows`` where the exponent has a goal."""

    name: str
    what: str
    form: str
    most: float | None = None
    grows: bool = True


@dataclass(slots=True)
class Growth:
    """Figures of a run; each size adds a column, ``factors`` times the smallest."""

    factors: Sequence[int]
    figures: Sequence[Figure]
    _columns: list[Mapping[str, float]] = field(default_factory=list)

    def add(self, column: Mapping[str, float]) -> None:
        """Add what was measured at the next size.

        Raises:
            ValueError: it is not of the figures that there are.
        """
        if wrong := column.keys() ^ {figure.name for figure in self.figures}:
            raise ValueError(f"missing or unknown figures: {', '.join(sorted(wrong))}")
        self._columns.append(column)

    def exponent(self, name: str) -> float:
        """Return 1 for what grows in proportion from the smallest to the largest size, 0 for what stays."""
        least, largest = self._columns[0][name], self._columns[-1][name]
        if least <= 0 or largest <= 0:  # below what a clock tick shows
            return 0.0 if largest <= 0 else math.inf
        return math.log(largest / least) / math.log(self.factors[-1] / self.factors[0])

    def table(self) -> Iterator[str]:
        """Yield a line for each figure."""
        heads = "".join(f"{f'{factor}x':>14}" for factor in self.factors)
        yield f"{'':46}{heads}{'exponent':>10}"
        for figure in self.figures:
            cells = "".join(f"{format(column[figure.name], figure.form):>14}" for column in self._columns)
            yield f"{figure.what:46}{cells}{self.exponent(figure.name):10.2f}"

    def goals(self) -> Iterator[Goal]:
        """Yield those at the largest size, then those of growth."""
        for figure in self.figures:
            if figure.most is not None:
                yield Goal(name=figure.name, figure=self._columns[-1][figure.name], most=figure.most)
        for figure in self.figures:
            if figure.grows:
                yield Goal(name=f"{figure.name}_exponent", figure=self.exponent(figure.name), most=MOST_EXPONENT)
