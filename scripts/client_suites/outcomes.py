"""What a suite's tests ended with on both sides, and what that says: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["pass", "fail", "skip"]
Outcomes = Mapping[str, Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One run of the same tests on both sides: outcome by test.  A test that never ended has none."""

    directly: Outcomes
    through: Outcomes

    def differing(self) -> tuple[str, ...]:
        """Return the tests with two outcomes, sorted."""
        names = sorted(self.directly.keys() | self.through.keys())
        return tuple(name for name in names if self.directly.get(name) != self.through.get(name))

    def unsettled(self) -> tuple[str, ...]:
        """Return the tests that have two outcomes, or that failed on either side, sorted."""
        failed = {name for side in (self.directly, self.through) for name, outcome in side.items() if outcome == "fail"}
        return tuple(sorted(failed.union(self.differing())))

    def of(self, name: str) -> str:
        """Return both outcomes of a test, as the report shows them."""
        return f"{self.directly.get(name, 'no outcome')}/{self.through.get(name, 'no outcome')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteResult:
    """Rounds of one suite.  The first has all tests, each later one those that differed or failed in the round before."""

    suite: str
    rounds: Sequence[Round]
    remote: Mapping[str, float]
    """Counts of what was trimmed and read remotely behind the gateway, by metric."""
    least_remote: Mapping[str, float] = field(default_factory=dict)
    """What they must come to: a suite whose topics stayed on the brokers' disks shows nothing."""

    @property
    def settled(self) -> Round:
        """Return one outcome a side and test: that of the last round that ran it."""
        directly, through = dict[str, Outcome](), dict[str, Outcome]()
        for one in self.rounds:
            directly |= one.directly
            through |= one.through
        return Round(directly=directly, through=through)

    @property
    def worse(self) -> tuple[str, ...]:
        """Return the tests that pass directly, and do not through the gateway."""
        return tuple(name for name in self.settled.differing() if self.settled.directly.get(name) == "pass")

    @property
    def failing(self) -> tuple[str, ...]:
        """Return the tests that fail on both sides."""
        settled = self.settled
        return tuple(name for name in sorted(settled.directly) if settled.of(name) == "fail/fail")

    @property
    def shortfalls(self) -> list[str]:
        """Return a line for each count that is less than it must be."""
        return [
            f"{name} {self.remote.get(name, 0):.0f}, and {least:.0f} is the least: its tests met no remote tier"
            for name, least in self.least_remote.items()
            if self.remote.get(name, 0) < least
        ]

    @property
    def has_failed(self) -> bool:
        """Return whether fewer tests pass through the gateway, or met no remote tier, or none passed: no suite that ran."""
        return bool(self.worse or self.shortfalls) or passed(self.settled.directly) == 0

    def differences(self) -> list[str]:
        """Return a line for each test that differed in any round, directly/through, round by round."""
        differing = sorted({name for one in self.rounds for name in one.differing()})
        return [
            f"{name}: {', '.join(one.of(name) for one in self.rounds if name in one.directly or name in one.through)}"
            + ("" if name in self.settled.differing() else " (alike when run alone)")
            for name in differing
        ]

    def as_json(self) -> dict[str, object]:
        """Return all of it as JSON data."""
        settled = self.settled
        names = sorted(settled.directly.keys() | settled.through.keys())
        return {
            "suite": self.suite,
            "tests": {
                name: {"directly": settled.directly.get(name), "through": settled.through.get(name)} for name in names
            },
            "differences": self.differences(),
            "worse": list(self.worse),
            "failing": list(self.failing),
            "shortfalls": self.shortfalls,
            "remote": dict(self.remote),
        }


def passed(outcomes: Outcomes) -> int:
    """Return how many passed."""
    return sum(outcome == "pass" for outcome in outcomes.values())


def table(results: Sequence[SuiteResult]) -> str:
    """Return the report: a row a suite, then the differences by name."""
    rows = [("suite", "tests", "skipped", "passed directly", "through the gateway", "differences")]
    for result in results:
        settled = result.settled
        rows.append(
            (
                result.suite,
                str(len(settled.directly.keys() | settled.through.keys())),
                str(sum(outcome == "skip" for outcome in settled.directly.values())),
                str(passed(settled.directly)),
                str(passed(settled.through)),
                str(len(settled.differing())),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for result in results:
        lines += [f"{result.suite}: {line}" for line in result.differences()]
        lines += [f"{result.suite}: {name} passes directly, and not through the gateway" for name in result.worse]
        lines += [f"{result.suite}: {name} fails on both sides" for name in result.failing]
        lines += [f"{result.suite}: {line}" for line in result.shortfalls]
    return "\n".join(lines)
