"""The remote data of deleted topics goes, once, and nothing else does (S-183, S-190, T-46, T-47)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.expiry import segments
from tests.support.expiry_world import Sidecar, StoppedClock, World, pause, run, run_until
from tests.support.lane_parts import actor_of, edges_of, sources_of
from tests.support.segments import TOPIC_ID_PARTITION, remote_segment
from tiersidecar.decide.trash import NO_DELAYS, TrashDelays, deleted_topic
from tiersidecar.domain.errors import BrokerUnreachableError, StoreError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Lineage, Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LeaderView
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import TrashKind
from tiersidecar.formats.aiven.keys import planned_keys
from tiersidecar.ports.broker import ClusterDescription
from tiersidecar.ports.state_log import PartitionState, TopicState
from tiersidecar.tasks.topic_deletion import TopicDeletion

WITNESS = TopicIdPartition(topic_id=Uuid(b"metadata-topic-i"), topic="__remote_log_metadata", partition=0)
OTHER = replace(TOPIC_ID_PARTITION, partition=4)
ANEW = replace(TOPIC_ID_PARTITION, topic_id=Uuid(b"made-anew-16byte"))
SAID = PartitionState(remote_log_start_offset=Offset(0), remote_log_start_epoch=LeaderEpoch(0))


class Cluster:
    """Which topics exist, and how the broker takes questions."""

    def __init__(self, *existing: TopicIdPartition) -> None:
        self.existing = set(existing)
        self.hidden: set[Uuid] = set()
        self.away = False

    async def describe_partitions(self, topics: Sequence[str] | None = None) -> tuple[LeaderView, ...]:
        await pause("asked for all")
        if self.away:
            raise BrokerUnreachableError(address="b:1", reason="it is away")
        return tuple(
            _led(topic_id_partition, 1)
            for topic_id_partition in self.existing
            if topic_id_partition.topic_id not in self.hidden
        )

    async def describe_topic_ids(self, topic_ids: Iterable[Uuid]) -> dict[Uuid, str | None]:
        known = {topic_id_partition.topic_id for topic_id_partition in self.existing}
        return {
            id_: "TOPIC_AUTHORIZATION_FAILED" if id_ in self.hidden else None if id_ in known else "UNKNOWN_TOPIC_ID"
            for id_ in topic_ids
        }

    async def describe_cluster(self) -> ClusterDescription:
        return ClusterDescription(cluster_id="c", brokers={BrokerId(1): "b:1", BrokerId(2): "b:2"})


class Guard:
    reason_not_to_delete = reason_not_to_delete_remote = ""

    def __init__(self) -> None:
        self.paused: dict[Uuid, str] = {}

    def reason_not_to_delete_of(self, topic_id: Uuid) -> str:
        return self.reason_not_to_delete or self.paused.get(topic_id, "")

    def reason_not_to_delete_remote_of(self, topic_id: Uuid) -> str:
        return self.reason_not_to_delete_remote or self.paused.get(topic_id, "")


class Shell:
    """One sidecar; each sweep is ``after_s`` later than the one before."""

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        *,
        broker_id: int = 1,
        led: bool = True,
        observe_only: bool = False,
        delays: TrashDelays = NO_DELAYS,
    ) -> None:
        self.world, self.clock, self.guard = world, StoppedClock(), Guard()
        lineage = Lineage.of([(0, 0)])
        sidecar = Sidecar(world, policy=TopicPolicy(), lineage=lineage, clock=self.clock, broker_id=broker_id)
        self.table = sidecar.table
        if not led:
            self.table.assignment = {}
        self.deletion = TopicDeletion(
            sources=sources_of(table=sidecar.table, broker=cluster, metadata=world.metadata, state=world.state),
            edges=edges_of(self.clock, failpoints=_Places()),
            actor=actor_of(self.guard, broker_id=BrokerId(broker_id), observe_only=observe_only),
            remover=sidecar.remover,
            witness=WITNESS.topic,
            grace_s=60.0,
            delays=delays,
        )

    def sweep(self, *, after_s: int = 0) -> list[str]:
        self.clock.true_ms += after_s * 1000
        return run(self.deletion.sweep())

    def topic_goes(self) -> None:
        """The watch sees that it is in no assignment any more."""
        self.sweep()
        self.table.assignment = {}


class _Places:
    async def reach(self, name: str) -> None:
        await pause(name)


def _led(topic_id_partition: TopicIdPartition, broker_id: int) -> LeaderView:
    one = BrokerId(broker_id)
    return LeaderView(
        topic_id_partition=topic_id_partition,
        leader_id=one,
        leader_epoch=LeaderEpoch(0),
        replicas=(one,),
        in_sync_replicas=(one,),
    )


@pytest.fixture
def world() -> World:
    """Three finished segments, one half copied, one half deleted, of a topic in the state topic."""
    made = World()
    for segment in segments(3):
        made.add(segment)
    made.add(remote_segment(300, 399, state=State.COPY_SEGMENT_STARTED))
    made.add(remote_segment(400, 499, state=State.DELETE_SEGMENT_STARTED))
    run(made.state.publish_partition_state(TOPIC_ID_PARTITION, SAID))
    run(
        made.state.publish_topic_state(
            TOPIC_ID_PARTITION.topic_id, TopicState(topic=TOPIC_ID_PARTITION.topic, mode="strict")
        )
    )
    return made


def test_who_led_it_last_deletes_it_once_it_was_denied_twice(world: World) -> None:
    """T-46: every segment once, in three steps; then the state of partition and topic."""
    cluster = Cluster(TOPIC_ID_PARTITION, WITNESS)
    shell = Shell(world, cluster)
    shell.topic_goes()
    cluster.existing.remove(TOPIC_ID_PARTITION)
    shell.sweep()
    shell.sweep(after_s=59)
    assert len(world.segments()) == 5
    passed = shell.sweep(after_s=1)
    assert passed.count("delete.objects.deleted") == 5
    assert (world.segments(), world.store.keys) == ([], set())
    assert (world.state.partitions(), world.state.topic_state(TOPIC_ID_PARTITION.topic_id)) == ((), None)
    assert shell.table.departing == set()
    assert shell.sweep(after_s=60) == ["asked for all"]


@pytest.mark.parametrize("place", ["delete.begun", "metadata.read_back", "store.delete", "delete.finished.published"])
@pytest.mark.parametrize("nth", [1, 3])
def test_when_that_sidecar_ends_on_the_way_another_finishes(world: World, place: str, nth: int) -> None:
    """T-47, S-075."""
    cluster = Cluster(WITNESS)
    first, second = Shell(world, cluster), Shell(world, cluster, broker_id=2, led=False)
    for shell in (first, second):
        shell.sweep()
    first.clock.true_ms += 60_000
    run_until(first.deletion.sweep(), place, nth)
    second.sweep(after_s=100)
    second.sweep(after_s=200)
    second.sweep(after_s=30)
    second.sweep(after_s=29)
    assert world.segments() != []
    second.sweep(after_s=1)
    assert (world.segments(), world.store.keys, world.state.partitions()) == ([], set(), ())


def test_while_one_is_at_it_another_waits_however_long_it_takes(world: World) -> None:
    """Driven once (T-47): else a slow deletion would be done by two as soon as it is the other's turn."""
    cluster = Cluster(WITNESS)
    first, second = Shell(world, cluster), Shell(world, cluster, broker_id=2, led=False)
    for shell in (first, second):
        shell.sweep()
    first.clock.true_ms += 60_000
    second.clock.true_ms += 400_000
    steps = first.deletion.sweep()
    for _ in range(5):
        while steps.send(None) != "delete.finished.published":
            pass
        second.sweep(after_s=29)
        second.sweep(after_s=30)
        assert "store.delete" not in second.sweep()
    run(steps)
    assert (world.segments(), world.store.keys, world.state.partitions()) == ([], set(), ())


