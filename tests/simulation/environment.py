"""The sidecars' environment: brokers, topics, store, network, disks and clocks, and what is reported of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.simulation.broker_side import BrokerSide
from tests.simulation.chances import Chances, SeededIds
from tests.simulation.cluster import CLUSTER_ID, Cluster, SimulatedPartition
from tests.simulation.compaction_rules import CompactionRules
from tests.simulation.disk import Disk
from tests.simulation.faulty_store import Bucket
from tests.simulation.lease_rules import LeaseRules
from tests.simulation.machine import SimulatedClock
from tests.simulation.network import Network
from tests.simulation.rules import Rules
from tests.simulation.scenario import Scenario
from tests.simulation.stored_logs import read_stored_log
from tests.simulation.topics import SimulatedTopic
from tests.simulation.trash_rules import DELETE_DELAY_MS, USER_DELETE_DELAY_MS, TrashRules
from tests.simulation.virtual_time import Process, ProcessState, VirtualTimeLoop
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.domain.ids import RemoteLogSegmentId, Uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata

METADATA_TOPIC = "__remote_log_metadata"
STATE_TOPIC = "__tiersidecar_state"
TOPIC_ID = Uuid(b"simulated-topic!")


class Environment:
    """Everything but the processes that act in it.  ``violations`` are breaches of what must never break, each a sentence;
    ``is_mistyped``: the sidecars' settings are not what their user means."""

    topic = "orders"

    def __init__(
        self,
        scenario: Scenario,
        chances: Chances,
        directory: Path,
        loop: VirtualTimeLoop,
        *,
        cluster_id: str = CLUSTER_ID,
        topic_id: Uuid = TOPIC_ID,
    ) -> None:
        self.scenario, self.chances, self.directory, self.loop = scenario, chances, directory, loop
        self.trace: list[str] = []
        self.violations: list[str] = []
        self.is_over = False
        self.is_mistyped = False
        self.halted_at_s = float("-inf")
        self._stamps_ns = 0
        chances.on_fault = lambda name: self.note(f"fault: {name}")
        self.clock = SimulatedClock(loop)
        self.ids = SeededIds(chances, "world")
        self.network = Network(loop, chances)
        self.bucket = Bucket(MemoryStore(clock=self.clock, ids=self.ids))
        self.rules = Rules(
            self.complain, self.bucket.has, self.bucket.spoiled.__contains__, self.bucket.late_keys.__contains__
        )
        self.rules.delete_started = self._delete_started
        self.bucket.rules = self.rules
        self.trash_rules = TrashRules(self.complain, delay_ms=DELETE_DELAY_MS, user_delay_ms=USER_DELETE_DELAY_MS)
        self.lease_rules = LeaseRules(self.complain, cluster_id)
        self.compaction: CompactionRules | None = None
        self.topics: dict[str, SimulatedTopic] = {}
        self.topic_configs = {
            "retention.ms": str(scenario.broker_retention_ms),
            "retention.bytes": "-1",
            "cleanup.policy": "delete",
            "remote.storage.enable": "false",
            **(scenario.compacted.configs() if scenario.compacted is not None else {}),
        }
        brokers = tuple(range(1, scenario.brokers + 1))
        self.disks = {
            broker: Disk(directory / f"broker-{broker}", size_bytes=scenario.disk_bytes) for broker in brokers
        }
        self.cluster = Cluster(
            directory,
            broker_ids=brokers,
            topic=self.topic,
            topic_id=topic_id,
            cluster_id=cluster_id,
            partitions=scenario.partitions,
            segment_bytes=lambda broker: int(chances.between(f"segment bytes of {broker}", 400, 1000)),
            stamp_ns=self._stamp_ns,
            later=loop.outside,
            changed=lambda broker: self.disks[broker].changed(),
        )
        if scenario.compacted is not None:
            self.compaction = CompactionRules(
                scenario.compacted,
                self.rules,
                self.cluster.partitions,
                read_log=partial(read_stored_log, self.bucket.store),
                now_ms=self.clock.true_ms,
                complain=self.complain,
            )
            self.rules.changed = self.compaction.changed
        self.sides = {broker: BrokerSide(self.cluster, broker, chances) for broker in brokers}

    # -- what is reported

    def note(self, text: str) -> None:
        """Add one line to the trace."""
        self.trace.append(f"{self.loop.time() - 1000:.6f} {text}")

    def complain(self, text: str) -> None:
        """Note a breach."""
        self.note(f"VIOLATION: {text}")
        self.violations.append(text)

    def process_ended(self, process: Process, done: asyncio.Task[None]) -> None:
        """Complain of a process that ends by itself: none may."""
        if not self.is_over and process.state is ProcessState.RUNNING and not process.is_asked_to_end:
            error = None if done.cancelled() else done.exception()
            self.complain(f"{process.name} ended by itself: {error!r}")

    def topic_written(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        """Note that a record of an internal topic became durable."""
        if topic == METADATA_TOPIC and value is not None:
            self.rules.event(value, self.partition_of)
        elif topic == STATE_TOPIC:
            self.lease_rules.record(key, value)
            self.trash_rules.record(key, value, self.clock.true_ms())
            if self.compaction is not None:
                self.compaction.record(key, value)

    def _delete_started(self, metadata: RemoteLogSegmentMetadata) -> None:
        # What is decided by a clock that is behind is due so much sooner by the others'.
        if not any(planned.jump_ms < 0 for planned in self.scenario.faults):
            self.trash_rules.delete_started(metadata, self.clock.true_ms())

    def new_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> SimulatedTopic:
        """Make a topic as a broker does."""
        return SimulatedTopic(name, self.ids.random_uuid(), partitions, configs, self.topic_written)

    def trimmed(self, partition: SimulatedPartition, offset: int) -> None:
        """Note that DeleteRecords arrives.  What the user lets go when a disk is full is given up."""
        if self.scenario.drops_oldest and partition.leader is not None:
            held_to = self.rules.proven_without_hole(partition, max(self.may_begin_at(partition), 0))
            if held_to < offset and self.disks[partition.leader].was_pressed(self.loop.time()):
                self.note(f"{partition.topic_id_partition}: [{held_to}, {offset}) is given up, for the disk is full")
                partition.dropped = max(partition.dropped, offset)
        if self.scenario.mode == "race" and offset > partition.users_start:
            self.complain(
                f"{partition.topic_id_partition} is trimmed to {offset} in race mode, and users deleted up to "
                f"{partition.users_start}"
            )
        self.rules.trimmed(partition, offset, max(self.may_begin_at(partition), 0))
        if self.compaction is not None and partition.leader is not None:
            self.compaction.trimmed(partition, offset)

    def may_begin_at(self, partition: SimulatedPartition) -> int:
        """Return the last offset at which this history may begin by now: all below it a user or retention has given up."""
        return partition.may_begin_at(
            retention_ms=self.scenario.retention_ms,
            retention_bytes=self.scenario.retention_bytes,
            now_ms=self.clock.true_ms(),
        )

    def is_spoiled(self, partition: SimulatedPartition) -> bool:
        """Return whether the store lied about a segment that is still there: until it is mended, it cannot be read remotely."""
        return any(
            fate.metadata.topic_id_partition == partition.topic_id_partition
            and fate.is_finished
            and self.rules.is_spoiled(fate)
            for fate in self.rules.segments.values()
        )

    def partition_of(self, segment_id: RemoteLogSegmentId) -> SimulatedPartition:
        """Return the partition of a segment."""
        return self.cluster.partitions[segment_id.topic_id_partition]

    def _stamp_ns(self) -> int:
        """Return a time of change for files: the right time, and later than every one before."""
        self._stamps_ns = max(self._stamps_ns + 1, self.clock.true_ms() * 1_000_000)
        return self._stamps_ns
