"""Whom a trim waits for (issue 6: "nor past consumer groups' committed offsets if so configured")."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.segments import TOPIC_ID_PARTITION, local_segments, remote_segment
from tiersidecar.decide.trim import GroupRead, GroupsView, TrimView, decide_hold, decide_trim, holders_of
from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.domain.policy import ShareGroupHold, TopicPolicy, TrimHolds

BILLING = TrimHolds(groups=("billing",))
ALL = TrimHolds(groups_pattern=".*")
NOBODY = TrimHolds(share_groups=ShareGroupHold.IGNORE)
STEPS = decide_trim(
    TrimView(
        policy=TopicPolicy(local_retention_ms=0),
        lineage=Lineage.of([(0, 0)]),
        segments=local_segments(0, 100, 200, 300),
        log_start_offset=Offset(0),
        remote_segments=(remote_segment(0, 99), remote_segment(100, 199), remote_segment(200, 299)),
        now_ms=1000,
    )
)


def read(group: str, offset: int | None = None, *, elsewhere: int | None = None, problem: str = "") -> GroupRead:
    """``offset`` in our partition, ``elsewhere`` in the next one of the topic."""
    here, next_one = (
        (TOPIC_ID_PARTITION.topic, TOPIC_ID_PARTITION.partition),
        (TOPIC_ID_PARTITION.topic, TOPIC_ID_PARTITION.partition + 1),
    )
    offsets = {key: Offset(value) for key, value in ((here, offset), (next_one, elsewhere)) if value is not None}
    return GroupRead(group=group, offsets=offsets, problem=problem)


def begun(group: str) -> GroupRead:
    """A share group that has been given our partition, and has acknowledged nothing."""
    return GroupRead(
        group=group, offsets={}, begun=frozenset({(TOPIC_ID_PARTITION.topic, TOPIC_ID_PARTITION.partition)})
    )


def consumers(*reads: GroupRead, problem: str = "") -> GroupsView:
    return GroupsView(consumers=reads, consumers_problem=problem)


def shares(*reads: GroupRead, problem: str = "") -> GroupsView:
    return GroupsView(shares=reads, shares_problem=problem)


@pytest.mark.parametrize(
    ("holds", "groups", "offset", "reason"),
    [
        pytest.param(TrimHolds(), GroupsView(), 300, "", id="nobody reads: all that is due goes"),
        pytest.param(
            BILLING, consumers(read("billing", 300)), 300, "", id="a group at the last boundary holds nothing"
        ),
        pytest.param(
            BILLING,
            consumers(read("billing", 200)),
            200,
            "consumer group billing has read up to 200",
            id="the committed offset is the next to be read: what is before it goes",
        ),
        pytest.param(
            BILLING,
            consumers(read("billing", 199)),
            100,
            "consumer group billing has read up to 199",
            id="a segment that is read but for its last record stays whole",
        ),
        pytest.param(
            BILLING,
            consumers(read("billing", 0)),
            0,
            "consumer group billing has read up to 0",
            id="a group at the very beginning holds everything",
        ),
        pytest.param(
            BILLING,
            consumers(read("billing", 9999)),
            300,
            "",
            id="a group past the end of what is due holds nothing",
        ),
        pytest.param(
            BILLING,
            consumers(read("billing")),
            0,
            "consumer group billing has no committed offset",
            id="a named group that is gone, or has committed nothing, holds everything",
        ),
        pytest.param(
            BILLING,
            consumers(read("billing", elsewhere=500)),
            0,
            "consumer group billing has no committed offset",
            id="a named group that has not begun this partition holds everything of it",
        ),
        pytest.param(
            BILLING,
            consumers(read("billing", problem="GROUP_AUTHORIZATION_FAILED")),
            0,
            "what consumer group billing has read is not known: GROUP_AUTHORIZATION_FAILED",
            id="a broker that refuses to tell holds everything, and says why",
        ),
        pytest.param(
            BILLING,
            consumers(read("audit", 0), read("billing", 300)),
            300,
            "",
            id="a group that is not named has no say",
        ),
        pytest.param(
            BILLING,
            consumers(read("billing", 300), problem="CLUSTER_AUTHORIZATION_FAILED"),
            300,
            "",
            id="who names groups does not need to list them",
        ),
        pytest.param(
            TrimHolds(groups=("audit", "billing")),
            consumers(read("audit", 200), read("billing", 100)),
            100,
            "consumer group billing has read up to 100; consumer group audit has read up to 200",
            id="the slowest of several groups decides, and is named first",
        ),
        pytest.param(
            ALL,
            consumers(read("audit", 100), read("billing", 200)),
            100,
            "consumer group audit has read up to 100; consumer group billing has read up to 200",
            id="a pattern of all waits for every group of the topic",
        ),
        pytest.param(
            TrimHolds(groups_pattern="bill"),
            consumers(read("billing", 0)),
            300,
            "",
            id="a pattern is for whole names",
        ),
        pytest.param(
            ALL,
            consumers(read("of-another-topic")),
            300,
            "",
            id="a matching group without offsets of this topic has no say",
        ),
        pytest.param(
            ALL,
            consumers(read("beginner", elsewhere=7)),
            0,
            "consumer group beginner has no committed offset",
            id="a matching group of the topic that has not begun this partition holds everything of it",
        ),
        pytest.param(
            ALL,
            consumers(read("secret", problem="GROUP_AUTHORIZATION_FAILED")),
            0,
            "what consumer group secret has read is not known: GROUP_AUTHORIZATION_FAILED",
            id="a matching group that cannot be asked might read this topic",
        ),
        pytest.param(
            ALL,
            consumers(problem="no right to list"),
            0,
            "consumer groups are not known: no right to list",
            id="groups that cannot be listed hold everything",
        ),
        pytest.param(
            TrimHolds(),
            shares(read("queue", 150)),
            100,
            "share group queue has read up to 150",
            id="share groups hold unasked",
        ),
        pytest.param(NOBODY, shares(read("queue", 0)), 300, "", id="unless configured to be ignored"),
        pytest.param(
            TrimHolds(),
            shares(read("queue", elsewhere=0)),
            300,
            "",
            id="a share group without a start offset here has no say",
        ),
        pytest.param(
            TrimHolds(),
            shares(begun("queue")),
            0,
            "share group queue has begun and acknowledged nothing",
            id="a share group whose members may have records that none has acknowledged holds everything",
        ),
        pytest.param(
            TrimHolds(),
            shares(problem="LIST"),
            0,
            "share groups are not known: LIST",
            id="share groups that cannot be listed hold everything",
        ),
        pytest.param(
            TrimHolds(groups_pattern="b.*"),
            consumers(read("audit", 0), read("billing", 100)),
            100,
            "consumer group billing has read up to 100",
            id="a group that does not match hides none that does",
        ),
        pytest.param(
            BILLING,
            consumers(read("billing", 300, problem="COORDINATOR_NOT_AVAILABLE")),
            0,
            "what consumer group billing has read is not known: COORDINATOR_NOT_AVAILABLE",
            id="an offset of a group that could not be asked in full is not taken for what it has read",
        ),
        pytest.param(NOBODY, shares(problem="LIST"), 300, "", id="who ignores share groups does not need to list them"),
        pytest.param(
            ALL,
            consumers(*(read(f"g{n}", n) for n in range(5))),
            0,
            "consumer group g0 has read up to 0; consumer group g1 has read up to 1; "
            "consumer group g2 has read up to 2; and 2 more",
            id="a reason names three groups and counts the rest",
        ),
    ],
)
def test_who_holds_a_trim(holds: TrimHolds, groups: GroupsView, offset: int, reason: str) -> None:
    hold = decide_hold(STEPS, holders_of(holds, TOPIC_ID_PARTITION.topic, TOPIC_ID_PARTITION.partition, groups))

    assert (hold.allowed[-1].offset if hold.allowed else 0) == offset
    assert hold.reason == reason
    assert hold.held_bytes == sum(step.local.size_bytes for step in STEPS if step.offset > offset)


def test_each_holder_has_the_bytes_that_it_alone_would_hold() -> None:
    groups = consumers(read("audit", 200), read("billing", 100))
    hold = decide_hold(STEPS, holders_of(ALL, TOPIC_ID_PARTITION.topic, TOPIC_ID_PARTITION.partition, groups))
    size = STEPS[0].local.size_bytes
    assert [(holder.group, held) for holder, held in hold.holders] == [("billing", 2 * size), ("audit", size)]


def test_the_reader_of_another_partition_is_no_reader_of_this_one() -> None:
    groups = shares(read("queue", elsewhere=0))
    assert holders_of(TrimHolds(), TOPIC_ID_PARTITION.topic, TOPIC_ID_PARTITION.partition + 1, groups)[0].offset == 0
    assert holders_of(TrimHolds(), "another", TOPIC_ID_PARTITION.partition, groups) == ()


def test_what_is_dropped_for_room_on_the_disk_waits_for_nobody() -> None:
    forced = [replace(STEPS[0], forced=True), *STEPS[1:]]
    hold = decide_hold(
        forced,
        holders_of(BILLING, TOPIC_ID_PARTITION.topic, TOPIC_ID_PARTITION.partition, consumers(read("billing", 0))),
    )
    assert [step.offset for step in hold.allowed] == [100]
    assert hold.held_bytes == sum(step.local.size_bytes for step in STEPS[1:])


def test_nobody_is_named_where_it_is_not_known_which_group_reads() -> None:
    (share,) = holders_of(TrimHolds(), TOPIC_ID_PARTITION.topic, TOPIC_ID_PARTITION.partition, shares(problem="LIST"))
    (consumer,) = holders_of(
        replace(ALL, share_groups=NOBODY.share_groups), TOPIC_ID_PARTITION.topic, 0, consumers(problem="LIST")
    )
    assert (share.group, share.offset, consumer.group, consumer.offset) == ("", None, "", None)
