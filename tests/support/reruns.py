"""A pytest plugin for tests that are run again (CI only, see RERUNS in the Makefile): they find no broker on which the first
run has left its topics, and what the first failure said is shown.

pytest-rerunfailures keeps fixtures of the session as they are; it names such a test and keeps its report, and shows only
what its last run said.
"""

from __future__ import annotations

import pytest

SHARED_BROKERS = ("kafka", "kafka_39")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Ends the shared brokers, and the fixtures made on them, before a test's second run: it gets new ones."""
    if getattr(item, "execution_count", 1) > 1:
        for name in SHARED_BROKERS:
            for definition in item.session._fixturemanager.getfixturedefs(name, item) or ():
                definition.finish(item._request)  # type: ignore[attr-defined]


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
