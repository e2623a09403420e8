"""A real broker with native tiering does what was foretold, and takes a topic over and gives it back (issue 21; U40).

One broker lives through all of it: the sidecar beside it, native tiering that sees nothing, native tiering that sees, and
back.  Kafka's own LocalTieredStorage stands for the plugin, as in ``test_native_reads.py``.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from typer.testing import CliRunner, Result

from tests.integration.test_daemon import STRICT, active_base, finished, produce, started, wait_until_trimmed
from tests.integration.test_native_beside import native_segments
from tests.integration.test_native_reads import TOPIC, consumed, lay_out, shapes
from tests.support.daemon import Daemon
from tests.support.gateway import GatewayDaemon
from tests.support.handover_properties import write_handover_properties
from tests.support.kafka_admin import wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.local_tiered_storage import METADATA_PARTITIONS, local_tiered_storage
from tests.support.produce import ProducedRecord
from tests.support.read_service import fetch_records, shape_of
from tests.support.remote_events import fold, object_keys_in, read_events
from tests.unit.decide.test_native_tiering import NOW_MS, SITUATIONS, Situation
from tiersidecar.app.cli import app
from tiersidecar.decide.native_settings import BLIND_SETTINGS, RLMM_PREFIX
from tiersidecar.decide.native_tiering import foretell
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.native_segments import NativeSegments
from tiersidecar.domain.offsets import Lineage
from tiersidecar.domain.segments import (
    MetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.kafka.log_dir_files import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    PARTITION_METADATA,
    read_offset_checkpoint,
    read_partition_metadata,
    write_leader_epochs,
    write_offset_checkpoint,
)
from tiersidecar.formats.metadata.partitioner import metadata_partition
from tiersidecar.formats.metadata.serde import write_event

pytestmark = pytest.mark.broker

SENTINEL = "sentinel"
SEGMENT_BYTES = 32 * 1024
METADATA_TOPIC = "__remote_log_metadata"
DAY_MS, KIB = 86_400_000, 1024
BLIND = {RLMM_PREFIX + name: value for name, value in BLIND_SETTINGS.items()}
NATIVE_EPOCH = 2
"""The leader epoch in which the broker leads once it sees: each end and each start of it was one."""
SUFFIXES = ("log", "index", "timeindex", "snapshot", "leader_epoch_checkpoint")


@dataclass(kw_only=True)
class Prepared:
    """A situation as a topic of the real broker; times are in days, sizes in KiB."""

    topic: str
    row: Situation
    owner: TopicIdPartition
    now_ms: int
    events: list[MetadataEvent] = field(default_factory=list)

    @classmethod
    def of(cls, topic: str, row: Situation, topic_id: Uuid, now_ms: int) -> Prepared:
        owner = TopicIdPartition(topic_id=topic_id, topic=topic, partition=0)
        made = cls(topic=topic, row=row, owner=owner, now_ms=now_ms)
        made.events = [made._own(event) for some in row.events for event in some]
        return made

    def _own(self, event: MetadataEvent) -> MetadataEvent:
        assert not isinstance(event, RemotePartitionDeleteMetadata)
        owned = RemoteLogSegmentId(topic_id_partition=self.owner, uuid=event.remote_log_segment_id.uuid)
        if isinstance(event, RemoteLogSegmentMetadataUpdate):
            return replace(event, remote_log_segment_id=owned)
        return replace(
            event,
            remote_log_segment_id=owned,
            max_timestamp_ms=self.now_ms - (NOW_MS - event.max_timestamp_ms) * DAY_MS,
            segment_size_in_bytes=event.segment_size_in_bytes * KIB,
        )

    def foretold(self) -> tuple[set[str], int]:
        """Segments that go, and the log start."""
        known = self.row.log.leader_epochs.entries
        log = replace(self.row.log, leader_epochs=Lineage.of([*known, (NATIVE_EPOCH, self.row.log.log_end_offset)]))
        retention = replace(
            self.row.retention,
            retention_ms=int(settings_of(self.row)["retention.ms"]),
            retention_bytes=int(settings_of(self.row)["retention.bytes"]),
        )
        found = foretell(NativeSegments(self.events), log, retention, self.now_ms)
        return {format_uuid(one.segment.remote_log_segment_id.uuid) for one in found.deletions}, found.log_start_offset


def settings_of(row: Situation) -> dict[str, str]:
    """Of the row's topic."""
    wanted = row.retention
    ms = wanted.retention_ms * DAY_MS - DAY_MS // 2 if wanted.retention_ms >= 0 else -1
    size = wanted.retention_bytes * KIB if wanted.retention_bytes >= 0 else -1
    return {
        "retention.ms": str(ms),
        "retention.bytes": str(size),
        "remote.log.copy.disable": "false" if wanted.is_copying else "true",
    }


