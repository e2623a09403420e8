"""Chaos on the real thing: nothing is lost, there twice, out of order or readable too long, whatever strikes (issue 10).

``make chaos MINUTES=15 SEED=7``; ``make test`` takes some twenty seconds of it, always the same draws.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from pathlib import Path

import pytest

from tests.support.chaos.faults import BROKER_FAULTS, stop_broker
from tests.support.chaos.gateway_reads import read_through_gateway
from tests.support.chaos.keep_transacting import KeepTransacting
from tests.support.chaos.lanes import FaultPlan, Lanes
from tests.support.chaos.read_check import ReadCheck
from tests.support.chaos.settled import assert_objects_fit, wait_until_settled
from tests.support.chaos.world import PARTITIONS, PLAIN, TRANSACTIONAL, World, running_world
from tests.support.keep_producing import KeepProducing
from tests.support.read_service import Shape, fetch_records, shape_of

SECONDS = 60 * float(os.environ.get("TIERSIDECAR_CHAOS_MINUTES", "1"))
SEED = int(os.environ.get("TIERSIDECAR_CHAOS_SEED", "1"))
PLAIN_BYTES_PER_S = 150_000
SHORT_S, SHORT_SEED = 22.0, 8
SHORT = FaultPlan(
    seed=SHORT_SEED,
    # A broker that is stopped serves what it knew for as long as it was: for readers to compare anything it would take longer.
    brokers=tuple(fault for fault in BROKER_FAULTS if fault is not stop_broker),
    settled_after_s=12.0,
)

pytestmark = [pytest.mark.broker, pytest.mark.server, pytest.mark.slow]


@pytest.mark.exhaustive
@pytest.mark.timeout(900 + 2 * SECONDS)
def test_chaos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As long as asked for, with everything that may strike."""
    unleash(tmp_path, capsys, FaultPlan(seed=SEED), SECONDS)


@pytest.mark.timeout(600)
def test_a_short_chaos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same, with all its checks and fewer faults."""
    unleash(tmp_path, capsys, SHORT, SHORT_S)


def unleash(directory: Path, capsys: pytest.CaptureFixture[str], plan: FaultPlan, seconds: float) -> None:
    """On three real brokers, a real S3 server and a real bad network."""
    with running_world(directory) as world:
        settings = world.cluster.client_settings
        plain = KeepProducing(
            settings, PLAIN, partitions=PARTITIONS[PLAIN], bytes_per_s=PLAIN_BYTES_PER_S, timeout_ms=180_000
        )
        transacting = KeepTransacting(
            settings, TRANSACTIONAL, partitions=PARTITIONS[TRANSACTIONAL], pause_s=0.2, seed=plan.seed
        )
        reads = ReadCheck(PLAIN, plain, list(world.gateways.values()))
        with plain, transacting:
            with Lanes(world, plan, reads=reads) as lanes:
                lanes.run(seconds, plain.raise_failure)
            assert_no_sidecar_ended(world)
            world.wait_until_in_sync()
            world.sidecars.wait_until_ready()
            plain.stop()
            transacting.stop()
        with capsys.disabled():
            report(world, plan, seconds, reads, transacting)
        segments = wait_until_settled(world)
        read = assert_everything_reads_back(world, plain, transacting)
        assert_objects_fit(world, segments)
        with capsys.disabled():
            count = sum(map(len, segments.values()))
            print(f"  read back in the end, all equal: {_counts(read)} records; {count} remote segments")


def assert_no_sidecar_ended(world: World) -> None:
    """But those that were killed, and have been started again since."""
    for node, daemon in world.sidecars.by_node.items():
        assert daemon.is_running, f"sidecar {node} ended by itself:\n{daemon.log_tail()}"
        assert daemon.events("daemon.failed") == [], f"sidecar {node}"


def assert_everything_reads_back(world: World, plain: KeepProducing, transacting: KeepTransacting) -> Counter[str]:
    """Every partition from its first offset to its end, in both isolation levels: by HTTP from the sidecar of its leader, for
    only that one's broker has all of the local rest, and by a plain Kafka client through the gateways."""
    read: Counter[str] = Counter()
    for way, isolation in itertools.product(("http", "gateway"), ("read_uncommitted", "read_committed")):
        for topic, partitions in PARTITIONS.items():
            for partition in range(partitions):
                found = _read_whole(world, way, topic, partition, isolation)
                if topic == PLAIN:
                    expected = [shape_of(record) for record in plain.acknowledged(partition)]
                    assert found == expected, f"{topic}-{partition} by {way}, {isolation}"
                else:
                    transacting.check(partition, found, read_committed=isolation == "read_committed")
                read[f"{way} {isolation}"] += len(found)
    return read


def _read_whole(world: World, way: str, topic: str, partition: int, isolation: str) -> list[Shape]:
    leader = world.leader_of(topic, partition)
    stop = leader.admin.latest_offset(topic, partition)
    if way == "http":
        url = world.sidecars[leader.node_id].read_url
        return list(fetch_records(url, topic, partition, stop=stop, isolation=isolation))
    servers = ",".join(world.gateways.values())
    return read_through_gateway(servers, topic, partition, offset=0, stop=stop, isolation=isolation, timeout_s=120)


def report(world: World, plan: FaultPlan, seconds: float, reads: ReadCheck, transacting: KeepTransacting) -> None:
    """Print the faults, and how the readers fared."""
    count = sum(world.events.values())
    print()
    print("\n".join(world.story))
    print(f"seed {plan.seed}: {count} faults in {seconds / 60:.1f} min, {60 * count / seconds:.1f} per minute")
    print(f"  faults by kind: {_counts(world.events)}")
    print(f"  reads while it lasted: {_counts(reads.outcomes)}; {reads.records} records compared")
    print(
        f"  transactions: {_counts(Counter({fate.value: number for fate, number in transacting.fates.items()}))}; ",
        end="",
    )
    print(f"{len(transacting.troubles)} producers given up")


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{number} {what}" for what, number in counter.most_common()) or "none"
