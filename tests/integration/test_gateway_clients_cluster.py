"""Real clients through the gateways of a cluster whose leaders change under them (issue 9; S-153, KIP-392, U7)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from kio.schema.metadata.v12.request import MetadataRequest

from tests.support.gateway_cells import run_cell, twins_of
from tests.support.gateway_clients import CLIENTS
from tests.support.gateway_table import TABLE, Cell
from tests.support.kafka_admin import KafkaAdmin, PlainCredentials
from tests.support.kafka_placement import place
from tests.support.leader_changes import LeaderChanges
from tests.support.reading import Reading
from tests.support.tiered_world import MOVING, ORDERS, TieredWorld, open_tiered_world

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

CELLS = [cell for cell in TABLE if cell.brokers == "3"]
MOST_READINGS = 20
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
    """The client reads until a leader of its topic has changed while it did."""
    topic = twins_of(cell).topic
    for _ in range(MOST_READINGS):
        before = changes.count_of(topic)
        seen, of_copy = run_cell(world, cell)
        assert seen == of_copy
        assert seen
        changes.check()
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
    """KIP-392: the leader sends it to the replica in its rack for local data; what it seeks from there is filled in there."""
    start = standing.local_starts[0]
    # Some of the local log, so that the leader names the follower, and then again and again what is remote.
    hops = (start, *range(0, start, max(start // 12, 1)))
    reading = Reading(
        topic=ORDERS.topic, ends={0: standing.ends[0]}, start="hops", hops=hops, count=4, rack="rack-3", max_wait_ms=100
    )
    before = standing.metrics("tiersidecar_gateway_out_of_range_total", outcome="fill")
    seen = CLIENTS[client](standing.access(), reading)
    known = standing.visible("read_uncommitted")[0]
    assert [one[1] for one in seen] == [one for hop in hops for one in [at for at in known if at >= hop][:4]]
    after = standing.metrics("tiersidecar_gateway_out_of_range_total", outcome="fill")
    assert after[3] - before[3] >= len(hops) // 2, f"filled in by each gateway: {before} before, {after} after"


def test_a_broker_that_dies_ends_its_clients_connections_and_no_others(standing: TieredWorld) -> None:
    """A reader of what it has led goes on at the next leader, as without gateways."""
    reading = Reading(topic=ORDERS.topic, ends={0: standing.ends[0]})
    whole = CLIENTS["aiokafka"](standing.access(), reading)
    with ExitStack() as stack:
        connections = {
            node: stack.enter_context(
                KafkaAdmin(
                    port=port, credentials=PlainCredentials(username="alice", password="alice-secret")
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
