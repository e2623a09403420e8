"""Faults, each drawn from a seed and whole: it begins, lasts, and is over when the function returns."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from contextlib import suppress

from tests.support.chaos.world import CONFIGS, PARTITIONS, PASSING, SEGMENT_BYTES, World
from tests.support.kafka_admin import KafkaAdminError, wait_until
from tests.support.kafka_placement import elect_preferred_leaders, reassign
from tests.support.produce import produce_mix
from tests.support.s3_fault_proxy import Fault, FaultKind
from tests.support.s3_troubles import FOR_EVER, Trouble, draw_troubles

Strike = Callable[[World, random.Random], None]


# -- brokers: one at a time, and the next only when all replicas are in sync again


def kill_broker(world: World, draw: random.Random) -> None:
    broker = draw.choice(world.cluster.brokers)
    down_s = draw.uniform(0.0, 6.0)
    world.record("broker kill -9", f"broker {broker.node_id} for {down_s:.1f} s")
    with world.node_locks[broker.node_id], world.broker_away(broker):
        broker.kill9()
        world.pause(down_s)
        broker.start()


def restart_broker(world: World, draw: random.Random) -> None:
    broker = draw.choice(world.cluster.brokers)
    world.record("broker restart", f"broker {broker.node_id}")
    with world.node_locks[broker.node_id], world.broker_away(broker):
        broker.restart()


def stop_broker(world: World, draw: random.Random) -> None:
    """Stop a broker: up to 3 s its session lasts; after that it is deposed, and wakes up as a leader that is none."""
    broker = draw.choice(world.cluster.brokers)
    stopped_s = draw.uniform(1.0, 9.0)
    world.record("broker SIGSTOP", f"broker {broker.node_id} for {stopped_s:.1f} s")
    with world.node_locks[broker.node_id], world.broker_away(broker):
        broker.sigstop()
        world.pause(stopped_s)
        broker.sigcont()
        broker.wait_until_ready()


def fill_disk(world: World, draw: random.Random) -> None:
    """Broker and sidecar share it; the broker gives its one log dir up and ends, the sidecar must not."""
    broker = draw.choice(world.cluster.brokers)
    disk, daemon = world.disks[broker.node_id], world.sidecars[broker.node_id]
    full_s = draw.uniform(2.0, 5.0)
    where = "tmpfs" if disk.is_mount else "by a limit on file sizes, for mounting is not allowed here"
    world.record("full disk", f"node {broker.node_id} for {full_s:.1f} s ({where})")
    with world.node_locks[broker.node_id], world.broker_away(broker):
        with disk.full([broker.pid, daemon.pid]):
            world.pause(full_s)
        # What it could not write it may not say before the next write: a new start finds out what is whole.
        broker.kill9()
        broker.start()


def move_leaders(world: World, draw: random.Random) -> None:
    """Move each partition to all nodes or two of them, in any order, the first one to lead."""
    topic = draw.choice(list(PARTITIONS))
    replicas = {p: draw.sample([1, 2, 3], draw.choice([2, 3, 3])) for p in range(PARTITIONS[topic])}
    world.record("reassignment", f"{topic} {replicas}")
    reassign(world.admin, topic, replicas)
    wait_until(lambda: _placed(world, topic, replicas), f"{topic} is on {replicas}", 120)
    world.record("leader change", topic)
    # One may just have left the in-sync set: the leader goes on.
    with suppress(KafkaAdminError, OSError):
        elect_preferred_leaders(world.admin, topic, list(replicas))


def _placed(world: World, topic: str, replicas: dict[int, list[int]]) -> bool:
    try:
        rows = world.admin.describe_topic(topic).partitions
    except (OSError, KafkaAdminError):
        return False
    return all(sorted(row.isr_nodes) == sorted(replicas[row.partition_index]) for row in rows)


# -- sidecars


def kill_sidecar(world: World, draw: random.Random) -> None:
    node = draw.choice(list(world.sidecars.by_node))
    down_s = draw.uniform(0.0, 5.0)
    with world.node_locks[node]:
        world.record("sidecar kill -9", f"sidecar {node} for {down_s:.1f} s")
        world.sidecars[node].kill9()
        world.pause(down_s)
        world.sidecars[node].start()


def restart_sidecar(world: World, draw: random.Random) -> None:
    node = draw.choice(list(world.sidecars.by_node))
    with world.node_locks[node]:
        world.record("sidecar restart", f"sidecar {node}")
        code = world.sidecars[node].stop()
        # A process that has not come as far as its signal handlers ends as any other.
        assert code in (0, -signal.SIGTERM), f"sidecar {node} ended with {code}:\n{world.sidecars[node].log_tail()}"
        world.sidecars[node].start()


def stop_sidecar(world: World, draw: random.Random) -> None:
    """Stop a sidecar: it goes on with whatever it was about to do, however long others have led by then.  Its broker may die
    meanwhile."""
    node = draw.choice(list(world.sidecars.by_node))
    stopped_s = draw.uniform(1.0, 15.0)
    with world.node_locks[node]:
        world.record("sidecar SIGSTOP", f"sidecar {node} for {stopped_s:.1f} s")
        world.sidecars[node].send_signal(signal.SIGSTOP)
    world.pause(stopped_s)
    with world.node_locks[node]:
        world.sidecars[node].send_signal(signal.SIGCONT)


# -- the store


def trouble_store(world: World, draw: random.Random) -> None:
    (trouble,) = draw_troubles(draw, 1)
    _hold(world, trouble, draw.uniform(1.0, 5.0))


def lying_store(world: World, draw: random.Random) -> None:
    """Make the store lie: it says that it has taken what it has not, or gives back a byte that is not what it was given."""
    times = draw.choice([1, 3, FOR_EVER])
    fault = draw.choice(
        [
            Fault(kind=FaultKind.REFUSE, method="PUT", times=times, status=200),
            Fault(kind=FaultKind.GARBLE, method="GET", times=times),
        ]
    )
    lie = "says 200 and stores nothing" if fault.method == "PUT" else "changes a byte"
    trouble = Trouble(name=f"lying: {lie}, {times} times", requests=FOR_EVER, at_most_s=5.0, faults=lambda: [fault])
    _hold(world, trouble, draw.uniform(1.0, 5.0))


def _hold(world: World, trouble: Trouble, seconds: float) -> None:
    world.record("lying store" if trouble.name.startswith("lying") else "store trouble", trouble.name)
    with world.s3.troubled_by(trouble):
        world.pause(seconds)


# -- topics


def passing_topic(world: World, draw: random.Random) -> None:
    """Made, written to, perhaps copied, and deleted: the same names come again with other ids."""
    topic = f"{PASSING}{draw.randrange(3)}"
    try:
        admin = world.admin
        admin.create_topic(
            topic,
            partitions=1,
            replication_factor=3,
            configs={"internal.segment.bytes": str(SEGMENT_BYTES), **CONFIGS},
        )
        seed = draw.randrange(1 << 30)
        settings = world.cluster.client_settings
        asyncio.run(
            asyncio.wait_for(produce_mix(settings, topic, total_bytes=400_000, batch_bytes=8_192, seed=seed), 60)
        )
        world.pause(draw.uniform(0.0, 4.0))
    except Exception as error:  # noqa: BLE001 - a broker went away under it: what was written goes all the same
        world.story.append(f"           {topic}: {type(error).__name__}")
    deleted = wait_until(lambda: _deleted(world, topic), f"{topic} is deleted", 120)
    world.record("topic deletion", f"{topic} ({deleted})")


def _deleted(world: World, topic: str) -> str:
    """Return how it ended; empty while it has not."""
    try:
        world.admin.delete_topic(topic)
    except KafkaAdminError as error:
        return "it was never made" if "unknown_topic" in str(error) else ""
    except OSError:
        return ""
    return "done"


BROKER_FAULTS: tuple[Strike, ...] = (
    kill_broker,
    kill_broker,
    restart_broker,
    stop_broker,
    fill_disk,
    *[move_leaders] * 3,
)
SIDECAR_FAULTS: tuple[Strike, ...] = (kill_sidecar, kill_sidecar, restart_sidecar, stop_sidecar)
STORE_FAULTS: tuple[Strike, ...] = (trouble_store, trouble_store, lying_store)
TOPIC_FAULTS: tuple[Strike, ...] = (passing_topic,)
