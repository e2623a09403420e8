"""Each of the four walks that ``scripts/walks.py`` counts opens few enough files to be followed by reading."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MOST_FILES = 45


@pytest.mark.slow
def test_each_walk_opens_at_most_45_files() -> None:
    command = [sys.executable, "-m", "scripts.walks", "--most", str(MOST_FILES)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count(" files ") == 4, found.stdout
