"""A pytest plugin: what the first failure of a test said that was run again (CI only, see RERUNS in the Makefile).

pytest-rerunfailures names such a test and keeps its report, and shows only what its last run said.
"""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Every report that a rerun took the place of, whole: it may be all that there ever is of a rare bug."""
    reports: list[pytest.TestReport] = terminalreporter.getreports("rerun")
    if not reports:
        return
    terminalreporter.section("first failures of what was run again")
    for report in reports:
        terminalreporter.section(f"{report.nodeid} ({report.when})", "_", red=True)
        terminalreporter.write_line(report.longreprtext)
        for title, text in report.sections:
            terminalreporter.section(title, "-")
            terminalreporter.write_line(text)
