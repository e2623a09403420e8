"""Which partitions the gateway takes for tiered: never a tiered one for an untiered one (U7)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.support.scripted import MemoryStateLog
from tiersidecar.app.builders.gateway_fill import TieredPartitionsInTable, mount_without_source
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.mounts import MOUNTED_START
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LeaderView, LocalPartition, LocalSegment
from tiersidecar.ports.log_dirs import LogDirsView
from tiersidecar.ports.state_log import TopicState
from tiersidecar.services.gateway.tiered_partitions import Asker, Mounts, NoMounts
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.policies import TopicPolicies

TIERED, PLAIN, ENABLED = Uuid(b"tiered-topic-id."), Uuid(b"plain-topic-id.."), Uuid(b"enabled-topic-id")


def looked(table: PartitionTable) -> PartitionTable:
    """A table after a look at a broker that replicates partition 0 of the tiered topic."""
    table.topic_ids = {"tiered": TIERED, "plain": PLAIN, "enabled": ENABLED}
    here = TopicIdPartition(topic_id=TIERED, topic="tiered", partition=0)
    view = LeaderView(
        topic_id_partition=here,
        leader_id=BrokerId(1),
        leader_epoch=LeaderEpoch(7),
        replicas=(BrokerId(1),),
        in_sync_replicas=(BrokerId(1),),
    )
    table.assignment = {here: TieredPartition(view=view, role=PartitionRole.LEADER, policy=TopicPolicy())}
    return table


class DirectoriesOf:
    """``LogDirs``, as far as a directory's topic goes: always ``topic_id``."""

    def __init__(self, topic_id: Uuid | None) -> None:
        self._topic_id = topic_id

    def topic_id_now(self, topic: str, partition: int) -> Uuid | None:
        return self._topic_id

    def leader_epoch_now(self, topic: str, partition: int) -> tuple[Uuid, LeaderEpoch] | None:
        return None if self._topic_id is None else (self._topic_id, LeaderEpoch(3))


def partitions(
    table: PartitionTable,
    on_disk: Uuid | None = TIERED,
    look_soon: Callable[[], None] = lambda: None,
    mounts: Mounts | None = None,
) -> TieredPartitionsInTable:
    state = MemoryStateLog()
    state.topics[ENABLED] = TopicState(topic="enabled", mode="strict")
    policies = TopicPolicies(
        table=table,
        state=state,
        defaults=lambda topic: TopicPolicy() if topic.startswith("tiered") else None,
        unnamed=TopicPolicy(),
    )
    log_dirs: Any = DirectoriesOf(on_disk)
    return TieredPartitionsInTable(table, policies, log_dirs, look_soon, mounts)


def test_a_partition_of_ours_is_found_by_name_and_by_id() -> None:
    found = partitions(looked(PartitionTable()))
    for topic in ("tiered", bytes(TIERED)):
        view = found.find(topic, 0)
        assert view is not None
        assert (view.topic_id_partition.topic_id, view.leader_epoch) == (TIERED, 7)


@pytest.mark.parametrize("on_disk", [PLAIN, None], ids=["of another topic", "not there, or nothing written down yet"])
def test_a_name_whose_directory_is_not_of_the_topic_that_is_known_is_nobody_s_for_now(on_disk: Uuid | None) -> None:
    """After a topic was made anew; what is asked for by its id is of that id."""
    made_anew = partitions(looked(PartitionTable()), on_disk)
    with pytest.raises(MetadataNotReadyError):
        made_anew.find("tiered", 0)
    assert made_anew.find(bytes(TIERED), 0) is not None


def test_a_name_of_which_the_client_was_told_another_id_is_nobody_s_for_now() -> None:
    known = partitions(looked(PartitionTable()))
    with pytest.raises(MetadataNotReadyError):
        known.find("tiered", 0, Asker(topic_ids={"tiered": PLAIN}))
    assert known.find("tiered", 0, Asker(topic_ids={"tiered": TIERED, "plain": TIERED})) is not None
    assert known.find(bytes(TIERED), 0, Asker(topic_ids={"tiered": PLAIN})) is not None


def test_what_has_become_another_since_it_was_asked_for_is_nobody_s() -> None:
    """What was known at a moment stays so: each look at the cluster makes another table."""
    table = looked(PartitionTable())
    found = partitions(table)
    asker = Asker(asked_at=found.now())
    assert found.find("tiered", 0, asker) == found.find(bytes(TIERED), 0, asker)
    ((here, known),) = table.assignment.items()
    table.assignment = {here: replace(known, view=replace(known.view, leader_epoch=LeaderEpoch(8)))}
    for topic in ("tiered", bytes(TIERED)):
        with pytest.raises(MetadataNotReadyError):
            found.find(topic, 0, asker)
    assert found.find("tiered", 0, Asker(asked_at=found.now())) is not None


def test_a_moment_lasts_until_the_next_look_at_the_cluster() -> None:
    """Two for each Fetch were made, and each partition was looked for in both."""
    table = looked(PartitionTable())
    found = partitions(table)
    before = found.now()
    assert found.now() is before
    table.assignment = dict(table.assignment)
    assert found.now() is not before
    after = found.now()
    table.topic_ids = dict(table.topic_ids)
    assert found.now() is not after


def test_what_was_not_known_when_it_was_asked_for_is_nobody_s() -> None:
    table = PartitionTable()
    found = partitions(table)
    asker = Asker(asked_at=found.now())
    looked(table)
    with pytest.raises(MetadataNotReadyError):
        found.find("tiered", 0, asker)
    assert found.find("plain", 0, asker) is None


