"""Write the last column of docs/requirements.md anew: which tests cite each requirement by its id.

The ids and texts are written by hand.  ``--check`` changes nothing, and exits with 1 where the page is not up to date, where a
test cites what the page does not have, or where a test cites a range ("S-001 to S-009"): rows that nothing shows are in it.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "requirements.md"
SHOWN_AT_MOST = 3
"""Files named in a row; more are counted."""

_ID = r"(?:S-\d{3}|T-\d{2}|U\d{1,2})"
_CITED = re.compile(rf"(?<![\w-]){_ID}(?![\w-])")
_RANGE = re.compile(rf"(?<![\w-]){_ID}(?:\s?(?:\.\.+|to|[-–])\s?){_ID}")
_ROW = re.compile(rf"\| ({_ID}) \| (.+) \| ([^|]*) \|")


def citations() -> dict[str, list[str]]:
    """Return the test files that cite each id, as paths below tests/, sorted."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("*.py"):
        for cited in _CITED.findall(path.read_text()):
            found.setdefault(cited, set()).add(str(path.relative_to(ROOT / "tests")))
    return {cited: sorted(paths) for cited, paths in found.items()}


def ranges() -> list[str]:
    """Return each range of ids that a test cites, with its file."""
    return sorted(
        f"{path.relative_to(ROOT)}: {cited}"
        for path in (ROOT / "tests").rglob("*.py")
        for cited in _RANGE.findall(path.read_text())
    )


def unknown(page: str, cited: dict[str, list[str]]) -> list[str]:
    """Return each id that a test cites and the page lacks."""
    known = {row[1] for row in _ROW.finditer(page)}
    return sorted(f"{one}: {', '.join(paths)}" for one, paths in cited.items() if one not in known)


def written(page: str, cited: dict[str, list[str]]) -> str:
    """Return ``page`` with the last column of each row as ``cited`` says."""

    def row(found: re.Match[str]) -> str:
        return f"| {found[1]} | {found[2]} | {_shown_by(cited.get(found[1], []))} |"

    return _ROW.sub(row, page)


def _shown_by(paths: list[str]) -> str:
    named = ", ".join(f"`{path}`" for path in paths[:SHOWN_AT_MOST])
    return f"{named} and {len(paths) - SHOWN_AT_MOST} more" if len(paths) > SHOWN_AT_MOST else named or "not cited"


def main() -> int:
    """Write or check the page; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    check: bool = parser.parse_args().check
    page, cited = PAGE.read_text(), citations()
    new = written(page, cited)
    faults = [*unknown(page, cited), *ranges()]
    if new != page and check:
        faults.append(f"{PAGE.relative_to(ROOT)} is not up to date: make requirements")
    elif new != page:
        PAGE.write_text(new)
    print(*faults, sep="\n", end="\n" if faults else "", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
