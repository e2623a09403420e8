"""A byte rate over sliding windows, as Kafka's RLMQuotaManager keeps it (S-161 to S-163; T-74)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tiersidecar.decide.shares import within_window
from tiersidecar.domain.taken import NOTHING, Taken

UNLIMITED_BYTES_PER_S = 2**63 - 1


@dataclass(slots=True)
class RateQuota:
    """Bytes per second over ``window_num`` windows of ``window_size_s`` seconds each (Kafka's SimpleRate).

    The rate is all bytes of the windows that are not over, divided by the time since the oldest of them began, but by no
    less than one window.  Times come in as seconds of a clock that never goes back.
    """

    bytes_per_s: float = UNLIMITED_BYTES_PER_S
    window_num: int = 11
    window_size_s: float = 1.0
    others: Callable[[], Sequence[Taken]] | None = None
    """What other processes have taken of the same quota; None: it is this process's alone."""
    show: Callable[[Taken], None] | None = None
    """Called with what this one has taken, whenever that has changed."""
    _windows: deque[tuple[float, float]] = field(default_factory=deque)
    """(begin of the window in seconds, bytes in it), oldest first."""

    def record(self, amount_bytes: float, now_s: float) -> None:
        """Charge ``amount_bytes`` at ``now_s``."""
        self._purge(now_s)
        if self._windows and now_s - self._windows[-1][0] < self.window_size_s:
            begin, amount = self._windows[-1]
            self._windows[-1] = (begin, amount + amount_bytes)
        else:
            self._windows.append((now_s, amount_bytes))
        self.look_again(now_s)

    def look_again(self, now_s: float) -> None:
        """Show others what is not over, which grows less while nothing is recorded."""
        if self.show is not None:
            self._purge(now_s)
            self.show(self._taken)

    def throttle_s(self, now_s: float) -> float:
        """Return the seconds to wait until the rate is within the quota; 0 when it is."""
        self._purge(now_s)
        taken = self._taken_by_all(now_s)
        if taken is NOTHING:
            return 0.0
        total_bytes, elapsed_s = taken.amount, now_s - taken.since_s
        if total_bytes <= self.bytes_per_s * max(elapsed_s, self.window_size_s):
            return 0.0
        # When the first window is young, waiting for it to fill up comes on top.
        return max(total_bytes / self.bytes_per_s, self.window_size_s) - elapsed_s

    @property
    def _taken(self) -> Taken:
        if not self._windows:
            return NOTHING
        return Taken(sum(amount for _, amount in self._windows), self._windows[0][0])

    def _taken_by_all(self, now_s: float) -> Taken:
        own = self._taken
        if self.others is None:
            return own
        theirs = within_window(self.others(), now_s, self.window_num * self.window_size_s)
        if theirs is NOTHING:
            return own
        if own is NOTHING:
            return theirs
        return Taken(own.amount + theirs.amount, min(own.since_s, theirs.since_s))

    def _purge(self, now_s: float) -> None:
        horizon_s = self.window_num * self.window_size_s
        while self._windows and now_s - self._windows[0][0] >= horizon_s:
            self._windows.popleft()
