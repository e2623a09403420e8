"""How long a store takes: measured where chunks are fetched, used where it is decided how far to read ahead (U3)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from tiersidecar.decide.read_ahead import UsualTimes
from tiersidecar.ports.clock import Clock


def _one_place(key: str) -> str:
    return ""


class FetchLatency:
    """The usual times of fetches, and of opening what was fetched, shared by the layer that fetches and those who read.

    ``place_of`` says of an object's key where the object is: a near place tells nothing of a far one.
    """

    def __init__(self, clock: Clock, place_of: Callable[[str], str] = _one_place) -> None:
        self._clock, self._place_of = clock, place_of
        self._fetching = defaultdict[str, UsualTimes](UsualTimes)
        self._opening = UsualTimes()

    def now_s(self) -> float:
        """Return the clock's time, of which the differences count."""
        return self._clock.monotonic_s()

    def fetched(self, key: str, size_bytes: int, began_s: float) -> None:
        """Count a fetch of the object under ``key`` that has just ended."""
        now_s = self._clock.monotonic_s()
        self._fetching[self._place_of(key)].add(size_bytes, now_s - began_s, now_s)

    def opened(self, size_bytes: int, began_s: float) -> None:
        """Count a chunk that has just been decrypted or decompressed."""
        now_s = self._clock.monotonic_s()
        self._opening.add(size_bytes, now_s - began_s, now_s)

    def usual_s(self, key: str, size_bytes: int) -> float | None:
        """Return how long it usually takes until a fetch of about that size is there, where that object is; None: not known."""
        now_s = self._clock.monotonic_s()
        fetching_s = self._fetching[self._place_of(key)].usual_s(size_bytes, now_s)
        if fetching_s is None:
            return None
        return fetching_s + (self._opening.usual_s(size_bytes, now_s) or 0.0)

    def is_probing(self, key: str, size_bytes: int) -> bool:
        """Return whether less is to be in flight there now, so that the store's own time shows."""
        return self._fetching[self._place_of(key)].is_probing(size_bytes, self._clock.monotonic_s())
