"""Forecast of how soon a disk will be full, and whether an operator has to act (docs/operations/retention.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from tiersidecar.decide.pin_room import Disk, PinLimits

WINDOW_S = 1800.0
"""Span of a rate: long enough for several rolls of quiet topics, short enough to see an outage within minutes."""
_SAMPLES = 60
_FEWEST = 6
"""Three minutes of samples: fewer give no rate."""
_PESSIMISM = 0.45
"""Share of all pairs of samples that may fall faster than the reported rate: slightly below the median, so that one large
trim anywhere in the window, which lifts almost half of all pairs, never hides that the disk fills."""
_CALM = 1.5
"""An alarm ends only when the value is better by this factor than where it began: no flapping at the limit."""


class DiskState(StrEnum):
    OK = "ok"
    FILLING = "filling"
    BELOW_RESERVE = "below_reserve"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSample:
    """``at_s`` by the monotonic clock."""

    at_s: float
    free_bytes: int


def with_sample(samples: Sequence[DiskSample], sample: DiskSample) -> tuple[DiskSample, ...]:
    """Return the window with ``sample`` in it, if it is due; never more than one each ``WINDOW_S / 60``."""
    kept = tuple(one for one in samples if sample.at_s - one.at_s <= WINDOW_S)
    if kept and sample.at_s - kept[-1].at_s < WINDOW_S / _SAMPLES:
        return kept
    return (*kept, sample)


def seconds_to_full(samples: Sequence[DiskSample], free_bytes: int) -> float:
    """Return the seconds at the rate of the window, trims and produce together; infinite when the disk does not fill, NaN while
    that is not known.

    The rate is a low median of the slopes between all pairs (Theil and Sen): a disk that is trimmed as fast as it is written
    does not fill, and neither one large trim nor one large file changes what the rest says.
    """
    if len(samples) < _FEWEST:
        return math.nan
    slopes = sorted(
        (later.free_bytes - earlier.free_bytes) / (later.at_s - earlier.at_s)
        for earlier, later in combinations(samples, 2)
    )
    rate = -slopes[int((len(slopes) - 1) * _PESSIMISM)]
    return free_bytes / rate if rate > 0 else math.inf


def decide_state(before: DiskState, disk: Disk, limits: PinLimits, full_in_s: float, alarm_s: float) -> DiskState:
    """Decide the state.  ``alarm_s``: a disk that will be full sooner is filling."""
    room_bytes = disk.above_reserve_bytes(limits)
    slack_bytes = disk.size_bytes // 100 if before is DiskState.BELOW_RESERVE else 0
    if room_bytes < slack_bytes:
        return DiskState.BELOW_RESERVE
    limit_s = alarm_s * (1 if before is DiskState.OK else _CALM)
    return DiskState.FILLING if full_in_s < limit_s else DiskState.OK
