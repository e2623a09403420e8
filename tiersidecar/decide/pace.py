"""A byte rate within a transfer: how many bytes may go now (a token bucket; S-169, U14)."""

from __future__ import annotations

from dataclasses import dataclass

_BURST_S = 0.08
_SLICE_S = 0.04
"""Granted in one go: what is sent at once is sent in one moment, so it must be small against a second.  But each turn of the
event loop has its price, and a task that writes a slice can rest while it does."""

_ROUND_BYTES = 64 * 1024
"""Larger slices are multiples of it, so that no two share a page and no turn is left a few bytes."""


@dataclass(slots=True)
class TokenBucket:
    """At most ``bytes_per_s``, and above that never more than 0.08 s' worth in any period; None: no limit.

    The burst makes up for late wake-ups.  Times are seconds of a clock that never goes back.
    """

    bytes_per_s: int | None = None
    _tokens: float = 0.0
    _at_s: float | None = None

    def take(self, wanted_bytes: int, now_s: float) -> int:
        """Return how many of ``wanted_bytes`` may go now, already deducted; 0: none before :meth:`wait_s`."""
        rate = self.bytes_per_s
        if rate is None:
            return wanted_bytes
        burst = _BURST_S * rate
        earned = burst if self._at_s is None else (now_s - self._at_s) * rate
        self._tokens, self._at_s = min(self._tokens + earned, burst), now_s
        count = self._slice(wanted_bytes, rate)
        if self._tokens < count:
            return 0
        self._tokens -= count
        return count

    def wait_s(self, wanted_bytes: int) -> float:
        """Return the seconds after the last :meth:`take`, which gave 0, until the same would give more."""
        rate = self.bytes_per_s
        return 0.0 if rate is None else max(self._slice(wanted_bytes, rate) - self._tokens, 0.0) / rate

    def _slice(self, wanted_bytes: int, rate: int) -> int:
        whole = int(_SLICE_S * rate)
        return min(wanted_bytes, max(whole - whole % _ROUND_BYTES if whole > _ROUND_BYTES else whole, 1))
