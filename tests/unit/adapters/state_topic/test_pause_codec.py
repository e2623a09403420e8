"""Pauses as records of the state topic (issue 20)."""

from __future__ import annotations

import json

import pytest

from tests.support.metadata_events import ORDERS
from tiersidecar.adapters.state_topic.codec import Writer, stamped
from tiersidecar.adapters.state_topic.fold import StateFold
from tiersidecar.adapters.state_topic.record_codecs import pause_key, read_pause_key, write_pause
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.policy import ALL_TOPICS, Pause, PausedThing, PauseKind

THINGS = [PausedThing(kind=kind, topic_id=one) for one in (None, ORDERS.topic_id) for kind in PauseKind]


def pause(thing: PausedThing, reason: str = "a move") -> Pause:
    topic = ALL_TOPICS if thing.topic_id is None else "orders"
    return Pause(thing=thing, topic=topic, since_ms=5, by="ann, pause", reason=reason)


def folded(*records: tuple[bytes, bytes | None]) -> StateFold:
    fold = StateFold("this")
    for key, value in records:
        fold.apply(key, value, where="here")
    return fold


@pytest.mark.parametrize("thing", THINGS)
def test_a_pause_comes_back_as_it_was_written_until_it_is_taken_away(thing: PausedThing) -> None:
    record = pause_key(thing), stamped(write_pause(pause(thing)), Writer("this", 1, "x"))
    assert read_pause_key(record[0]) == thing
    assert folded(record).pauses == {thing: pause(thing)}
    assert folded(record, (pause_key(thing), None)).pauses == {}


def test_another_clusters_pause_counts_for_nothing() -> None:
    thing = THINGS[0]
    assert folded((pause_key(thing), stamped(write_pause(pause(thing)), Writer("other", 1, "x")))).pauses == {}


def test_fields_of_a_later_version_do_not_end_a_pause() -> None:
    thing = PausedThing(kind=PauseKind.DELETES, topic_id=ORDERS.topic_id)
    (found,) = folded(
        (pause_key(thing), json.dumps({"v": 2, "since_ms": "later", "by": ["a", "b"]}).encode())
    ).pauses.values()
    assert (found.thing, found.since_ms, found.reason) == (thing, 0, "")


@pytest.mark.parametrize(
    "key", [b"pause/all/reads", b"pause/nothing/copies", b"pause/copies", b"topic/all/copies", b"pause"]
)
def test_other_keys_are_no_pauses(key: bytes) -> None:
    assert read_pause_key(key) is None
    assert folded((key, b'{"v":1}')).pauses == {}


def test_keys_are_readable_and_do_not_change() -> None:
    """What is in the state topic stays readable."""
    assert pause_key(PausedThing(kind=PauseKind.COPIES)) == b"pause/all/copies"
    topic_id = Uuid(b"\0" * 15 + b"\1")
    assert pause_key(PausedThing(kind=PauseKind.DELETES, topic_id=topic_id)) == b"pause/AAAAAAAAAAAAAAAAAAAAAQ/deletes"
