"""docs/requirements.md says which tests cite each requirement, and no test cites what it does not have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import requirements

ROOT = Path(__file__).parents[3]
PAGE = """\
| id | requirement | shown by |
| --- | --- | --- |
| S-001 | a first row | not cited |
| T-02 | a \\| b | `old.py` |
"""


def test_the_page_is_up_to_date_and_has_all_that_tests_cite() -> None:
    """If this fails: ``make requirements``."""
    checked = subprocess.run(
        [sys.executable, ROOT / "scripts" / "requirements.py", "--check"], capture_output=True, text=True, check=False
    )
    assert checked.stderr == ""
    assert checked.returncode == 0


@pytest.mark.parametrize(
    ("cited", "first", "second"),
    [
        pytest.param({}, "not cited", "not cited", id="rows that no test cites say so"),
        pytest.param({"S-001": ["a.py"]}, "`a.py`", "not cited", id="a test that cites a row is named"),
        pytest.param(
            {"T-02": ["a.py", "b.py", "c.py", "d.py", "e.py"]},
            "not cited",
            "`a.py`, `b.py`, `c.py` and 2 more",
            id="of many tests three are named",
        ),
    ],
)
def test_the_last_column(cited: dict[str, list[str]], first: str, second: str) -> None:
    rows = requirements.written(PAGE, cited).splitlines()[2:]
    assert rows == [f"| S-001 | a first row | {first} |", f"| T-02 | a \\| b | {second} |"]


def test_an_id_that_the_page_lacks_is_named_with_its_files() -> None:
    assert requirements.unknown(PAGE, {"S-001": ["a.py"], "S-" + "999": ["b.py"]}) == ["S-" + "999: b.py"]
