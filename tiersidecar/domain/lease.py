"""Leases: choice of the one process of several that may act, by records of one key in a log that all read in the same order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from tiersidecar.domain.ids import TopicIdPartition, format_uuid
from tiersidecar.domain.seen_time import SeenTime

LEASE_FORMAT = 2
"""Format of the state topic's records by the holder of a lease; processes of the first format have none."""

REPAIR_LEASE = "repair"
"""Lease of the commands that change remote segments by name: repair, erasure, recovery and mount.  One of them acts at a
time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A claim, or its renewal.

    ``name`` is its subject: a broker's id or ``repair``.  ``incarnation`` is the holder, one life of a process; ``term``
    counts holders.  The lease is over when ``duration_ms`` have passed since the last renewal that was seen, by the observer's
    clock; or at once when it is ``released``.  ``renewal``: its writer has read back that it won this term; a claim that lost
    is never renewed.  ``broker_id`` is -1 for a command; the rest is for the operator.
    ``status_address`` is where the holder's status service is reached, ``host:port``; empty where a former release wrote it.
    ``decides_proposals``: the holder carries out the deletes that gateways propose; False in leases of former releases.
    ``stopping``: the holder is about to stop, and decides no more than what comes within a moment of this.
    ``obeys_pauses``: the holder stops where an operator has paused it; False in leases of former releases.
    ``concerns`` are the partitions whose remote segments the command that holds ``repair`` changes, as :func:`concerns_of`
    names them; empty for all, and in leases of other commands and of former releases.
    ``seen`` is the time that the holder, over all its lives, had seen when it wrote this; None in leases of commands and of
    former releases.
    """

    name: str
    cluster_id: str
    broker_id: int
    incarnation: str
    term: int
    host: str
    pid: int
    version: str
    renewed_ms: int
    duration_ms: int
    released: bool = False
    renewal: bool = False
    decides_proposals: bool = False
    stopping: bool = False
    obeys_pauses: bool = False
    format: int = LEASE_FORMAT
    status_address: str = ""
    concerns: str = ""
    seen: SeenTime | None = None

    @property
    def holder(self) -> tuple[int, str]:
        """Return term and incarnation: equal in all renewals of one claim."""
        return self.term, self.incarnation

    def concerns_partition(self, owner: TopicIdPartition) -> bool:
        """Return whether the command may change remote segments of this partition."""
        return not self.concerns or concerns_of([owner]) in self.concerns.split(",")


def concerns_of(owners: Iterable[TopicIdPartition]) -> str:
    """Return partitions as :attr:`Lease.concerns` names them: by topic id and number."""
    return ",".join(f"{format_uuid(owner.topic_id)}/{owner.partition}" for owner in owners)


def accepted_lease(known: Lease | None, written: Lease) -> Lease:
    """Return the lease that counts after ``written`` was read: ``written`` if it is the first, a renewal, or of a later term;
    else its writer came too late, and ``known`` still counts.  Of several claims to one term the first in the log wins.

    Compaction leaves a reader that comes late, or comes back, only the last of what it cleaned: that may be a claim that lost,
    or one of terms ago.  Both are overruled by the holder's next record: a renewal outranks claims to the same term, and a
    later term all before it, however many are missing in between (a claim is always of the term after the last).
    """
    if known is None or written.term > known.term:
        return written
    if written.holder == known.holder:
        return replace(written, renewal=written.renewal or known.renewal)
    if written.term == known.term and written.renewal and not known.renewal:
        return written
    return known


def decision_ms(now_ms: int, leases: Iterable[Lease | None]) -> int:
    """Return the time of a command's decision at ``now_ms``: no earlier than the time seen by the sidecars with ``leases``.

    They carry it out by their own clocks: a decision by a slower machine's clock would be due too soon, or at once.
    """
    return max([now_ms, *(lease.seen.until_ms for lease in leases if lease is not None and lease.seen is not None)])


def due_ms(now_ms: int, leases: Iterable[Lease | None]) -> int:
    """Return up to when what others have dated is due for a command at ``now_ms``: no later than the sidecars with ``leases``
    have seen, where any says.  By the clock of the command's machine alone it could be due days too early."""
    seen = [lease.seen.until_ms for lease in leases if lease is not None and lease.seen is not None]
    return min(now_ms, max(seen, default=now_ms))


def reason_to_wait_for_sidecars(
    nodes: Iterable[int], lease_of: Callable[[str], Lease | None], without_sidecar: Collection[int]
) -> str:
    """Return why a record that a sidecar of the first format would misread must wait; empty when each of ``nodes``, the live
    brokers, has shown this format in its lease, or is named as one without a sidecar.

    The first format deletes at once what lies below a remote log start, and knows of no start that was set back.
    """
    silent = [
        node for node in sorted(nodes) if node not in without_sidecar and not _is_of_this_format(lease_of(str(node)))
    ]
    if not silent:
        return ""
    return (
        f"brokers {', '.join(map(str, silent))} have no sidecar of this version yet (or none at all: then name them in "
        "deletes.brokers.without.sidecar)"
    )


def _is_of_this_format(lease: Lease | None) -> bool:
    return lease is not None and lease.format >= LEASE_FORMAT
