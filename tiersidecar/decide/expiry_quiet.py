"""Until when an expiry that has nothing to do still has nothing to do, if nothing but time changes.

An idle broker has thousands of partitions, each with a round every half minute: what is known to find nothing need not be
decided again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tiersidecar.decide.expire import ExpiryPlan
from tiersidecar.decide.expiry_view import ExpiryView, local_time_ms, time_anchor_ms
from tiersidecar.domain.policy import UNLIMITED
from tiersidecar.domain.states import RemoteLogSegmentState

_MOST_MS = 5 * 60_000
"""A second belt: for no longer, whatever is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietRound:
    """``plan`` is what was decided of ``view`` without its remote segments, of which ``mark`` is; it holds from ``from_ms`` to
    ``until_ms`` (exclusive)."""

    view: ExpiryView
    mark: int
    plan: ExpiryPlan
    from_ms: int
    until_ms: int

    def holds_for(self, view: ExpiryView, mark: int) -> bool:
        """Whether the same would be decided of ``view``, again without its remote segments."""
        return self.from_ms <= view.now_ms < self.until_ms and self.mark == mark and self.view == _timeless(view)


def quiet_round(view: ExpiryView, mark: int, plan: ExpiryPlan) -> QuietRound | None:
    """None where there is something to do, or to say, or something waits for a time of its own."""
    trash = plan.trash
    if plan.expired or plan.leftovers or plan.stop or plan.guard_stop is not None:
        return None
    if trash.put or trash.take_out or trash.removals or trash.waiting:
        return None
    if view.trash or view.guard_stop is not None or view.clock_doubt or view.hold or view.policy.delete_remote:
        return None
    if any(segment.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED for segment in view.remote_segments):
        return None
    until_ms = _until_ms(view)
    if until_ms <= view.now_ms:
        return None
    bare = _timeless(replace(view, remote_segments=()))
    return QuietRound(view=bare, mark=mark, plan=plan, from_ms=view.now_ms, until_ms=until_ms)


def _until_ms(view: ExpiryView) -> int:
    """No time of the view is later than now, or all may change; else the first at which a limit by time is reached: the
    retention of a segment, or that of the silence after an event, which is longer."""
    now_ms = view.now_ms
    times_ms = [segment.event_timestamp_ms for segment in view.remote_segments]
    times_ms += [segment.max_timestamp_ms for segment in view.remote_segments]
    times_ms += [time for one in view.local_segments for time in (one.modified_ms, one.max_timestamp_ms)]
    if any(time_ms > now_ms for time_ms in times_ms):
        return now_ms
    most_ms = now_ms + _MOST_MS
    if view.policy.retention_ms == UNLIMITED:
        return most_ms
    began_ms = [time_anchor_ms(segment, now_ms) for segment in view.remote_segments]
    began_ms += [segment.event_timestamp_ms for segment in view.remote_segments]
    began_ms += [time for one in view.local_segments for time in (local_time_ms(one, now_ms), one.modified_ms)]
    return min([most_ms, *(time_ms + view.policy.retention_ms for time_ms in began_ms)])


def _timeless(view: ExpiryView) -> ExpiryView:
    """Also without what is being copied, of any partition: it is no matter where nothing is unfinished, and nothing goes."""
    return replace(view, now_ms=0, seen_ms=-1, in_flight=frozenset(), begun=frozenset())
