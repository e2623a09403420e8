"""Run a suite's tests on both sides, round by round, as far as no earlier run has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

from scripts.client_suites.ledger import Ledger
from scripts.client_suites.outcomes import Outcome, Outcomes, Round, SuiteResult
from scripts.client_suites.stands import Stand, directly, through
from scripts.client_suites.suite import Command, Piece, Suite

RERUNS = 2
StandOf = Callable[..., AbstractContextManager[Stand]]


class OutOfTimeError(Exception):
    """The time that a run was given is over, and tests remain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """One suite's rounds.  ``until_s``, of time.monotonic(), is when no further process may start.

    All run once, beside each other (attempt 0), and those that differ or fail run again alone, up to twice (1, 2).  With
    ``repeat`` every test runs as many times on both sides, alone (1 and so on).
    """

    suite: Suite
    directory: Path
    ledger: Ledger
    until_s: float
    repeat: int | None = None

    def run(self, names: Sequence[str], *, are_all: bool = False) -> SuiteResult:
        """Run them and return what is known of each.  ``are_all``: there are no others.

        Raises:
            OutOfTimeError: tests remain.  Another call, with the same directory, goes on.
        """
        rounds = list[Round]()
        attempts = range(1, 1 + self.repeat) if self.repeat else range(1 + RERUNS)
        for attempt in attempts:
            chosen = names if self.repeat or not rounds else rounds[-1].unsettled()
            if not chosen:
                break
            rounds.append(self._round(chosen, attempt))
        return SuiteResult(
            suite=self.suite.title,
            rounds=rounds,
            remote=self.ledger.remote(),
            least_remote=self.suite.least_remote if are_all else {},
        )

    def _round(self, names: Collection[str], attempt: int) -> Round:
        return Round(
            directly=self._side("directly", names, attempt),
            through=self._side("through", names, attempt),
        )

    def _side(self, side: str, names: Collection[str], attempt: int) -> Outcomes:
        ended = self.ledger.outcomes(side, attempt)
        if remaining := [name for name in names if name not in ended]:
            self._run(side, remaining, attempt)
        ended = self.ledger.outcomes(side, attempt)
        if remaining := [name for name in names if name not in ended]:
            raise OutOfTimeError(f"{self.suite.title}, {side}: {len(remaining)} of {len(names)} tests remain")
        return {name: ended[name] for name in names}

    def _run(self, side: str, names: Collection[str], attempt: int) -> None:
        """Start a stand of its own for them, and another one for those whose topics are not trimmed."""
        of_stands: list[tuple[StandOf, list[str]]] = [(directly, list(names))]
        if side == "through":
            trimmed = [name for name in names if name not in self.suite.untrimmed]
            others = [name for name in names if name in self.suite.untrimmed]
            of_stands = [(through, trimmed), (partial(through, trims=False), others)]
        for stand_of, some in of_stands:
            if some:
                self._run_on(stand_of, side, some, attempt)

    def _run_on(self, stand_of: StandOf, side: str, names: Collection[str], attempt: int) -> None:
        if time.monotonic() >= self.until_s:
            return
        home = _new_directory(self.directory, f"{side}-{attempt}")
        with stand_of(home, brokers=self.suite.brokers, properties=self.suite.properties) as stand:
            progress = _Progress(f"{self.suite.title}, {stand.name}", len(names))
            at_once = 1 if attempt else self.suite.at_once
            for outcomes, elapsed_s in self._pieces(stand, home, names, attempt, at_once=at_once):
                self.ledger.add(side, attempt, outcomes, elapsed_s)
                progress.tell(outcomes, elapsed_s)
            self.ledger.add_remote(stand.remote())

    def _pieces(
        self, stand: Stand, home: Path, names: Collection[str], attempt: int, *, at_once: int
    ) -> Iterator[tuple[Outcomes, float]]:
        """Run them, and yield how the tests of each ended, and after how many seconds, as it ends."""
        pool = ThreadPoolExecutor(at_once)
        try:
            pieces = self.suite.pieces(names)
            futures = [pool.submit(self._piece, piece, stand, home / piece.name, attempt) for piece in pieces]
            for future in as_completed(futures):
                if (ended := future.result()) is not None:
                    yield ended
        finally:
            pool.shutdown(cancel_futures=True)

    def _piece(self, piece: Piece, stand: Stand, home: Path, attempt: int) -> tuple[Outcomes, float] | None:
        """Return how its tests ended and after how many seconds, or nothing if there was no time left to start it."""
        began_s = time.monotonic()
        if began_s >= self.until_s:
            return None
        ended = dict[str, Outcome]()
        for number in count(1):
            ended |= self._process(piece, stand, home.with_name(f"{home.name}-{number}"), attempt)
            left = tuple(name for name in piece.tests if name not in ended)
            # It ended, or was ended, in the first of them.  The others have not begun.
            ended |= dict.fromkeys(left[:1], "fail")
            piece = replace(piece, tests=left[1:])
            if not piece.tests:
                break
        return ended, time.monotonic() - began_s

    def _process(self, piece: Piece, stand: Stand, home: Path, attempt: int) -> Outcomes:
        """Return the outcomes that it printed."""
        home.mkdir()
        found = self.suite.outcomes(
            _printed(self.suite.command(piece, stand, home, attempt), home / "output", piece.limit_s)
        )
        return {name: found[name] for name in piece.tests if name in found}


class _Progress:
    """Lines on stderr: what has ended, of how many."""

    def __init__(self, side: str, total: int) -> None:
        self._side, self._total, self._ended = side, total, 0

    def tell(self, outcomes: Outcomes, elapsed_s: float) -> None:
        self._ended += len(outcomes)
        shown = ", ".join(f"{name} {outcome}" for name, outcome in outcomes.items())
        print(f"{self._side}: [{self._ended}/{self._total}] {elapsed_s:.0f} s: {shown}", file=sys.stderr, flush=True)


def _printed(command: Command, path: Path, limit_s: float) -> str:
    """Run a process, and return what it has printed into ``path``.  After ``limit_s`` it ends with all that it started."""
    with path.open("w+", errors="replace") as output:
        process = subprocess.Popen(
            command.arguments,
            cwd=command.directory,
            env=command.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            output.write(f"\nended after {limit_s:.0f} s\n")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return output.read()


def _new_directory(parent: Path, name: str) -> Path:
    """Make one whose name no earlier run has used."""
    for number in count(1):
        path = parent / f"{name}-{number}"
        with suppress(FileExistsError):
            path.mkdir()
            return path
    raise AssertionError
