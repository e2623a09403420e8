"""What one process has taken of something that several share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Taken:
    """``amount`` of it; of a rate, what was taken since ``since_s`` of the machine's monotonic clock."""

    amount: float = 0.0
    since_s: float = 0.0


NOTHING = Taken()
