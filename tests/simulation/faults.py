"""Injection of a scenario's faults into its world."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TypeVar, assert_never

from tests.simulation.cluster import SimulatedPartition, UsersDelete
from tests.simulation.planned_faults import Fault, PlannedFault
from tests.simulation.sidecar import Sidecar, config_of, open_parts, until_ready
from tests.simulation.world import World
from tiersidecar.app.builders.retain import trash_delays
from tiersidecar.domain.errors import TiersidecarError
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.reading.user_deletes import Asker, UserDelete

T = TypeVar("T")


async def inject(world: World, planned: PlannedFault) -> None:
    """Wait for the fault's time, inject it, and end it."""
    await asyncio.sleep(planned.at_s)
    if world.chances.quiet or not world.chances.happens(planned.name):
        return
    world.note(f"{planned.fault.value} for {planned.lasts_s} s")
    sidecar = _pick(list(world.sidecars.values()), planned)
    process = _pick(world.processes, planned)
    partition = _pick(list(world.cluster.partitions.values()), planned)
    match planned.fault:
        case Fault.CRASH:
            await _crash(world, process, planned.lasts_s)
        case Fault.STOP:
            await _stop(process, planned.lasts_s)
        case Fault.OUTAGE:
            world.bucket.away = True
            await asyncio.sleep(planned.lasts_s)
            world.bucket.away = False
        case Fault.LEADER:
            _move_leader(world, partition, planned)
        case Fault.UNCLEAN:
            _elect_unclean(world, partition, planned)
        case Fault.BROKER | Fault.BROKER_UNCLEAN:
            await _stop_broker(world, sidecar, planned)
        case Fault.BEHIND:
            world.cluster.leave_behind(partition, sidecar.broker)
        case Fault.CLOCK:
            sidecar.clock.skew_ms = planned.jump_ms
            await asyncio.sleep(planned.lasts_s)
            sidecar.clock.skew_ms = 0
        case Fault.DISK_FULL:
            sidecar.disk.is_full = True
            await asyncio.sleep(planned.lasts_s)
            sidecar.disk.is_full = False
        case Fault.USER_DELETE:
            await _delete_records(world, partition, planned)
        case Fault.LOST_PRODUCERS:
            if sidecar.broker in world.cluster.alive:
                world.cluster.move_log_dir(partition, sidecar.broker)
        case Fault.MOVED_UNWRITTEN:
            _move_before_writes(world, partition, planned)
        case Fault.FAR_BEHIND:
            await _elect_far_behind(world, partition, planned)
        case Fault.LOST_DISK | Fault.LOST_CHECKPOINTS:
            await _stop_and_lose(world, sidecar, planned)
        case _:
            assert_never(planned.fault)


def _pick(options: list[T], planned: PlannedFault) -> T:
    return options[int(planned.target * len(options))]


async def _crash(world: World, sidecar: Sidecar, lasts_s: float) -> None:
    sidecar.kill()
    await asyncio.sleep(lasts_s)
    if not sidecar.runs and not world.chances.quiet:
        sidecar.start()


async def _stop(sidecar: Sidecar, lasts_s: float) -> None:
    process = sidecar.process
    if process is not None:
        process.stop()
        await asyncio.sleep(lasts_s)
        process.go_on()


def _move_leader(world: World, partition: SimulatedPartition, planned: PlannedFault) -> None:
    others = sorted((partition.in_sync & world.cluster.alive) - {partition.leader})
    if others:
        world.cluster.elect(partition, _pick(others, planned))


def _move_before_writes(world: World, partition: SimulatedPartition, planned: PlannedFault) -> None:
    """Elect, if only the same leader again, and move its log before the first record of the new epoch."""
    in_sync = sorted(partition.in_sync & world.cluster.alive)
    if in_sync:
        broker = _pick(in_sync, planned)
        world.cluster.elect(partition, broker)
        world.cluster.move_log_dir(partition, broker)


