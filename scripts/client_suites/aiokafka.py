"""aiokafka's own tests, from a git checkout of it: its packages come without them (``AIOKAFKA=checkout``).

Their fixtures start Kafka in a container; tests/support/aiokafka_tests has fixtures that take the stand's addresses instead.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Collection, Mapping
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree as ET

from scripts.client_suites.outcomes import Outcome, Outcomes
from scripts.client_suites.stands import Stand
from scripts.client_suites.suite import excluded
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
AT_ONCE = 3
TEST_TIMEOUT_S = 300


class AiokafkaSuite:
    """Its tests with a broker, by pytest, in this environment's Python."""

    brokers = 1
    title = f"aiokafka {VERSION}"
    # As its own container has them.
    properties: Mapping[str, str] = {"auto.create.topics.enable": "true", "num.partitions": "2"}

    def __init__(self, checkout: Path, directory: Path) -> None:
        if (installed := version("aiokafka")) != VERSION:
            raise RuntimeError(f"aiokafka {installed} is installed, and the tests are those of {VERSION}")
        self._home = directory / "aiokafka"
        _unpack(checkout, self._home)

    def run(self, stand: Stand, directory: Path, names: Collection[str], *, attempt: int) -> Outcomes:
        """``names`` as in pytest: ``tests/test_consumer.py::TestConsumerIntegration::test_simple_consumer``."""
        report = directory / f"aiokafka-{attempt}.xml"
        chosen = sorted(names) or [f"tests/{name}" for name in FILES]
        left_out = [f"--deselect={name}" for name in excluded("aiokafka")]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit1"]
        command += ["-n", "0" if attempt else str(AT_ONCE), f"--junitxml={report}", *left_out, *chosen]
        environment = {
            **os.environ,
            "STAND_BROKER": stand.bootstrap_servers,
            "STAND_SASL_BROKER": stand.sasl_bootstrap_servers,
            "STAND_KAFKA_VERSION": KAFKA_4,
        }
        with (directory / f"aiokafka-{attempt}.output").open("w") as output:
            subprocess.run(
                command,
                cwd=self._home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        return outcomes_of(report.read_text()) if report.exists() else {}


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


def outcomes_of(report: str) -> Outcomes:
    """Return the outcome by test, named as pytest takes it, of a report in JUnit's format (xunit1)."""
    outcomes: dict[str, Outcome] = {}
    for case in ET.fromstring(report).iter("testcase"):
        name = f"{case.get('file')}::{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        if case.find("skipped") is not None:
            outcomes[name] = "skip"
        elif case.find("failure") is not None or case.find("error") is not None:
            outcomes[name] = "fail"
        else:
            outcomes.setdefault(name, "pass")
    return outcomes


def _unpack(checkout: Path, home: Path) -> None:
    """Their tests, with our fixtures in place of theirs."""
    archive = subprocess.run(["git", "-C", str(checkout), "archive", COMMIT, "tests"], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
        packed.extractall(home, filter="data")
    (home / "tests" / "conftest.py").write_text((FIXTURES / "stand_fixtures.py").read_text())
    settings = ["asyncio_mode = auto", "asyncio_default_fixture_loop_scope = function", f"timeout = {TEST_TIMEOUT_S}"]
    settings += ["markers =", "    ssl: needs certificates"]
    (home / "pytest.ini").write_text("\n".join(["[pytest]", *settings, ""]))