def test_its_turn_is_over_when_nothing_happens_for_as_long_as_the_grace(world: World) -> None:
    cluster = Cluster(WITNESS)
    first, second = Shell(world, cluster), Shell(world, cluster, broker_id=2, led=False)
    for shell in (first, second):
        shell.sweep()
    first.clock.true_ms += 400_000
    second.clock.true_ms += 400_000
    second.sweep()
    run_until(first.deletion.sweep(), "delete.finished.published", 2)
    second.sweep(after_s=30)
    second.sweep(after_s=30)
    second.sweep(after_s=29)
    assert len(world.segments()) == 3
    second.sweep(after_s=1)
    assert world.segments() == []


def test_one_that_stood_still_itself_does_not_take_that_for_rest(world: World) -> None:
    """All were paused for an hour (a machine that was suspended): who was at it goes on, and does it alone."""
    cluster = Cluster(WITNESS)
    first, second = Shell(world, cluster), Shell(world, cluster, broker_id=2, led=False)
    for shell in (first, second):
        shell.sweep()
    first.clock.true_ms += 60_000
    second.clock.true_ms += 400_000
    steps = first.deletion.sweep()
    while steps.send(None) != "delete.finished.published":
        pass
    second.sweep()
    assert "store.delete" not in second.sweep(after_s=3600)
    run(steps)
    assert (world.segments(), world.store.keys, world.state.partitions()) == ([], set(), ())


