"""``python -m tiersidecar.simulation faults|cluster --seeds N [--first S]``: run seeds, and shrink those that fail."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter

from tiersidecar.simulation.read_check import COMPARED
from tiersidecar.simulation.scenario import Kind
from tiersidecar.simulation.shrink import shrink
from tiersidecar.simulation.simulate import simulate

_TELLS_EVERY = 50
"""Seeds after which a long run says how far it is."""


def main() -> int:
    """Gives the exit code: 1 when a seed failed."""
    asked = _arguments()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of names are walked in an order that differs from process to process: a replay has to have the same.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tiersidecar.simulation", *sys.argv[1:]])
    kind, began_s, failed, faults, virtual_s = Kind(asked.kind), time.monotonic(), 0, 0, 0.0
    reads: Counter[str] = Counter()
    for done, seed in enumerate(range(asked.first, asked.first + asked.seeds)):
        if done and done % _TELLS_EVERY == 0:
            _tell_progress(done, asked.seeds, failed, faults, (time.monotonic() - began_s) / 60)
        outcome = simulate(kind, seed)
        faults += len(outcome.faults)
        virtual_s += outcome.virtual_s
        reads.update(outcome.reads)
        if outcome.violations:
            failed += 1
            _tell(kind, seed, shrinks=not asked.no_shrink)
        if asked.trace:
            print("\n".join(outcome.trace))
    minutes = (time.monotonic() - began_s) / 60
    print(
        f"{asked.seeds} seeds of {kind}, {failed} failed; {asked.seeds / minutes:.0f} seeds/min, "
        f"{faults} fault events, {faults / minutes:.0f} fault events/min, {virtual_s / 3600:.1f} h of virtual time"
    )
    compared = reads.pop(COMPARED, 0)
    print(
        f"read while it lasted: {sum(reads.values())} times, {dict(sorted(reads.items()))}; {compared} records compared"
    )
    return 1 if failed else 0


def _tell_progress(done: int, of: int, failed: int, faults: int, minutes: float) -> None:
    print(
        f"{done} of {of} seeds, {failed} failed; {done / minutes:.0f} seeds/min, {faults / minutes:.0f} fault events/min",
        file=sys.stderr,
        flush=True,
    )


def _tell(kind: Kind, seed: int, *, shrinks: bool) -> None:
    outcome = simulate(kind, seed)
    print(f"seed {seed} FAILED with {len(outcome.faults)} faults:")
    for violation in outcome.violations:
        print(f"  {violation}")
    if shrinks:
        smallest = shrink(outcome)
        print(f"  with {len(smallest.faults)} faults still: {', '.join(smallest.faults)}")
        print(f"  {smallest.violations[0]}")
    print(f"  replay: python -m tiersidecar.simulation {kind} --first {seed} --seeds 1 --trace", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tiersidecar.simulation", description=__doc__)
    parser.add_argument("kind", choices=[kind.value for kind in Kind])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--no-shrink", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
