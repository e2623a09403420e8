"""Checks of what must be true in the end: every record a consumer may have is there, once, in order and whole, and the store
holds what the metadata say, no more and no less."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing

from tests.simulation.cluster import SimulatedPartition
from tests.simulation.compacted_history import table_of
from tests.simulation.planned_faults import Fault
from tests.simulation.records import visible_offsets
from tests.simulation.scenario import Kind
from tests.simulation.sidecar import config_of, open_parts, until_ready
from tests.simulation.world import World
from tiersidecar.domain.errors import TiersidecarError
from tiersidecar.domain.own_objects import OWN_DIRECTORY
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import Record, aborted_ranges, read_records
from tiersidecar.ports.broker import Credentials, ReadLocal
from tiersidecar.ports.store import PROBE_NAME
from tiersidecar.reading.lineage import StateLogStarts
from tiersidecar.reading.read_path import open_read_path
from tiersidecar.reading.remote_log_reader import RemoteBatches
from tiersidecar.services.reader.compacted_topics import CompactedTopics
from tiersidecar.services.reader.continuous_log import ContinuousLog, LogRead

_STARTED, _FINISHED, _DELETING, _DELETED = RemoteLogSegmentState
_SLACK_MS = 60_000
_READY_S = 120.0


async def check_end(world: World) -> None:
    """Complain of all that is wrong; the sidecars do not run any more."""
    for partition in world.cluster.partitions.values():
        if not partition.unclean_elections:
            _check_acknowledged(world, partition)
        _check_copied(world, partition)
        _check_cleaned(world, partition)
        if world.is_spoiled(partition):
            continue  # what is left of it locally the rules have looked after, trim by trim
        try:
            await _read_all(world, partition)
        except TiersidecarError as error:
            world.complain(f"{partition.topic_id_partition} cannot be read: {type(error).__name__}: {error}")
    _check_store(world)
    for sentence in world.pressed():
        world.complain(sentence)


def _check_acknowledged(world: World, partition: SimulatedPartition) -> None:
    """Check the simulation itself: a cluster without unclean elections keeps what it acknowledged."""
    history = set(map(id, partition.leader_log.batches))
    lost = [batch.base_offset for batch in partition.acknowledged if id(batch) not in history]
    assert not lost, f"the simulated cluster lost acknowledged batches at {lost}"


def _check_copied(world: World, partition: SimulatedPartition) -> None:
    """Check that every sealed segment is remote, and of one broker's log each only once."""
    missing = world.first_not_remote(partition)
    if missing is not None and missing >= world.may_begin_at(partition):
        world.complain(
            f"{partition.topic_id_partition} has sealed segments from offset {missing} on that are not remote"
        )
    if world.scenario.kind is not Kind.FAULTS:
        return
    starts = [
        fate.metadata.start_offset
        for fate in world.rules.segments.values()
        if fate.finished_at and fate.metadata.topic_id_partition == partition.topic_id_partition
    ]
    for start in sorted(set(starts)):
        if starts.count(start) > 1:
            world.complain(
                f"{partition.topic_id_partition} has the segment at {start} finished {starts.count(start)} times"
            )


# -- what consumers get


async def _read_all(world: World, partition: SimulatedPartition) -> None:
    broker = partition.leader
    assert broker is not None
    async with AsyncExitStack() as stack:
        parts = await open_parts(
            stack, world, broker, f"consumer of {partition.topic_id_partition}", world.clock, config_of(world, broker)
        )
        async with asyncio.timeout(_READY_S):
            await until_ready(parts.state)
            await parts.roster.look()
            await parts.metadata.wait_until_ready(partition.topic_id_partition)
        parts.table.pins.add_all((await parts.pins.scan(sweep=False)).pins)
        path = await stack.enter_async_context(
            open_read_path(
                store=parts.store,
                metadata=parts.metadata,
                manifests=parts.manifests,
                lineages=parts.lineages,
                log_starts=StateLogStarts(parts.state),
                blocking=parts.blocking,
                clock=parts.clock,
            )
        )
        bounds = await path.reader.bounds(partition.topic_id_partition)
        log = partition.leader_log
        start = bounds.start if bounds.end > bounds.start else log.log_start_offset
        if partition.dropped:
            start = max(start, partition.dropped)  # what is left below lies behind a hole
        world.note(
            f"{partition.topic_id_partition}: remote [{bounds.start}, {bounds.end}), local from {log.log_start_offset}"
        )
        _check_start(world, partition, start)
        if bounds.end > bounds.start and max(bounds.end, partition.dropped) < log.log_start_offset:
            world.complain(f"{partition.topic_id_partition}: [{bounds.end}, {log.log_start_offset}) is in neither tier")
            return
        local: ReadLocal = parts.broker  # type: ignore[assignment]
        compacted = CompactedTopics(parts.broker, parts.clock)
        whole = ContinuousLog(reader=path.reader, local=local, blocking=parts.blocking, compacted=compacted)
        if world.compaction is not None:
            await _check_table(world, partition, whole, start)
            return
        await _check_uncommitted(world, partition, whole, start)
        await _check_committed(world, partition, whole, start)