def test_made_anew_under_the_same_name_the_new_topic_keeps_all(world: World) -> None:
    new = World(ANEW)
    run(world.metadata.assign([TOPIC_ID_PARTITION, ANEW]))
    world.store.keys |= {"orders-new/3/x.log"}
    run(world.state.publish_partition_state(ANEW, SAID))
    shell = Shell(world, Cluster(ANEW, WITNESS))
    shell.sweep()
    shell.sweep(after_s=60)
    assert world.store.keys == {"orders-new/3/x.log"}
    assert world.state.partitions() == (ANEW,)
    assert new.segments() == []


@pytest.mark.parametrize(
    "trouble", ["no topic is listed", "the topic is hidden", "the broker is away", "it comes back"]
)
def test_what_is_no_evidence(world: World, trouble: str) -> None:
    """A broker that cannot be asked, or lists no topics, never says that one is deleted."""
    cluster = Cluster(TOPIC_ID_PARTITION, WITNESS)
    shell = Shell(world, cluster)
    shell.topic_goes()
    match trouble:
        case "no topic is listed":
            cluster.existing.clear()
        case "the topic is hidden":
            cluster.hidden.add(TOPIC_ID_PARTITION.topic_id)
        case "the broker is away":
            cluster.away = True
        case _:
            cluster.existing.remove(TOPIC_ID_PARTITION)
            shell.sweep()
            cluster.existing.add(TOPIC_ID_PARTITION)
    for _ in range(5):
        if cluster.away:
            with pytest.raises(BrokerUnreachableError):
                shell.sweep(after_s=60)
        else:
            shell.sweep(after_s=60)
    assert len(world.segments()) == 5


def test_the_time_that_a_broker_was_away_proves_nothing(world: World) -> None:
    cluster = Cluster(WITNESS)
    shell = Shell(world, cluster)
    shell.sweep()
    cluster.existing.clear()
    shell.sweep(after_s=60)
    cluster.existing.add(WITNESS)
    shell.sweep(after_s=60)
    assert len(world.segments()) == 5


def test_a_topic_that_is_paused_keeps_what_is_remote_once_it_is_gone(world: World) -> None:
    shell = Shell(world, Cluster(WITNESS))
    shell.guard.paused = {TOPIC_ID_PARTITION.topic_id: "paused"}
    shell.sweep()
    shell.sweep(after_s=60)
    assert len(world.segments()) == 5
    shell.guard.paused = {}
    shell.sweep(after_s=60)
    assert world.segments() == []


def test_switched_off_nothing_is_deleted_and_on_again_the_rest_is(world: World) -> None:
    cluster = Cluster(WITNESS)
    shell = Shell(world, cluster)
    shell.sweep()
    shell.clock.true_ms += 60_000
    steps = shell.deletion.sweep()
    while steps.send(None) != "delete.finished.published":
        pass
    shell.guard.reason_not_to_delete_remote = "deletes.enabled is false"
    run(steps)
    assert len(world.segments()) == 4
    shell.sweep(after_s=60)
    assert len(world.segments()) == 4
    shell.guard.reason_not_to_delete_remote = ""
    shell.sweep(after_s=60)
    assert world.segments() == []


def test_a_store_that_is_away_is_tried_again(world: World) -> None:
    shell = Shell(world, Cluster(WITNESS))
    shell.sweep()
    world.store.broken = True
    with pytest.raises(StoreError):
        shell.sweep(after_s=60)
    world.store.broken = False
    shell.sweep(after_s=60)
    assert world.segments() == []


