"""The broker's own tiering under the same load, as the peer of ours: Kafka's LocalTieredStorage, which copies into a directory.

It cannot be stopped as our process can.  So its quota goes up and down by turns, and windows of neighbouring turns are pairs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.support.latency_windows import LatencyPair, LatencyPairs
from benchmarks.support.measure import MIB
from benchmarks.support.steady_load import SteadyLoad
from tests.support.kafka_cluster import KafkaCluster
from tests.support.local_tiered_storage import local_tiered_storage

QUOTA = "remote.log.manager.copy.max.bytes.per.second"
_QUOTA_WINDOWS = "remote.log.manager.copy.quota.window.num"
_SETTLE_S = 1.5
"""After each change, and not counted: the quota is an average over two windows of a second."""
TOPIC_CONFIGS = {"remote.storage.enable": "true"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """So many pairs of turns, each of ``windows`` windows of ``window_s``."""

    pairs: int
    windows: int
    window_s: float

    @property
    def copying_s(self) -> float:
        """Return how long it copies altogether."""
        return self.pairs * (_SETTLE_S + self.windows * self.window_s)


@dataclass(slots=True)
class NativeFigures:
    """``base`` of a pair is without copying."""

    pairs: LatencyPairs = field(default_factory=LatencyPairs)
    copied_bytes: int = 0
    copying_s: float = 0.0

    @property
    def rate_mib_per_s(self) -> float:
        return self.copied_bytes / self.copying_s / MIB


def native_properties(storage: Path) -> Mapping[str, str]:
    """Return the properties of a broker that tiers into ``storage``; nothing is copied before the first turn."""
    quota = {QUOTA: "1", _QUOTA_WINDOWS: "2"}
    return local_tiered_storage(storage, interval_ms=500) | quota


def measure_native(
    cluster: KafkaCluster, storage: Path, load: SteadyLoad, turns: Turns, quota_bytes_per_s: int
) -> NativeFigures:
    """Return what a window waits with the broker copying at ``quota_bytes_per_s``, and without."""
    found = NativeFigures()
    for number in range(turns.pairs):
        order = (False, True) if number % 2 else (True, False)
        windows = {is_copying: list[list[float]]() for is_copying in order}
        for is_copying in order:
            cluster.admin.alter_broker(None, {QUOTA: str(quota_bytes_per_s if is_copying else 1)})
            began_s, before_bytes = time.monotonic(), _bytes_in(storage)
            load.run(_SETTLE_S)
            windows[is_copying] = [load.run(turns.window_s) for _ in range(turns.windows)]
            if is_copying:
                found.copied_bytes += _bytes_in(storage) - before_bytes
                found.copying_s += time.monotonic() - began_s
        found.pairs.pairs += [
            LatencyPair(base=base, other=other, foreign_cpus=0.0)
            for base, other in zip(windows[False], windows[True], strict=True)
        ]
    return found


def _bytes_in(storage: Path) -> int:
    return sum(path.stat().st_size for path in storage.rglob("*.log"))
