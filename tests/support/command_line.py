"""``tiersidecar <command>`` as a process of its own, as an operator runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_AS_INSTALLED = Path(__file__).parent / "as_installed"
_MOST_S = 300
"""After a killed command the next one waits a minute for its lease and half a minute for the cleaner; then Spark begins."""


def program_environment() -> dict[str, str]:
    """Return the environment of a ``tiersidecar`` process: it finds none of the tests' own packages that it would import."""
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(_AS_INSTALLED), *([inherited] if inherited else [])])}


def run_command(config: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run to the end; never fails by itself."""
    command = [sys.executable, "-m", "tiersidecar", *arguments, "--config", str(config)]
    return subprocess.run(
        command, env=program_environment(), input=stdin, capture_output=True, text=True, timeout=_MOST_S, check=False
    )


def run_without_config(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command that needs no configuration file."""
    command = [sys.executable, "-m", "tiersidecar", *arguments]
    return subprocess.run(
        command, env=program_environment(), capture_output=True, text=True, timeout=_MOST_S, check=False
    )


def answer_of(config: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    """Return the JSON document of a command that must end with ``code``."""
    done = run_command(config, *arguments, "--json")
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
