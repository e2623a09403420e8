"""librdkafka's own tests, built from the source that the crate rdkafka-sys carries (tests/support/librdkafka_tests).

Each of them runs in a process of its own: librdkafka's runner ends the process at the first test that is over its time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from scripts.client_suites.outcomes import Outcome, Outcomes
from scripts.client_suites.stands import FILLED, TRIMMED, USERS, Stand
from scripts.client_suites.suite import Command, Piece
from scripts.debian_package import unpack_debian
from tests.support.build_cache import build_once, require_program
from tests.support.kafka_broker import java_command
from tests.support.kafka_jars import KAFKA_4, kafka_classpath

CRATE = Path(__file__).resolve().parents[2] / "tests" / "support" / "librdkafka_tests"
TIMEOUT_S = 300
# As the suite itself does where it runs several tests at once.
_TIMEOUT_MULTIPLIER = 3
_STATES: Mapping[str, Outcome] = {"PASSED": "pass", "SKIPPED": "skip"}
# What it may find on one machine and not on another has no part in its tests of Kafka's protocol.
_FEATURES = ("--disable-optimization", "--disable-gssapi", "--disable-curl", "--disable-zstd", "--disable-lz4-ext")
_WITH_SASL = frozenset({"0135", "0142"})
# What needs no broker, and what waits for a person.
_NOT_HERE = re.compile(r"TEST_F_LOCAL|TEST_F_MANUAL")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What cargo has fetched: the crate's directory and its version, ``4.9.0+2.10.0``: the part after + is librdkafka's."""

    directory: Path
    version: str


class LibrdkafkaSuite:
    """Those of its tests that need a broker, in the runner's quick mode, with seeds that stay the same."""

    brokers = 3
    at_once = 4
    least_remote: Mapping[str, float] = {TRIMMED: 1_000_000, FILLED: 20}
    untrimmed: Collection[str] = ()
    # Its scenario "default" (tests/scenarios/default.json).
    properties: Mapping[str, str] = {
        "auto.create.topics.enable": "true",
        "num.partitions": "4",
        "default.replication.factor": "3",
        # Of SASL connections, for the test of that.
        "connections.max.reauth.ms": "10000",
    }

    def __init__(self, directory: Path) -> None:
        source = _fetch()
        name = f"librdkafka-tests-{source.version}-{_fingerprint()}"
        self.title = f"librdkafka {source.version.partition('+')[2]}"
        self._root = build_once(name, lambda target: _build(source.directory / "librdkafka", target))
        self._tools = _kafka_tools(directory / "kafka")

    def tests(self) -> Sequence[str]:
        return tests_of((self._root / "tests" / "test.c").read_text())

    def pieces(self, tests: Collection[str]) -> Sequence[Piece]:
        """Those of one number run in one process: the runner takes no longer name."""
        by_number = groupby(sorted(tests), lambda name: name[:4])
        return [Piece(name=number, tests=tuple(names), limit_s=TIMEOUT_S) for number, names in by_number]

    def command(self, piece: Piece, stand: Stand, home: Path, attempt: int) -> Command:
        number = piece.name
        tests = self._lay_out(home)
        (tests / "test.conf").write_text(_settings(stand, with_sasl=number in _WITH_SASL))
        libraries = f"{self._root / 'src'}:{self._root / 'src-cpp'}"
        environment = {key: value for key, value in os.environ.items() if key != "CI"}
        environment |= {
            "LD_LIBRARY_PATH": libraries,
            "RDKAFKA_TEST_CONF": str(tests / "test.conf"),
            "TEST_KAFKA_VERSION": KAFKA_4,
            # Names of topics and groups are drawn from it: two tests at once must not share it.
            "TEST_SEED": str(int(number) * 10 + attempt + 1),
            "TESTS": number,
            "KAFKA_PATH": str(self._tools),
            "BROKERS": stand.bootstrap_servers,
        }
        arguments = [str(self._root / "tests" / "test-runner"), "-p1", "-Q", "-L"]
        return Command(arguments=arguments, environment=environment, directory=tests)

    @staticmethod
    def outcomes(printed: str) -> Outcomes:
        """Read the summary that the runner prints.  What still ran when it ended has failed."""
        plain = re.sub(r"\x1b\[\d*m", "", printed)
        found = re.findall(r"^\|\s*(\d{4}_\w+)\s*\|\s*(\w+)\s*\|", plain, re.MULTILINE)
        return {name: _STATES.get(state, "fail") for name, state in found}

    def _lay_out(self, directory: Path) -> Path:
        """Return a directory that looks to a test as the source's own, which no test may write to."""
        home = directory / "tests"
        home.mkdir()
        (directory / "src").symlink_to(self._root / "src")
        (home / "java").symlink_to(self._root / "tests" / "java")
        # "make java" comes before each use of its classes, which are there.
        (home / "Makefile").write_text("java: ;\n.PHONY: java\n")
        return home