@pytest.mark.parametrize(
    ("topic", "may_be"),
    [
        pytest.param("tiered", True, id="that is tiered"),
        pytest.param("tiered-later", True, id="that a rule would tier"),
        pytest.param("enabled", True, id="that was enabled"),
        pytest.param("plain", False, id="that nothing tiers"),
        pytest.param("tiered" * 42, False, id="of a name that is too long to be one"),
        pytest.param("unknown", False, id="that is not there"),
        pytest.param("__consumer_offsets", False, id="of Kafka's own"),
    ],
)
def test_of_a_topic_it_is_known_before_it_is_looked_for(topic: str, *, may_be: bool) -> None:
    """And without a look at the disk: the broker has not said yet what the client may know."""
    assert partitions(looked(PartitionTable()), on_disk=None).may_be_tiered(topic) is may_be
    is_no_name = topic == "__consumer_offsets" or len(topic) > 249
    assert partitions(PartitionTable()).may_be_tiered(topic) is not is_no_name, "nobody has looked yet"


@pytest.mark.parametrize("topic", ["plain", bytes(PLAIN), "__consumer_offsets"])
def test_what_is_not_tiered_is_the_broker_s(topic: str | bytes) -> None:
    assert partitions(looked(PartitionTable())).find(topic, 0) is None


def test_a_new_topic_that_no_rule_tiers_is_the_broker_s_at_once() -> None:
    assert partitions(looked(PartitionTable())).find("created-a-second-ago", 0) is None


@pytest.mark.parametrize(
    ("topic", "partition"),
    [
        pytest.param("tiered", 1, id="a partition that has just come to this broker"),
        pytest.param("tiered-too", 0, id="a topic that was just made, and that a rule tiers"),
        pytest.param("enabled", 0, id="a topic that was just enabled"),
        pytest.param(b"an-unknown-id...", 0, id="an id that nobody has told us of"),
    ],
)
def test_what_may_be_tiered_is_not_known_yet(topic: str | bytes, partition: int) -> None:
    with pytest.raises(MetadataNotReadyError):
        partitions(looked(PartitionTable())).find(topic, partition)


def test_before_the_first_look_nothing_is_known() -> None:
    with pytest.raises(MetadataNotReadyError):
        partitions(PartitionTable()).find("plain", 0)


@pytest.mark.parametrize(
    ("topic", "on_disk", "found"),
    [
        pytest.param("tiered-and-new", PLAIN, True, id="a rule tiers it"),
        pytest.param("tiered-and-new", None, False, id="its directory is not there yet"),
        pytest.param("plain-and-new", PLAIN, False, id="no rule tiers it"),
        pytest.param("__consumer_offsets", PLAIN, False, id="it is Kafka's own"),
    ],
)
def test_what_no_look_has_met_is_on_the_broker_s_disk(topic: str, on_disk: Uuid | None, found: bool) -> None:
    view = partitions(looked(PartitionTable()), on_disk).find_on_disk(topic, 2)
    assert (view is not None) is found
    if view is not None:
        assert view.topic_id_partition == TopicIdPartition(topic_id=PLAIN, topic=topic, partition=2)
        assert view.leader_epoch == 3


@pytest.mark.parametrize(
    ("topic", "partition", "looks"),
    [("tiered-and-new", 0, 1), ("tiered", 5, 1), ("tiered", 0, 0), ("plain", 0, 0), ("plain-and-new", 0, 0)],
)
def test_the_cluster_is_looked_at_soon_for_what_no_look_has_met(topic: str, partition: int, looks: int) -> None:
    asked = list[int]()
    known = partitions(looked(PartitionTable()), look_soon=lambda: asked.append(1))
    with suppress(MetadataNotReadyError):
        known.find(topic, partition)
    assert len(asked) == looks


def test_what_was_seeded_by_another_plan_is_nobody_s_though_no_rule_tiers_it() -> None:
    """Its log begins where no history ever comes: as an ordinary topic clients would be told so."""
    table = looked(PartitionTable())
    seeded = TopicIdPartition(topic_id=PLAIN, topic="plain", partition=0)

    class SeededLogs(NoMounts):
        def halted(self, partition: TopicIdPartition) -> str:
            return "another plan" if partition == seeded else ""

    found = partitions(table, mounts=SeededLogs())
    with pytest.raises(MetadataNotReadyError, match="another plan"):
        found.find("plain", 0)
    assert found.find("plain", 1) is None


def test_a_gateway_without_a_source_does_not_belong_before_a_broker_of_a_read_only_mount() -> None:
    """Its section was forgotten, say: it would let clients write where no record may be."""
    assert mount_without_source(LogDirsView(partitions={}, faults={})) == ""
    owner = TopicIdPartition(topic_id=PLAIN, topic="plain", partition=3)
    for base_offset, reason in ((Offset(5), ""), (MOUNTED_START, "plain-3 was seeded for a read-only mount")):
        segment = LocalSegment(
            directory="plain-3", base_offset=base_offset, next_base_offset=None, size_bytes=0, modified_ms=0
        )
        partition = LocalPartition(
            topic_id_partition=owner, log_dir="/data", directory="plain-3", segments=(segment,), leader_epochs=()
        )
        told = mount_without_source(LogDirsView(partitions={owner: partition}, faults={}))
        assert told.startswith(reason)
        assert bool(told) == bool(reason)
