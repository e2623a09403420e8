"""Choice of a cluster's snapshots that stay in the store, and of new ones that must not replace an earlier one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tiersidecar.domain.cluster_topics import ClusterTopic

_LAST_KEPT = 3
"""Kept in case the last one is damaged."""
_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000


def superseded(written_ms: Sequence[int]) -> list[int]:
    """Return the positions of those that may go; ``written_ms`` ascends.

    The last three stay, and the first of the last two hours and of the last two days in which any was written: snapshots of
    a cluster that was rebuilt or emptied replace all earlier knowledge after a day at the earliest.
    """
    kept = set(range(len(written_ms))[-_LAST_KEPT:])
    for span_ms in (_HOUR_MS, _DAY_MS):
        firsts: dict[int, int] = {}
        for position, at_ms in enumerate(written_ms):
            firsts.setdefault(at_ms // span_ms, position)
        kept.update([firsts[span] for span in sorted(firsts)[-2:]])
    return [position for position in range(len(written_ms)) if position not in kept]


def has_lost_topics(last: Mapping[str, ClusterTopic], now: Mapping[str, ClusterTopic]) -> bool:
    """Return whether a cluster that had tiered topics has none any more.  More likely it was rebuilt on empty disks under its
    id than its users have deleted all topics; what the store knows of the topics is needed then, and harmless otherwise."""
    return bool(last) and not now
