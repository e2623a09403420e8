"""What is told of a topic that is gone, what of it is claimed while it is led, and how often somebody looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.expiry_world import PausingStore, World, run
from tests.support.segments import TOPIC_ID_PARTITION, remote_segment
from tests.unit.tasks.test_topic_deletion import SAID, WITNESS, Cluster, Shell
from tests.unit.tasks.test_topic_deletion import world as world
from tiersidecar.decide.topics import PartitionRole
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.errors import BrokerUnreachableError, PartitionHaltedError, StoreError, StoreStalledError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.formats.aiven.keys import CustomMetadata, write_custom_metadata
from tiersidecar.ports.state_log import PartitionState

ID = format_uuid(TOPIC_ID_PARTITION.topic_id)
DAY_MS = 86_400_000


def told_of(shell: Shell, *sweeps: int) -> list[dict[str, Any]]:
    """The events of sweeps that come so many seconds after each other."""
    with capture_logs() as told:
        for after_s in sweeps:
            shell.sweep(after_s=after_s)
    return [dict(one) for one in told if one["event"].startswith("topic.")]


def test_the_end_of_a_topic_is_told_step_by_step(world: World) -> None:
    events = told_of(Shell(world, Cluster(WITNESS)), 0, 30, 30, 60)
    assert [event["event"] for event in events] == [
        "topic.gone",
        "topic.delete.decided",
        "topic.delete.started",
        "topic.delete.finished",
    ]
    assert {event["topic_id"] for event in events} == {ID}
    assert events[0]["grace_s"] == 60
    assert [event.get("topic") for event in events[1:]] == ["orders"] * 3
    assert events[2]["partitions"] == 1


def test_a_decision_is_told_with_when_it_is_due(world: World) -> None:
    shell = Shell(world, Cluster(WITNESS), delays=TrashDelays(retention_ms=DAY_MS), broker_id=1)
    events = told_of(shell, 0, 60, 60)
    decided = [event for event in events if event["event"] == "topic.delete.decided"]
    (entry,) = world.state.trash(TOPIC_ID_PARTITION)
    assert [(one["topic"], one["topic_id"], one["due_ms"]) for one in decided] == [("orders", ID, entry.due_ms)]
    assert entry.by == "broker 1"
    assert "topic.delete.started" not in {event["event"] for event in events}


def test_one_that_observes_says_so_once_and_claims_nothing(world: World) -> None:
    world.state.of_the_first_format.add(TOPIC_ID_PARTITION)
    shell = Shell(world, Cluster(TOPIC_ID_PARTITION, WITNESS), observe_only=True)
    shell.sweep()
    assert not world.state.is_ours(TOPIC_ID_PARTITION)
    world.state.of_the_first_format.clear()
    shell = Shell(world, Cluster(WITNESS), observe_only=True)
    events = told_of(shell, 0, 60, 60, 60)
    assert [(event["event"], event.get("topic")) for event in events] == [
        ("topic.gone", None),
        ("topic.delete.observed", "orders"),
    ]
    assert shell.table.departing == set()


@pytest.mark.parametrize(
    ("role", "is_claimed"), [(PartitionRole.LEADER, True), (PartitionRole.FOLLOWER, False), (None, False)]
)
def test_what_the_first_format_wrote_is_claimed_by_its_leader(
    world: World, role: PartitionRole | None, is_claimed: bool
) -> None:
    world.state.of_the_first_format.add(TOPIC_ID_PARTITION)
    shell = Shell(world, Cluster(TOPIC_ID_PARTITION, WITNESS))
    (tiered,) = shell.table.assignment.values()
    shell.table.assignment = {} if role is None else {TOPIC_ID_PARTITION: replace(tiered, role=role)}
    shell.sweep()
    assert world.state.is_ours(TOPIC_ID_PARTITION) is is_claimed


def test_what_is_ours_already_is_not_said_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell(world, Cluster(TOPIC_ID_PARTITION, WITNESS))
    said: list[PartitionState] = []

    async def publish(topic_id_partition: object, state: PartitionState) -> None:
        said.append(state)

    monkeypatch.setattr(world.state, "publish_partition_state", publish)
    shell.sweep()
    assert said == []


def test_another_clusters_data_is_not_gone_because_its_topic_is_unknown_here(world: World) -> None:
    """Its state came with a mirrored topic."""
    world.state.of_the_first_format.add(TOPIC_ID_PARTITION)
    shell = Shell(world, Cluster(WITNESS), led=False)
    assert told_of(shell, 0, 60, 600, 600) == []
    assert len(world.segments()) == 5


def test_one_partition_of_ours_makes_the_topic_ours(world: World) -> None:
    other = replace(TOPIC_ID_PARTITION, partition=4)
    run(world.metadata.assign([TOPIC_ID_PARTITION, other]))
    world.add(remote_segment(0, 99, topic_id_partition=other))
    run(world.state.publish_partition_state(other, SAID))
    world.state.of_the_first_format.add(other)
    shell = Shell(world, Cluster(WITNESS))
    events = told_of(shell, 0, 60)
    assert [event["partitions"] for event in events if event["event"] == "topic.delete.started"] == [2]
    assert (world.store.keys, world.state.partitions()) == (set(), ())


def test_a_follower_leaves_it_to_the_one_that_led(world: World) -> None:
    """What was led, and is followed by now, is another's to begin with."""
    shell = Shell(world, Cluster(TOPIC_ID_PARTITION, WITNESS))
    shell.sweep()
    (tiered,) = shell.table.assignment.values()
    shell.table.assignment = {TOPIC_ID_PARTITION: replace(tiered, role=PartitionRole.FOLLOWER)}
    shell.sweep()
    assert shell.deletion._led == set()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            lambda shell: setattr(shell.guard, "reason_not_to_delete_remote", "switched off"), id="switched off"
        ),
        pytest.param(
            lambda shell: setattr(shell.world.state, "halted_reason", "made anew"), id="the state topic is new"
        ),
    ],
)
def test_while_nothing_may_be_deleted_nobody_even_asks_who_is_there(world: World, change: Any) -> None:
    cluster = Cluster(WITNESS)
    shell = Shell(world, cluster)
    change(shell)

    async def asked() -> None:
        raise AssertionError("nobody is to ask")

    cluster.describe_cluster = asked  # type: ignore[assignment,method-assign]
    shell.sweep()
    shell.sweep(after_s=600)
    assert len(world.segments()) == 5


