"""Clients of a read-only mount are not sent to the beginning of a log of which the source has nothing any more (issue 21)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiersidecar.decide.mounted_topics import Copied, HistoryView, SourceView, history_loss, source_loss, store_fault
from tiersidecar.domain.ids import TopicIdPartition, Uuid

PARTITION = TopicIdPartition(topic_id=Uuid(b"orders-topic-id!"), topic="orders", partition=3)


@pytest.mark.parametrize(
    ("view", "is_lost"),
    [
        pytest.param(SourceView(is_in_trash=False, segments=7, has_events=True, has_state=True), False, id="as ever"),
        pytest.param(
            SourceView(is_in_trash=False, segments=0, has_events=False, has_state=False),
            False,
            id="nothing was ever copied, nor decided: it may be written to later",
        ),
        pytest.param(
            SourceView(is_in_trash=False, segments=0, has_events=True, has_state=True),
            False,
            id="all has expired: its state says where the log begins",
        ),
        pytest.param(
            SourceView(is_in_trash=False, segments=7, has_events=True, has_state=False),
            False,
            id="without a state, as native tiering leaves it",
        ),
        pytest.param(
            SourceView(is_in_trash=True, segments=7, has_events=True, has_state=True),
            True,
            id="the topic was deleted, and is in the trash",
        ),
        pytest.param(
            SourceView(is_in_trash=False, segments=0, has_events=True, has_state=False),
            True,
            id="it was deleted, and its state and its segments have gone",
        ),
    ],
)
def test_a_partition_is_lost_once_its_topic_is_deleted_at_the_source(view: SourceView, is_lost: bool) -> None:
    reason = source_loss(PARTITION, view)
    assert bool(reason) == is_lost
    assert not is_lost or "orders-3 is mounted read-only, and its topic was deleted at the source" in reason


HISTORY = HistoryView(
    has_events=False,
    highest_offset=None,
    log_start=-1,
    held_offset=-1,
    was_seen=False,
    copied=None,
    is_recovered=False,
)
TO_99 = Copied(sign="the store says so", leader_epoch=3, offset=99)
SOMETHING = Copied(sign="the store says so")


@pytest.mark.parametrize(
    ("view", "lacking"),
    [
        pytest.param(HISTORY, "", id="nothing says that anything was copied"),
        pytest.param(replace(HISTORY, copied=TO_99), "no event", id="the store has it, and the topics nothing"),
        pytest.param(replace(HISTORY, copied=SOMETHING), "no event", id="the store has something of it"),
        pytest.param(
            replace(HISTORY, copied=TO_99, is_recovered=True),
            "no event",
            id="a recover has ended, and it was not among its topics",
        ),
        pytest.param(replace(HISTORY, copied=TO_99, log_start=99), "no event", id="its last offset has not expired"),
        pytest.param(replace(HISTORY, copied=TO_99, log_start=100), "", id="all has expired"),
        pytest.param(
            replace(HISTORY, copied=replace(TO_99, offset=0), log_start=1), "", id="the only record that was copied has"
        ),
        pytest.param(
            replace(HISTORY, copied=SOMETHING, log_start=100),
            "no event",
            id="what was copied, and how far, is not known",
        ),
        pytest.param(
            replace(HISTORY, copied=TO_99, has_events=True, highest_offset=98),
            "not all events",
            id="the end is missing",
        ),
        pytest.param(
            replace(HISTORY, copied=TO_99, has_events=True), "not all events", id="nothing of its last epoch is there"
        ),
        pytest.param(
            replace(HISTORY, copied=replace(TO_99, offset=0), has_events=True),
            "not all events",
            id="the only record that was copied is missing",
        ),
        pytest.param(replace(HISTORY, copied=TO_99, has_events=True, highest_offset=99), "", id="all is there"),
        pytest.param(
            replace(HISTORY, copied=TO_99, has_events=True, highest_offset=98, is_recovered=True),
            "",
            id="a recover has ended, and left the end",
        ),
        pytest.param(
            replace(HISTORY, copied=SOMETHING, has_events=True),
            "",
            id="the store does not say how much, and there are events",
        ),
        pytest.param(
            replace(HISTORY, was_seen=True, held_offset=7, log_start=6), "no event", id="trims gave up what was remote"
        ),
        pytest.param(replace(HISTORY, was_seen=True, held_offset=1), "no event", id="trims gave up a single record"),
        pytest.param(replace(HISTORY, was_seen=True, held_offset=0), "", id="trims gave up nothing"),
        pytest.param(replace(HISTORY, was_seen=True, held_offset=7, log_start=7), "", id="which has expired since"),
        pytest.param(replace(HISTORY, held_offset=7), "", id="a former release did not say that it saw them"),
        pytest.param(
            replace(HISTORY, was_seen=True, held_offset=7, has_events=True),
            "",
            id="there are events of what was trimmed",
        ),
    ],
)
def test_an_empty_source_is_not_believed_where_something_shows_what_was_copied(view: HistoryView, lacking: str) -> None:
    reason = history_loss(PARTITION, view)
    assert bool(reason) == bool(lacking)
    assert not lacking or f"its source's topics have {lacking} of it, though " in reason
    assert not view.was_seen or not lacking or f"it was remote up to offset {view.held_offset}: " in reason
    assert view.copied is None or not lacking or f"though {view.copied.sign}: " in reason


@pytest.mark.parametrize(
    ("owners", "said"),
    [
        pytest.param(("source",), "", id="the source's"),
        pytest.param(("later", "source"), "", id="a cluster has taken it over from the source"),
        pytest.param(("other",), "says that its data are of cluster other", id="another cluster's"),
        pytest.param((), "is not there", id="of nobody: another bucket, or another prefix"),
    ],
)
def test_a_store_that_does_not_name_the_source_is_another_one(owners: tuple[str, ...], said: str) -> None:
    fault = store_fault("orders", "prod/.tiersidecar/owners/x.json", "source", owners)
    assert bool(fault) == bool(said)
    assert said in fault
