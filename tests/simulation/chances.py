"""All chance of a run, from its seed: each decision has lots of its own, so that leaving one fault out does not change the
lots of the others.  That is what makes a failing run shrink."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TypeVar

from tiersidecar.domain.ids import Uuid, is_acceptable_random_uuid

T = TypeVar("T")


class Chances:
    """``muted`` are names of faults that are not to happen in this run, of those that happened in an earlier one."""

    def __init__(self, seed: int, muted: frozenset[str] = frozenset()) -> None:
        self.seed, self._muted = seed, muted
        self._hashed = blake2b(f"{seed}/".encode(), digest_size=8)
        self._counts: defaultdict[str, int] = defaultdict(int)
        self.faults: list[str] = []
        self.on_fault: Callable[[str], None] = lambda name: None
        self.quiet = False
        """True from the moment on from which nothing goes wrong any more."""

    def lots(self, place: str) -> random.Random:
        """Return a stream of its own for ``place``."""
        return random.Random(self._number(place))

    def draw(self, place: str) -> float:
        """Draw a number uniform in [0, 1): the next of ``place``."""
        count = self._counts[place]
        self._counts[place] = count + 1
        return self._number(f"{place}#{count}") / 2**64

    def between(self, place: str, low: float, high: float) -> float:
        """Draw a number uniform in [low, high)."""
        return low + (high - low) * self.draw(place)

    def choose(self, place: str, options: Sequence[T]) -> T:
        """Draw one of ``options``."""
        return options[int(self.draw(place) * len(options))]

    def strikes(self, place: str, rate: float) -> bool:
        """Return whether a fault happens at ``place`` this time: ``rate`` is the same each time."""
        if rate <= 0 or self.quiet:
            return False
        counted = f"fault {place}"
        count = self._counts[counted]
        self._counts[counted] = count + 1
        name = f"{place}#{count}"
        if self._number(f"fault {name}") / 2**64 >= rate:
            return False
        return self.happens(name)

    def happens(self, name: str) -> bool:
        """Note a fault that is planned, unless it is muted."""
        if name in self._muted:
            return False
        self.faults.append(name)
        self.on_fault(name)
        return True

    def _number(self, place: str) -> int:
        hashed = self._hashed.copy()
        hashed.update(place.encode())
        return int.from_bytes(hashed.digest(), "big")


class SeededIds:
    """``ports.clock.Ids`` of one process."""

    def __init__(self, chances: Chances, process: str) -> None:
        self._lots = chances.lots(f"ids of {process}")

    def random_uuid(self) -> Uuid:
        while not is_acceptable_random_uuid(candidate := Uuid(self._lots.randbytes(16))):
            pass
        return candidate

    def random_bytes(self, count: int) -> bytes:
        return self._lots.randbytes(count)

    def random(self) -> float:
        return self._lots.random()
