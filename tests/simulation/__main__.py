"""``python -m tests.simulation faults|cluster --seeds N --first S --jobs J``: run seeds, and shrink those that fail."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context

from tests.simulation.read_check import COMPARED
from tests.simulation.scenario import Kind
from tests.simulation.shrink import shrink
from tests.simulation.simulate import Outcome, simulate

_REPORTS_EVERY = 50
"""Seeds after which a long run reports its progress."""


@dataclass(slots=True)
class _Totals:
    """Sums over all seeds so far."""

    began_s: float = field(default_factory=time.monotonic)
    seeds: int = 0
    failed: int = 0
    faults: int = 0
    virtual_s: float = 0.0
    reads: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.failed += bool(outcome.violations)
        self.faults += len(outcome.faults)
        self.virtual_s += outcome.virtual_s
        self.reads.update(outcome.reads)

    def rates(self) -> str:
        minutes = (time.monotonic() - self.began_s) / 60
        return (
            f"{self.failed} failed; {self.seeds / minutes:.0f} seeds/min, "
            f"{self.faults} fault events, {self.faults / minutes:.0f} fault events/min"
        )


def main() -> int:
    """Return the exit code: 1 when a seed failed."""
    asked = _arguments()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of names are walked in an order that differs from process to process: a replay has to have the same.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    kind, seeds, totals = Kind(asked.kind), range(asked.first, asked.first + asked.seeds), _Totals()
    with _outcomes(kind, seeds, asked.jobs) as outcomes:
        for outcome in outcomes:
            totals.add(outcome)
            if outcome.violations:
                _report(outcome, shrinks=not asked.no_shrink)
            if asked.trace:
                print("\n".join(outcome.trace))
            if totals.seeds % _REPORTS_EVERY == 0:
                print(f"{totals.seeds} of {len(seeds)} seeds, {totals.rates()}", file=sys.stderr, flush=True)
    compared = totals.reads.pop(COMPARED, 0)
    print(
        f"{totals.seeds} seeds of {kind}, {totals.rates()}, {totals.virtual_s / 3600:.1f} h of virtual time\n"
        f"read while it lasted: {sum(totals.reads.values())} times, {dict(sorted(totals.reads.items()))}; "
        f"{compared} records compared"
    )
    return 1 if totals.failed else 0


@contextmanager
def _outcomes(kind: Kind, seeds: Iterable[int], jobs: int) -> Iterator[Iterator[Outcome]]:
    """Yield outcomes in the order of ``seeds``, whichever process is done with its own first."""
    gc.freeze()  # what the imports made lives to the end, and every collection would walk it
    if jobs == 1:
        yield map(partial(simulate, kind), seeds)
        return
    # Not forked: a child begins with the same caches whatever its parent has done by then.
    with get_context("spawn").Pool(jobs, initializer=gc.freeze) as pool:
        yield pool.imap(partial(simulate, kind), seeds)


def _report(outcome: Outcome, *, shrinks: bool) -> None:
    print(f"seed {outcome.seed} FAILED with {len(outcome.faults)} faults:")
    for violation in outcome.violations:
        print(f"  {violation}")
    if shrinks:
        smallest = shrink(outcome)
        print(f"  with {len(smallest.faults)} faults still: {', '.join(smallest.faults)}")
        print(f"  {smallest.violations[0]}")
    print(
        f"  replay: python -m tests.simulation {outcome.kind} --first {outcome.seed} --seeds 1 --trace",
        flush=True,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("kind", choices=[kind.value for kind in Kind])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=_at_least_one, default=1, help="processes that run seeds (default 1)")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--no-shrink", action="store_true")
    return parser.parse_args()


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: give a number of processes, 1 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
