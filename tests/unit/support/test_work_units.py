"""Which tests share a worker in the second half of ``make test``, and in which order they are begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.work_units import LONG, OF_THREE_BROKERS, SHARES_NOTHING, in_order, unit_of

ROOT = Path(__file__).parents[3]
LONGEST, LATER_LONG = sorted(OF_THREE_BROKERS)[0], LONG[-1]
ONE, MANY = "tests/contract/test_one.py::test", "tests/contract/test_many.py::test"
SIMULATED = f"{SHARES_NOTHING}test_simulate.py::test"


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ("tests/contract/test_a.py::test_1", "tests/contract/test_a.py::test_2[x::y]", True),
        ("tests/contract/test_a.py::test_1", "tests/contract/test_b.py::test_1", False),
        ("tests/spark/test_a.py::test_1", "tests/spark/test_b.py::test_1", True),
        ("tests/spark/test_a.py::test_1", "tests/spark/columns/test_b.py::test_1", False),
        (f"{SIMULATED}[1]", f"{SIMULATED}[2]", False),
        ("tests/integration/test_failover.py::test", "tests/integration/test_pins.py::test", True),
    ],
    ids=[
        "tests of a file share its servers",
        "two files share none",
        "all files of the Spark session share it",
        "columns need no session",
        "simulations share nothing",
        "one cluster of three brokers at a time",
    ],
)
def test_who_shares_a_worker(first: str, second: str, together: bool) -> None:
    assert (unit_of(first) == unit_of(second)) is together


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([ONE, f"{MANY}[1]", f"{MANY}[2]"], [f"{MANY}[1]", f"{MANY}[2]", ONE]),
        ([f"{MANY}[1]", f"{MANY}[2]", f"{LONGEST}::test"], [f"{LONGEST}::test", f"{MANY}[1]", f"{MANY}[2]"]),
        ([f"{LATER_LONG}::test", f"{LONGEST}::test"], [f"{LONGEST}::test", f"{LATER_LONG}::test"]),
        ([f"{SIMULATED}[1]", f"{SIMULATED}[2]", ONE], [ONE, f"{SIMULATED}[1]", f"{SIMULATED}[2]"]),
        ([f"{MANY}[2]", ONE, f"{MANY}[1]"], [f"{MANY}[2]", f"{MANY}[1]", ONE]),
    ],
    ids=[
        "many tests before few",
        "a long file before one of many tests",
        "long files as they are listed",
        "what needs only a processor is last",
        "within a file nothing changes",
    ],
)
def test_what_is_begun_first(given: list[str], expected: list[str]) -> None:
    order = in_order(given)
    assert sorted(given, key=lambda nodeid: order[nodeid]) == expected


def test_the_long_files_are_there() -> None:
    listed = {*OF_THREE_BROKERS, *(path for path in LONG if path.endswith(".py"))}
    assert [path for path in sorted(listed) if not (ROOT / path).is_file()] == []
    assert (ROOT / SHARES_NOTHING).is_dir()
