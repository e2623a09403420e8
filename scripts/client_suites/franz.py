"""franz-go's own tests: those of its package kgo, at the version that tests/support/franz_tests pins."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from scripts.client_suites.outcomes import Outcome, Outcomes
from scripts.client_suites.stands import FILLED, TRIMMED, USERS, Stand
from scripts.client_suites.suite import Command, Piece
from tests.support.build_cache import require_program

MODULE = Path(__file__).resolve().parents[2] / "tests" / "support" / "franz_tests"
PACKAGE = "github.com/twmb/franz-go/pkg/kgo"
RECORDS = 20_000
TEST_TIMEOUT_S = 600
_OUTCOMES: Mapping[str, Outcome] = {"pass": "pass", "fail": "fail", "skip": "skip"}


class FranzSuite:
    """kgo's tests, each in a process of its own."""

    brokers = 1
    properties: Mapping[str, str] = {}
    at_once = 3
    least_remote: Mapping[str, float] = {TRIMMED: 1_000_000, FILLED: 30}
    # Share groups begin after some of the records were written, and trims wait only for groups that have begun.
    untrimmed = frozenset({"TestShareGroupETL"})

    def __init__(self, directory: Path) -> None:
        self._go = require_program("go", debian="golang-go", rpm="golang")
        self._program = directory / "kgo.test"
        command = [self._go, "test", "-c", "-mod=readonly", "-o", str(self._program), PACKAGE]
        subprocess.run(command, cwd=MODULE, check=True)
        # Where go runs a package's tests: one of them reads its source.
        self._source = _directory_of(self._go, PACKAGE)

    @property
    def title(self) -> str:
        found = re.search(r"twmb/franz-go v(\S+)", (MODULE / "go.mod").read_text())
        return f"franz-go {found[1] if found else '?'}, kgo"

    def tests(self) -> Sequence[str]:
        """Those within others are left out: each is part of its outer test."""
        listed = subprocess.run(
            [str(self._program), "-test.list=^Test"],
            capture_output=True,
            text=True,
            check=True,
            cwd=self._program.parent,
        )
        return [line for line in listed.stdout.splitlines() if line.startswith("Test")]

    def pieces(self, tests: Collection[str]) -> Sequence[Piece]:
        return [Piece(name=name, tests=(name,), limit_s=TEST_TIMEOUT_S + 30) for name in tests]

    def command(self, piece: Piece, stand: Stand, home: Path, attempt: int) -> Command:
        [name] = piece.tests
        [(username, password)] = USERS.items()
        environment = {
            **os.environ,
            "KGO_SEEDS": stand.bootstrap_servers,
            "KGO_TEST_SCRAM_SEEDS": stand.sasl_bootstrap_servers,
            "KGO_TEST_SCRAM": f"{username}:{password}:256",
            "KGO_TEST_RF": "1",
            "KGO_TEST_RECORDS": str(RECORDS),
            "KGO_LOG_LEVEL": "none",
        }
        arguments = [self._go, "tool", "test2json", "-t", str(self._program), "-test.v=test2json"]
        arguments += [f"-test.timeout={TEST_TIMEOUT_S}s", f"-test.run=^{re.escape(name)}$"]
        return Command(arguments=arguments, environment=environment, directory=self._source)

    @staticmethod
    def outcomes(printed: str) -> Outcomes:
        """Read what ``go tool test2json`` printed."""
        outcomes: dict[str, Outcome] = {}
        for line in printed.splitlines():
            event = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
            if event.get("Action") in _OUTCOMES and "Test" in event and "/" not in event["Test"]:
                outcomes[event["Test"]] = _OUTCOMES[event["Action"]]
        return outcomes


def _directory_of(go: str, package: str) -> Path:
    """Return where go has unpacked a package of our module's dependencies."""
    command = [go, "list", "-mod=readonly", "-f={{.Dir}}", package]
    return Path(subprocess.run(command, cwd=MODULE, capture_output=True, text=True, check=True).stdout.strip())
