"""Claims of the leaders of a compacted partition: how far they had cleaned it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tiersidecar.domain.ids import Uuid, format_uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset

_NAME_CHARACTERS = 8
MOST_CLAIMS = 8
"""Leader epochs whose claims are kept, and that one claim names: the latest ones.  A leader that is more epochs behind than
that, and still publishes, is not heard."""
_NAMED_CLAIMS = 2
"""Latest epochs whose claims keep their segments' names: one record has them all, and brokers take a megabyte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerClaim:
    """The claim of one leader: all below its own entry is clean.  ``name`` says what came with it, such as a segment.

    An epoch that had cleaned nothing when it ended is in ``offsets`` with its log start offset, or is not there.
    ``segments`` are the short names (:func:`short_name`) of the segments below its own entry, ascending: where another one
    is given by now, that is not what was cleaned.  Of two claims of one epoch the one with the higher ``revision`` counts.
    ``reach``: what is below may lack what records up to there had replaced; None where that is its own entry.
    ``parted_at``: some of these lack what records from there on had replaced, which an unclean election has cut off; each later
    claim says it again, as long as it holds.
    """

    leader_epoch: LeaderEpoch
    offsets: Mapping[LeaderEpoch, Offset]
    name: str = ""
    revision: int = 0
    segments: tuple[str, ...] = ()
    reach: Offset | None = None
    parted_at: Offset | None = None

    @property
    def offset(self) -> Offset | None:
        """Return the offset of its own epoch."""
        return self.offsets.get(self.leader_epoch)


def short_name(segment_uuid: Uuid) -> str:
    """Return eight characters of a segment's id: there are thousands in a claim, and different ids stay distinct."""
    return format_uuid(segment_uuid)[:_NAME_CHARACTERS]


def merged_claims(claims: Iterable[CleanerClaim]) -> tuple[CleanerClaim, ...]:
    """Return the last claim of each leader epoch, ascending, the latest :data:`MOST_CLAIMS` of them.  Merged in whatever
    order, and however often, the result is the same.

    Names stay with the latest alone: where later claims are none of the history any more and an earlier one counts again,
    everything is dirty.
    """
    last: dict[LeaderEpoch, CleanerClaim] = {}
    for claim in claims:
        known = last.get(claim.leader_epoch, claim)
        last[claim.leader_epoch] = max(known, claim, key=_rank)
    kept = sorted(last)[-MOST_CLAIMS:]
    return (
        *(replace(last[epoch], segments=()) for epoch in kept[:-_NAMED_CLAIMS]),
        *(last[epoch] for epoch in kept[-_NAMED_CLAIMS:]),
    )


def _rank(claim: CleanerClaim) -> tuple[object, ...]:
    offset = -1 if claim.offset is None else claim.offset
    further = [-1 if one is None else one for one in (claim.reach, claim.parted_at)]
    return claim.revision, offset, sorted(claim.offsets.items()), claim.segments, claim.name, further
