"""Fetch Spark's Kafka connector, which pyspark lacks: four jars, once by Maven into the user's cache.

``spark.jars.packages`` is not used: Ivy cannot hold one of them at another version (docs/design/0007-reconcile.md).  Where
Maven is not wanted, such as in an image, ``TIERSIDECAR_SPARK_JARS`` names a directory that has them.

Files are checked against the SHA-256 sums of this repository.  Tests use the same cache for the broker's jars and for servers
written in Go.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tiersidecar.domain.errors import SparkUnavailableError


def cache_dir() -> Path:
    """Return ``$XDG_CACHE_HOME/tiersidecar`` (``~/.cache/tiersidecar``), created when missing."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiersidecar"
    root.mkdir(parents=True, exist_ok=True)
    return root


def build_once(name: str, build: Callable[[Path], None]) -> Path:
    """Return the directory ``name`` in the cache, filled by ``build`` if it is not there yet.

    Two runs at once build it once: the second waits.  An interrupted build leaves no directory of that name.
    """
    target = cache_dir() / name
    if target.is_dir():
        return target
    with _locked(cache_dir() / f".{name}.lock"):
        if not target.is_dir():
            _build_and_rename(target, build)
    return target


def _build_and_rename(target: Path, build: Callable[[Path], None]) -> None:
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        build(scratch)
        scratch.chmod(0o755)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def wrong_files(directory: Path, sums: Path, pattern: str = "*.jar") -> tuple[str, ...]:
    """Return the faults of files of ``directory`` that match ``pattern``, a sentence each; none if they are those of ``sums``.

    ``sha256sum *.jar > FILE`` in a directory that is known to be good writes ``sums``.
    """
    expected = _read(sums)
    found = {path.name: path for path in directory.glob(pattern)}
    faults = [f"{name} is missing" for name in sorted(expected.keys() - found.keys())]
    faults += [f"{name} has no sum in {sums.name}" for name in sorted(found.keys() - expected.keys())]
    for name in sorted(expected.keys() & found.keys()):
        digest = _sha256(found[name])
        if digest != expected[name]:
            faults.append(f"{name} has the SHA-256 {digest}, and {sums.name} says {expected[name]}")
    return tuple(faults)


def _read(sums: Path) -> dict[str, str]:
    pairs = (line.split() for line in sums.read_text(encoding="ascii").splitlines() if line)
    return {name: digest for digest, name in pairs}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


JARS_VARIABLE = "TIERSIDECAR_SPARK_JARS"

_MAVEN_FILES = Path(__file__).parent / "maven"
_SUMS = _MAVEN_FILES / "jars.sha256"
_SAID_LINES = 10


def connector_jars() -> tuple[Path, ...]:
    """Return the jars, ascending by name: half a minute and 10 MB the first time.  Fetched ones match ``jars.sha256``.

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
    """Return the digest, of the sums too: jars that were fetched before there were any are fetched anew."""
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
