"""A pytest plugin: no test holds up a run for ever.

pytest-timeout raises in the main thread, once for each test, and is taken back by the test's first failure of whatever
kind.  So nothing bounds what comes after: the end of an event loop whose tasks do not end, a fixture's broker that does not
go down.  Here the process ends instead, with the stack of each thread on its standard error; what it had started ends
with it (tests/support/reaper.py), and pytest-xdist goes on with another and names the test.
"""

from __future__ import annotations

import faulthandler

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from pytest_timeout import _get_item_settings

from tests.support.patience import PATIENCE

GRACE_S = 60


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests as much longer as their waits have."""
    for item in items:
        limit_s = _get_item_settings(item).timeout
        if limit_s and PATIENCE > 1:
            item.add_marker(pytest.mark.timeout(limit_s * PATIENCE), append=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Bound setup and call together."""
    _bound(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Bound teardown, that of shared fixtures too."""
    _bound(item)


def pytest_unconfigure() -> None:
    faulthandler.cancel_dump_traceback_later()


def _bound(item: pytest.Item) -> None:
    """pytest takes it back by itself where a debugger is entered."""
    limit_s = _get_item_settings(item).timeout
    if limit_s:
        stderr = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(limit_s + GRACE_S, exit=True, file=stderr)