ALL_IS_KEPT = "all is kept when log start and epochs reach back to the first segment"
CAN_BE_PREPARED = {
    sentence: row
    for sentence, row in SITUATIONS.items()
    # With a retention of 0 it also deletes what it copies itself meanwhile.
    if row.log.only_local_bytes == 0 and 0 not in (row.retention.retention_ms, row.retention.retention_bytes)
}


@dataclass(kw_only=True)
class World:
    cluster: KafkaCluster
    daemon: Daemon
    storage: Path
    directory: Path
    produced: list[ProducedRecord] = field(default_factory=list)
    prepared: dict[str, Prepared] = field(default_factory=dict)
    objects: set[str] = field(default_factory=set)
    segments: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    """Of the topic that is handed over, as the sidecar has finished them."""

    @property
    def copied(self) -> set[str]:
        return {format_uuid(one.remote_log_segment_id.uuid) for one in self.segments}

    def restart(self, **properties: str | None) -> None:
        broker = self.cluster.brokers[0]
        broker.stop()
        broker.set_properties(properties)
        broker.start()

    def states(self) -> dict[TopicIdPartition, dict[str, State]]:
        """Of each partition, the state of each segment."""
        found: dict[TopicIdPartition, dict[str, State]] = {}
        for one in fold(read_events(self.cluster.client_settings, METADATA_TOPIC)):
            found.setdefault(one.topic_id_partition, {})[format_uuid(one.remote_log_segment_id.uuid)] = one.state
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A topic that the sidecar has tiered and trimmed in two epochs, with transactions, and the prepared topics; the broker's
    native tiering is on, and sees nothing."""
    directory = tmp_path_factory.mktemp("handover")
    storage = directory / "native"
    properties = {
        **local_tiered_storage(storage),
        **BLIND,
        # One thread: a round of one topic comes between two rounds of another.
        "remote.log.manager.expiration.thread.pool.size": "1",
        "log.retention.check.interval.ms": "500",
    }
    with KafkaCluster(directory / "kafka", properties=properties) as cluster:
        cluster.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES, configs=STRICT)
        daemon = started(
            directory / "sidecar",
            cluster,
            TOPIC,
            **{
                "remote.log.metadata.topic.name": METADATA_TOPIC,
                "remote.log.metadata.topic.num.partitions": METADATA_PARTITIONS,
                "lease.duration.ms": 3_000,
            },
        )
        yield World(cluster=cluster, daemon=daemon, storage=storage, directory=directory)
        daemon.kill9()


def test_the_plan_shows_what_a_naive_switch_would_cost(world: World) -> None:
    cluster, daemon = world.cluster, world.daemon
    world.produced = produce(cluster, TOPIC, total_bytes=300_000)
    with daemon:
        wait_until_trimmed(cluster, daemon, TOPIC)
        world.restart()  # a second leader epoch
        world.produced += produce(cluster, TOPIC, total_bytes=300_000, seed=1)
        wait_until_trimmed(cluster, daemon, TOPIC)
        running = asked(world, "to-native", TOPIC, "--write-plan", str(plan_of(world)), code=1)
        assert "sidecars run beside brokers 1: stop them first" in running["refusal"]
        world.segments = copied_of(world)
        assert daemon.stop() == 0
    prepare_topics(world)
    shown = asked(world, "to-native", TOPIC)
    (partition,) = shown["partitions"]
    assert len(partition["leader_epochs"]) == 2
    assert (partition["log_start_offset"], partition["findings"]) == (0, [])
    assert partition["broker_log_start_offset"] == active_base(cluster, TOPIC)
    assert (partition["kept"], partition["deleted"]) == (len(world.copied), {})
    lost = sum(one["segments"] for one in partition["lost_naively"].values())
    assert lost == len(world.copied) > 10, "as it is, all would go"
    (broker,) = shown["brokers"]
    assert broker["sight"] == "blind"
    assert broker["settings"]["remote.log.storage.system.enable"]["verdict"] == "same"
    world.objects = object_keys_in(daemon.store_root)


def test_the_files_of_a_broker_are_changed_only_while_it_is_stopped(world: World) -> None:
    broker, plan = world.cluster.brokers[0], plan_of(world)
    assert writes_plan(world)
    properties = write_handover_properties(world.directory / "server.properties", plan, broker.log_dirs)
    wanted = ["files", str(plan), "--broker-properties", str(properties)]
    refused = told(world, *wanted, "--carry-out")
    assert refused.exit_code == 1
    assert "the broker runs" in refused.stderr
    world.cluster.admin.alter_topic(TOPIC, {"remote.storage.enable": "true"})
    broker.stop()
    paths = [broker.partition_dir(TOPIC, 0) / LEADER_EPOCH_CHECKPOINT, broker.log_dirs[0] / LOG_START_OFFSET_CHECKPOINT]
    before = [path.read_bytes() for path in paths]
    shown = asked(world, *wanted)
    assert (shown["to_write"], shown["written"], shown["faults"]) == (2, None, [])
    assert [path.read_bytes() for path in paths] == before
    done = asked(world, *wanted, "--carry-out")
    assert done["written"] == 2
    assert [path.read_bytes() for path in paths] != before


def test_the_foretold_deletions_are_the_real_ones(world: World) -> None:
    """Each row of the table of ``decide.native_tiering`` that a broker can be brought into."""
    write_files(world)
    lay_out_objects(world)
    broker = world.cluster.brokers[0]
    broker.set_properties(dict.fromkeys(BLIND))
    broker.start()
    foretold = {one.owner: one.foretold() for one in world.prepared.values() if one.topic != SENTINEL}
    before = {one.owner: former(one) for one in world.prepared.values()}
    gone = {owner: ids for owner, (ids, _) in foretold.items()}

    def deleted() -> dict[TopicIdPartition, set[str]]:
        states = world.states()
        return {
            owner: {uuid for uuid, state in states.get(owner, {}).items() if state is State.DELETE_SEGMENT_FINISHED}
            - before[owner]
            for owner in foretold
        }

    def all_went() -> bool:
        now = deleted()
        return all(ids <= now[owner] for owner, ids in gone.items())

    wait_until(all_went, "what was foretold went", 60)
    two_rounds(world)
    found = deleted()
    sentences = {one.owner: sentence for sentence, one in world.prepared.items()}
    assert {sentences[owner]: ids for owner, ids in found.items()} == {
        sentences[owner]: ids for owner, ids in gone.items()
    }
    starts = {sentences[owner]: world.cluster.admin.earliest_offset(owner.topic, 0) for owner in foretold}
    assert starts == {sentences[owner]: start for owner, (_, start) in foretold.items()}


def test_a_native_broker_has_all_that_was_handed_over(world: World) -> None:
    cluster, daemon = world.cluster, world.daemon
    assert cluster.admin.earliest_offset(TOPIC, 0) == 0
    verified = asked(world, "verify", str(plan_of(world)), "--records")
    assert verified["is_as_foretold"]
    (partition,) = verified["partitions"]
    assert (partition["kept"], partition["gone"], partition["added"]) == (len(world.copied), 0, 0)
    assert partition["records"] == len(world.produced)
    committed = [one for one in world.produced if not one.aborted]
    assert asyncio.run(consumed(cluster, world.produced[-1].offset + 1, "read_committed")) == shapes(committed)
    assert object_keys_in(daemon.store_root) == world.objects
    assert world.copied <= native_segments(world.storage), "nothing went"


def test_and_gives_it_back(world: World) -> None:
    cluster, daemon = world.cluster, world.daemon
    back = world.directory / "back.json"
    world.restart(**BLIND)
    shown = asked(world, "from-native", TOPIC, "--write-plan", str(back))
    assert (shown["done"], shown["partitions"][0]["finished"]) == (True, len(world.copied))
    cluster.admin.alter_topic(TOPIC, {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"})
    wait_until(lambda: cluster.admin.earliest_offset(TOPIC, 0) > 0, "native tiering is off")
    cluster.admin.alter_topic(TOPIC, {"remote.log.delete.on.disable": None})
    world.produced += produce(cluster, TOPIC, total_bytes=100_000, seed=2)
    with daemon:
        stop = wait_until_trimmed(cluster, daemon, TOPIC)
        below = [record for record in world.produced if record.offset < stop]
        assert list(fetch_records(daemon.read_url, TOPIC, 0, stop=stop)) == [shape_of(one) for one in below]
        committed = [shape_of(one) for one in below if not one.aborted]
        assert list(fetch_records(daemon.read_url, TOPIC, 0, stop=stop, isolation="read_committed")) == committed
    verified = asked(world, "verify", str(back))
    assert verified["is_as_foretold"], "each segment is there, with its objects, and none was copied again"
    assert world.objects < object_keys_in(daemon.store_root), "and the sidecar goes on behind them"


# -- preparing


def plan_of(world: World) -> Path:
    return world.directory / "plan.json"


def told(world: World, *arguments: str) -> Result:
    """``tiersidecar handover`` in this process: to start one takes longer than most of it."""
    return CliRunner().invoke(app, ["handover", *arguments, "--config", str(world.daemon.config_path)])


def asked(world: World, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = told(world, *arguments, "--json")
    assert done.exit_code == code, f"{arguments}: {done.exit_code}\n{done.stdout}\n{done.stderr}"
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def copied_of(world: World) -> list[RemoteLogSegmentMetadata]:
    """The finished segments of the topic that is handed over."""
    return [one for one in finished(world.cluster, world.daemon) if one.topic_id_partition.topic == TOPIC]


def writes_plan(world: World) -> bool:
    """With all records as the gateway gives them."""
    settings = {name: value for name, value in world.daemon.settings.items() if name in _SHARED_SETTINGS}
    with GatewayDaemon(world.directory / "gateway", world.cluster.brokers[0], **settings) as gateway:
        gateway.wait_until_ready()
        wanted = ["to-native", TOPIC, "--write-plan", str(plan_of(world)), "--records", gateway.bootstrap_server]
        wait_until(lambda: told(world, *wanted).exit_code == 0, "the sidecar's lease is over", 90)
    return plan_of(world).exists()


_SHARED_SETTINGS = (
    "topics",
    "store",
    "remote.log.metadata.topic.name",
    "state.topic.name",
)


def prepare_topics(world: World) -> None:
    """A topic of 100 records for each situation, and its events; and the sentinel."""
    now_ms = time.time_ns() // 1_000_000
    names = {sentence: f"situation-{number:02d}" for number, sentence in enumerate(CAN_BE_PREPARED)}
    names[SENTINEL] = SENTINEL
    for sentence, topic in names.items():
        row = CAN_BE_PREPARED.get(sentence, SITUATIONS[ALL_IS_KEPT])
        world.cluster.create_topic(topic, configs={**settings_of(row), "remote.storage.enable": "true"})
        path = world.cluster.brokers[0].partition_dir(topic, 0) / PARTITION_METADATA
        wait_until(path.exists, f"{topic} has its id")
        topic_id = read_partition_metadata(path.read_bytes())
        world.prepared[sentence] = Prepared.of(topic, row, topic_id, now_ms)
    asyncio.run(_fill(world))


async def _fill(world: World) -> None:
    async with AIOKafkaProducer(**world.cluster.client_settings, acks="all") as producer:
        for one in world.prepared.values():
            for number in range(one.row.log.log_end_offset):
                await producer.send(one.topic, b"record %d" % number, partition=0)
            for event in one.events:
                place = metadata_partition(one.owner, METADATA_PARTITIONS)
                await producer.send_and_wait(
                    METADATA_TOPIC, write_event(event, knows_txn_index_empty=True), partition=place
                )
        await producer.flush()


def write_files(world: World) -> None:
    """What each situation says of the broker's files, into the files."""
    broker = world.cluster.brokers[0]
    path = broker.log_dirs[0] / LOG_START_OFFSET_CHECKPOINT
    starts = read_offset_checkpoint(path.read_bytes(), where=str(path))
    for one in world.prepared.values():
        starts[one.topic, 0] = one.row.log.log_start_offset
        epochs = broker.partition_dir(one.topic, 0) / LEADER_EPOCH_CHECKPOINT
        epochs.write_bytes(write_leader_epochs(one.row.log.leader_epochs.entries))
    path.write_bytes(write_offset_checkpoint(starts))


