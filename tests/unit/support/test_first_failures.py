from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
FLAKY = """
import pathlib
import pytest

@pytest.fixture
def server():
    print("the server said why")
    once("setup")

def once(name):
    try:
        (pathlib.Path(__file__).parent / name).touch(exist_ok=False)
    except FileExistsError:
        return
    raise RuntimeError(f"first {name}")

def test_in_its_set_up(server):
    pass

def test_in_its_call():
    once("call")
"""


def test_what_failed_first_is_told_though_it_passed_then(tmp_path: Path) -> None:
    (tmp_path / "test_flaky.py").write_text(FLAKY)
    plugins = ["-p", "pytest_rerunfailures", "-p", "tests.support.first_failures", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "--reruns", "1", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    for words in ("RuntimeError: first setup", "the server said why", "RuntimeError: first call"):
        assert words in done.stdout