def test_metadata_that_are_still_replayed_are_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell(world, Cluster(WITNESS))
    shell.sweep()
    monkeypatch.setattr(world.metadata, "is_ready", lambda topic_id_partition: False)
    shell.sweep(after_s=60)
    assert shell.table.departing == {TOPIC_ID_PARTITION}
    assert len(world.segments()) == 5
    monkeypatch.undo()
    shell.sweep(after_s=60)
    assert world.segments() == []


def test_a_topic_that_is_there_after_all_departs_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(WITNESS)
    shell = Shell(world, cluster)
    shell.sweep()
    monkeypatch.setattr(world.metadata, "is_ready", lambda topic_id_partition: False)
    shell.sweep(after_s=60)
    cluster.existing.add(TOPIC_ID_PARTITION)
    shell.sweep(after_s=60)
    assert shell.table.departing == set()


def test_observe_only_says_it_once(world: World) -> None:
    shell = Shell(world, Cluster(WITNESS), observe_only=True)
    for _ in range(4):
        shell.sweep(after_s=60)
    assert len(world.segments()) == 5


def test_all_partitions_of_a_topic_go(world: World) -> None:
    run(world.metadata.assign([TOPIC_ID_PARTITION, OTHER]))
    world.add(remote_segment(0, 99, topic_id_partition=OTHER))
    run(world.state.publish_partition_state(OTHER, SAID))
    shell = Shell(world, Cluster(WITNESS))
    shell.sweep()
    shell.sweep(after_s=60)
    assert (world.store.keys, world.state.partitions()) == (set(), ())


def test_an_object_that_the_store_keeps_does_not_keep_the_other_partitions_and_topics(world: World) -> None:
    """A legal hold: what it is on stays, and is tried again; everything else of what is gone goes."""
    run(world.metadata.assign([TOPIC_ID_PARTITION, OTHER, ANEW]))
    for topic_id_partition in (OTHER, ANEW):
        world.add(remote_segment(0, 99, topic_id_partition=topic_id_partition))
        run(world.state.publish_partition_state(topic_id_partition, SAID))
    held = world.segments()[0]
    world.store.held = set(planned_keys(held).in_upload_order)
    shell = Shell(world, Cluster(WITNESS))
    shell.sweep()
    for _ in range(8):  # nobody knows who led the other topic: it takes longer
        with pytest.raises(StoreError):
            shell.sweep(after_s=60)
    assert (world.state.partitions(), world.store.keys) == ((TOPIC_ID_PARTITION,), world.store.held)
    assert [segment.remote_log_segment_id for segment in world.segments()] == [held.remote_log_segment_id]
    world.store.held = set()
    shell.sweep(after_s=60)
    assert (world.segments(), world.store.keys, world.state.partitions()) == ([], set(), ())


DAY_S = 86_400
WITH_DELAY: dict[str, Any] = {"delays": TrashDelays(retention_ms=DAY_S * 1000)}


def gone(world: World, **fields: Any) -> Shell:
    """A sidecar that has seen its topic go, and the grace pass."""
    cluster = Cluster(TOPIC_ID_PARTITION, WITNESS)
    shell = Shell(world, cluster, **WITH_DELAY, **fields)
    shell.topic_goes()
    cluster.existing.remove(TOPIC_ID_PARTITION)
    shell.sweep()
    shell.sweep(after_s=60)
    return shell


def test_a_deleted_topic_is_kept_for_the_delay_and_gone_after_it(world: World) -> None:
    """Issue 16, trash: a deleted topic's data is kept and listed likewise."""
    shell = gone(world)
    (entry,) = world.state.trash(TOPIC_ID_PARTITION)
    assert (entry.kind, entry.due_ms - entry.decided_ms) == (TrashKind.TOPIC, DAY_S * 1000)
    assert "delete.begun" not in shell.sweep(after_s=DAY_S - 60)
    assert len(world.segments()) == 5
    shell.sweep(after_s=60)
    assert (world.segments(), world.store.keys) == ([], set())
    assert (world.state.partitions(), list(world.state.trash_partitions())) == ((), [])


