"""Due times of the trash: the one answer, for remote segments, the broker's log, pins and deleted topics.

A process that starts counts only time that was seen to pass, by a monotonic clock.  While no process runs, time that passed
cannot be distinguished from a clock that was set: after either, the wall clock is ahead of the time last seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tiersidecar.domain.seen_time import SeenTime, UnseenTime
from tiersidecar.domain.trash import TrashEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashTime:
    """A moment by the wall clock.  ``doubt`` says why it is not trusted: then nothing becomes due.  ``unseen`` is time that no
    delay counts; it ascends, and none touches another.  ``seen_ms`` is what the wall clock would be had it run like a
    monotonic one since the process began; -1 where that is not known."""

    now_ms: int
    doubt: str = ""
    unseen: tuple[UnseenTime, ...] = ()
    seen_ms: int = -1

    @property
    def decision_ms(self) -> int:
        """Return the time of a decision made now; by a clock that was set back it would be due too soon once that is right."""
        return max(self.now_ms, self.seen_ms)

    def is_due(self, entry: TrashEntry) -> bool:
        """Return whether it may be carried out.  An entry that an operator purged waits for no clock."""
        return entry.is_purged or (not self.doubt and self.now_ms >= self.due_ms(entry))

    def overdue_ms(self, entry: TrashEntry) -> int:
        """Return for how long it has been due by the wall clock while it is not, because its delay passed unseen; 0 where it is
        due, or would not be."""
        return 0 if self.is_due(entry) else max(self.now_ms - entry.due_ms, 0)

    def due_ms(self, entry: TrashEntry) -> int:
        """Return the due time, later by the part of the delay that passed unseen."""
        due_ms = entry.due_ms
        for time in self.unseen:
            if time.from_ms >= due_ms:
                break
            due_ms += max(time.to_ms - max(time.from_ms, entry.decided_ms), 0)
        return due_ms


MOST_UNSEEN_MS = 5 * 60_000
"""Counts as seen: a restart of the process, or of its machine."""
_MOST_TIMES = 64


def seen_at_start(known: SeenTime | None, now_ms: int) -> SeenTime:
    """Return the time that counts from ``now_ms`` on, after ``known``.  Where nothing is known, no time before was seen."""
    if known is None:
        return SeenTime(until_ms=now_ms, unseen=(UnseenTime(from_ms=0, to_ms=now_ms),))
    unseen = list(known.unseen)
    if now_ms - known.until_ms > MOST_UNSEEN_MS:
        unseen.append(UnseenTime(from_ms=known.until_ms, to_ms=now_ms))
    return SeenTime(until_ms=now_ms, unseen=_joined(unseen))


def seen_by_heir(former: SeenTime | None, now_ms: int) -> SeenTime:
    """Return the time that counts from ``now_ms`` on for a process that knows of none before, once it holds its broker's lease
    after ``former``, the time of the last holder.

    Time that it saw itself before does not count: the last holder saw it, too, perhaps by another clock.  Where that was
    ahead of ours, nothing of it counts.
    """
    return seen_at_start(None if former is None or former.until_ms > now_ms else former, now_ms)


def seen_by_next(own: SeenTime, former: SeenTime | None) -> SeenTime:
    """Return the time that counts for a process that has seen ``own``, once it holds its broker's lease after ``former``.

    Two processes beside one broker have two clocks.  A decision by one that was behind ours, or did not know, would be due too
    soon: time that either has not seen until now does not count.
    """
    if former is None:
        return own
    now_ms = own.until_ms
    theirs = [
        UnseenTime(from_ms=one.from_ms, to_ms=min(one.to_ms, now_ms)) for one in former.unseen if one.from_ms < now_ms
    ]
    if now_ms - former.until_ms > MOST_UNSEEN_MS:
        theirs.append(UnseenTime(from_ms=former.until_ms, to_ms=now_ms))
    return SeenTime(until_ms=now_ms, unseen=_joined((*own.unseen, *theirs)))


def _joined(times: Iterable[UnseenTime]) -> tuple[UnseenTime, ...]:
    """Return ``times``, ascending and apart from each other; of too many the oldest two are joined over their gap."""
    joined: list[UnseenTime] = []
    for time in sorted(times):
        if joined and time.from_ms <= joined[-1].to_ms:
            joined[-1] = UnseenTime(from_ms=joined[-1].from_ms, to_ms=max(time.to_ms, joined[-1].to_ms))
        else:
            joined.append(time)
    while len(joined) > _MOST_TIMES:
        joined[:2] = [UnseenTime(from_ms=joined[0].from_ms, to_ms=joined[1].to_ms)]
    return tuple(joined)
