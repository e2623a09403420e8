"""Jars from Maven Central, which have the sums that this repository knows."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.build_cache import require_program
from tiersidecar.spark.jars import wrong_files


def copy_jars(name: str, directory: Path, *, pom: Path, sums: Path, options: Sequence[str] = ()) -> None:
    """Have Maven copy what ``pom`` depends on at run time into ``directory``.  ``name`` is for messages.

    Raises:
        MissingProgramError: Maven is needed and not there.
        RuntimeError: Maven could not fetch them, or fetched others than ``sums`` names.
    """
    maven = require_program("mvn", debian="maven", rpm="maven")
    command = [maven, "--batch-mode", "--no-transfer-progress", "--strict-checksums", "--file", str(pom), *options]
    command += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={directory}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stdout.splitlines() if "ERROR" in line] or done.stderr.splitlines()
        raise RuntimeError(f"Maven could not fetch {name}:\n" + "\n".join(errors[:15]))
    if wrong := wrong_files(directory, sums):
        raise RuntimeError(f"Maven fetched other jars of {name} than we know:\n" + "\n".join(wrong[:15]))
