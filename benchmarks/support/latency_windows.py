"""Latencies of a condition, window by window, and of two conditions by turns: percentiles, and how sure a ratio of two is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from statistics import median

_RESAMPLES = 400
_LIKELY = 0.9
_TAIL = 10
"""So many times the latencies beyond a percentile are enough to find that of any draw of windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Both ends inclusive."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.2f} to {self.high:.2f}"


@dataclass(slots=True)
class LatencyWindows:
    """Latencies in ms, in the windows in which they were measured.

    What delays one request delays its neighbours: single latencies are not independent of each other, windows nearly are.
    """

    windows: list[Sequence[float]] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        """Over the latencies of all windows."""
        return _percentile(sorted(chain.from_iterable(self.windows)), share)

    def halves(self) -> tuple[LatencyWindows, LatencyWindows]:
        """Every other window, and those between: two conditions that do not differ."""
        return LatencyWindows(self.windows[::2]), LatencyWindows(self.windows[1::2])

    def ratio(self, base: LatencyWindows, share: float) -> float:
        """Of this percentile to that of ``base``."""
        return self.percentile(share) / base.percentile(share)

    def likely_ratio(self, base: LatencyWindows, share: float) -> Interval:
        """Where nine of ten ratios lie when windows are drawn anew from those there are (bootstrap; the same at each call)."""
        draw, ours, theirs = random.Random(1), self._tails(share), base._tails(share)
        ratios = sorted(
            ours.drawn_percentile(draw, share) / theirs.drawn_percentile(draw, share) for _ in range(_RESAMPLES)
        )
        return _likely(ratios)

    def _tails(self, share: float) -> _Tails:
        floor = self.percentile(1 - _TAIL * (1 - share))
        tails = [[one for one in window if one >= floor] for window in self.windows]
        return _Tails(floor=floor, windows=tuple(zip(map(len, self.windows), tails, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tails:
    """Of each window how many latencies it has, and those from ``floor`` up: sorting all of them 400 times would take longer
    than measuring them."""

    floor: float
    windows: Sequence[tuple[int, Sequence[float]]]

    def drawn_percentile(self, draw: random.Random, share: float) -> float:
        """Of windows drawn with replacement; no lower than ``floor``."""
        drawn = draw.choices(self.windows, k=len(self.windows))
        count = sum(size for size, _ in drawn)
        from_above = count - min(count - 1, int(count * share))
        tail = sorted(chain.from_iterable(tail for _, tail in drawn))
        return tail[-from_above] if from_above <= len(tail) else self.floor


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPair:
    """Two windows in a row, one of each condition; ``foreign_cpus`` is how many CPUs others took meanwhile."""

    base: Sequence[float]
    other: Sequence[float]
    foreign_cpus: float


@dataclass(slots=True)
class LatencyPairs:
    """Ratios of neighbours in time: what the machine does for longer than two windows meets both of a pair, and what it does
    for less spoils one pair of many, of which the median takes no notice."""

    pairs: list[LatencyPair] = field(default_factory=list)

    def quieter_half(self) -> LatencyPairs:
        """The pairs during which others took least, in their order.  Latencies have no say in it."""
        most = median(pair.foreign_cpus for pair in self.pairs)
        return LatencyPairs([pair for pair in self.pairs if pair.foreign_cpus <= most])

    def ratio(self, share: float) -> float:
        """The median over pairs of the percentile of ``other`` to that of ``base``."""
        return median(self._ratios(share))

    def likely_ratio(self, share: float) -> Interval:
        """Where nine of ten medians lie when pairs are drawn anew (bootstrap; the same at each call)."""
        return _likely_median(self._ratios(share))

    def noise(self, share: float) -> tuple[float, Interval]:
        """The same of windows of ``base`` to those of the pair before, which do not differ: ratio and interval."""
        bases = [_percentile(sorted(pair.base), share) for pair in self.pairs]
        ratios = [later / earlier for earlier, later in pairwise(bases)]
        return median(ratios), _likely_median(ratios)

    def of_noise(self, share: float) -> tuple[float, Interval]:
        """:meth:`ratio` divided by :meth:`noise`, and where nine of ten lie when pairs, and neighbours, are drawn anew."""
        bases = [_percentile(sorted(pair.base), share) for pair in self.pairs]
        ratios, noise = self._ratios(share), [later / earlier for earlier, later in pairwise(bases)]
        draw = random.Random(1)
        drawn = sorted(
            median(draw.choices(ratios, k=len(ratios))) / median(draw.choices(noise, k=len(noise)))
            for _ in range(_RESAMPLES)
        )
        return median(ratios) / median(noise), _likely(drawn)

    def _ratios(self, share: float) -> list[float]:
        return [_percentile(sorted(pair.other), share) / _percentile(sorted(pair.base), share) for pair in self.pairs]


def _likely_median(values: Sequence[float]) -> Interval:
    draw = random.Random(1)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return _likely(medians)


def _likely(ascending: Sequence[float]) -> Interval:
    outside = (1 - _LIKELY) / 2
    return Interval(low=_percentile(ascending, outside), high=_percentile(ascending, 1 - outside))


def _percentile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, int(len(ascending) * share))]
