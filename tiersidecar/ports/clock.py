"""Time, randomness and threads, as ports: in simulation all three are deterministic (STYLE.md section 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from tiersidecar.domain.ids import Uuid

T = TypeVar("T")


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the wall clock, milliseconds since 1970."""

    def monotonic_s(self) -> float:
        """Return a clock that never goes back."""

    async def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    def random_uuid(self) -> Uuid:
        """Return an id like Kafka's ``Uuid.randomUuid()``: version 4, not reserved, its text not beginning with a dash."""

    def random_bytes(self, count: int) -> bytes:
        """Return cryptographically strong bytes."""

    def random(self) -> float:
        """Return a number for jitter: uniform in [0, 1)."""


class Blocking(Protocol):
    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Run ``function(*args)`` off the event loop, in one of a bounded number of threads."""