def test_without_a_delay_its_trash_says_so_before_the_first_segment_goes(world: World) -> None:
    """Issue 21: a read-only mount would take it for retention, and its consumers would begin anew."""
    run(world.metadata.assign([TOPIC_ID_PARTITION, OTHER]))
    run(world.state.publish_partition_state(OTHER, SAID))
    shell = Shell(world, Cluster(WITNESS))
    shell.sweep()
    shell.clock.true_ms += 60_000
    run_until(shell.deletion.sweep(), "delete.begun")
    for partition in (TOPIC_ID_PARTITION, OTHER):
        (entry,) = world.state.trash(partition)
        assert (entry.kind, entry.due_ms - entry.decided_ms) == (TrashKind.TOPIC, 0)
    assert len(world.segments()) == 5
    shell.sweep(after_s=60)
    assert (world.segments(), world.store.keys) == ([], set())
    assert (world.state.partitions(), list(world.state.trash_partitions())) == ((), [])


def test_of_a_topic_without_a_state_the_trash_is_cleared_up_as_well() -> None:
    """The process that deleted it ended between the two."""
    world = World()
    topic_state = TopicState(topic=TOPIC_ID_PARTITION.topic, mode="strict")
    run(world.state.publish_topic_state(TOPIC_ID_PARTITION.topic_id, topic_state))
    run(world.state.put_into_trash(TOPIC_ID_PARTITION, [deleted_topic(delays=NO_DELAYS, now_ms=1, by="broker 2")]))
    shell = Shell(world, Cluster(WITNESS))
    for _ in range(9):  # nobody knows who led it
        shell.sweep(after_s=60)
    assert list(world.state.trash_partitions()) == []
    assert world.state.topic_state(TOPIC_ID_PARTITION.topic_id) is None
    assert shell.table.departing == set()


def test_another_sidecar_goes_by_what_is_decided_already(world: World) -> None:
    gone(world)
    (entry,) = world.state.trash(TOPIC_ID_PARTITION)
    other = Shell(world, Cluster(WITNESS), broker_id=2, led=False, **WITH_DELAY)
    other.clock.true_ms += DAY_S * 1000 - 300_000
    for _ in range(10):
        other.sweep(after_s=60)
    assert world.state.trash(TOPIC_ID_PARTITION) in ([entry], [])
    for _ in range(10):
        other.sweep(after_s=60)
    assert world.segments() == []


def test_nothing_is_due_by_a_clock_that_jumped(world: World) -> None:
    shell = gone(world)
    shell.clock.skew_ms = 2 * DAY_S * 1000
    assert "delete.begun" not in shell.sweep(after_s=60)
    (entry,) = world.state.trash(TOPIC_ID_PARTITION)
    run(world.state.put_into_trash(TOPIC_ID_PARTITION, [replace(entry, purged_ms=entry.decided_ms)]))
    assert "delete.begun" in shell.sweep(after_s=60), "what is purged waits for no clock"


def test_a_topic_that_goes_while_the_clock_is_back_waits_its_delay_by_the_right_clock(world: World) -> None:
    cluster = Cluster(TOPIC_ID_PARTITION, WITNESS)
    shell = Shell(world, cluster, **WITH_DELAY)
    shell.topic_goes()
    cluster.existing.remove(TOPIC_ID_PARTITION)
    shell.clock.skew_ms = -2 * DAY_S * 1000
    shell.sweep()
    shell.sweep(after_s=60)
    assert [one.decided_ms for one in world.state.trash(TOPIC_ID_PARTITION)] == [shell.clock.true_ms]
    shell.clock.skew_ms = 0
    shell.sweep(after_s=60)
    assert world.segments()


def test_ended_between_decision_and_deletion_it_is_taken_up_where_it_was(world: World) -> None:
    cluster = Cluster(TOPIC_ID_PARTITION, WITNESS)
    shell = Shell(world, cluster, **WITH_DELAY)
    shell.topic_goes()
    cluster.existing.remove(TOPIC_ID_PARTITION)
    shell.sweep()
    shell.clock.true_ms += 60_000
    run_until(shell.deletion.sweep(), "topic.trash.published")
    (entry,) = world.state.trash(TOPIC_ID_PARTITION)
    shell.sweep(after_s=60)
    assert list(world.state.trash(TOPIC_ID_PARTITION)) == [entry]
    shell.sweep(after_s=DAY_S)
    assert world.segments() == []
