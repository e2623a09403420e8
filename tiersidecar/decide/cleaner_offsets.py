"""Choice of the leader whose cleaner offset counts (the fencing table of the KIP for compacted topics in tiered storage).

A leader publishes, with what it has cleaned, a vector: for each leader epoch that it knows, the offset up to which that
epoch's leader had cleaned.  A later leader's vector bounds what an earlier one may have done: what a deposed leader publishes
late, beyond the offset that its successor found, is rejected, whichever of the two arrives first.

The result depends on the set of claims alone, never on their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tiersidecar.domain.cleaner import CleanerClaim
from tiersidecar.domain.offsets import LeaderEpoch, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedClaim:
    """A claim that does not count, and why."""

    claim: CleanerClaim
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerOffsets:
    """``offsets`` is the vector that the next leader begins with, by epoch; claims are by epoch and offset."""

    offsets: Mapping[LeaderEpoch, Offset]
    accepted: tuple[CleanerClaim, ...] = ()
    rejected: tuple[RejectedClaim, ...] = ()

    @property
    def cleaner_offset(self) -> Offset | None:
        """Return the first offset that is not clean; None where nothing was cleaned.  It is the latest epoch's: an earlier one
        may have had a higher one, but what it cleaned may have been cut off since."""
        return self.offsets[max(self.offsets)] if self.offsets else None


def decide_cleaner_offsets(claims: Iterable[CleanerClaim]) -> CleanerOffsets:
    """Accept or reject each claim: from the latest epoch down, each is compared with what later ones found."""
    accepted: list[CleanerClaim] = []
    rejected: list[RejectedClaim] = []
    bounds: dict[LeaderEpoch, Offset] = {}
    latest: LeaderEpoch | None = None
    newest_first = sorted(claims, key=lambda one: (one.leader_epoch, one.offset or 0, one.name), reverse=True)
    for claim in newest_first:
        reason = _fault(claim, bounds, latest)
        if reason:
            rejected.append(RejectedClaim(claim=claim, reason=reason))
            continue
        accepted.append(claim)
        for epoch, offset in claim.offsets.items():
            bounds.setdefault(epoch, offset)  # the latest leader counts, and of one leader its last claim
        if latest is None:
            latest = claim.leader_epoch
    return CleanerOffsets(
        offsets=dict(sorted(bounds.items())), accepted=tuple(reversed(accepted)), rejected=tuple(reversed(rejected))
    )


def _fault(claim: CleanerClaim, bounds: Mapping[LeaderEpoch, Offset], latest: LeaderEpoch | None) -> str:
    if claim.offset is None:
        return f"it says nothing of its own epoch {claim.leader_epoch}"
    if any(epoch > claim.leader_epoch for epoch in claim.offsets):
        return f"it names epochs after its own, {claim.leader_epoch}"
    if latest is None or claim.leader_epoch == latest:
        return ""
    bound = bounds.get(claim.leader_epoch)
    if bound is None:
        return f"epoch {latest} found nothing cleaned by epoch {claim.leader_epoch}"
    if claim.offset > bound:
        return f"epoch {latest} found epoch {claim.leader_epoch} to end at {bound}, below {claim.offset}"
    return ""
