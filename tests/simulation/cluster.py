"""The brokers: leaders and followers, what is committed, and what becomes of a log when leadership moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.simulation.broker_cleaner import CleanerConfig, clean_replica
from tests.simulation.records import Batch, Marker, data_batch, marker_batch, open_transactions
from tests.simulation.replica_log import ReplicaLog
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.formats.kafka.log_dir_files import (
    CLEANER_OFFSET_CHECKPOINT,
    META_PROPERTIES,
    REPLICATION_OFFSET_CHECKPOINT,
    write_offset_checkpoint,
)

CLUSTER_ID = "simulated-cluster-id-0"
SIZE_TOLERANCE_BYTES = 1200


class UsersDelete(NamedTuple):
    """All below ``offset`` was deleted in ``leader_epoch``."""

    offset: int
    leader_epoch: int


@dataclass(slots=True)
class SimulatedPartition:
    """``leader`` is None while no broker may lead.  ``in_sync`` are brokers that have everything committed.  ``acknowledged``
    are batches that a producer with acks=all got acknowledged; ``users_start`` is the highest offset that a user asked to
    delete up to, ``users_deletes`` are those that were answered as done, ``gave_up`` what retention had given up before an
    unclean election took records away, ``dropped`` up to where the broker's life was worth more than the data.  ``former`` are
    the committed histories that unclean elections have ended, the latest last.  ``stalled`` followers do not fetch."""

    topic_id_partition: TopicIdPartition
    logs: dict[int, ReplicaLog]
    leader: int | None = None
    epoch: int = -1
    in_sync: set[int] = field(default_factory=set)
    acknowledged: list[Batch] = field(default_factory=list)
    unclean_elections: int = 0
    users_start: int = 0
    users_deletes: list[UsersDelete] = field(default_factory=list)
    gave_up: int = 0
    dropped: int = 0
    former: list[list[Batch]] = field(default_factory=list)
    last_leader: int = -1
    stalled: set[int] = field(default_factory=set)
    _unacknowledged: list[Batch] = field(default_factory=list)

    @property
    def leader_log(self) -> ReplicaLog:
        """Return the history that counts."""
        assert self.leader is not None
        return self.logs[self.leader]

    @property
    def history_log(self) -> ReplicaLog:
        """Return the leader's history, or while there is none that of the last one."""
        return self.logs[self.last_leader if self.leader is None else self.leader]

    @property
    def users_start_done(self) -> int:
        """Return the offset below which nothing of this history is left, by the answer to a user."""
        return max((delete.offset for delete in self.users_deletes), default=0)

    def last_stable_offset(self, of: ReplicaLog | None = None) -> int:
        """Return the offset (exclusive) below which every transaction is decided, by a marker that is committed.  As the leader
        knows it, or ``of`` another replica: it may have lost one that is open."""
        return (of or self.leader_log).last_stable_offset()

    def may_begin_at(self, *, retention_ms: int, retention_bytes: int, now_ms: int) -> int:
        """Return the highest offset at which the log may begin: below it everything is past retention, or a user deleted it.

        By size it may be off by a segment's part, for overlaps between replicas' segments are weighed, not counted.
        """
        log = self.history_log
        start = max(self.users_start, self.gave_up, self.dropped)
        if retention_ms >= 0:
            start = max(start, next((b.base_offset for b in log.batches if b.timestamp_ms > now_ms - retention_ms), 0))
            if log.batches and log.batches[-1].timestamp_ms <= now_ms - retention_ms:
                start = log.log_end_offset
        if retention_bytes >= 0:
            size = SIZE_TOLERANCE_BYTES
            for batch in reversed(log.batches):
                size += len(batch.data)
                if size >= retention_bytes:
                    return max(start, batch.base_offset)
        return start

    def produce(
        self, records: Sequence[tuple[int, bytes | None]], producer_id: int, *, keys: Sequence[bytes | None] = ()
    ) -> None:
        """Append a batch at the leader, of timestamps and values; it counts as acknowledged once it is committed."""
        log = self.leader_log
        self._take(
            data_batch(
                log.log_end_offset,
                records,
                leader_epoch=self.epoch,
                producer_id=producer_id,
                keys=keys,
            )
        )

    def end_transaction(self, producer_id: int, marker: Marker, timestamp_ms: int) -> None:
        """Append the coordinator's marker, if the producer has a transaction open in this history."""
        log = self.leader_log
        if producer_id in open_transactions(log.batches, log.log_end_offset):
            self._take(
                marker_batch(
                    log.log_end_offset,
                    marker,
                    leader_epoch=self.epoch,
                    timestamp_ms=timestamp_ms,
                    producer_id=producer_id,
                )
            )

    def _take(self, batch: Batch) -> None:
        self.leader_log.append(batch)
        self._unacknowledged.append(batch)

    def end_history(self) -> None:
        """End this history: an unclean election is about to begin another one."""
        log = self.history_log
        self.former.append([batch for batch in log.batches if batch.next_offset <= log.high_watermark])

    def forget_what_was_not_taken_over(self) -> None:
        """Drop batches that the new leader does not have: their producers are answered to try again."""
        taken_over = set(map(id, self.leader_log.batches))
        self._unacknowledged = [batch for batch in self._unacknowledged if id(batch) in taken_over]

    def commit(self) -> None:
        """Move the high watermark, which follows the slowest replica in sync."""
        log = self.leader_log
        held_by_all = min(agreed_end(self.logs[one].batches, log.batches) for one in self.in_sync)
        log.high_watermark = max(log.high_watermark, held_by_all)
        waiting = self._unacknowledged
        self.acknowledged += [batch for batch in waiting if batch.next_offset <= log.high_watermark]
        self._unacknowledged = [batch for batch in waiting if batch.next_offset > log.high_watermark]


