"""Leases: which one of several processes may act, by records of one key in a log that all of them read in the same order."""

from __future__ import annotations

from dataclasses import dataclass

LEASE_FORMAT = 2
"""Of what a process that holds a lease writes into the state topic; processes of the first format have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A claim, or its renewal.

    ``name`` is what it is for: a broker's id or ``repair``.  ``incarnation`` is the holder, one life of a process; ``term``
    counts holders.  The lease is over when ``duration_ms`` have passed since the last renewal that was seen, by the clock that
    sees; or at once when it is ``released``.  ``broker_id`` is -1 for a command; the rest is for people.
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
    format: int = LEASE_FORMAT

    @property
    def holder(self) -> tuple[int, str]:
        """Term and incarnation: equal in all renewals of one claim."""
        return self.term, self.incarnation


def accepted_lease(known: Lease | None, written: Lease) -> Lease:
    """The lease that counts after ``written`` was read: ``written`` if it is the first, a renewal, or the next term; else its
    writer came too late, and ``known`` still counts.  Of several claims to one term the first in the log wins."""
    if known is None or written.holder == known.holder or written.term == known.term + 1:
        return written
    return known
