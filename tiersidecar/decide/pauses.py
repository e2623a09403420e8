"""The effects of a pause, in words, and the records that ``pause`` and ``resume`` write (issue 20).

A pause only ever takes away: copying, expiry and trims decide as without it, but do not act.  What they remember,
such as a stop of the guard, does not depend on it, and the first round after a resume is a round like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.pauses import ALL_TOPICS, Pause, PausedThing, PauseKind
from tiersidecar.domain.readable import moment_text

_STOPPED = {PauseKind.COPIES: "copying is paused", PauseKind.DELETES: "deletes and trims are paused"}


def things_of(topic_id: Uuid | None, kind: PauseKind) -> tuple[PausedThing, ...]:
    """Return the records whose pauses count for a topic: the one of all topics first."""
    everything = PausedThing(kind=kind)
    return (everything,) if topic_id is None else (everything, PausedThing(kind=kind, topic_id=topic_id))


def why_paused(known: Mapping[PausedThing, Pause], topic_id: Uuid | None, kind: PauseKind) -> str:
    """Return the sentence that says why ``kind`` stands still for the topic, empty where it does not."""
    if not known:
        return ""
    return next((told(known[thing]) for thing in things_of(topic_id, kind) if thing in known), "")


def told(pause: Pause) -> str:
    """Return the pause in one sentence, without a full stop."""
    of_all = " for all topics" if pause.topic == ALL_TOPICS else f" for topic {pause.topic}"
    reason = f": {pause.reason}" if pause.reason else ""
    return f"{_STOPPED[pause.thing.kind]}{of_all} since {moment_text(pause.since_ms)} by {pause.by}{reason}"


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
