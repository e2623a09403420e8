"""When a topic counts as gone, and for whom (S-183, S-190, T-47)."""

from __future__ import annotations

import pytest

from tests.support.segments import remote_segment
from tiersidecar.decide.topic_deletion import (
    Absence,
    Remains,
    is_at_rest,
    is_ours_to_delete,
    observe_absences,
    observe_remains,
)
from tiersidecar.domain.ids import BrokerId, Uuid

OLD, NEW = Uuid(bytes(15) + b"\x05"), Uuid(bytes(15) + b"\x07")
SINCE_5 = {OLD: Absence(first_s=5, last_s=8)}


@pytest.mark.parametrize(
    ("known", "answers", "expected"),
    [
        pytest.param({}, {OLD: "UNKNOWN_TOPIC_ID"}, {OLD: (10, 10)}, id="denied for the first time"),
        pytest.param(SINCE_5, {OLD: "UNKNOWN_TOPIC_ID"}, {OLD: (5, 10)}, id="denied again"),
        pytest.param(SINCE_5, {OLD: None}, {}, id="it is there after all"),
        pytest.param(
            SINCE_5, {OLD: "TOPIC_AUTHORIZATION_FAILED"}, {}, id="we may not see it: no evidence, and it begins anew"
        ),
        pytest.param(SINCE_5, {OLD: "LEADER_NOT_AVAILABLE"}, {}, id="the broker is busy: likewise"),
        pytest.param(SINCE_5, {}, {}, id="nothing was answered: likewise"),
        pytest.param(
            SINCE_5,
            {OLD: "UNKNOWN_TOPIC_ID", NEW: None},
            {OLD: (5, 10)},
            id="made anew under its name, it has another id",
        ),
    ],
)
def test_evidence(
    known: dict[Uuid, Absence], answers: dict[Uuid, str | None], expected: dict[Uuid, tuple[float, float]]
) -> None:
    found = observe_absences(known, answers, 10)
    assert {topic_id: (one.first_s, one.last_s) for topic_id, one in found.items()} == expected


@pytest.mark.parametrize(
    ("lasted_s", "led_last", "ours"),
    [
        pytest.param(0, True, [], id="denied once is not enough"),
        pytest.param(59, True, [], id="not long enough"),
        pytest.param(60, True, [1, 2, 3], id="who led it last waits for the grace period"),
        pytest.param(119, False, [], id="the others wait longer"),
        pytest.param(120, False, [2], id="then one of them, by the topic's id"),
        pytest.param(180, False, [2, 3], id="then the next, if the first is gone too"),
        pytest.param(240, False, [1, 2, 3], id="then any"),
    ],
)
def test_whose_it_is(lasted_s: float, led_last: bool, ours: list[int]) -> None:
    brokers = [BrokerId(1), BrokerId(2), BrokerId(3)]
    found = [
        broker_id
        for broker_id in brokers
        if is_ours_to_delete(
            Absence(first_s=100, last_s=100 + lasted_s),
            grace_s=60,
            led_last=led_last,
            topic_id=OLD,
            broker_id=broker_id,
            live_brokers=brokers,
        )
    ]
    assert found == ours


def test_a_sidecar_that_is_not_among_the_live_brokers_takes_its_turn_all_the_same() -> None:
    absence = Absence(first_s=0, last_s=1000)
    assert is_ours_to_delete(
        absence, grace_s=60, led_last=False, topic_id=OLD, broker_id=BrokerId(9), live_brokers=[BrokerId(1)]
    )


def test_no_grace_still_needs_two_answers() -> None:
    once = Absence(first_s=1, last_s=1)
    assert not is_ours_to_delete(
        once, grace_s=0, led_last=True, topic_id=OLD, broker_id=BrokerId(1), live_brokers=[BrokerId(1)]
    )


HALF_DELETED = frozenset({remote_segment(0, 99).remote_log_segment_id})
GRACE_S = 60.0


def remains(segments: int = 3, *, seen_s: float = 20.0, rested_s: float = 0.0, half: bool = False) -> Remains:
    unfinished = HALF_DELETED if half else frozenset()
    return Remains(segments=segments, unfinished=unfinished, seen_s=seen_s, rested_s=rested_s)


@pytest.mark.parametrize(
    ("known", "seen", "rested_s"),
    [
        pytest.param(None, remains(), 0, id="seen for the first time"),
        pytest.param(remains(seen_s=5, rested_s=7), remains(seen_s=20), 22, id="as before: it rests on"),
        pytest.param(remains(4, seen_s=5, rested_s=7), remains(3, seen_s=20), 0, id="one segment less: somebody works"),
        pytest.param(remains(seen_s=5, rested_s=7), remains(half=True, seen_s=20), 0, id="another one half deleted"),
        pytest.param(remains(seen_s=5), remains(seen_s=35), 30, id="half the grace between two looks counts in full"),
        pytest.param(remains(seen_s=5), remains(seen_s=5_000), 30, id="we stood still: more than half does not count"),
    ],
)
def test_how_long_the_rest_of_a_topic_has_stayed_as_it_is(
    known: Remains | None, seen: Remains, rested_s: float
) -> None:
    found = observe_remains(known, seen, grace_s=GRACE_S)
    assert found == Remains(segments=seen.segments, unfinished=seen.unfinished, seen_s=seen.seen_s, rested_s=rested_s)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(remains(rested_s=59), False, id="not long enough"),
        pytest.param(remains(rested_s=60), True, id="for the whole grace"),
        pytest.param(remains(0), True, id="nothing is left: there is nobody to wait for"),
    ],
)
def test_at_rest(seen: Remains, expected: bool) -> None:
    assert is_at_rest(seen, grace_s=GRACE_S) is expected