def lay_out_objects(world: World) -> None:
    """As files of the native storage: what the sidecar has stored, and a few bytes for each prepared segment."""
    (root,) = world.storage.rglob("kafka-tiered-storage")
    for segment in world.segments:
        lay_out(world.daemon, segment, root)
    for one in world.prepared.values():
        directory = root / f"{one.topic}-0-{format_uuid(one.owner.topic_id)}"
        directory.mkdir()
        for segment in NativeSegments(one.events):
            name = f"{segment.start_offset:020d}-{format_uuid(segment.remote_log_segment_id.uuid)}"
            for suffix in SUFFIXES:
                (directory / f"{name}.{suffix}").write_bytes(b"few")


def former(one: Prepared) -> set[str]:
    """Segments that were deleted before the broker came."""
    return {
        format_uuid(event.remote_log_segment_id.uuid)
        for event in one.events
        if isinstance(event, RemoteLogSegmentMetadataUpdate) and event.state is State.DELETE_SEGMENT_FINISHED
    }


def two_rounds(world: World) -> None:
    """Two segments of the sentinel expire one after the other: in between, every other partition had a round."""
    sentinel = world.prepared[SENTINEL]
    for gone, age in ((1, NOW_MS - 15), (2, NOW_MS - 25)):
        world.cluster.admin.alter_topic(SENTINEL, {"retention.ms": str(age * DAY_MS)})

        def went(gone: int = gone) -> bool:
            states = world.states()[sentinel.owner].values()
            return sum(state is State.DELETE_SEGMENT_FINISHED for state in states) == gone

        wait_until(went, f"{gone} segments of the sentinel have expired", 60)