def _check_start(world: World, partition: SimulatedPartition, start: int) -> None:
    may_begin_at = world.may_begin_at(partition)
    if start > may_begin_at:
        world.complain(
            f"{partition.topic_id_partition} begins at {start}, but what is from {may_begin_at} on must be readable"
        )
    if partition.unclean_elections or any(planned.fault is Fault.CLOCK for planned in world.scenario.faults):
        return
    if start < partition.users_start_done:
        world.complain(
            f"{partition.topic_id_partition} begins at {start}, but a user deleted up to {partition.users_start_done}"
        )
    gone_by = partition.may_begin_at(
        retention_ms=world.scenario.retention_ms,
        retention_bytes=-1,
        now_ms=world.clock.true_ms() - _SLACK_MS,
    )
    batches = partition.leader_log.batches
    two_segments = 2 * 1100
    held_bytes = sum(len(batch.data) for batch in batches if start <= batch.base_offset < gone_by)
    if world.scenario.retention_ms >= 0 and held_bytes > two_segments:
        world.complain(
            f"{partition.topic_id_partition} begins at {start}, but all below {gone_by} is past retention: readable too long"
        )


async def _stream(whole: ContinuousLog, read: LogRead) -> list[RemoteBatches]:
    async with aclosing(whole.stream_batches(read)) as parts:
        return [part async for part in parts]


async def _check_table(world: World, partition: SimulatedPartition, whole: ContinuousLog, start: int) -> None:
    """Check that a read_committed reader of a compacted partition builds the table of what was written."""
    assert world.compaction is not None
    stable = partition.last_stable_offset()
    read = LogRead(
        caller=Credentials(),
        partition=partition.topic_id_partition,
        offset=start,
        stop_offset=stable,
        read_committed=True,
    )
    shown: list[Record] = []
    for part in await _stream(whole, read):
        hidden = aborted_ranges(part.aborted_transactions or ())
        for at, header in iter_batch_headers(part.batches.buffer):
            if not header.is_control and not hidden.hides(header):
                shown += read_records(memoryview(part.batches.buffer)[at : at + header.size_bytes])
    found, expected = table_of(shown), world.compaction.history(partition).table(stable)
    if found != expected:
        wrong = sorted(key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key))
        world.complain(f"{partition.topic_id_partition}: in the end {wrong} have other values than was written last")


def _check_cleaned(world: World, partition: SimulatedPartition) -> None:
    """Check that what may be cleaned is clean, where nothing stands in a cleaner's way."""
    old = world.uncleaned(partition)
    if old:
        world.complain(f"{partition.topic_id_partition}: remote records at {old[:5]} are never cleaned")


async def _check_uncommitted(world: World, partition: SimulatedPartition, whole: ContinuousLog, start: int) -> None:
    """Check that it is byte for byte what the leader wrote, from the first batch that reaches ``start``, up to the high
    watermark."""
    log = partition.leader_log
    expected = [b for b in log.batches[log.position_of(start) :] if b.next_offset <= log.high_watermark]
    read = LogRead(caller=Credentials(), partition=partition.topic_id_partition, offset=start)
    got = b"".join(bytes(part.batches.buffer) for part in await _stream(whole, read))
    if got == b"".join(batch.data for batch in expected):
        return
    found = [(header.base_offset, header.partition_leader_epoch) for _, header in iter_batch_headers(got)]
    wanted = [(batch.base_offset, batch.leader_epoch) for batch in expected]
    extra = [one for one in found if one not in set(wanted)][:3]
    missing = [one for one in wanted if one not in set(found)][:3]
    world.complain(
        f"{partition.topic_id_partition} from {start}: {len(found)} batches instead of {len(wanted)}; missing {missing}, "
        f"not of this history, twice or out of order {extra}"
    )


async def _check_committed(world: World, partition: SimulatedPartition, whole: ContinuousLog, start: int) -> None:
    log = partition.leader_log
    stable = partition.last_stable_offset()
    read = LogRead(
        caller=Credentials(),
        partition=partition.topic_id_partition,
        offset=start,
        stop_offset=stable,
        read_committed=True,
    )
    got: list[int] = []
    for part in await _stream(whole, read):
        hidden = aborted_ranges(part.aborted_transactions or ())
        for _, header in iter_batch_headers(part.batches.buffer):
            if not header.is_control and not hidden.hides(header):
                got += [one for one in range(header.base_offset, header.next_offset) if one >= start]
    expected = visible_offsets(log.batches, start, stable)
    if got != expected:
        missing = sorted(set(expected) - set(got))[:5]
        extra = sorted(set(got) - set(expected))[:5]
        world.complain(
            f"{partition.topic_id_partition} from {start}, read_committed: missing {missing}, shown though aborted {extra}"
        )


# -- what the store holds


def _check_store(world: World) -> None:
    named: set[str] = set()
    unfinished = world.unfinished()
    for fate in world.rules.segments.values():
        metadata = fate.metadata
        where = f"segment {metadata.remote_log_segment_id} [{metadata.start_offset}, {metadata.end_offset}]"
        if metadata.state is _DELETED:
            continue
        named.update(fate.keys)
        if metadata.state is _FINISHED:
            lacking = [key for key in fate.keys if not world.bucket.has(key)]
            if lacking:
                world.complain(f"{where} is finished and lacks {lacking}")
        elif fate in unfinished:
            world.complain(f"{where} is left in {metadata.state.name}")
    excused = named | world.bucket.late_keys
    # A probe whose deletion failed is known by its name.
    ours = (PROBE_NAME, OWN_DIRECTORY)
    orphans = [key for key in world.bucket.all_keys() if key not in excused and not key.startswith(ours)]
    if orphans:
        world.complain(f"no event names {orphans}")
