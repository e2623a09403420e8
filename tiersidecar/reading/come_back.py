"""When those who are turned away should come back: a fixed second would have a crowd ask faster than it can be refused."""

from __future__ import annotations

from tiersidecar.ports.clock import Clock

_LEAST_S, _MOST_S = 1.0, 10.0
_LOOK_EVERY_S = 1.0


class ComeBack:
    """Spreads those who wait outside over the time that serving them takes.

    By Little's law as many wait outside as are refused per second, times the seconds they are sent away for; what is served
    per second tells how long it takes to serve them.  Between 1 and 10 seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._after_s = _LEAST_S
        self._since_s = clock.monotonic_s()
        self._refused = self._served = 0

    def served(self) -> None:
        """One step of a read has been done."""
        self._look()
        self._served += 1

    def refused_ms(self) -> int:
        """One is turned away, for so long."""
        self._look()
        self._refused += 1
        return int(self._after_s * 1000)

    def _look(self) -> None:
        passed_s = self._clock.monotonic_s() - self._since_s
        if passed_s < _LOOK_EVERY_S:
            return
        outside = self._refused / passed_s * self._after_s
        served_per_s = self._served / passed_s
        self._after_s = min(max(outside / served_per_s if served_per_s else outside, _LEAST_S), _MOST_S)
        self._since_s += passed_s
        self._refused = self._served = 0
