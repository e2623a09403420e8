"""What of the wall clock's time a process that starts may count: only what was seen to pass, beside a monotonic clock.

While no process runs nobody can tell time that passed from a clock that was set: after either, the wall clock is ahead of what
was seen last.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiersidecar.domain.seen_time import SeenTime, UnseenTime

MOST_UNSEEN_MS = 5 * 60_000
"""Counts as seen: a restart of the process, or of its machine."""
_MOST_TIMES = 64


def seen_at_start(known: SeenTime | None, now_ms: int) -> SeenTime:
    """What counts from ``now_ms`` on, after ``known``.  Where nothing is known no time before was seen."""
    if known is None:
        return SeenTime(until_ms=now_ms, unseen=(UnseenTime(from_ms=0, to_ms=now_ms),))
    unseen = list(known.unseen)
    if now_ms - known.until_ms > MOST_UNSEEN_MS:
        unseen.append(UnseenTime(from_ms=known.until_ms, to_ms=now_ms))
    return SeenTime(until_ms=now_ms, unseen=_joined(unseen))


def seen_by_heir(former: SeenTime | None, now_ms: int) -> SeenTime:
    """What counts from ``now_ms`` on for a process that knows of no time before it, once it holds its broker's lease after
    ``former``, what the last holder had seen.

    What it saw itself before that does not count: the last holder saw it, too, by a clock that may be another.  Where that was
    ahead of ours, nothing of it counts.
    """
    return seen_at_start(None if former is None or former.until_ms > now_ms else former, now_ms)


def seen_by_next(own: SeenTime, former: SeenTime | None) -> SeenTime:
    """What counts for a process that has seen ``own``, once it holds its broker's lease after ``former``.

    Two processes beside one broker have two clocks.  What was decided by one that was behind ours, or did not know, would be
    due too soon: what either has not seen until now does not count.
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
    """Ascending and apart from each other; of too many the oldest two are one, with what lies between them."""
    joined: list[UnseenTime] = []
    for time in sorted(times):
        if joined and time.from_ms <= joined[-1].to_ms:
            joined[-1] = UnseenTime(from_ms=joined[-1].from_ms, to_ms=max(time.to_ms, joined[-1].to_ms))
        else:
            joined.append(time)
    while len(joined) > _MOST_TIMES:
        joined[:2] = [UnseenTime(from_ms=joined[0].from_ms, to_ms=joined[1].to_ms)]
    return tuple(joined)
