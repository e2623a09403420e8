"""aiokafka's own tests, from a git checkout of it: its packages come without them (``AIOKAFKA=checkout``).

Their fixtures start Kafka in a container; tests/support/aiokafka_tests has fixtures that take the stand's addresses instead.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

from scripts.client_suites.outcomes import Outcome, Outcomes
from scripts.client_suites.stands import FILLED, TRIMMED, Stand
from scripts.client_suites.suite import Command, Piece
from tests.support.build_cache import MissingProgramError, require_program
from tests.support.kafka_jars import KAFKA_4

FIXTURES = Path(__file__).resolve().parents[2] / "tests" / "support" / "aiokafka_tests"
VERSION = "0.14.0"
COMMIT = "672947afe85c91b7d953f0259e69837a711d3246"
"""That of the tag v0.14.0: git's name of it is a sum of all that is in it."""
FILES = (
    "test_admin.py",
    "test_client.py",
    "test_conn.py",
    "test_consumer.py",
    "test_coordinator.py",
    "test_pep492.py",
    "test_producer.py",
    "test_sasl.py",
    "test_sender.py",
    "test_transactional_consumer.py",
    "test_transactional_producer.py",
)
"""Those with tests that need a broker."""
TEST_TIMEOUT_S = 120
TESTS_OF_A_PIECE = 10
_STATES: Mapping[str, Outcome] = {"PASSED": "pass", "XFAIL": "pass", "SKIPPED": "skip"}


class AiokafkaSuite:
    """Its tests with a broker, by pytest, in this environment's Python."""

    brokers = 1
    at_once = 3
    untrimmed: Collection[str] = ()
    title = f"aiokafka {VERSION}"
    least_remote: Mapping[str, float] = {TRIMMED: 100_000, FILLED: 20}
    properties: Mapping[str, str] = {
        # As its own container has them.
        "auto.create.topics.enable": "true",
        "num.partitions": "2",
        # Its tests write for no second: each batch gets a segment of its own, or nothing would be trimmed.
        "log.roll.ms": "1",
    }

    def __init__(self, checkout: Path, directory: Path) -> None:
        if (installed := version("aiokafka")) != VERSION:
            raise RuntimeError(f"aiokafka {installed} is installed, and the tests are those of {VERSION}")
        self._home = directory / "aiokafka"
        _unpack(checkout, self._home)

    def tests(self) -> Sequence[str]:
        """As pytest names them: ``tests/test_consumer.py::TestConsumerIntegration::test_simple_consumer``."""
        arguments = [*_PYTEST, "--collect-only", "-q", *(f"tests/{name}" for name in FILES)]
        done = subprocess.run(
            arguments, cwd=self._home, env=_environment(), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"pytest finds no tests of aiokafka:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return [line for line in done.stdout.splitlines() if line.startswith("tests/") and "::" in line]

    def pieces(self, tests: Collection[str]) -> Sequence[Piece]:
        """Some of one file run in one process: each takes seconds to start."""
        return [
            Piece(
                name=f"{Path(file).stem}-{number}",
                tests=names,
                limit_s=TEST_TIMEOUT_S * (len(names) + 1),
            )
            for file, of_file in groupby(sorted(tests), lambda name: name.partition("::")[0])
            for number, names in enumerate(_batches(tuple(of_file)))
        ]

    def command(self, piece: Piece, stand: Stand, home: Path, attempt: int) -> Command:
        environment = {
            **_environment(),
            "STAND_BROKER": stand.bootstrap_servers,
            "STAND_SASL_BROKER": stand.sasl_bootstrap_servers,
            "STAND_KAFKA_VERSION": KAFKA_4,
        }
        return Command(arguments=[*_PYTEST, "-v", *piece.tests], environment=environment, directory=self._home)

    @staticmethod
    def outcomes(printed: str) -> Outcomes:
        """Read pytest's line for each test.  An error when a test is torn down counts as well."""
        outcomes: dict[str, Outcome] = {}
        for name, state in re.findall(r"^(tests/\S+::\S+)(?: <- \S+)? ([A-Z]+)\b", printed, re.MULTILINE):
            outcome = _STATES.get(state, "fail")
            outcomes[name] = outcome if outcomes.get(name, outcome) == outcome else "fail"
        return outcomes


def checkout_of() -> Path:
    """Return the checkout that the environment names.

    Raises:
        MissingProgramError: it names none, or none of aiokafka's that has the commit.
    """
    wanted = f"a git checkout of aiokafka that has {VERSION} ({COMMIT[:8]}): its sdist and wheels leave its tests out"
    if not (named := os.environ.get("AIOKAFKA")):
        raise MissingProgramError(f"make client-suites AIOKAFKA=DIRECTORY, {wanted}")
    git = require_program("git", debian="git", rpm="git")
    done = subprocess.run([git, "-C", named, "cat-file", "-e", f"{COMMIT}:tests"], capture_output=True, check=False)
    if done.returncode != 0:
        raise MissingProgramError(f"AIOKAFKA={named} is not {wanted}")
    return Path(named)


_PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")


def _environment() -> dict[str, str]:
    """Without options for pytest that are meant for another run."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}


def _batches(tests: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [tests[first : first + TESTS_OF_A_PIECE] for first in range(0, len(tests), TESTS_OF_A_PIECE)]


def _unpack(checkout: Path, home: Path) -> None:
    """Their tests, with our fixtures in place of theirs."""
    archive = subprocess.run(["git", "-C", str(checkout), "archive", COMMIT, "tests"], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
        packed.extractall(home, filter="data")
    (home / "tests" / "conftest.py").write_text((FIXTURES / "stand_fixtures.py").read_text())
    settings = ["asyncio_mode = auto", "asyncio_default_fixture_loop_scope = function", f"timeout = {TEST_TIMEOUT_S}"]
    # Some tests wait for a thread, which no signal interrupts.
    settings += ["timeout_method = thread"]
    settings += ["markers =", "    ssl: needs certificates"]
    (home / "pytest.ini").write_text("\n".join(["[pytest]", *settings, ""]))
