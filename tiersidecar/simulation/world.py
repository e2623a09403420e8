"""One run: a cluster, its sidecars, their store and topics, and what happens to them, from a scenario and its seed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.domain.ids import RemoteLogSegmentId, Uuid
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.simulation.chances import Chances, SeededIds
from tiersidecar.simulation.cluster import Cluster, SimulatedPartition
from tiersidecar.simulation.faulty_store import Bucket
from tiersidecar.simulation.machine import Disk, SimulatedClock
from tiersidecar.simulation.network import Network
from tiersidecar.simulation.records import Marker
from tiersidecar.simulation.rules import Rules, SegmentFate
from tiersidecar.simulation.scenario import Scenario
from tiersidecar.simulation.sidecar import Sidecar
from tiersidecar.simulation.topics import SimulatedTopic
from tiersidecar.simulation.virtual_time import Process, ProcessState, VirtualTimeLoop
from tiersidecar.tasks.lanes import Backoff

METADATA_TOPIC = "__remote_log_metadata"
_PRODUCERS = (101, 102)
_SETTLE_S = 900.0
_QUIET_S = 16.0
_HALTED_S = Backoff().halted_s + _QUIET_S
"""A halted lane tries again by then: what it has left undone is not for ever."""


class World:
    """Everything there is.  ``violations`` are breaches of what must never break, each a sentence."""

    topic = "orders"

    def __init__(self, scenario: Scenario, chances: Chances, directory: Path, loop: VirtualTimeLoop) -> None:
        self.scenario, self.chances, self.directory, self.loop = scenario, chances, directory, loop
        self.trace: list[str] = []
        self.violations: list[str] = []
        self.is_over = False
        self.halted_at_s = float("-inf")
        self._stamps_ns = 0
        self._tasks: list[asyncio.Task[None]] = []
        chances.on_fault = lambda name: self.note(f"fault: {name}")
        self.clock = SimulatedClock(loop)
        self.ids = SeededIds(chances, "world")
        self.network = Network(loop, chances)
        self.bucket = Bucket(MemoryStore(clock=self.clock, ids=self.ids))
        self.rules = Rules(
            self.complain, self.bucket.has, self.bucket.spoiled.__contains__, self.bucket.late_keys.__contains__
        )
        self.bucket.rules = self.rules
        self.topics: dict[str, SimulatedTopic] = {}
        self.topic_configs = {
            "retention.ms": str(scenario.broker_retention_ms),
            "retention.bytes": "-1",
            "cleanup.policy": "delete",
            "remote.storage.enable": "false",
        }
        brokers = tuple(range(1, scenario.brokers + 1))
        self.disks = {broker: Disk() for broker in brokers}
        self.cluster = Cluster(
            directory,
            broker_ids=brokers,
            topic=self.topic,
            topic_id=Uuid(b"simulated-topic!"),
            partitions=scenario.partitions,
            segment_bytes=lambda broker: int(chances.between(f"segment bytes of {broker}", 400, 1000)),
            stamp_ns=self._stamp_ns,
            later=loop.outside,
        )
        self.sidecars = {broker: Sidecar(self, broker) for broker in brokers}

    # -- what is told

    def note(self, text: str) -> None:
        """One line of the trace."""
        self.trace.append(f"{self.loop.time() - 1000:.6f} {text}")

    def complain(self, text: str) -> None:
        """A breach."""
        self.note(f"VIOLATION: {text}")
        self.violations.append(text)

    def sidecar_ended(self, process: Process, done: asyncio.Task[None]) -> None:
        """No sidecar ends by itself."""
        if not self.is_over and process.state is ProcessState.RUNNING:
            error = None if done.cancelled() else done.exception()
            self.complain(f"{process.name} ended by itself: {error!r}")

    def topic_written(self, topic: str, value: bytes | None) -> None:
        """A record of an internal topic became durable."""
        if topic == METADATA_TOPIC and value is not None:
            self.rules.event(value, self._partition_of)

    def new_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> SimulatedTopic:
        """As a broker makes it."""
        return SimulatedTopic(name, self.ids.random_uuid(), partitions, configs, self.topic_written)

    def trimmed(self, partition: SimulatedPartition, offset: int) -> None:
        """DeleteRecords arrives."""
        self.rules.trimmed(partition, offset, max(self.may_begin_at(partition), 0))

    def may_begin_at(self, partition: SimulatedPartition) -> int:
        """The last offset at which this history may begin by now: all below it a user or retention has given up."""
        return partition.may_begin_at(
            retention_ms=self.scenario.retention_ms,
            retention_bytes=self.scenario.retention_bytes,
            now_ms=self.clock.true_ms(),
        )

    def _partition_of(self, segment_id: RemoteLogSegmentId) -> SimulatedPartition:
        return self.cluster.partitions[segment_id.topic_id_partition]

    def _stamp_ns(self) -> int:
        """Of files: the right time, and later than every one before."""
        self._stamps_ns = max(self._stamps_ns + 1, self.clock.true_ms() * 1_000_000)
        return self._stamps_ns

    # -- what happens

    async def live(self) -> None:
        """The bad times, then good ones until nothing is left to do."""
        from tiersidecar.simulation.blows import strike

        for sidecar in self.sidecars.values():
            sidecar.start()
        self.spawn(self._produce())
        self.spawn(self._replicate())
        self.spawn(self._keep_house())
        for blow in self.scenario.blows:
            self.spawn(strike(self, blow))
        await asyncio.sleep(self.scenario.duration_s)
        await self._end_the_bad_times()
        await self._settle()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that happens by itself until the end."""
        self._tasks.append(self.loop.create_task(work))

    async def end(self) -> None:
        """Kill all sidecars, and everything that happens by itself."""
        for sidecar in self.sidecars.values():
            sidecar.kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def bury(self) -> None:
        """Let the dead end in good order, so that nothing of them is left to the garbage collector."""
        self.is_over = True
        for sidecar in self.sidecars.values():
            for process, task in sidecar.buried:
                process.bury()
                task.cancel()
        left = [task for task in asyncio.all_tasks(self.loop) if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=300)

    async def _produce(self) -> None:
        """Producers write until the bad times are over, at whatever leader there is."""
        chances, scenario = self.chances, self.scenario
        while not chances.quiet:
            await asyncio.sleep(chances.between("produce pause", 0.2, 1.8) * scenario.produce_every_s)
            for partition in self.cluster.partitions.values():
                if partition.leader is not None and not chances.quiet:
                    self._produce_to(partition)

    def _produce_to(self, partition: SimulatedPartition) -> None:
        chances, now_ms = self.chances, self.clock.true_ms()
        lot = chances.draw("produce what")
        producer = -1
        if lot < self.scenario.transactional_share:
            producer = chances.choose("producer", _PRODUCERS)
            if chances.draw("ends transaction") < 0.35:
                marker = chances.choose("marker", (Marker.COMMIT, Marker.ABORT))
                partition.end_transaction(producer, marker, now_ms)
                partition.commit()
                return
        count = int(chances.between("records", 1, 4))
        values = [b"%d" % number * int(chances.between("value", 10, 90)) for number in range(count)]
        partition.produce(values, now_ms, producer)
        partition.commit()

    async def _replicate(self) -> None:
        while True:
            await asyncio.sleep(self.chances.between("replicate pause", 0.1, 1.1))
            for partition in self.cluster.partitions.values():
                for broker in self.cluster.log_dirs:
                    if self.chances.quiet or self.chances.draw("replicates") < 0.7:
                        self.cluster.replicate(partition, broker, at_most=5)

    async def _keep_house(self) -> None:
        """What brokers do now and then."""
        while True:
            await asyncio.sleep(5.0)
            self.cluster.write_high_watermarks()
            self.cluster.clean_up(self.scenario.broker_retention_ms, self.clock.true_ms())

    async def _end_the_bad_times(self) -> None:
        """Nothing fails from now on; everybody is there, and every transaction is ended."""
        self.note("the bad times are over")
        self.chances.quiet = True
        self.bucket.away = False
        for broker in self.disks:
            self.disks[broker].is_full = False
            if broker not in self.cluster.alive:
                self.cluster.start_broker(broker, was_clean=True)
            if self.sidecars[broker].clock.skew_ms or any(
                blow.blow.value == "clock jump" for blow in self.scenario.blows
            ):
                self.sidecars[broker].clock.skew_ms = 0
                self.sidecars[broker].kill()
        self.cluster.catch_up()
        for partition in self.cluster.partitions.values():
            for producer in _PRODUCERS:
                partition.end_transaction(producer, Marker.ABORT, self.clock.true_ms())
        self.cluster.catch_up()
        for sidecar in self.sidecars.values():
            if sidecar.process is None:
                sidecar.start()
            else:
                sidecar.process.go_on()

    async def _settle(self) -> None:
        """Until every sealed segment is remote, no lane is halted and nothing has been written for a while, or time is up."""
        until_s = self.loop.time() + _SETTLE_S
        while self.loop.time() < until_s:
            await asyncio.sleep(5.0)
            if (
                self.all_sealed_is_remote()
                and not self.unfinished()
                and self.loop.time() - self._last_written_s() > _QUIET_S
                and self.loop.time() - self.halted_at_s > _HALTED_S
            ):
                return
        self.note("it did not settle")

    def all_sealed_is_remote(self) -> bool:
        """As far as the metadata topic says it."""
        return all(self.first_not_remote(partition) is None for partition in self.cluster.partitions.values())

    def unfinished(self) -> list[SegmentFate]:
        """Segments that somebody who is there has yet to clean up: what another broker began gets a day."""
        return [
            fate
            for fate in self.rules.segments.values()
            if fate.metadata.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED
            or (
                fate.metadata.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
                and fate.metadata.broker_id == self._partition_of(fate.metadata.remote_log_segment_id).leader
            )
        ]

    def first_not_remote(self, partition: SimulatedPartition) -> int | None:
        """The first offset below the leader's active segment that must be readable, and that no finished segment holds: what
        the broker has deleted and only pins have any more is on its way, too."""
        log = partition.leader_log
        offset, end = min(log.log_start_offset, self.may_begin_at(partition)), log.segments[-1]
        held = sorted(
            (one.metadata.start_offset, one.metadata.next_offset)
            for one in self.rules.segments.values()
            if one.is_finished and one.metadata.topic_id_partition == partition.tip
        )
        for start, stop in held:
            if start <= offset < stop:
                offset = stop
        return offset if offset < end else None

    def _last_written_s(self) -> float:
        logs = [log for topic in self.topics.values() for log in topic.partitions]
        return max((log[-1].written_s for log in logs if log), default=0.0)
