"""Detect clients that read more slowly than a minimum rate.

A client that takes a byte now and then would keep memory and a place for as long as it likes.
"""

from __future__ import annotations


class LeastPace:
    """At least ``bytes_per_s``, on average over each ``over_s`` in which something was waiting for the client; 0 is no limit.

    The time in which nothing waits for it does not count: it may ask, process or sleep as long as it likes.
    """

    def __init__(self, *, bytes_per_s: int, over_s: float) -> None:
        self._bytes_per_s, self._over_s = bytes_per_s, over_s
        self._waited_s, self._taken_bytes = 0.0, 0

    def took(self, size_bytes: int, waited_s: float) -> str:
        """Count ``size_bytes`` taken in ``waited_s`` more; return why that is too slow, "" where it is not."""
        self._waited_s += waited_s
        self._taken_bytes += size_bytes
        if self._waited_s < self._over_s:
            return ""
        waited_s, taken_bytes = self._waited_s, self._taken_bytes
        self.begin_anew()
        if taken_bytes >= self._bytes_per_s * waited_s:
            return ""
        return (
            f"the client took {taken_bytes} bytes in {waited_s:.0f} s of what was waiting for it: "
            f"{self._bytes_per_s} a second are the least"
        )

    def begin_anew(self) -> None:
        """Begin anew: the client has taken all that there was for it."""
        self._waited_s, self._taken_bytes = 0.0, 0
