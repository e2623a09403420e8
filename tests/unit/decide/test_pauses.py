"""What pauses stop, and what the commands write (issue 20)."""

from __future__ import annotations

import pytest

from tiersidecar.decide.pauses import decide_pause, decide_resume
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.policy import ALL_TOPICS, Pause, PausedThing, PauseKind, why_paused

ORDERS, AUDIT = Uuid(b"o" * 16), Uuid(b"a" * 16)
NAMES = {ORDERS: "orders", AUDIT: "audit", None: ALL_TOPICS}
COPIES, DELETES = PauseKind.COPIES, PauseKind.DELETES
EVERYTHING: list[tuple[Uuid | None, PauseKind]] = [(one, kind) for one in (None, ORDERS, AUDIT) for kind in PauseKind]


def pause(topic_id: Uuid | None, kind: PauseKind, reason: str = "") -> Pause:
    thing = PausedThing(kind=kind, topic_id=topic_id)
    return Pause(thing=thing, topic=NAMES[topic_id], since_ms=0, by="ann", reason=reason)


def known(*pauses: Pause) -> dict[PausedThing, Pause]:
    return {one.thing: one for one in pauses}


@pytest.mark.parametrize(
    ("paused", "topic_id", "kind", "words"),
    [
        pytest.param([], ORDERS, COPIES, "", id="nothing is paused"),
        pytest.param([(ORDERS, COPIES)], ORDERS, COPIES, "copying is paused for topic orders", id="of the topic"),
        pytest.param([(ORDERS, COPIES)], ORDERS, DELETES, "", id="copies alone: deletes go on"),
        pytest.param([(ORDERS, DELETES)], ORDERS, COPIES, "", id="deletes alone: copies go on"),
        pytest.param([(ORDERS, DELETES)], AUDIT, DELETES, "", id="another topic goes on"),
        pytest.param([(ORDERS, DELETES)], None, DELETES, "", id="one topic is not all"),
        pytest.param([(None, DELETES)], AUDIT, DELETES, "deletes and trims are paused for all topics", id="of all"),
        pytest.param([(None, DELETES)], None, DELETES, "deletes and trims are paused for all topics", id="all are all"),
        pytest.param([(ORDERS, DELETES), (None, DELETES)], ORDERS, DELETES, "for all topics", id="all come first"),
    ],
)
def test_what_stands_still_says_so(
    paused: list[tuple[Uuid | None, PauseKind]], topic_id: Uuid | None, kind: PauseKind, words: str
) -> None:
    said = why_paused(known(*(pause(*one) for one in paused)), topic_id, kind)
    assert bool(said) == bool(words)
    assert words in said


def test_a_pause_is_told_with_since_when_by_whom_and_why() -> None:
    said = why_paused(known(pause(ORDERS, COPIES, "the store is moved")), ORDERS, COPIES)
    assert said == "copying is paused for topic orders since 1970-01-01T00:00:00Z by ann: the store is moved"
    without = why_paused(known(pause(None, COPIES, "")), ORDERS, COPIES)
    assert without == "copying is paused for all topics since 1970-01-01T00:00:00Z by ann"


def test_what_is_paused_already_keeps_its_reason() -> None:
    plan = decide_pause([pause(ORDERS, COPIES, "first")], [pause(ORDERS, COPIES, "second"), pause(ORDERS, DELETES)])
    assert plan.begin == (pause(ORDERS, DELETES),)


@pytest.mark.parametrize(
    ("paused", "topic_id", "kinds", "ended", "left"),
    [
        pytest.param([], ORDERS, [COPIES, DELETES], [], [], id="nothing is paused"),
        pytest.param([(ORDERS, COPIES)], ORDERS, [COPIES, DELETES], [(ORDERS, COPIES)], [], id="what there is"),
        pytest.param(
            [(ORDERS, COPIES), (ORDERS, DELETES)], ORDERS, [COPIES], [(ORDERS, COPIES)], [], id="copies alone"
        ),
        pytest.param([(AUDIT, COPIES)], ORDERS, [COPIES], [], [], id="another topic's stays, and is not mentioned"),
        pytest.param([(None, COPIES)], ORDERS, [COPIES], [], [(None, COPIES)], id="that of all keeps the topic paused"),
        pytest.param(
            [(None, COPIES), (ORDERS, COPIES)], None, [COPIES], [(None, COPIES)], [(ORDERS, COPIES)], id="of all alone"
        ),
    ],
)
def test_a_resume_ends_just_what_it_names(
    paused: list[tuple[Uuid | None, PauseKind]],
    topic_id: Uuid | None,
    kinds: list[PauseKind],
    ended: list[tuple[Uuid | None, PauseKind]],
    left: list[tuple[Uuid | None, PauseKind]],
) -> None:
    plan = decide_resume([pause(*one) for one in paused], topic_id, kinds)
    assert plan.begin == ()
    assert plan.end == tuple(pause(*one) for one in ended)
    assert plan.left == tuple(pause(*one) for one in left)


@pytest.mark.parametrize(("topic_id", "kind"), EVERYTHING)
def test_after_a_resume_of_the_same_nothing_of_it_stands_still(topic_id: Uuid | None, kind: PauseKind) -> None:
    one = pause(topic_id, kind)
    assert why_paused(known(one), topic_id, kind)
    ended = decide_resume([one], topic_id, [kind]).end
    assert why_paused({thing: other for thing, other in known(one).items() if other not in ended}, topic_id, kind) == ""


def test_a_resume_ends_the_pause_of_a_topic_that_had_the_name_before() -> None:
    """It was deleted and made anew: by its id nobody can name it, and its remote data would never be deleted."""
    former, of_all, copies = pause(ORDERS, DELETES), pause(None, DELETES), pause(ORDERS, COPIES)
    plan = decide_resume([former, of_all, copies, pause(AUDIT, DELETES)], Uuid(b"n" * 16), [DELETES], "orders")
    assert (plan.end, plan.left) == ((former,), (of_all,))
