"""Spark's Kafka connector, which pyspark does not bring: four jars, fetched once by Maven into the user's cache.

``spark.jars.packages`` is not used: Ivy cannot hold one of them at another version (docs/design/0007-reconcile.md).  Where
Maven is not wanted, such as in an image, ``TIERSIDECAR_SPARK_JARS`` names a directory that has them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tiersidecar.adapters.sha256_sums import wrong_files
from tiersidecar.adapters.user_cache import build_once
from tiersidecar.domain.errors import SparkUnavailableError

JARS_VARIABLE = "TIERSIDECAR_SPARK_JARS"

_MAVEN_FILES = Path(__file__).parent / "maven"
_SUMS = _MAVEN_FILES / "jars.sha256"
_SAID_LINES = 10


def connector_jars() -> tuple[Path, ...]:
    """The jars, ascending by name: half a minute and 10 MB the first time.  What is fetched has the sums of ``jars.sha256``.

    Raises:
        SparkUnavailableError: they are not there, and could not be fetched.
    """
    named = os.environ.get(JARS_VARIABLE)
    directory = Path(named) if named else build_once(f"spark-kafka-{_pom_digest()}", _fetch)
    jars = tuple(sorted(directory.glob("*.jar")))
    if not jars:
        raise SparkUnavailableError(
            reason=f"{directory} has no jars",
            remedy=f"unset {JARS_VARIABLE}, or put there what {_MAVEN_FILES / 'pom.xml'} names",
        )
    return jars


def _pom_digest() -> str:
    """Of the sums too: jars that were fetched before there were any are fetched anew."""
    return hashlib.sha256((_MAVEN_FILES / "pom.xml").read_bytes() + _SUMS.read_bytes()).hexdigest()[:12]


def _fetch(directory: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise SparkUnavailableError(
            reason="Spark's Kafka connector is fetched by Maven, which is not installed",
            remedy=f"apt install maven (Debian), dnf install maven (RPM), or name its jars' directory in {JARS_VARIABLE}",
        )
    command = [maven, "--batch-mode", "--no-transfer-progress", "--strict-checksums"]
    command += ["--file", str(_MAVEN_FILES / "pom.xml")]
    command += ["--global-settings", str(_MAVEN_FILES / "settings.xml"), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={directory}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = [line for line in done.stdout.splitlines() if "ERROR" in line] or done.stderr.splitlines()
        raise SparkUnavailableError(
            reason="Maven could not fetch Spark's Kafka connector:\n" + "\n".join(said[:_SAID_LINES]),
            remedy=f"mend that, or name its jars' directory in {JARS_VARIABLE}",
        )
    if wrong := wrong_files(directory, _SUMS):
        raise SparkUnavailableError(
            reason="Maven fetched other jars than this version was made with:\n" + "\n".join(wrong),
            remedy="find out who changed them; a mirror with other files is not to be used",
        )
