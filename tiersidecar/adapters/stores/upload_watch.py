"""Whether an upload still moves, seen through its body."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tiersidecar.adapters.stores.wrapped_body import WrappedBody
from tiersidecar.ports.store import Buffer, ObjectBody


class UploadWatch:
    """Counts down to the moment at which an upload is to be given up; times in seconds.

    It moves whenever a piece was read or a slice is handed on.  While the upload waits for its rate nothing counts: that
    is our own doing.
    """

    def __init__(self, *, stall_s: float, deadline_s: float, now_s: Callable[[], float]) -> None:
        self._stall_s, self._deadline_s, self._now_s = stall_s, deadline_s, now_s
        self._began_s = self._moved_s = self._paced_since_s = now_s()
        self._paced_s = 0.0
        self._pacing = self._reading = 0

    @property
    def source_is_late(self) -> bool:
        """Whether it is a piece of the body that has been waited for."""
        return self._reading > 0 and not self._is_overdue

    @property
    def complaint(self) -> str:
        """What was wrong, once :meth:`left_s` has said 0."""
        if self._is_overdue:
            return f"it took longer than {self._deadline_s:g} s"
        return f"nothing of it moved for {self._stall_s:g} s"

    def left_s(self) -> float:
        """Until the upload is to be given up, if nothing moves from now on; 0 or less: now."""
        now_s = self._now_s()
        if self._pacing:
            return self._stall_s
        return min(self._moved_s + self._stall_s, self._due_s) - now_s

    @contextmanager
    def reading(self) -> Iterator[None]:
        """The store waits for a piece."""
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1
            self._moved_s = self._now_s()

    @contextmanager
    def pacing(self) -> Iterator[None]:
        """A slice waits for the upload rate."""
        if not self._pacing:
            self._paced_since_s = self._now_s()
        self._pacing += 1
        try:
            yield
        finally:
            self._pacing -= 1
            self._moved_s = self._now_s()
            if not self._pacing:
                self._paced_s += self._moved_s - self._paced_since_s

    @property
    def _due_s(self) -> float:
        return self._began_s + self._paced_s + self._deadline_s

    @property
    def _is_overdue(self) -> bool:
        return self._now_s() >= self._due_s


class WatchedBody(WrappedBody):
    """A body that tells ``watch`` what is asked of it."""

    def __init__(self, body: ObjectBody, watch: UploadWatch) -> None:
        super().__init__(body)
        self._watch = watch

    async def piece(self, index: int) -> Buffer:
        with self._watch.reading():
            return await super().piece(index)

    async def grant(self, wanted_bytes: int) -> int:
        with self._watch.pacing():
            return await super().grant(wanted_bytes)
