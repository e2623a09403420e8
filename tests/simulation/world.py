"""One run: a cluster, its sidecars and its clients, and what happens to them, from a scenario and its seed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

from tests.simulation.broker_cleaner import CleanerConfig
from tests.simulation.chances import Chances
from tests.simulation.cluster import SimulatedPartition
from tests.simulation.consumers import Consumers
from tests.simulation.environment import Environment
from tests.simulation.native_walk import deletions_in_reach
from tests.simulation.planned_faults import Fault
from tests.simulation.records import Marker, open_transactions
from tests.simulation.rules import SegmentFate
from tests.simulation.scenario import Scenario
from tests.simulation.sidecar import ALL_ROLES, READING_ROLES, TIER_ROLES, Sidecar
from tests.simulation.virtual_time import VirtualTimeLoop
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.offsets import Lineage
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.tasks.lanes import Backoff

_PRODUCERS = (101, 102)
_SETTLE_S = 900.0
_LOOKS_SETTLED = 4
"""Number of looks, five seconds from one to the next."""
_QUIET_S = 16.0
_HALTED_S = Backoff().halted_s + _QUIET_S
"""A halted lane tries again by then: what it has left undone is not for ever."""


class World(Environment):
    """The processes that act: ``sidecars`` by broker, ``gateways`` where they have processes of their own, ``consumers``, and
    ``extra_sidecars``, which should not be there."""

    def __init__(self, scenario: Scenario, chances: Chances, directory: Path, loop: VirtualTimeLoop) -> None:
        super().__init__(scenario, chances, directory, loop)
        self._tasks: list[asyncio.Task[None]] = []
        apart = scenario.reads_apart
        self.sidecars = {
            broker: Sidecar(self, broker, "sidecar", TIER_ROLES if apart else ALL_ROLES) for broker in self.disks
        }
        self.extra_sidecars: list[Sidecar] = []
        self.keeps_transactions_open = False
        self.gateways = {broker: Sidecar(self, broker, "gateway", READING_ROLES) for broker in self.disks if apart}
        self.consumers = Consumers(self, self.gateways or self.sidecars)

    @property
    def processes(self) -> list[Sidecar]:
        """Return all processes that faults may hit."""
        return [*self.sidecars.values(), *self.gateways.values(), *self.extra_sidecars]

    # -- what happens

    async def live(self, faults: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Live through the bad times, with ``faults``, then good ones until nothing is left to do."""
        hazard = self.scenario.hazard
        if hazard is None or not hazard.from_start:
            for process in self.processes:
                process.start()
        self.spawn(self._produce())
        self.spawn(self._replicate())
        self.spawn(self._clean_up())
        if self.scenario.compacted is not None:
            self.spawn(self._clean_compacted())
        for consumer in self.consumers:
            self.spawn(consumer.consume())
        for fault in faults:
            self.spawn(fault)
        await asyncio.sleep(self.scenario.duration_s)
        await self._end_the_bad_times()
        await self._settle()
        await self.consumers.finish()
        await self._settle()  # meanwhile more may have expired
        for sentence in self.doubted():
            self.complain(sentence)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start something that happens by itself until the end."""
        self._tasks.append(self.loop.create_task(work))

    async def end(self) -> None:
        """Kill all processes, and everything that happens by itself."""
        for process in self.processes:
            process.kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def bury(self) -> None:
        """Let the dead end in good order, so that nothing of them is left to the garbage collector."""
        self.is_over = True
        for one in self.processes:
            for process, task in one.buried:
                process.bury()
                task.cancel()
        left = [task for task in asyncio.all_tasks(self.loop) if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=300)

    async def _produce(self) -> None:
        """Produce: producers write until the bad times are over, at whatever leader there is."""
        chances, scenario = self.chances, self.scenario
        while True:
            await asyncio.sleep(chances.between("produce pause", 0.2, 1.8) * scenario.produce_every_s)
            if chances.quiet:
                return
            for partition in self.cluster.partitions.values():
                leader = partition.leader
                if leader is not None and not self._has_no_room(leader):
                    self._produce_to(partition)

    def _has_no_room(self, broker: int) -> bool:
        """Return whether a broker has no room; a real one would give its log dir up."""
        return self.disks[broker].takes_no_more(self.loop.time())

    def _produce_to(self, partition: SimulatedPartition) -> None:
        chances, now_ms = self.chances, self.clock.true_ms()
        lot = chances.draw("produce what")
        producer = -1
        if lot < self.scenario.transactional_share:
            producer = chances.choose("producer", _PRODUCERS)
            if chances.draw("ends transaction") < 0.35 and not self.keeps_transactions_open:
                marker = chances.choose("marker", (Marker.COMMIT, Marker.ABORT))
                partition.end_transaction(producer, marker, now_ms)
                partition.commit()
                return
        count = int(chances.between("records", 1, 4))
        values: list[bytes | None] = [b"%d" % number * int(chances.between("value", 10, 90)) for number in range(count)]
        keys = self._keys_for(values)
        partition.produce([(self._timestamp_ms(now_ms), value) for value in values], producer, keys=keys)
        partition.commit()

    def _keys_for(self, values: list[bytes | None]) -> list[bytes | None]:
        """Return a key for each of ``values``, some of which become tombstones; none where the topic is not compacted."""
        topic = self.scenario.compacted
        if topic is None:
            return []
        for number in range(len(values)):
            if self.chances.draw("a tombstone") < topic.tombstones:
                values[number] = None
        return [b"key-%d" % int(self.chances.between("key", 0, topic.keys)) for _ in values]

    def _timestamp_ms(self, now_ms: int) -> int:
        """Return a timestamp as a producer gives it to a record: not always in the order in which they come."""
        late_ms = self.scenario.timestamps_late_ms
        return now_ms - int(self.chances.between("record is late", 0, late_ms)) if late_ms else now_ms

    async def _replicate(self) -> None:
        while True:
            await asyncio.sleep(self.chances.between("replicate pause", 0.1, 1.1))
            for partition in self.cluster.partitions.values():
                for broker in self.cluster.log_dirs:
                    if not self.chances.quiet and self._has_no_room(broker):
                        continue
                    if self.chances.quiet or self.chances.draw("replicates") < 0.7:
                        self.cluster.replicate(partition, broker, at_most=5)

    async def _clean_up(self) -> None:
        """Do what brokers do now and then."""
        while True:
            await asyncio.sleep(5.0)
            self.cluster.write_high_watermarks()
            self.cluster.clean_up(int(self.topic_configs["retention.ms"]), self.clock.true_ms())

    async def _clean_compacted(self) -> None:
        """Run the brokers' cleaners, each replica's by itself, at any moment."""
        config = CleanerConfig.of(self.topic_configs)
        while True:
            await asyncio.sleep(self.chances.between("cleaner pause", 2, 14))
            partition = self.chances.choose("cleaner takes", list(self.cluster.partitions.values()))
            broker = self.chances.choose("cleaner of", sorted(self.disks))
            end = self.cluster.clean(partition, broker, config, self.clock.true_ms())
            if end is not None:
                self.note(f"broker {broker} has cleaned {partition.topic_id_partition} up to {end}")

    async def _end_the_bad_times(self) -> None:
        """End the bad times: nothing fails from now on, every process is there, and every transaction is ended."""
        self.note("the bad times are over")
        self.chances.quiet = True
        self.bucket.away = False
        for broker in self.disks:
            self.disks[broker].is_full = False
            if broker not in self.cluster.alive:
                self.cluster.start_broker(broker)
            if self.sidecars[broker].clock.skew_ms or any(
                planned.fault is Fault.CLOCK for planned in self.scenario.faults
            ):
                self.sidecars[broker].clock.skew_ms = 0
                self.sidecars[broker].kill()
        self.cluster.catch_up()
        for partition in self.cluster.partitions.values():
            for producer in _PRODUCERS:
                partition.end_transaction(producer, Marker.ABORT, self.clock.true_ms())
        self.cluster.catch_up()
        for one in self.processes:
            if one.process is None:
                one.start()
            else:
                one.process.go_on()

    async def _settle(self) -> None:
        """Wait until every sealed segment is remote, no lane is halted and nothing has been written for a while, or time is
        up."""
        until_s = self.loop.time() + _SETTLE_S
        settled = 0
        while self.loop.time() < until_s:
            await asyncio.sleep(5.0)
            # What may go for room is read back only once a look at the disk has asked for it (seed 801705).
            settled = settled + 1 if self._is_settled() else 0
            if settled == _LOOKS_SETTLED:
                return
        self.note("it did not settle")

    def _is_settled(self) -> bool:
        return (
            self.all_sealed_is_remote()
            and not self.unfinished()
            and self.loop.time() - self._last_written_s() > _QUIET_S
            and self.loop.time() - self.halted_at_s > _HALTED_S
            and not self.pressed()
            and not self.emptying()
            and not self.doubted()
            and not any(self.uncleaned(partition) for partition in self.cluster.partitions.values())
        )

    def uncleaned(self, partition: SimulatedPartition) -> list[int]:
        """Return the offsets of remote records that a cleaner should have taken by now, where there is time for all of them and
        no segments overlap."""
        topic, owner = self.scenario.compacted, partition.topic_id_partition
        if topic is None or self.compaction is None or not topic.is_cleaned_to_the_end:
            return []
        if not self.compaction.is_regular(owner):
            return []
        chain = [segment for _, segment in self.compaction.chain(owner)]
        end, batches = chain[-1].next_offset if chain else 0, partition.history_log.batches
        bound = min([end, *open_transactions(batches, end).values()])
        clean_to = 0
        for segment in chain:
            is_young = topic.min_lag_ms and segment.max_timestamp_ms > self.clock.true_ms() - topic.min_lag_ms
            if is_young or segment.next_offset > bound:
                break
            clean_to = segment.next_offset
        return self.compaction.replaced_below(partition, clean_to)

    def all_sealed_is_remote(self) -> bool:
        """Return whether it is, as far as the metadata topic says so."""
        return all(self.first_not_remote(partition) is None for partition in self.cluster.partitions.values())

    def unfinished(self) -> list[SegmentFate]:
        """Return segments that a process that is there has yet to clean up.  A copy that another broker began gets a day, and
        so does one that the sidecar's journal does not have, because its disk did not take the line.  Where the broker tiers
        the topic itself, it alone finishes begun deletions, as far as its walk gets, and all else stays."""
        if self.topic_configs["remote.storage.enable"] == "true":
            in_reach = {
                segment.remote_log_segment_id
                for partition in self.cluster.partitions.values()
                for segment in self.deletions_in_native_reach(partition)
            }
            return [fate for segment_id, fate in self.rules.segments.items() if segment_id in in_reach]
        return [
            fate
            for fate in self.rules.segments.values()
            if fate.metadata.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED
            or (
                fate.metadata.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
                and fate.metadata.broker_id == self.partition_of(fate.metadata.remote_log_segment_id).leader
                and self._has_journalled(fate)
            )
        ]

    def deletions_in_native_reach(self, partition: SimulatedPartition) -> list[RemoteLogSegmentMetadata]:
        """Return the begun deletions that the leader's broker finishes if it tiers the topic itself."""
        if partition.leader is None:
            return []
        log, owner = partition.leader_log, partition.topic_id_partition
        segments = [fate.metadata for fate in self.rules.segments.values() if fate.metadata.topic_id_partition == owner]
        return deletions_in_reach(segments, Lineage(tuple(log.epochs)), log.log_end_offset)

    def _has_journalled(self, fate: SegmentFate) -> bool:
        """Return whether it is in the state.dir of the process that has the broker's tier role: what another began is left to a
        grace."""
        instance = self.lease_rules.holder(fate.metadata.broker_id).partition("/")[0]
        path, segment = self.directory / instance / "copies-in-flight", fate.metadata.remote_log_segment_id.uuid
        return path.exists() and f"+ {format_uuid(segment)}" in path.read_text()

    def pressed(self) -> list[str]:
        """Return where the disk lacks its reserve, though the policy lets go what is remote, and some of it is still there."""
        if not self.scenario.trims_for_space:
            return []
        return [
            f"broker {broker} has {disk.space(self.loop.time()).free_bytes} bytes free, "
            f"and {partition.topic_id_partition} remote segments"
            for broker, disk in self.disks.items()
            for partition in self.cluster.partitions.values()
            if partition.leader == broker
            and disk.lacks_reserve(self.loop.time())
            and not disk.has_renamed()
            and len(partition.leader_log.segments) > 2
            and self.rules.proven_without_hole(partition, 0) >= partition.leader_log.segments[2]
        ]

    def doubted(self) -> list[str]:
        """Return which partitions nothing is done with, though their leaders have a sidecar."""
        return [sentence for one in self.processes for sentence in one.doubted()]

    def emptying(self) -> bool:
        """Return whether a broker still has files to delete where the reserve is lacking: what more must go is seen only
        then."""
        now_s = self.loop.time()
        return self.scenario.trims_for_space and any(
            disk.lacks_reserve(now_s) and disk.has_renamed() for disk in self.disks.values()
        )

    def first_not_remote(self, partition: SimulatedPartition) -> int | None:
        """Return the first offset below the leader's active segment that must be readable, and that no finished segment holds:
        what the broker has deleted and only pins have any more is on its way, too."""
        log = partition.leader_log
        offset, end = min(log.log_start_offset, self.may_begin_at(partition)), log.segments[-1]
        held = sorted(
            (segment.metadata.start_offset, segment.metadata.next_offset)
            for segment in self.rules.segments.values()
            if segment.is_finished and segment.metadata.topic_id_partition == partition.topic_id_partition
        )
        for start, stop in held:
            if start <= offset < stop:
                offset = stop
        return offset if offset < end else None

    def _last_written_s(self) -> float:
        """Return the time, not counting the leases, which are renewed for as long as a sidecar lives."""
        logs = [log for topic in self.topics.values() for log in topic.partitions]
        last = (
            next((one for one in reversed(log) if not (one.key or b"").startswith(b"lease/")), None) for log in logs
        )
        return max((one.written_s for one in last if one is not None), default=0.0)
