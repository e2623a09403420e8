"""Who catches up with a backlog, and in which order."""

from __future__ import annotations

import pytest

from tiersidecar.decide.backfill import BackfillOrder, decide_backfill
from tiersidecar.decide.copy import CopyLag
from tiersidecar.domain.ids import TopicIdPartition, Uuid


def topic_id_partition(topic: str, partition: int = 0) -> TopicIdPartition:
    return TopicIdPartition(topic_id=Uuid(topic.encode().ljust(16, b".")), topic=topic, partition=partition)


def lag(segments: int, oldest_ms: int = 0) -> CopyLag:
    return CopyLag(segments=segments, size_bytes=segments * 100, oldest_ms=oldest_ms if segments else None)


@pytest.mark.parametrize(
    ("lags", "behind", "remaining"),
    [
        pytest.param({}, set(), 0, id="nothing is led"),
        pytest.param(
            {topic_id_partition("a"): lag(0), topic_id_partition("b"): lag(5)},
            set(),
            0,
            id="the threshold itself is no backlog",
        ),
        pytest.param(
            {topic_id_partition("a"): lag(6), topic_id_partition("b"): lag(2)},
            {topic_id_partition("a")},
            600,
            id="one more is, and counts whole",
        ),
    ],
)
def test_partitions_with_more_than_the_threshold_catch_up(
    lags: dict[TopicIdPartition, CopyLag], behind: set[TopicIdPartition], remaining: int
) -> None:
    plan = decide_backfill(lags, 5, BackfillOrder.OLDEST)
    assert set(plan.ranks) == behind
    assert plan.remaining_bytes == remaining


@pytest.mark.parametrize(
    ("order", "topics"), [(BackfillOrder.OLDEST, ["old", "mid", "new"]), (BackfillOrder.NEWEST, ["new", "mid", "old"])]
)
def test_topics_go_by_the_age_of_what_they_have_to_copy(order: BackfillOrder, topics: list[str]) -> None:
    """A topic is as old as its oldest partition, and its partitions go together."""
    lags = {
        topic_id_partition("mid", 0): lag(9, 50),
        topic_id_partition("new"): lag(9, 90),
        topic_id_partition("old"): lag(9, 10),
        topic_id_partition("mid", 1): lag(9, 95),
    }
    plan = decide_backfill(lags, 5, order)
    assert sorted({one.topic for one in lags}, key=lambda topic: plan.ranks[topic_id_partition(topic)]) == topics
    assert plan.ranks[topic_id_partition("mid", 0)] == plan.ranks[topic_id_partition("mid", 1)]


def test_topics_of_one_age_keep_an_order() -> None:
    lags = {topic_id_partition("b"): lag(9, 10), topic_id_partition("a"): lag(9, 10)}
    assert decide_backfill(lags, 5, BackfillOrder.NEWEST).ranks == {
        topic_id_partition("a"): 0,
        topic_id_partition("b"): 1,
    }
