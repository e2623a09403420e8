"""The jars of a Kafka release, from Maven Central into the user's cache (scripts/kafka/pom.xml)."""

from __future__ import annotations

import hashlib
import re
import subprocess
from functools import cache
from pathlib import Path

from tests.support.build_cache import MissingProgramError, build_once, cache_dir, require_program
from tests.support.maven_jars import copy_jars

KAFKA_4 = "4.3.1"
KAFKA_3 = "3.9.2"

KAFKA_SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "kafka"
STREAMS_SCRIPTS = KAFKA_SCRIPTS / "streams"
OLDEST_JAVA = 17


def java_program() -> str:
    """Return the path of a java that runs Kafka.

    Raises:
        MissingProgramError: there is none, or it is too old.
    """
    return _java()[0]


@cache
def _java() -> tuple[str, str]:
    """Return its path, and what it says of its version, asked once: each question is a JVM.

    Raises:
        MissingProgramError: there is none, or it is too old.
    """
    java = require_program("java", debian="openjdk-17-jdk-headless", rpm="java-17-openjdk-headless")
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    version = re.search(r'version "(\d+)', shown)
    if version is None or int(version[1]) < OLDEST_JAVA:
        raise MissingProgramError(
            f"{java} is {shown.splitlines()[0]}, Kafka needs Java {OLDEST_JAVA} or later:"
            " apt install openjdk-17-jdk-headless (Debian), dnf install java-17-openjdk-headless (RPM)"
        )
    return java, shown


def kafka_jars(version: str = KAFKA_4) -> Path:
    """Return the directory of all jars of Kafka ``version``: half a minute and 45 MB the first time.

    Raises:
        MissingProgramError: Maven is needed and not there.
        RuntimeError: Maven could not fetch them, or fetched others than scripts/kafka/kafka-VERSION.sha256 names.
    """
    sums = hashlib.sha256(_sums(version).read_bytes()).hexdigest()[:12]
    return build_once(f"kafka-{version}-{sums}", lambda directory: _copy_dependencies(version, directory))


def kafka_classpath(version: str = KAFKA_4) -> str:
    """Return the class path of Kafka ``version``, in an order that is the same at each call."""
    return ":".join(str(jar) for jar in sorted(kafka_jars(version).glob("*.jar")))


def streams_jar(version: str = KAFKA_4) -> Path:
    """Return the jar of Kafka Streams ``version``, for applications that keep their stores in memory: RocksDB is not there.
    Everything else that it needs is in :func:`kafka_classpath`.

    Raises:
        MissingProgramError, RuntimeError: as :func:`kafka_jars`.
    """
    sums = STREAMS_SCRIPTS / f"kafka-streams-{version}.sha256"
    identity = hashlib.sha256(sums.read_bytes()).hexdigest()[:12]

    def fetch(directory: Path) -> None:
        options = (f"-Dkafka.version={version}",)
        copy_jars(f"Kafka Streams {version}", directory, pom=STREAMS_SCRIPTS / "pom.xml", sums=sums, options=options)

    return build_once(f"kafka-streams-{version}-{identity}", fetch) / f"kafka-streams-{version}.jar"


def class_archive(version: str = KAFKA_4) -> Path:
    """Return where an archive of the classes of a broker of ``version`` is, or would be (:mod:`tests.support.kafka_archive`).
    One belongs to these jars and this java: any other makes its own."""
    jars = kafka_jars(version)
    identity = f"{_java()}{jars}{jars.stat().st_mtime_ns}"
    return cache_dir() / f"kafka-{version}-classes-{hashlib.sha256(identity.encode()).hexdigest()[:12]}" / "broker.jsa"


def _sums(version: str) -> Path:
    return KAFKA_SCRIPTS / f"kafka-{version}.sha256"


def _copy_dependencies(version: str, directory: Path) -> None:
    log4j2 = ("-Plog4j2",) if int(version.split(".")[0]) >= 4 else ()
    options = (*log4j2, f"-Dkafka.version={version}")
    copy_jars(f"Kafka {version}", directory, pom=KAFKA_SCRIPTS / "pom.xml", sums=_sums(version), options=options)
