"""How long the store takes: measured where chunks are fetched, used where it is decided how far to read ahead (U3)."""

from __future__ import annotations

from tiersidecar.decide.read_ahead import ShortestTimes
from tiersidecar.ports.clock import Clock


class FetchLatency:
    """The shortest times of fetches, and of opening what was fetched, shared by the layer that fetches and those who read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._fetching, self._opening = ShortestTimes(), ShortestTimes()

    def now_s(self) -> float:
        """Return the clock's time, of which the differences count."""
        return self._clock.monotonic_s()

    def fetched(self, size_bytes: int, began_s: float) -> None:
        """Count a fetch of the store that has just ended."""
        now_s = self._clock.monotonic_s()
        self._fetching.add(size_bytes, now_s - began_s, now_s)

    def opened(self, size_bytes: int, began_s: float) -> None:
        """Count a chunk that has just been decrypted or decompressed."""
        now_s = self._clock.monotonic_s()
        self._opening.add(size_bytes, now_s - began_s, now_s)

    def shortest_s(self, size_bytes: int) -> float | None:
        """Return how long it takes at least until a fetch of about that size is there; None: not known."""
        now_s = self._clock.monotonic_s()
        fetching_s = self._fetching.shortest_s(size_bytes, now_s)
        if fetching_s is None:
            return None
        return fetching_s + (self._opening.shortest_s(size_bytes, now_s) or 0.0)

    def is_probing(self, size_bytes: int) -> bool:
        """Return whether less is to be in flight now, so that the shortest time shows."""
        return self._fetching.is_probing(size_bytes, self._clock.monotonic_s())
