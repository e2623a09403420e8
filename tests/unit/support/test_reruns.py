"""A test run in CI: what failed once is run again as if for the first time, and nothing hangs for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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

@pytest.fixture(scope="module")
def reader(request):
    return request.getfixturevalue("kafka")

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

def test_on_a_shared_broker_that_is_asked_for_by_its_name(reader):
    assert "payments" not in reader
    reader.add("payments")
    once("reader")
"""
HANGING_THE_SECOND_TIME = """
import pytest, time

@pytest.mark.timeout(2)
def test_it():
    if not hasattr(test_it, "ran"):
        test_it.ran = True
        raise RuntimeError("first")
    time.sleep(60)
"""
HANGING_IN_ITS_TEARDOWN = """
import pytest, time
from tests.support import last_resort

last_resort.GRACE_S = 1

@pytest.fixture
def broker():
    yield
    time.sleep(60)

@pytest.mark.timeout(1)
def test_it(broker):
    raise RuntimeError("first")
"""


def run(directory: Path, tests: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """As at a desk, whatever runs this."""
    at_a_desk = {name: value for name, value in os.environ.items() if name != "CI"}
    (directory / "test_given.py").write_text(tests)
    plugins = ["pytest_rerunfailures", "pytest_timeout", "tests.support.reruns", "tests.support.last_resort"]
    return subprocess.run(
        [
            *[sys.executable, "-m", "pytest", "--reruns", "1", "-p", "no:cacheprovider"],
            *[argument for plugin in plugins for argument in ("-p", plugin)],
            *["--rootdir", str(directory), str(directory)],
        ],
        cwd=ROOT,
        env={**at_a_desk, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_what_failed_first_is_told_and_run_again_on_new_brokers(tmp_path: Path) -> None:
    done = run(tmp_path, FLAKY)
    assert done.returncode == 0, done.stdout
    for words in (
        "RuntimeError: first setup",
        "the server said why",
        "RuntimeError: first call",
        "RuntimeError: first broker",
        "RuntimeError: first reader",
    ):
        assert words in done.stdout
    assert "is run again: test_given.py::test_" in done.stdout.partition("first failures of what was run again")[0]


@pytest.mark.slow
def test_a_second_run_has_no_more_time_than_the_first(tmp_path: Path) -> None:
    done = run(tmp_path, HANGING_THE_SECOND_TIME)
    assert done.returncode == 1, done.stdout
    assert "Timeout (>2.0s)" in done.stdout


@pytest.mark.slow
def test_in_ci_it_has_three_times_as_long(tmp_path: Path) -> None:
    done = run(tmp_path, HANGING_THE_SECOND_TIME, CI="true")
    assert done.returncode == 1, done.stdout
    assert "Timeout (>6.0s)" in done.stdout


@pytest.mark.slow
def test_a_teardown_that_hangs_ends_the_process_and_tells_where(tmp_path: Path) -> None:
    done = run(tmp_path, HANGING_IN_ITS_TEARDOWN)
    assert done.returncode == 1, done.stdout
    assert "in broker" in done.stderr
