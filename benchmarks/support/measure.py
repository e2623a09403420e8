"""Wall clock and CPU time of a piece of work, by the resource usage of this process and of the children it has waited for."""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

MIB = 1024 * 1024
GIB = 1024 * MIB

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of moving ``size_bytes``."""

    size_bytes: int
    wall_s: float
    cpu_s: float

    @property
    def mib_per_s(self) -> float:
        return self.size_bytes / MIB / self.wall_s

    @property
    def cpu_s_per_gib(self) -> float:
        return self.cpu_s / (self.size_bytes / GIB)


async def cost_of(size_bytes: int, work: Callable[[], Awaitable[object]]) -> Cost:
    """Dirty pages of whatever came before are written first: they would be paid for here."""
    os.sync()
    return await cost_of_window(size_bytes, work)


async def cost_of_window(size_bytes: int, work: Callable[[], Awaitable[object]]) -> Cost:
    """As :func:`cost_of`, of one of many windows between which nothing is written."""
    gc.collect()
    cpu_s, began_s = _cpu_s(), time.perf_counter()
    await work()
    return Cost(size_bytes=size_bytes, wall_s=time.perf_counter() - began_s, cpu_s=_cpu_s() - cpu_s)


async def by_turns(
    rounds: int, windows: Mapping[str, Callable[[], Awaitable[T]]], *, uncounted: int = 1
) -> dict[str, list[T]]:
    """What each of ``windows`` gave in each round, after ``uncounted`` rounds that do not count: who shares the machine with
    us, and its clock rate, change from second to second, and so everybody has his turn in each of them."""
    found: dict[str, list[T]] = {name: [] for name in windows}
    for round_number in range(uncounted + rounds):
        for name, window in windows.items():
            result = await window()
            if round_number >= uncounted:
                found[name].append(result)
    return found


def in_all(costs: Sequence[Cost]) -> Cost:
    """One after the other."""
    return Cost(
        size_bytes=sum(cost.size_bytes for cost in costs),
        wall_s=sum(cost.wall_s for cost in costs),
        cpu_s=sum(cost.cpu_s for cost in costs),
    )


def median(costs: list[Cost]) -> Cost:
    """The one in the middle by wall clock, with its own CPU time."""
    return sorted(costs, key=lambda cost: cost.wall_s)[len(costs) // 2]


def _cpu_s() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
