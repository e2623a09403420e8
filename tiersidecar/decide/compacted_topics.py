"""Compacted topics: their settings, under Kafka's names, and the limits of retention by their cleanup policy.

| cleanup.policy | local segment goes | remote segment goes |
| --- | --- | --- |
| delete | copied, past local retention | past total retention |
| compact,delete | copied, past local retention | past total retention |
| compact | copied, past local retention, and wholly below the cleaner offset | never for its age or size |

The KIP says both that local deletion of a compacted topic ignores whether it was cleaned and that it waits for cleaning.  Here
it waits: until then a dirty segment can be cleaned without fetching it, and its tombstones are still on this disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tiersidecar.decide.compaction import CompactionSettings
from tiersidecar.domain.offsets import Offset


class CleanupPolicy(StrEnum):
    """Kafka's ``cleanup.policy``."""

    DELETE = "delete"
    COMPACT = "compact"
    COMPACT_AND_DELETE = "compact,delete"


def read_cleanup_policy(value: str) -> CleanupPolicy | None:
    """Read the topic config, in which the order is free; return None where it names anything else, or nothing."""
    match frozenset(part.strip() for part in value.split(",")):
        case parts if parts == {"delete"}:
            return CleanupPolicy.DELETE
        case parts if parts == {"compact"}:
            return CleanupPolicy.COMPACT
        case parts if parts == {"compact", "delete"}:
            return CleanupPolicy.COMPACT_AND_DELETE
        case _:
            return None


def is_compacted(configs: Mapping[str, str | None]) -> bool:
    """Return whether the broker's cleaner rewrites segments of a topic with these settings."""
    return "compact" in (part.strip() for part in (configs.get("cleanup.policy") or "").split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """What the cleaner of one compacted topic goes by."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AgedSegment:
    """``end_offset`` is inclusive; ``is_copied``: finished, durable and read back."""

    end_offset: Offset
    is_copied: bool
    is_past_local_retention: bool
    is_past_total_retention: bool


def reason_to_keep_locally(policy: CleanupPolicy, segment: AgedSegment, cleaner_offset: Offset | None) -> str:
    """Return why the broker's copy stays; "": it may go."""
    if not segment.is_copied:
        return "it is not in the remote tier"
    if not segment.is_past_local_retention:
        return "local retention keeps it"
    if policy is CleanupPolicy.COMPACT and (cleaner_offset is None or segment.end_offset >= cleaner_offset):
        return f"it is not cleaned: the cleaner offset is {0 if cleaner_offset is None else cleaner_offset}"
    return ""


def reason_to_keep_remotely(policy: CleanupPolicy, segment: AgedSegment) -> str:
    """Return why the remote segment stays; "": it may go."""
    if policy is CleanupPolicy.COMPACT:
        return "cleanup.policy=compact: no record goes for its age or size"
    return "" if segment.is_past_total_retention else "total retention keeps it"
