"""Clients of a read-only mount are not sent to the beginning of a log of which the source has nothing any more (issue 21)."""

from __future__ import annotations

import pytest

from tiersidecar.decide.mounted_topics import SourceView, source_loss, store_fault
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
