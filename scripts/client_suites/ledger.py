"""What has ended, kept line by line in a file: a run that was ended goes on from there."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.client_suites.outcomes import Outcome, Outcomes


class Ledger:
    """Outcomes of one suite by side and attempt, in ``path`` (JSON lines), which is made if it is not there.

    Raises:
        RuntimeError: the file is of another suite, or of another version of it.
    """

    def __init__(self, path: Path, title: str) -> None:
        self._path = path
        self._outcomes = defaultdict[tuple[str, int], dict[str, Outcome]](dict)
        self._remote = defaultdict[str, float](float)
        if not path.exists():
            self._write({"suite": title})
            return
        found, *lines = [json.loads(line) for line in path.read_text().splitlines()]
        if found != {"suite": title}:
            raise RuntimeError(f"{path} has results of {found.get('suite')}, and these are tests of {title}")
        for line in lines:
            self._apply(line)

    def add(self, side: str, attempt: int, outcomes: Outcomes, elapsed_s: float) -> None:
        """Keep how the tests of a process ended."""
        self._keep({"side": side, "attempt": attempt, "outcomes": dict(outcomes), "elapsed_s": round(elapsed_s, 1)})

    def add_remote(self, counts: Mapping[str, float]) -> None:
        """Add what one stand has counted, by metric."""
        self._keep({"remote": dict(counts)})

    def outcomes(self, side: str, attempt: int) -> Outcomes:
        """Return what has ended, by test."""
        return dict(self._outcomes[side, attempt])

    def remote(self) -> Mapping[str, float]:
        """Return the sums of all stands, by metric."""
        return dict(self._remote)

    def _keep(self, line: Mapping[str, Any]) -> None:
        self._apply(line)
        self._write(line)

    def _apply(self, line: Mapping[str, Any]) -> None:
        for name, value in line.get("remote", {}).items():
            self._remote[name] += value
        if "outcomes" in line:
            self._outcomes[line["side"], line["attempt"]] |= line["outcomes"]

    def _write(self, line: Mapping[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
