"""What leaders of a compacted partition have said of how far they had cleaned it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tiersidecar.domain.offsets import LeaderEpoch, Offset

MOST_CLAIMS = 8
"""Leader epochs whose claims are kept, and that one claim names: the latest ones.  A leader that is more epochs behind than
that, and still publishes, is heard by nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerClaim:
    """What one leader has published: all below its own entry is clean.  ``name`` tells what came with it, such as a segment.

    An epoch that had cleaned nothing when it ended is in ``offsets`` with its log start offset, or is not there.
    """

    leader_epoch: LeaderEpoch
    offsets: Mapping[LeaderEpoch, Offset]
    name: str = ""

    @property
    def offset(self) -> Offset | None:
        """Of its own epoch."""
        return self.offsets.get(self.leader_epoch)


def merged_claims(claims: Iterable[CleanerClaim]) -> tuple[CleanerClaim, ...]:
    """Of each leader epoch the claim that went furthest, ascending, the latest :data:`MOST_CLAIMS` of them.  Merged in whatever
    order, and however often, the result is the same."""
    furthest: dict[LeaderEpoch, CleanerClaim] = {}
    for claim in claims:
        known = furthest.get(claim.leader_epoch, claim)
        furthest[claim.leader_epoch] = max(known, claim, key=_rank)
    return tuple(furthest[epoch] for epoch in sorted(furthest)[-MOST_CLAIMS:])


def _rank(claim: CleanerClaim) -> tuple[int, list[tuple[LeaderEpoch, Offset]], str]:
    return -1 if claim.offset is None else claim.offset, sorted(claim.offsets.items()), claim.name
