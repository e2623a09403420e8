"""Which signs in a bucket say that users had deleted a topic, and which are not enough."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiersidecar.decide.deleted_topics import DeletedTopic, DeletionView, deletion_sign
from tiersidecar.domain.ids import Uuid, format_uuid

THERE = DeletionView(trashed_ms=-1, latest_ms=1_000, cluster_ms=2_000, is_listed=True)
LACKING = replace(THERE, is_listed=False)
NO_SNAPSHOT = replace(LACKING, cluster_ms=-1)
TRASHED = replace(THERE, trashed_ms=1_500, cluster_ms=1_400)

IN_TRASH = "it is in the trash since 1970-01-01T00:00:01Z"
NOT_LISTED = "the cluster had no such topic any more at 1970-01-01T00:00:02Z, and nothing of it is later"


@pytest.mark.parametrize(
    ("view", "sign"),
    [
        pytest.param(THERE, "", id="the cluster has it, and it is not in the trash"),
        pytest.param(TRASHED, IN_TRASH, id="it came into the trash after the cluster's snapshot"),
        pytest.param(replace(TRASHED, is_listed=False), IN_TRASH, id="it is in the trash, and no longer in the cluster"),
        pytest.param(replace(TRASHED, cluster_ms=-1), IN_TRASH, id="it is in the trash, and there is no snapshot"),
        pytest.param(
            replace(TRASHED, cluster_ms=1_501), "", id="a later snapshot has it: a mount of it has left that trash"
        ),
        pytest.param(replace(TRASHED, cluster_ms=1_500), IN_TRASH, id="a snapshot of the same moment denies nothing"),
        pytest.param(
            replace(TRASHED, cluster_ms=1_501, is_listed=False), IN_TRASH, id="a later snapshot that lacks it denies nothing"
        ),
        pytest.param(LACKING, NOT_LISTED, id="a snapshot that is later than all of it lacks it"),
        pytest.param(replace(LACKING, latest_ms=1_999), NOT_LISTED, id="later by a millisecond is later"),
        pytest.param(replace(LACKING, latest_ms=2_000), "", id="something of it is as late as the snapshot: it may be new"),
        pytest.param(NO_SNAPSHOT, "", id="without a snapshot nothing says that it is gone"),
        pytest.param(replace(TRASHED, at_ms=1_500), IN_TRASH, id="it was in the trash at the time that is asked about"),
        pytest.param(
            replace(TRASHED, at_ms=1_499, cluster_ms=-1), "", id="it came into the trash only after the time asked about"
        ),
        pytest.param(replace(LACKING, at_ms=2_000), NOT_LISTED, id="it was gone at the time that is asked about"),
        pytest.param(replace(LACKING, at_ms=1_999), "", id="a snapshot that is later than the time asked about says nothing"),
        pytest.param(
            replace(TRASHED, cluster_ms=1_700, at_ms=1_600), IN_TRASH,
            id="a snapshot of after that time does not deny an earlier trash",
        ),
        pytest.param(
            replace(NO_SNAPSHOT, latest_ms=-1, cluster_ms=9_000, at_ms=10), "",
            id="nor does it say that a topic is gone of which no time is known",
        ),
        pytest.param(replace(TRASHED, at_ms=1_700), IN_TRASH, id="the trash is earlier than the time asked about"),
    ],
)  # fmt: skip
def test_what_says_that_users_deleted_it(view: DeletionView, sign: str) -> None:
    assert deletion_sign(view) == sign


def test_a_deleted_topic_is_told_with_what_is_left_of_it() -> None:
    topic_id = Uuid(b"orders-topic-id!")
    topic = DeletedTopic(name="orders", topic_id=topic_id, sign="it is in the trash", segments=1_200, size=3_000_000)
    assert topic.text() == (
        f"orders-{format_uuid(topic_id)} (1,200 segments, 3,000,000 bytes) was deleted: it is in the trash"
    )
