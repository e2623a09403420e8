"""A compacted topic of a run: its settings at the brokers and in the sidecars, and what is written to it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.chances import Chances

_MOST_MS = 2**63 - 1
_DISK_BYTES, _MAP_BYTES = 100_000, 2_000
INTERVAL_MS = 5_000
"""``compaction.interval.ms`` of the sidecars here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedTopic:
    """``policy`` is ``compact`` or ``compact,delete``; ``keys`` are written, a ``tombstones`` share of them without a value;
    ``dedupe_bytes`` bound the map of a round in the sidecars, and ``scratch_bytes`` are free where they write.  The others are
    Kafka's settings."""

    policy: str
    keys: int
    tombstones: float
    delete_retention_ms: int
    min_lag_ms: int
    dirty_ratio: float
    segment_bytes: int
    dedupe_bytes: int
    scratch_bytes: int

    @property
    def is_cleaned_to_the_end(self) -> bool:
        """Return whether the sidecars' cleaners get through the whole log before a run ends: not where a segment may be too
        large for the disk, a round takes but a segment or two, or the dirty ratio lets the rest be."""
        return not self.dirty_ratio and self.scratch_bytes >= _DISK_BYTES and self.dedupe_bytes >= _MAP_BYTES

    def configs(self) -> dict[str, str]:
        """Return what the broker says of the topic."""
        return {
            "cleanup.policy": self.policy,
            "min.cleanable.dirty.ratio": str(self.dirty_ratio),
            "min.compaction.lag.ms": str(self.min_lag_ms),
            "max.compaction.lag.ms": str(_MOST_MS),
            "delete.retention.ms": str(self.delete_retention_ms),
            "segment.bytes": str(self.segment_bytes),
            "segment.index.bytes": str(10_485_760),
        }


def compacted_topic_of(chances: Chances) -> CompactedTopic:
    """Draw it of a run's own lots."""
    return CompactedTopic(
        policy=chances.choose("cleanup policy", ("compact", "compact", "compact,delete")),
        keys=chances.choose("keys", (3, 15, 60)),
        tombstones=chances.choose("tombstones", (0.1, 0.3, 0.5)),
        delete_retention_ms=chances.choose("delete retention", (80_000, 120_000)),
        min_lag_ms=chances.choose("compaction lag", (0, 0, 15_000)),
        dirty_ratio=chances.choose("dirty ratio", (0.0, 0.0, 0.0, 0.3)),
        segment_bytes=chances.choose("merged bytes", (5_000, 10_000)),
        dedupe_bytes=chances.choose("dedupe bytes", (1_000, 100_000, 100_000)),
        scratch_bytes=chances.choose("scratch bytes", (1_500, 1_000_000, 1_000_000)),
    )