def _elect_unclean(world: World, partition: SimulatedPartition, planned: PlannedFault) -> None:
    """Elect where the brokers in sync are lost for the moment."""
    others = sorted(world.cluster.alive - partition.in_sync) or sorted(world.cluster.alive - {partition.leader})
    if others and partition.leader is not None:
        partition.gave_up = world.may_begin_at(partition)
        broker = _pick(others, planned)
        partition.in_sync.discard(broker)
        world.cluster.elect(partition, broker)


async def _elect_far_behind(world: World, partition: SimulatedPartition, planned: PlannedFault) -> None:
    """Elect a follower that stood still while the others go on and their sidecars copy; then it is the only one left."""
    followers = sorted(world.cluster.alive - {partition.leader})
    if not followers:
        return
    broker = _pick(followers, planned)
    world.cluster.leave_behind(partition, broker)
    partition.stalled.add(broker)
    await asyncio.sleep(planned.lasts_s)
    partition.stalled.discard(broker)
    if not world.chances.quiet and broker in world.cluster.alive and partition.leader not in (None, broker):
        partition.gave_up = world.may_begin_at(partition)
        partition.in_sync.discard(broker)
        world.cluster.elect(partition, broker)
        world.note(f"{broker} leads {partition.topic_id_partition} from {partition.leader_log.log_end_offset} on")


async def _stop_broker(world: World, sidecar: Sidecar, planned: PlannedFault) -> None:
    """Stop a broker; its sidecar runs on and cannot reach it."""
    if len(world.cluster.alive) < 2 or sidecar.broker not in world.cluster.alive:
        return
    world.cluster.stop_broker(sidecar.broker, was_clean=planned.fault is Fault.BROKER)
    await asyncio.sleep(planned.lasts_s)
    if sidecar.broker not in world.cluster.alive:
        world.cluster.start_broker(sidecar.broker)


async def _stop_and_lose(world: World, sidecar: Sidecar, planned: PlannedFault) -> None:
    """Crash a broker; a disk is lost only where others have what was on it."""
    cluster, broker = world.cluster, sidecar.broker
    if len(cluster.alive) < 2 or broker not in cluster.alive:
        return
    cluster.stop_broker(broker, was_clean=False)
    cluster.lose_checkpoints(broker)
    if planned.fault is Fault.LOST_DISK:
        for partition in cluster.partitions.values():
            if broker not in partition.in_sync:
                cluster.lose_replica(partition, broker)
    await asyncio.sleep(planned.lasts_s)
    if broker not in cluster.alive:
        cluster.start_broker(broker)


def _left_of(partition: SimulatedPartition, target: int, leader_epoch: int) -> int:
    """Return how far a delete that was published in ``leader_epoch`` reaches by now: an election may have cut off what it was
    meant for."""
    later = (one.start_offset for one in partition.history_log.epochs if one.epoch > leader_epoch)
    return min(target, next(later, target))


async def _delete_records(world: World, partition: SimulatedPartition, planned: PlannedFault) -> None:
    """Delete as ``tiersidecar delete-records`` does: the start in the state topic, then the broker's records."""
    if partition.leader is None:
        return
    target = int(partition.leader_log.high_watermark * planned.target * 0.6)
    partition.users_start = max(partition.users_start, target)
    leader_epoch = LeaderEpoch(partition.epoch)
    async with AsyncExitStack() as stack:
        clock = world.clock
        parts = await open_parts(
            stack, world, partition.leader, f"user of {planned.name}", clock, config_of(world, partition.leader)
        )
        try:
            async with asyncio.timeout(60):
                await until_ready(parts.state)
                delete = UserDelete(offset=Offset(target), leader_epoch=leader_epoch, trims=False)
                asker = Asker(by="a user", now_ms=clock.now_ms(), delays=trash_delays(parts.config))
                await delete.say(parts.state, partition.topic_id_partition, asker)
                if parts.state.partition_state(partition.topic_id_partition).remote_log_start_offset >= target:
                    partition.users_deletes.append(UsersDelete(_left_of(partition, target, leader_epoch), leader_epoch))
        except (TiersidecarError, TimeoutError) as error:
            world.note(f"the user gave up: {error}")
