"""Notice work that has stopped, for the service manager's watchdog."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tiersidecar.ports.clock import Clock


@dataclass(slots=True, kw_only=True, eq=False)
class _Counted:
    what: str
    turns: Callable[[], int]
    busy: Callable[[], bool]
    limit_s: float
    seen: int
    since_s: float


class Progress:
    """Compares counters between two looks: what is busy and has not counted for its limit has stopped."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counted: list[_Counted] = []

    @contextmanager
    def counting(
        self, what: str, turns: Callable[[], int], *, limit_s: float, busy: Callable[[], bool] = lambda: True
    ) -> Iterator[None]:
        """While the body runs, ``turns`` must grow within each ``limit_s`` seconds for which ``busy`` says true."""
        one = _Counted(
            what=what, turns=turns, busy=busy, limit_s=limit_s, seen=turns(), since_s=self._clock.monotonic_s()
        )
        self._counted.append(one)
        try:
            yield
        finally:
            self._counted.remove(one)

    def stopped(self) -> str:
        """Return what has stopped and for how long, or an empty text."""
        return "; ".join(reason for counted in self._counted if (reason := self._look(counted)))

    def _look(self, one: _Counted) -> str:
        now_s, turns = self._clock.monotonic_s(), one.turns()
        if turns != one.seen or not one.busy():
            one.seen, one.since_s = turns, now_s
        still_s = now_s - one.since_s
        return f"{one.what}: nothing has moved for {still_s:.0f} s" if still_s >= one.limit_s else ""
