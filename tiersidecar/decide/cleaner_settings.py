"""The settings of a compacted topic that its cleaner goes by, under Kafka's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tiersidecar.decide.compacted_retention import CleanupPolicy, read_cleanup_policy
from tiersidecar.decide.compaction import CompactionSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """Of one topic."""

    policy: CleanupPolicy
    compaction: CompactionSettings
    delete_retention_ms: int


def read_cleaner_settings(configs: Mapping[str, str | None]) -> CleanerSettings | None:
    """Read the effective settings as a broker tells them; None where the topic is not compacted, or one is not told or no
    number: nothing is cleaned by a guess."""
    policy = read_cleanup_policy(configs.get("cleanup.policy") or "")
    if policy in {None, CleanupPolicy.DELETE}:
        return None
    assert policy is not None
    try:
        return CleanerSettings(
            policy=policy,
            compaction=CompactionSettings(
                min_cleanable_dirty_ratio=float(_told(configs, "min.cleanable.dirty.ratio")),
                min_compaction_lag_ms=int(_told(configs, "min.compaction.lag.ms")),
                max_compaction_lag_ms=int(_told(configs, "max.compaction.lag.ms")),
                segment_bytes=int(_told(configs, "segment.bytes")),
                segment_index_bytes=int(_told(configs, "segment.index.bytes")),
            ),
            delete_retention_ms=int(_told(configs, "delete.retention.ms")),
        )
    except ValueError:
        return None


def _told(configs: Mapping[str, str | None], name: str) -> str:
    value = configs.get(name)
    if value is None:
        raise ValueError(name)
    return value
