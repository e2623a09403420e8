"""Real clients through the gateways of a cluster whose leaders change under them (issue 9; S-153, KIP-392, U7)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import cast

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.fetch.v12.response import FetchResponse
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from tests.support.gateway_cells import run_cell, twins_of
from tests.support.gateway_clients import CLIENTS
from tests.support.gateway_table import TABLE, Cell
from tests.support.kafka_admin import KafkaAdmin, PlainCredentials
from tests.support.kafka_placement import place
from tests.support.leader_changes import LeaderChanges
from tests.support.reading import Reading
from tests.support.tiered_world import MOVING, ORDERS, USERS, TieredWorld, open_tiered_world

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

CELLS = [cell for cell in TABLE if cell.brokers == "3"]
MOST_READINGS = 20
MOST_ROUNDS = 5
ASK = MetadataRequest(topics=(), include_topic_authorized_operations=False)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TieredWorld]:
    with open_tiered_world(tmp_path_factory.mktemp("cluster"), brokers=3) as world:
        yield world


@pytest.fixture(scope="module")
def changes(world: TieredWorld) -> Iterator[LeaderChanges]:
    with LeaderChanges(world.kafka, [(ORDERS.topic, 0), (ORDERS.topic, 1), (MOVING.topic, 0)]) as changes:
        yield changes


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_same_records_in_the_same_order_while_leaders_change(
    world: TieredWorld, changes: LeaderChanges, cell: Cell
) -> None:
    """S-001, S-080: the client reads until a leader of its topic has changed while it did."""
    topic = twins_of(cell).topic
    for _ in range(MOST_READINGS):
        before = changes.count_of(topic)
        seen, of_copy = run_cell(world, cell)
        assert seen == of_copy
        assert seen
        changes.raise_failure()
        if changes.count_of(topic) > before:
            return
    raise AssertionError(f"no leader of {topic} has changed in {MOST_READINGS} readings")


@pytest.fixture
def standing(world: TieredWorld, changes: LeaderChanges) -> TieredWorld:
    """Leaders change no more: broker 1 leads ``orders``, and each broker has trimmed it."""
    changes.stop()
    place(world.kafka.admin, ORDERS.topic, 0, [1, 2, 3])
    for broker in world.kafka.brokers:
        world.wait_until_trimmed(ORDERS.topic, 0, broker)
    return world


@pytest.mark.parametrize("client", ["confluent-kafka", "franz-go"])
def test_a_consumer_of_a_follower_reads_remote_data_there(standing: TieredWorld, client: str) -> None:
    """S-010, KIP-392: the leader sends it to the replica in its rack for local data; what it seeks then is filled in there."""
    start = standing.local_starts[0]
    remote = range(0, start, max(start // 12, 1))
    # Something local before each of them: only for that the leader names the follower, and whoever is back at the leader (it
    # was not named yet, or said to try again) is there for all that is remote until he reads something local.  How often that
    # happens is up to a busy machine, so there are some rounds.
    hops = tuple(hop for one in remote for hop in (start, one))
    reading = Reading(
        topic=ORDERS.topic, ends={0: standing.ends[0]}, start="hops", hops=hops, count=4, rack="rack-3", max_wait_ms=100
    )
    known = standing.visible("read_uncommitted")[0]
    filled: list[float] = []
    for _ in range(MOST_ROUNDS):
        before = standing.metrics("tiersidecar_gateway_out_of_range_total", outcome="fill")
        seen = CLIENTS[client](standing.access(), reading)
        after = standing.metrics("tiersidecar_gateway_out_of_range_total", outcome="fill")
        assert [one[1] for one in seen] == [one for hop in hops for one in [at for at in known if at >= hop][:4]]
        filled.append(after[3] - before[3])
        if filled[-1] >= len(remote) // 2:
            return
    pytest.fail(f"of {len(remote)} seeks the follower's gateway filled in {filled}, round by round")


@pytest.mark.parametrize("through", [False, True], ids=["direct", "through"])
def test_leader_epochs_are_the_broker_s_to_judge(standing: TieredWorld, through: bool) -> None:
    """KIP-320: a fetch in another epoch than the leader's is refused before anything is filled in, in the broker's words."""
    row = next(
        partition
        for partition in standing.kafka.admin.describe_topic(ORDERS.topic).partitions
        if partition.partition_index == 0
    )
    port = standing.ports["CLIENT"][1] if through else standing.kafka[1].ports["CLIENT"]
    alice = PlainCredentials(username="alice", password=USERS["alice"])
    found = dict[int, ErrorCode]()
    with KafkaAdmin(port=port, credentials=alice).connected() as connection:
        for epoch in (row.leader_epoch - 1, row.leader_epoch + 1, row.leader_epoch):
            answer = cast(FetchResponse, connection.call(_fetch_of_the_first(epoch)))
            found[epoch - row.leader_epoch] = answer.responses[0].partitions[0].error_code
    served = ErrorCode.none if through else ErrorCode.offset_out_of_range
    assert found == {-1: ErrorCode.fenced_leader_epoch, 1: ErrorCode.unknown_leader_epoch, 0: served}


def _fetch_of_the_first(leader_epoch: int) -> FetchRequest:
    asked = FetchPartition(
        partition=i32(0),
        current_leader_epoch=i32(leader_epoch),
        fetch_offset=i64(0),
        last_fetched_epoch=i32(-1),
        log_start_offset=i64(-1),
        partition_max_bytes=i32(10_000),
    )
    return FetchRequest(
        cluster_id=None,
        replica_id=BrokerId(-1),
        max_wait=i32Timedelta.parse(timedelta(seconds=10)),
        min_bytes=i32(1),
        max_bytes=i32(10_000),
        isolation_level=i8(0),
        session_id=i32(0),
        session_epoch=i32(-1),
        topics=(FetchTopic(topic=TopicName(ORDERS.topic), partitions=(asked,)),),
        forgotten_topics_data=(),
        rack_id="",
    )


def test_a_broker_that_dies_ends_its_clients_connections_and_no_others(standing: TieredWorld) -> None:
    """A reader of what it has led goes on at the next leader, as without gateways."""
    reading = Reading(topic=ORDERS.topic, ends={0: standing.ends[0]})
    whole = CLIENTS["aiokafka"](standing.access(), reading)
    with ExitStack() as stack:
        connections = {
            node: stack.enter_context(
                KafkaAdmin(
                    port=port, credentials=PlainCredentials(username="alice", password=USERS["alice"])
                ).connected()
            )
            for node, port in standing.ports["CLIENT"].items()
        }
        standing.kafka[1].kill9()
        with pytest.raises(ConnectionError):
            connections[1].call(ASK)
        assert CLIENTS["aiokafka"](standing.access(), reading) == whole
        for node in (2, 3):
            assert connections[node].call(ASK), f"the connection to gateway {node} has ended"
    standing.kafka[1].start()
