"""A pytest plugin for tests that are run again (CI only, see IN_CI in the Makefile): they find no broker on which the first
run has left its topics, they have the same time as the first run, and what the first failure said is shown.

pytest-rerunfailures keeps fixtures of the session as they are; it names such a test and keeps its report, and shows only
what its last run said.
"""

from __future__ import annotations

import pytest
from pytest_timeout import _get_item_settings

SHARED_BROKERS = ("kafka", "kafka_39")
_MOST_CHARACTERS = 500


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before a test's second run."""
    if getattr(item, "execution_count", 1) > 1:
        _end_shared_fixtures(item)
        # pytest-timeout sets its timer once for all runs of a test, and takes it back with the first failure.
        if (settings := _get_item_settings(item)).timeout:
            item.config.hook.pytest_timeout_set_timer(item=item, settings=settings)


def _end_shared_fixtures(item: pytest.Item) -> None:
    """Drop the shared brokers and whatever this test shares with others of its module: it may hold such a broker, and pytest
    does not always know that (``getfixturevalue``)."""
    definitions = [each[-1] for each in item._fixtureinfo.name2fixturedefs.values()]  # type: ignore[attr-defined]
    shared = [each for each in definitions if each.scope in {"class", "module", "package"}]
    for name in SHARED_BROKERS:
        shared += item.session._fixturemanager.getfixturedefs(name, item) or ()
    for definition in shared:
        definition.finish(item._request)  # type: ignore[attr-defined]


class _AtOnce:
    """Says why a test is run again as soon as it is: a run that is cut off comes to no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the report of one phase of a test."""
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is None or str(report.outcome) != "rerun":
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        said = report.longreprtext if crash is None else f"{crash.path}:{crash.lineno}: {crash.message}"
        reporter.ensure_newline()
        reporter.write_line(f"is run again: {report.nodeid}: {said[-_MOST_CHARACTERS:]}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    """Run when the plugin is registered."""
    config.pluginmanager.register(_AtOnce(config), "reruns-at-once")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Keep every report that a rerun took the place of, whole: it may be all that there ever is of a rare bug."""
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
