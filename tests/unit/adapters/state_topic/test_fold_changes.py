"""Of which partitions the state topic has said something since a look (issue 20): leases are renewed all the time, and say
nothing of any."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.metadata_events import ORDERS
from tests.unit.adapters.state_topic.test_cleaner_codec import FIRST as CLAIM
from tests.unit.adapters.state_topic.test_lease_codec import FIRST as LEASE
from tests.unit.adapters.state_topic.test_pause_codec import THINGS, pause
from tests.unit.adapters.state_topic.test_recopy_codec import REQUEST
from tests.unit.adapters.state_topic.test_trash_codec import ENTRY
from tiersidecar.adapters.state_topic.codec import partition_key, topic_key, write_state
from tiersidecar.adapters.state_topic.fold import StateFold
from tiersidecar.adapters.state_topic.record_codecs import (
    cleaner_key,
    lease_key,
    loss_key,
    pause_key,
    recopy_key,
    trash_key,
    write_cleaner_claims,
    write_lease,
    write_loss,
    write_pause,
    write_recopy,
    write_trash_entry,
)
from tiersidecar.ports.state_log import PartitionState, TopicState

OTHER = replace(ORDERS, partition=ORDERS.partition + 1)
OF_IT, OF_NONE, OF_ALL = frozenset({(ORDERS.topic_id, ORDERS.partition)}), frozenset[tuple[bytes, int]](), None
OF_TOPIC = TopicState(topic="orders", mode="strict")
RECORDS = [
    pytest.param(partition_key(ORDERS), write_state(PartitionState(), {"topic": "orders"}), OF_IT, id="its state"),
    pytest.param(trash_key(ORDERS, ENTRY.id), write_trash_entry(ORDERS, ENTRY, {}), OF_IT, id="its trash"),
    pytest.param(recopy_key(REQUEST), write_recopy(REQUEST), OF_IT, id="a request for another copy"),
    pytest.param(topic_key(ORDERS.topic_id), write_state(OF_TOPIC, {}), OF_ALL, id="a topic's settings"),
    pytest.param(pause_key(THINGS[0]), write_pause(pause(THINGS[0])), OF_ALL, id="a pause"),
    pytest.param(loss_key("1"), write_loss({"state": "s"}, by="x", now_ms=5), OF_ALL, id="an accepted loss"),
    pytest.param(lease_key(LEASE.name), write_lease(LEASE), OF_NONE, id="a lease"),
    pytest.param(cleaner_key(ORDERS), write_cleaner_claims(ORDERS, (CLAIM,), {}), OF_NONE, id="a cleaner's claim"),
    pytest.param(b"of a later version", b'{"v":1}', OF_NONE, id="what this version does not know"),
]


@pytest.mark.parametrize(("key", "value", "owners"), RECORDS)
def test_what_a_record_says_something_of(key: bytes, value: bytes, owners: frozenset[tuple[bytes, int]] | None) -> None:
    fold = StateFold()
    fold.apply(partition_key(OTHER), write_state(PartitionState(), {"topic": "orders"}), where="test")
    since = fold.changes
    fold.apply(key, value, where="test")
    assert fold.changed_since(since) == owners
    assert fold.changed_since(fold.changes) == frozenset()


@pytest.mark.parametrize(("key", "value", "owners"), RECORDS)
def test_what_is_removed_may_concern_any(key: bytes, value: bytes, owners: frozenset[tuple[bytes, int]] | None) -> None:
    """Entries of the trash go all the time, where retention deletes: of each, thousands of partitions would be looked at."""
    fold = StateFold()
    fold.apply(key, value, where="test")
    since = fold.changes
    fold.apply(key, None, where="test")
    if key.startswith((b"lease/", b"cleaner/")):
        assert fold.changed_since(since) == frozenset()
    elif key in (trash_key(ORDERS, ENTRY.id), recopy_key(REQUEST)):
        assert fold.changed_since(since) == OF_IT
    else:
        assert fold.changed_since(since) is None


def test_a_topic_that_is_read_anew_may_say_something_of_all() -> None:
    fold = StateFold("c")
    fold.apply(partition_key(ORDERS), write_state(PartitionState(), {"topic": "orders"}), where="test")
    again = fold.emptied()
    assert (again.cluster_id, again.changed_since(fold.changes)) == ("c", None)


def test_the_end_of_another_clusters_record_may_concern_any() -> None:
    fold = StateFold("ours")
    fold.apply(trash_key(ORDERS, ENTRY.id), b'{"v":1,"cluster_id":"theirs"}', where="test")
    since = fold.changes
    fold.apply(trash_key(ORDERS, ENTRY.id), None, where="test")
    assert fold.changed_since(since) is None


def test_another_clusters_record_may_concern_any() -> None:
    fold = StateFold("ours")
    fold.apply(partition_key(ORDERS), b'{"v":1,"cluster_id":"theirs"}', where="test")
    assert fold.changed_since(0) is None


def test_the_partitions_are_named_anew_only_after_a_change() -> None:
    fold = StateFold()
    assert fold.partitions() == ()
    fold.apply(partition_key(ORDERS), write_state(PartitionState(), {"topic": ORDERS.topic}), where="test")
    named = fold.partitions()
    assert named == (ORDERS,)
    fold.apply(lease_key(LEASE.name), write_lease(LEASE), where="test")
    assert fold.partitions() is named
    fold.apply(partition_key(OTHER), write_state(PartitionState(), {"topic": OTHER.topic}), where="test")
    assert set(fold.partitions()) == {ORDERS, OTHER}
    fold.apply(partition_key(ORDERS), None, where="test")
    assert fold.partitions() == (OTHER,)