class Cluster:
    """Brokers with one log dir each, below ``directory``; ``alive`` are those that run, ``starts`` how often each was started
    again.  ``changed`` is called with the broker whose disk was written to.  ``elects_after_crash``: the only
    broker in sync leads in a new epoch after a crash, as in Kafka 4; a controller of Kafka 3.9 does not notice the crash."""

    def __init__(
        self,
        directory: Path,
        *,
        broker_ids: tuple[int, ...],
        topic: str,
        topic_id: Uuid,
        partitions: int,
        segment_bytes: Callable[[int], int],
        stamp_ns: Callable[[], int],
        later: Callable[[float, Callable[[], None]], None],
        changed: Callable[[int], None],
        elects_after_crash: bool = True,
        cluster_id: str = CLUSTER_ID,
    ) -> None:
        self._changed, self._elects_after_crash, self.cluster_id = changed, elects_after_crash, cluster_id
        self._written_high_watermarks: dict[int, dict[tuple[str, int], int]] = {}
        self._written_cleaner_offsets: dict[int, dict[tuple[str, int], int]] = {}
        self.log_dirs = {broker: directory / f"broker-{broker}" / "logs" for broker in broker_ids}
        self.alive = set(broker_ids)
        self.starts: Counter[int] = Counter()
        self._crashed, self._lost = set[int](), set[int]()
        for broker, log_dir in self.log_dirs.items():
            log_dir.mkdir(parents=True)
            properties = f"version=1\ncluster.id={cluster_id}\nnode.id={broker}\ndirectory.id=simulated-{broker}\n"
            (log_dir / META_PROPERTIES).write_text(properties)
        self.partitions: dict[TopicIdPartition, SimulatedPartition] = {}
        for number in range(partitions):
            topic_id_partition = TopicIdPartition(topic_id=topic_id, topic=topic, partition=number)
            logs = {
                broker: ReplicaLog(
                    log_dir,
                    topic_id_partition,
                    segment_bytes=segment_bytes(broker),
                    stamp_ns=stamp_ns,
                    later=later,
                    changed=partial(changed, broker),
                )
                for broker, log_dir in self.log_dirs.items()
            }
            partition = SimulatedPartition(topic_id_partition=topic_id_partition, logs=logs, in_sync=set(broker_ids))
            self.partitions[topic_id_partition] = partition
            self.elect(partition, broker_ids[number % len(broker_ids)])

    # -- leadership

    def elect(self, partition: SimulatedPartition, broker: int) -> None:
        """Have ``broker`` lead from now on; unclean if it is not in sync: then what it lacks is lost."""
        partition.epoch += 1
        if broker not in partition.in_sync:
            partition.end_history()
            partition.unclean_elections += 1
            partition.in_sync = {broker}
        partition.leader = partition.last_leader = broker
        log = partition.logs[broker]
        log.high_watermark = min(log.high_watermark, log.log_end_offset)
        # What is written from here on was not there yet.
        partition.users_deletes = [
            delete._replace(offset=min(delete.offset, log.log_end_offset)) for delete in partition.users_deletes
        ]
        log.begin_epoch(partition.epoch)
        partition.in_sync &= self.alive
        partition.forget_what_was_not_taken_over()
        partition.commit()

    def stop_broker(self, broker: int, *, was_clean: bool) -> None:
        """Stop a broker: its partitions get another leader, if one in sync is there.  ``was_clean``: it writes all of its
        files."""
        self.alive.discard(broker)
        if was_clean:
            for partition in self.partitions.values():
                partition.logs[broker].close()
        else:
            self._crashed.add(broker)
        for partition in self.partitions.values():
            if len(partition.in_sync) > 1:
                partition.in_sync.discard(broker)
            if partition.leader == broker:
                partition.leader = None
                self._elect_in_sync(partition)

    def start_broker(self, broker: int) -> None:
        """Start a broker: it follows, unless it is the only one in sync."""
        self.alive.add(broker)
        self.starts[broker] += 1
        for partition in self.partitions.values():
            partition.logs[broker].load(was_clean=broker not in self._crashed | self._lost)
            if partition.leader is None:
                if partition.last_leader == broker in self._crashed and not self._elects_after_crash:
                    partition.leader = broker
                else:
                    self._elect_in_sync(partition)
        self._crashed.discard(broker)
        self._lost.discard(broker)

    def lose_checkpoints(self, broker: int) -> None:
        """Lose the checkpoints of one that does not run: its start is not a clean one then."""
        self._lost.add(broker)
        self._written_high_watermarks.pop(broker, None)
        (self.log_dirs[broker] / REPLICATION_OFFSET_CHECKPOINT).unlink(missing_ok=True)
        for partition in self.partitions.values():
            partition.logs[broker].lose_checkpoints()

    def lose_replica(self, partition: SimulatedPartition, broker: int) -> None:
        """Lose a replica at a broker that does not run."""
        partition.logs[broker].lose_directory()

    def move_log_dir(self, partition: SimulatedPartition, broker: int) -> None:
        """Move a replica as AlterReplicaLogDirs does."""
        partition.logs[broker].move()

    def _elect_in_sync(self, partition: SimulatedPartition) -> None:
        candidates = sorted(partition.in_sync & self.alive)
        if candidates:
            self.elect(partition, candidates[0])

    # -- replication

    def replicate(self, partition: SimulatedPartition, broker: int, *, at_most: int) -> None:
        """Do one fetch of a follower: cut off what the leader does not have, then take up to ``at_most`` batches."""
        if partition.leader is None or broker == partition.leader or broker not in self.alive - partition.stalled:
            return
        leader, log = partition.leader_log, partition.logs[broker]
        log.truncate_to(agreed_end(log.batches, leader.batches))
        self._write_cleaner_offsets(broker)
        if log.log_end_offset < leader.log_start_offset:
            log.follow_from(leader.batches, leader.log_start_offset)
        log.append_fetched(leader.batches, leader.segments, at_most, leader.left)
        log.high_watermark = min(leader.high_watermark, log.log_end_offset)
        log.raise_log_start(min(leader.log_start_offset, log.log_end_offset))
        if log.log_end_offset >= leader.high_watermark:
            partition.in_sync.add(broker)
        partition.commit()

    def leave_behind(self, partition: SimulatedPartition, broker: int) -> None:
        """Have the leader give up waiting for a slow follower."""
        if broker != partition.leader and len(partition.in_sync) > 1:
            partition.in_sync.discard(broker)
            if partition.leader is not None:
                partition.commit()

    def catch_up(self) -> None:
        """Replicate until all replicas that run have everything."""
        for partition in self.partitions.values():
            partition.stalled.clear()
            for broker in sorted(self.alive):
                self.replicate(partition, broker, at_most=1_000_000)
            for broker in sorted(self.alive):
                self.replicate(partition, broker, at_most=0)
            if partition.leader is not None:
                partition.commit()

    def write_high_watermarks(self) -> None:
        """Write the ``replication-offset-checkpoint`` of each broker."""
        for broker in sorted(self.alive):
            offsets = {
                (topic_id_partition.topic, topic_id_partition.partition): partition.logs[broker].high_watermark
                for topic_id_partition, partition in self.partitions.items()
            }
            if self._written_high_watermarks.get(broker) != offsets:
                self._written_high_watermarks[broker] = offsets
                path = self.log_dirs[broker] / REPLICATION_OFFSET_CHECKPOINT
                scratch = path.with_suffix(".tmp")
                scratch.write_bytes(write_offset_checkpoint(offsets))
                scratch.replace(path)
                self._changed(broker)

    def clean(self, partition: SimulatedPartition, broker: int, config: CleanerConfig, now_ms: int) -> int | None:
        """Run one round of a broker's cleaner; return the new cleaner offset, None where nothing was dirty."""
        if broker not in self.alive:
            return None
        end = clean_replica(partition.logs[broker], config, now_ms)
        self._write_cleaner_offsets(broker)
        return end

    def _write_cleaner_offsets(self, broker: int) -> None:
        """Write the ``cleaner-offset-checkpoint`` of a broker, if one has changed."""
        offsets = {
            (topic_id_partition.topic, topic_id_partition.partition): offset
            for topic_id_partition, partition in self.partitions.items()
            if (offset := partition.logs[broker].cleaner_offset) is not None
        }
        if offsets != self._written_cleaner_offsets.get(broker, {}):
            self._written_cleaner_offsets[broker] = offsets
            (self.log_dirs[broker] / CLEANER_OFFSET_CHECKPOINT).write_bytes(write_offset_checkpoint(offsets))
            self._changed(broker)

    def clean_up(self, retention_ms: int, now_ms: int, *, retention_bytes: int = -1) -> None:
        """Do what the brokers' retention threads do, in each replica; -1 is without limit."""
        for log in self._logs_of_the_living():
            log.delete_segments_below_log_start()
            if retention_bytes >= 0:
                log.expire_by_size(retention_bytes)
            if retention_ms >= 0:
                log.expire_by_time(now_ms - retention_ms)

    def _logs_of_the_living(self) -> Iterator[ReplicaLog]:
        for partition in self.partitions.values():
            for broker in sorted(self.alive):
                yield partition.logs[broker]

    def broker_ids(self) -> tuple[BrokerId, ...]:
        return tuple(BrokerId(broker) for broker in self.log_dirs)


def agreed_end(ours: list[Batch], theirs: list[Batch]) -> int:
    """Return where the two histories part, exclusive."""
    agreed = min(len(ours), len(theirs))
    while agreed and ours[agreed - 1] is not theirs[agreed - 1]:
        agreed -= 1
    return ours[agreed - 1].next_offset if agreed else 0
