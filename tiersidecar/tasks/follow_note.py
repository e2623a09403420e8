"""What the follow lane remembers of a partition from look to look, while it is in the same hands and leader epoch."""

from __future__ import annotations

from dataclasses import dataclass, field

from tiersidecar.domain.epochs import Lineage
from tiersidecar.domain.segments import LocalPartition, LocalSegment

_LOOKS_BEFORE_CERTAINTY = 2
"""A look scans first and asks for leaders after that: what the second one sees may still be of the epoch before."""


@dataclass(slots=True)
class FollowNote:
    """Forgotten with each change of hands or epoch (``Board.forget``).

    ``epochs`` are the live file's, with those that it has dropped since.  ``settled`` is the state in which nothing was left to
    do.
    """

    epochs: Lineage = Lineage()  # noqa: RUF009 - frozen
    settled: object = None
    _looks: int = 0
    _uncertain: frozenset[int] = field(default_factory=frozenset)
    _deleted: tuple[LocalSegment, ...] = ()

    def look(self, local: LocalPartition) -> None:
        """Take note of a scan."""
        if self._looks < _LOOKS_BEFORE_CERTAINTY:
            self._looks += 1
            self._uncertain = frozenset(segment.base_offset for segment in local.deleted)
        if self.epochs.entries != local.leader_epochs:
            self.epochs = self.epochs.extended_by(local.leader_epochs)
        self._deleted = tuple(one for one in local.deleted if one.base_offset not in self._uncertain)

    @property
    def deleted(self) -> tuple[LocalSegment, ...]:
        """Segments that the broker renamed while it led: by retention or DeleteRecords, for a leader truncates nothing."""
        return self._deleted
