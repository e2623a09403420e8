"""When what is in the trash is due: the one answer, for remote segments, the broker's log, pins and deleted topics."""

from __future__ import annotations

from dataclasses import dataclass

from tiersidecar.domain.seen_time import UnseenTime
from tiersidecar.domain.trash import TrashEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashTime:
    """A moment by the wall clock.  ``doubt`` says why it is not to be believed: then nothing becomes due.  ``unseen`` is time
    that no delay counts; it ascends, and none touches another.  ``seen_ms`` is what the wall clock would say had it gone as a
    monotonic one since the process began; -1 where that is not known."""

    now_ms: int
    doubt: str = ""
    unseen: tuple[UnseenTime, ...] = ()
    seen_ms: int = -1

    @property
    def decision_ms(self) -> int:
        """The time of what is decided now: by a clock that was set back it would be due too soon once the clock is right."""
        return max(self.now_ms, self.seen_ms)

    def is_due(self, entry: TrashEntry) -> bool:
        """Whether it may be carried out.  What an operator purged waits for no clock."""
        return entry.is_purged or (not self.doubt and self.now_ms >= self.due_ms(entry))

    def overdue_ms(self, entry: TrashEntry) -> int:
        """For how long it has been due by the wall clock, while it is not, for nobody saw its delay pass; 0 where it is due, or
        would not be."""
        return 0 if self.is_due(entry) else max(self.now_ms - entry.due_ms, 0)

    def due_ms(self, entry: TrashEntry) -> int:
        """Later by what of its delay nobody saw pass."""
        due_ms = entry.due_ms
        for time in self.unseen:
            if time.from_ms >= due_ms:
                break
            due_ms += max(time.to_ms - max(time.from_ms, entry.decided_ms), 0)
        return due_ms
