"""In which order segments are removed: what the store has refused to delete comes after everything else.

A legal hold, say, keeps an object for years: it must not keep all that expires after it.  A store that is away refuses
everything; so the first refusal ends a round, and the next round begins with another segment.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiersidecar.decide.cleanup import Removal
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition


class RefusedLast:
    """Remembers refusals for as long as the segment is due."""

    def __init__(self) -> None:
        self._refused: dict[TopicIdPartition, dict[RemoteLogSegmentId, int]] = {}
        self._count = 0

    def order(self, owner: TopicIdPartition, due: Iterable[Removal]) -> list[Removal]:
        """All of ``due``, which is all that is due of ``owner``: first those that were never refused, in their order, then the
        others, those first that were refused longest ago."""
        removals = list(due)
        known = self._refused.pop(owner, {})
        still = {key: known[key] for one in removals if (key := one.metadata.remote_log_segment_id) in known}
        if still:
            self._refused[owner] = still
        return sorted(removals, key=lambda one: still.get(one.metadata.remote_log_segment_id, 0))

    def refused(self, removal: Removal) -> None:
        """The store did not delete it."""
        self._count += 1
        segment_id = removal.metadata.remote_log_segment_id
        self._refused.setdefault(segment_id.topic_id_partition, {})[segment_id] = self._count
