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


def _joined(times: Iterable[UnseenTime]) -> tuple[UnseenTime, ...]:
    """Ascending and apart from each other; of too many the oldest two are one, with what lies between them."""
    joined: list[UnseenTime] = []
    for one in sorted(times):
        if joined and one.from_ms <= joined[-1].to_ms:
            joined[-1] = UnseenTime(from_ms=joined[-1].from_ms, to_ms=max(one.to_ms, joined[-1].to_ms))
        else:
            joined.append(one)
    while len(joined) > _MOST_TIMES:
        joined[:2] = [UnseenTime(from_ms=joined[0].from_ms, to_ms=joined[1].to_ms)]
    return tuple(joined)