def test_a_store_that_hangs_is_asked_no_more_in_this_sweep(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request would take minutes."""
    other = replace(TOPIC_ID_PARTITION, partition=4)
    run(world.metadata.assign([TOPIC_ID_PARTITION, other]))
    world.add(remote_segment(0, 99, topic_id_partition=other))
    run(world.state.publish_partition_state(other, SAID))
    asked: list[object] = []

    async def hang(store: object, keys: object) -> None:
        asked.append(keys)
        raise StoreStalledError(verb="delete", key="k", reason="no answer")

    shell = Shell(world, Cluster(WITNESS))
    shell.sweep()
    monkeypatch.setattr(PausingStore, "delete_objects", hang)
    with pytest.raises(StoreStalledError):
        shell.sweep(after_s=60)
    assert len(asked) == 1


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(StoreStalledError(verb="delete", key="@cold/k", reason="no answer"), id="hangs"),
        pytest.param(StoreError(verb="delete", key="@cold/k", reason="it rests", is_away=True), id="rests"),
    ],
)
def test_a_place_that_is_away_is_asked_once_in_a_sweep_and_ends_it_for_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, error: StoreError
) -> None:
    """S-293: neither for what else its partition has, nor for the partitions after it."""
    other = replace(TOPIC_ID_PARTITION, partition=4)
    run(world.metadata.assign([TOPIC_ID_PARTITION, other]))
    world.add(remote_segment(0, 99, topic_id_partition=other))
    run(world.state.publish_partition_state(other, SAID))
    in_cold = write_custom_metadata(CustomMetadata(place="cold"))
    for start in (500, 600):
        world.add(replace(remote_segment(start, start + 99), custom_metadata=in_cold))
    world.add(remote_segment(700, 799))
    asked: list[str] = []
    delete_objects = PausingStore.delete_objects

    async def hang(store: PausingStore, keys: Sequence[str]) -> None:
        asked.append(keys[0])
        if keys[0].startswith("@cold/"):
            raise error
        await delete_objects(store, keys)

    shell = Shell(world, Cluster(WITNESS))
    shell.sweep()
    monkeypatch.setattr(PausingStore, "delete_objects", hang)
    with pytest.raises(type(error)):
        shell.sweep(after_s=60)
    assert sum(key.startswith("@cold/") for key in asked) == 1
    assert {segment.custom_metadata for segment in world.segments()} == {in_cold}
    assert world.metadata.segment_count(other) == 0
    monkeypatch.setattr(PausingStore, "delete_objects", delete_objects)
    shell.sweep(after_s=30)
    assert world.segments() == []


def test_each_place_that_is_away_is_told_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of its segments is met first, and whatever was wrong with another place before it."""
    for start, place in ((500, "cold"), (600, "cold"), (700, "far"), (800, "far")):
        metadata = write_custom_metadata(CustomMetadata(place=place))
        world.add(replace(remote_segment(start, start + 99), custom_metadata=metadata))
    delete_objects, asked = PausingStore.delete_objects, list[str]()

    async def refuse(store: PausingStore, keys: Sequence[str]) -> None:
        asked.append(keys[0])
        if keys[0].startswith("@"):
            raise StoreError(verb="delete", key=keys[0], reason="connection refused", is_away=True)
        await delete_objects(store, keys)

    monkeypatch.setattr(PausingStore, "delete_objects", refuse)
    shell = Shell(world, Cluster(WITNESS))
    shell.sweep()
    shell.clock.true_ms += 60_000
    monkeypatch.setattr(shell.clock, "sleep", Pauses(6).sleep)
    with capture_logs() as told, pytest.raises(EndedError):
        run(shell.deletion.run(30))
    assert len({key for key in asked if key.startswith("@")}) == 4, "in turns"
    errors = [one["error"] for one in told if one["event"] == "topic.deletion.retry"]
    assert sorted(place for error in errors for place in ("@cold/", "@far/") if place in error) == ["@cold/", "@far/"]
    assert len(errors) == 2


class Pauses:
    """A clock that ends the loop after some sleeps."""

    def __init__(self, count: int) -> None:
        self.left, self.slept = count, list[float]()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == self.left:
            raise EndedError


class EndedError(Exception):
    """The test has seen enough."""


def test_it_goes_on_whatever_goes_wrong_and_tells_each_trouble_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(world, Cluster(WITNESS))
    away = BrokerUnreachableError(address="b:1", reason="it is away")
    broken = StoreError(verb="delete", key="k", reason="it is broken")
    troubles: list[Exception | None] = [away, away, away, broken, None, broken, PartitionHaltedError()]
    clock = Pauses(len(troubles))

    async def sweep() -> None:
        trouble = troubles[len(clock.slept)]
        if trouble is not None:
            raise trouble

    monkeypatch.setattr(shell.deletion, "sweep", sweep)
    monkeypatch.setattr(shell.deletion, "_clock", clock)
    with capture_logs() as told, pytest.raises(EndedError):
        run(shell.deletion.run(30))
    assert clock.slept == [30] * len(troubles)
    retries = [one["error"] for one in told if one["event"] == "topic.deletion.retry"]
    assert retries[:3] == [str(away), str(broken), str(broken)]
