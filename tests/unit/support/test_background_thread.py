"""Work beside a test: it ends when the test leaves, and its failure is the test's."""

from __future__ import annotations

import threading

import pytest

from tests.support.background_thread import BackgroundThread, LastingThread


class Working(BackgroundThread):
    def __init__(self, failure: BaseException | None = None) -> None:
        super().__init__("work", ends_within_s=30)
        self.failure, self.has_begun, self.has_ended = failure, threading.Event(), False

    def work(self) -> None:
        self.has_begun.set()
        if self.failure is not None:
            raise self.failure
        self.stopping.wait(30)
        self.has_ended = True


def test_it_works_until_the_test_leaves() -> None:
    with Working() as working:
        assert working.has_begun.wait(30)
        assert not working.has_ended
    assert working.has_ended


def test_stopping_waits_for_what_is_under_way() -> None:
    with Working() as working:
        working.stop()
        assert working.has_ended


@pytest.mark.parametrize("failure", [ValueError("no broker"), SystemExit(3)])
def test_what_ended_it_is_told_where_the_test_asks(failure: BaseException) -> None:
    with Working(failure) as working, pytest.raises(AssertionError, match="work gave up") as told:
        working.stop()
    assert told.value.__cause__ is failure


def test_one_that_must_last_tells_by_itself_that_it_did_not() -> None:
    class Lasting(Working, LastingThread):
        pass

    with pytest.raises(AssertionError, match="gave up"), Lasting(ValueError("no broker")) as lasting:
        assert lasting.has_begun.wait(30)
