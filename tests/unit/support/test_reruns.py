from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
FLAKY = """
import pathlib
import pytest

@pytest.fixture(scope="session")
def kafka():
    topics = set()
    print("a broker starts")
    yield topics
    print("a broker ends")

@pytest.fixture(scope="module")
def gateway(kafka):
    return kafka

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

def test_on_a_shared_broker(gateway):
    assert "orders" not in gateway
    gateway.add("orders")
    once("broker")

def test_after_it_on_the_same_broker(kafka):
    assert kafka == {"orders"}
"""


def test_what_failed_first_is_told_and_run_again_on_new_brokers(tmp_path: Path) -> None:
    (tmp_path / "test_flaky.py").write_text(FLAKY)
    plugins = ["-p", "pytest_rerunfailures", "-p", "tests.support.reruns", "-p", "no:cacheprovider"]
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
    for words in (
        "RuntimeError: first setup",
        "the server said why",
        "RuntimeError: first call",
        "RuntimeError: first broker",
    ):
        assert words in done.stdout
