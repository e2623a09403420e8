"""The records that ``pause`` and ``resume`` write.

A pause only ever takes away: copying, expiry and trims decide as without it, but do not act.  What they remember,
such as a stop of the guard, does not depend on it, and the first round after a resume is a round like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.policy import Pause, PausedThing, PauseKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PausePlan:
    """Records to be written; ``left`` are pauses that go on nevertheless."""

    begin: tuple[Pause, ...] = ()
    end: tuple[Pause, ...] = ()
    left: tuple[Pause, ...] = ()


def decide_pause(known: Iterable[Pause], wanted: Collection[Pause]) -> PausePlan:
    """Begin those of ``wanted`` that are not paused: a second request changes neither the time nor the reason."""
    standing = {pause.thing for pause in known}
    return PausePlan(begin=tuple(pause for pause in wanted if pause.thing not in standing))


def decide_resume(
    known: Iterable[Pause], topic_id: Uuid | None, kinds: Collection[PauseKind], topic: str = ""
) -> PausePlan:
    """End the pauses of just this topic, or just that of all topics.  Those of topics that had the name ``topic`` before, and
    are gone, end as well: nothing else names them, and the deletion of their remote data stands still.

    ``left`` are those of the same kinds that keep some of it paused: the one of all topics, or those of single topics.
    """
    known = tuple(known)
    asked = {PausedThing(kind=kind, topic_id=topic_id) for kind in kinds}
    if topic_id is not None:
        asked |= {pause.thing for pause in known if pause.thing.topic_id is not None and pause.topic == topic}
    same = sorted(
        (pause for pause in known if pause.thing.kind in kinds), key=lambda pause: (pause.thing.kind, pause.topic)
    )
    return PausePlan(
        end=tuple(one for one in same if one.thing in asked),
        left=tuple(one for one in same if one.thing not in asked and (topic_id is None or one.thing.topic_id is None)),
    )
