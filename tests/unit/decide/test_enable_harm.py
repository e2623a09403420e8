"""Who would be hurt by tiering a topic (issue 20)."""

from __future__ import annotations

import pytest

from tiersidecar.decide.enable_harm import (
    GroupKind,
    Hurt,
    Member,
    PlannedPartition,
    ReadingGroup,
    decide_harm,
    harm_text,
    kind_of,
    planned_start,
)
from tiersidecar.domain.policy import ShareGroupHold, TrimHolds

PARTITIONS = [PlannedPartition(partition=number, log_start_offset=10, keeps_from=60, end=100) for number in (0, 1)]
WAITS = TrimHolds(groups=("named",), groups_pattern="audit-.*")
IGNORES = TrimHolds(share_groups=ShareGroupHold.IGNORE)
CLIENT = Member(client_id="app-1", host="10.0.0.7")


def group(
    offsets: dict[int, int],
    kind: GroupKind = GroupKind.CONSUMER,
    name: str = "g",
    *,
    lives: bool = True,
    error: str = "",
) -> ReadingGroup:
    return ReadingGroup(name=name, kind=kind, offsets=offsets, members=(CLIENT,) if lives else (), error=error)


@pytest.mark.parametrize(
    ("reads", "holds", "hurt", "records", "words"),
    [
        pytest.param(
            group({0: 20}),
            WAITS,
            Hurt.NOW,
            40,
            "would leave the disks: through the broker they are skipped",
            id="it is behind",
        ),
        pytest.param(group({0: 20, 1: 50}), WAITS, Hurt.NOW, 50, "partition 0, 1", id="in both partitions"),
        pytest.param(group({0: 3}), WAITS, Hurt.NOW, 50, "50 offsets", id="what is gone already is not counted"),
        pytest.param(group({0: 60}), WAITS, Hurt.NOT, 0, "has read", id="it has just read what goes"),
        pytest.param(group({0: 60}, lives=False), WAITS, Hurt.LATER, 0, "no member", id="it stands still"),
        pytest.param(group({0: 100}, lives=False), WAITS, Hurt.NOT, 0, "has read", id="it has read to the end"),
        pytest.param(
            group({0: 20}, name="named"),
            WAITS,
            Hurt.NOT,
            40,
            "trims wait for it (trim.consumer.groups)",
            id="trims wait for it",
        ),
        pytest.param(group({0: 20}, name="audit-7"), WAITS, Hurt.NOT, 40, "trims wait for it", id="by its pattern"),
        pytest.param(
            group({0: 20}, GroupKind.SHARE),
            WAITS,
            Hurt.NOT,
            40,
            "wait for it (trim.share.groups)",
            id="a share group is waited for",
        ),
        pytest.param(group({0: 20}, GroupKind.SHARE), IGNORES, Hurt.NOW, 40, "archive", id="or is not"),
        pytest.param(
            group({0: 20}, GroupKind.STREAMS), WAITS, Hurt.NOW, 40, "Kafka Streams", id="a Streams application"
        ),
        pytest.param(group({}, error="NOT_COORDINATOR"), WAITS, Hurt.UNKNOWN, 0, "NOT_COORDINATOR", id="nobody tells"),
    ],
)
def test_each_group_is_told(reads: ReadingGroup, holds: TrimHolds, hurt: Hurt, records: int, words: str) -> None:
    (found,) = decide_harm([reads], PARTITIONS, is_limited=True, holds=holds)
    assert (found.hurt, found.records, words in found.says) == (hurt, records, True), found


def test_without_a_limit_nobody_is_hurt_and_those_without_offsets_are_left_out() -> None:
    found = decide_harm([group({0: 20}), group({}, name="other")], PARTITIONS, is_limited=False, holds=WAITS)
    assert [(one.group, one.hurt, one.says) for one in found] == [
        ("g", Hurt.NOT, "local retention has no limit: nothing is trimmed")
    ]


def test_of_many_partitions_the_first_few_are_named() -> None:
    partitions = [PlannedPartition(partition=n, log_start_offset=0, keeps_from=1, end=9) for n in range(7)]
    for count, names in (
        (1, "0"),
        (5, "0, 1, 2, 3, 4"),
        (6, "0, 1, 2, 3, 4 and 1 more"),
        (7, "0, 1, 2, 3, 4 and 2 more"),
    ):
        (found,) = decide_harm([group(dict.fromkeys(range(count), 0))], partitions, is_limited=True, holds=WAITS)
        assert found.says.startswith(f"{count} offsets of partition {names} that it has not read would leave")


def test_the_worst_come_first() -> None:
    reads = [group({0: 60}, name="well"), group({0: 50}, name="bad"), group({0: 20}, name="worse")]
    found = decide_harm(reads, PARTITIONS, is_limited=True, holds=WAITS)
    assert [one.group for one in found] == ["worse", "bad", "well"]


def test_members_are_named_with_their_hosts() -> None:
    (found,) = decide_harm([group({0: 20})], PARTITIONS, is_limited=True, holds=WAITS)
    assert harm_text(found).endswith("(members: app-1 at 10.0.0.7)")
    (without,) = decide_harm([group({0: 20}, lives=False)], PARTITIONS, is_limited=True, holds=WAITS)
    assert harm_text(without).endswith("through the gateway they are read")


@pytest.mark.parametrize(
    ("topics", "kind"),
    [
        pytest.param(["app-store-changelog", "orders"], GroupKind.STREAMS, id="its changelog is there"),
        pytest.param(["app-by-user-repartition"], GroupKind.STREAMS, id="its repartition topic is there"),
        pytest.param(["other-store-changelog", "app-changes"], GroupKind.CONSUMER, id="another one's"),
    ],
)
def test_streams_applications_are_known_by_their_topics(topics: list[str], kind: GroupKind) -> None:
    assert kind_of("app", topics) is kind


@pytest.mark.parametrize(
    ("by_time", "local_bytes", "limit_bytes", "start"),
    [
        pytest.param(None, 1000, -1, 10, id="no limit"),
        pytest.param(60, 1000, -1, 60, id="by time"),
        pytest.param(-1, 1000, -1, 110, id="all are older"),
        pytest.param(0, 1000, -1, 10, id="not even the first record is older"),
        pytest.param(None, 1000, 250, 85, id="by size, a quarter of the log stays"),
        pytest.param(None, 300, 100, 77, id="a whole offset, that of the record in which the limit falls"),
        pytest.param(60, 1000, 250, 85, id="whichever takes more"),
        pytest.param(None, 200, 250, 10, id="the log is smaller"),
        pytest.param(None, 1000, 0, 110, id="nothing may stay"),
        pytest.param(None, 0, 0, 10, id="an empty log has nothing that could go"),
        pytest.param(None, None, 250, 10, id="nobody tells its size"),
        pytest.param(5, 1000, -1, 10, id="never below the log start"),
    ],
)
def test_where_the_disks_would_begin(
    by_time: int | None, local_bytes: int | None, limit_bytes: int, start: int
) -> None:
    assert planned_start(10, 110, by_time, local_bytes, limit_bytes) == start
