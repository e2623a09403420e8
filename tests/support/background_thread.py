"""Work in a thread of its own while a test goes on."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class BackgroundThread(ABC):
    """From entering to leaving, or until :meth:`stop`.  :meth:`work` ends soon once ``stopping`` is set."""

    def __init__(self, name: str, *, ends_within_s: float) -> None:
        self._name, self._ends_within_s = name, ends_within_s
        self._failure: BaseException | None = None
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._join()

    def stop(self) -> None:
        """Begin nothing more, and wait for what is under way.

        Raises:
            AssertionError: it does not end, or as :meth:`raise_failure`.
        """
        self._join()
        assert not self._thread.is_alive(), f"{self._name} does not end"
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raises:
        AssertionError: the work has ended with an error.
        """
        if self._failure is not None:
            raise AssertionError(f"{self._name} gave up: {self._failure!r}") from self._failure

    @abstractmethod
    def work(self) -> None:
        """Run in the thread."""

    def _join(self) -> None:
        self.stopping.set()
        self._thread.join(self._ends_within_s)

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - raised by raise_failure, in the test's own thread
            self._failure = error


class LastingThread(BackgroundThread):
    """One that must not give up: where it did, leaving it without another error raises as :meth:`stop`."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if error is None:
            self.stop()
