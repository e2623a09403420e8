"""A failing run with as few faults as it takes: leave out half of them, a quarter, single ones, as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.scenario import Kind
from tests.simulation.simulate import Outcome, simulate

Simulate = Callable[[Kind, int, frozenset[str]], Outcome]


def shrink(failed: Outcome, *, run: Simulate = simulate, most_runs: int = 60) -> Outcome:
    """Return the smallest failing run found within ``most_runs``; ``failed`` itself where every fault is needed."""
    best, muted, runs = failed, frozenset[str](), 0
    size = max(len(best.faults) // 2, 1)
    while best.faults and runs < most_runs:
        smaller = None
        for start in range(0, len(best.faults), size):
            if runs >= most_runs:
                break
            left_out = muted | set(best.faults[start : start + size])
            runs += 1
            outcome = run(failed.kind, failed.seed, left_out)
            if outcome.violations:
                smaller, muted = outcome, left_out
                break
        if smaller is not None:
            best = smaller
            size = max(min(size, len(best.faults) // 2), 1)
        elif size == 1:
            break
        else:
            size = max(size // 2, 1)
    return best