def _settings(stand: Stand, *, with_sasl: bool) -> str:
    """Return the file that each client of a test begins with."""
    settings = {"bootstrap.servers": stand.bootstrap_servers, "test.timeout.multiplier": str(_TIMEOUT_MULTIPLIER)}
    if with_sasl:
        [(username, password)] = USERS.items()
        settings |= {"bootstrap.servers": stand.sasl_bootstrap_servers, "security.protocol": "SASL_PLAINTEXT"}
        settings |= {"sasl.mechanisms": "PLAIN", "sasl.username": username, "sasl.password": password}
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def tests_of(source: str) -> list[str]:
    """Return the tests that ``test.c`` lists, without those that need no broker."""
    return [name for name, rest in _entries(source) if not _NOT_HERE.search(rest)]


def _entries(source: str) -> Iterator[tuple[str, str]]:
    """Name and all else of each ``_TEST(...)`` in the table of tests."""
    listed = source.partition("struct test tests[] = {")[2].partition("{NULL}")[0]
    for entry in listed.split("_TEST(")[1:]:
        name, _, rest = entry.partition(",")
        yield name.strip(), rest


def _fetch() -> _Source:
    """cargo compares the crate with the sum in Cargo.lock."""
    cargo = require_program("cargo", debian="cargo", rpm="cargo")
    command = [cargo, "metadata", "--locked", "--format-version", "1", "--manifest-path", str(CRATE / "Cargo.toml")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"cargo could not fetch the crate rdkafka-sys:\n{done.stderr[-2000:]}")
    package = next(load for load in json.loads(done.stdout)["packages"] if load["name"] == "rdkafka-sys")
    return _Source(directory=Path(package["manifest_path"]).parent, version=package["version"])


def _build(source: Path, target: Path) -> None:
    """Build library and runner, without optimization: no test measures speed."""
    for program in ("gcc", "g++", "make"):
        require_program(program, debian=program, rpm={"g++": "gcc-c++"}.get(program, program))
    javac = require_program("javac", debian="openjdk-17-jdk-headless", rpm="java-17-openjdk-devel")
    shutil.copytree(source, target, dirs_exist_ok=True)
    # Some tests read their client's statistics by it; without it they would leave themselves out.
    unpack_debian("rapidjson-dev", target / "debian-packages")
    environment = {**os.environ, "CPATH": str(target / "debian-packages" / "usr" / "include")}
    jobs = f"-j{os.cpu_count() or 1}"
    compile_java = [
        javac,
        "-cp",
        kafka_classpath(KAFKA_4),
        "-d",
        "tests/java",
        "tests/java/TransactionProducerCli.java",
    ]
    for command in (
        ["./configure", *_FEATURES],
        ["make", jobs, "libs"],
        ["make", jobs, "-C", "tests", "build"],
        compile_java,
    ):
        done = subprocess.run(
            command, cwd=target, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"librdkafka: {' '.join(command[:3])}:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")


def _fingerprint() -> str:
    return hashlib.sha256((CRATE / "Cargo.lock").read_bytes() + repr(_FEATURES).encode()).hexdigest()[:12]


def _kafka_tools(directory: Path) -> Path:
    """Write what some tests call of a Kafka distribution, of which we have the jars: ``bin/kafka-topics.sh`` and so on."""
    java = java_command(KAFKA_4, level="WARN", target="err")
    classes = {
        "kafka-topics.sh": " org.apache.kafka.tools.TopicCommand",
        "kafka-acls.sh": " org.apache.kafka.tools.AclCommand",
        "kafka-run-class.sh": "",
    }
    bin_directory = directory / "bin"
    bin_directory.mkdir(parents=True)
    for name, main_class in classes.items():
        # kafka-run-class.sh adds what the caller has in CLASSPATH, last of all the options of java.
        script = bin_directory / name
        script.write_text(f'#!/bin/sh\nexec {shlex.join(java)}"${{CLASSPATH:+:$CLASSPATH}}"{main_class} "$@"\n')
        script.chmod(0o755)
    return directory
