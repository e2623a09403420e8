"""franz-go's own tests: those of its package kgo, at the version that tests/support/franz_tests pins."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path

from scripts.client_suites.outcomes import Outcome, Outcomes
from scripts.client_suites.stands import Stand
from tests.support.build_cache import require_program

MODULE = Path(__file__).resolve().parents[2] / "tests" / "support" / "franz_tests"
PACKAGE = "github.com/twmb/franz-go/pkg/kgo"
RECORDS = 20_000
TIMEOUT_S = 900
_OUTCOMES: Mapping[str, Outcome] = {"pass": "pass", "fail": "fail", "skip": "skip"}


class FranzSuite:
    """kgo's tests as one program; they run beside each other as far as they say so themselves."""

    brokers = 1
    properties: Mapping[str, str] = {}

    def __init__(self, directory: Path) -> None:
        self._go = require_program("go", debian="golang-go", rpm="golang")
        self._program = directory / "kgo.test"
        command = [self._go, "test", "-c", "-mod=readonly", "-o", str(self._program), PACKAGE]
        subprocess.run(command, cwd=MODULE, check=True)

    @property
    def title(self) -> str:
        found = re.search(r"twmb/franz-go (\S+)", (MODULE / "go.mod").read_text())
        return f"franz-go {found[1] if found else '?'}, kgo"

    def run(self, stand: Stand, directory: Path, names: Collection[str], *, attempt: int) -> Outcomes:
        """Those within others are left out: each is part of its outer test."""
        chosen = "|".join(f"^{re.escape(name)}$" for name in sorted(names)) or "."
        environment = {
            **os.environ,
            "KGO_SEEDS": stand.bootstrap_servers,
            "KGO_TEST_RF": "1",
            "KGO_TEST_RECORDS": str(RECORDS),
            "KGO_LOG_LEVEL": "none",
        }
        command = [self._go, "tool", "test2json", "-t", str(self._program), "-test.v=test2json"]
        command += [f"-test.timeout={TIMEOUT_S}s", f"-test.run={chosen}"]
        command += ["-test.parallel=1"] if attempt else []
        with (directory / f"kgo-{attempt}.json").open("w+") as log:
            subprocess.run(command, env=environment, cwd=directory, stdout=log, stderr=subprocess.STDOUT, check=False)
            log.seek(0)
            return outcomes_of(log.read())


def outcomes_of(printed: str) -> Outcomes:
    """Return the outcome by test of what ``go tool test2json`` printed."""
    outcomes: dict[str, Outcome] = {}
    for line in printed.splitlines():
        event = json.loads(line) if line.startswith("{") else {}
        if event.get("Action") in _OUTCOMES and "Test" in event and "/" not in event["Test"]:
            outcomes[event["Test"]] = _OUTCOMES[event["Action"]]
    return outcomes
