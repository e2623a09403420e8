"""Which snapshots of a cluster stay in the store (issue 21; U37)."""

from __future__ import annotations

import pytest

from tiersidecar.decide.cluster_snapshots import has_lost_topics, superseded
from tiersidecar.domain.cluster_topics import ClusterTopic
from tiersidecar.domain.ids import Uuid

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("written_ms", "kept"),
    [
        pytest.param([], [], id="of none, none"),
        pytest.param([0, 1, 2, 3], [0, 1, 2, 3], id="the first of this hour stays beside the last three"),
        pytest.param([0, 1, 2, 3, 4], [0, 2, 3, 4], id="what lies between goes"),
        pytest.param(
            [10 * DAY + minute * MINUTE for minute in range(3 * 60)],
            [10 * DAY + minute * MINUTE for minute in (0, 60, 120, 177, 178, 179)],
            id="the first of this and the former hour, and the first of the day",
        ),
        pytest.param(
            [hour * HOUR for hour in range(3 * 24)],
            [hour * HOUR for hour in (24, 48, 69, 70, 71)],
            id="the first of this and the former day",
        ),
        pytest.param(
            [0, 1, 30 * DAY, 30 * DAY + 1, 30 * DAY + 2, 30 * DAY + 3],
            [0, 30 * DAY, 30 * DAY + 1, 30 * DAY + 2, 30 * DAY + 3],
            id="days without any do not count",
        ),
    ],
)
def test_the_last_three_stay_and_the_first_of_two_hours_and_two_days(written_ms: list[int], kept: list[int]) -> None:
    gone = superseded(written_ms)
    assert [at_ms for position, at_ms in enumerate(written_ms) if position not in gone] == kept


TOPICS = {"orders": ClusterTopic(topic_id=Uuid(bytes(16)), replication_factor=1, leader_epochs=(0,))}


@pytest.mark.parametrize(
    ("last", "now", "has_lost"),
    [
        pytest.param(TOPICS, {}, True, id="it had topics and has none: perhaps it was rebuilt on empty disks"),
        pytest.param(TOPICS, TOPICS, False, id="it has them still"),
        pytest.param({}, {}, False, id="it never had any"),
        pytest.param({}, TOPICS, False, id="it has its first"),
        pytest.param(TOPICS, {"clicks": TOPICS["orders"]}, False, id="users have replaced them"),
    ],
)
def test_a_cluster_that_has_lost_all_its_topics(
    last: dict[str, ClusterTopic], now: dict[str, ClusterTopic], has_lost: bool
) -> None:
    assert has_lost_topics(last, now) is has_lost
