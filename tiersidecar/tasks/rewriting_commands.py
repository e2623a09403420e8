"""Whether an operator's command, an erasure, a repair or a compaction, changes remote segments now: the cleaner waits for it.

Both would put new segments in the place of the same old ones.  Each looks again right before COPY_SEGMENT_FINISHED; but of two
that have looked at the same moment the later one would win, with the records that the other has taken out.
"""

from __future__ import annotations

from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.lease import REPAIR_LEASE, Lease
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.state_records import Leases

CLEANER_FINISHES_WITHIN_S = 20
"""A cleaner's COPY_SEGMENT_FINISHED is given up this long after the cleaner began to look at the lease."""

LEAST_SETTLE_S = CLEANER_FINISHES_WITHIN_S + 10
"""Least time between a command's claim of the lease, or its naming of another partition there, and its look at a compacted
partition: with what a broker may need to append an event that was sent at the last moment."""


class RewritingCommands:
    """The lease of these commands, as one process sees it: it is over once its duration has passed since the last renewal was
    seen, by this clock."""

    def __init__(self, leases: Leases, clock: Clock) -> None:
        self._leases, self._clock = leases, clock
        self._seen: Lease | None = None
        self._seen_s = 0.0

    def reason_to_wait(self, owner: TopicIdPartition) -> str:
        """Return why the cleaner of the partition waits; empty where no command acts on it.

        Raises:
            MetadataNotReadyError: the state topic has not been replayed to its end yet.
        """
        lease = self._leases.lease(REPAIR_LEASE)
        if lease is None or lease.released:
            return ""
        if lease != self._seen:
            self._seen, self._seen_s = lease, self._clock.monotonic_s()
        if (self._clock.monotonic_s() - self._seen_s) * 1000 >= lease.duration_ms:
            return ""
        if not lease.concerns_partition(owner):
            return ""
        return f"an erasure, a repair or a compaction acts: process {lease.pid} on {lease.host}"
