"""The steps of each hazard of a scenario in its world."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any, assert_never

from tests.simulation.cluster import SimulatedPartition, UsersDelete
from tests.simulation.environment import Environment
from tests.simulation.hazards import Hazard, What
from tests.simulation.native_copies import tier_natively
from tests.simulation.network import NO_FAULTS
from tests.simulation.scenario import RACE_RETENTION_MS
from tests.simulation.sidecar import TIER_ROLES, Sidecar
from tests.simulation.topics import SimulatedTopic
from tests.simulation.virtual_time import Process
from tests.simulation.world import World
from tiersidecar.domain.ids import Uuid

_LATE_S = 75
"""Time after the broker's retention: longer than the minute in which a renamed file can still be pinned."""
_REHEARSAL_ID, _REHEARSAL_TOPIC_ID = "rehearsing-cluster-id", Uuid(b"rehearsed-topic!")


def steps_of_hazard(world: World) -> Iterator[Coroutine[Any, Any, None]]:
    """Yield what the scenario's hazard does, each by itself."""
    hazard = world.scenario.hazard
    if hazard is None:
        return
    if hazard.from_start:
        yield _begin_late(world, hazard)
    match hazard.what:
        case What.TYPED:
            yield _mistype(world, hazard)
        case What.CLOCK:
            yield _set_clocks_right(world, hazard)
        case What.DELETED:
            for target, partition in zip(hazard.targets, world.cluster.partitions.values(), strict=False):
                yield _delete_before(world, partition, hazard.begins_s, target)
        case What.TWINS:
            yield _begin_twin(world, hazard)
        case What.BACK:
            yield _take_turns(world, hazard)
        case What.NATIVE:
            yield tier_natively(world, hazard)
        case What.PINNED:
            yield _keep_transactions_open(world, hazard)
        case What.LOWERED:
            yield _keep_transactions_open(world, hazard)
            yield _lower_retention(world, hazard)
        case What.REHEARSAL:
            yield _rehearse(world, hazard)
        case What.COMPACTED:
            for number, target in enumerate(hazard.targets):
                yield _depose(world, f"deposed leader {number}", hazard.ends_s * (0.2 + 0.7 * target))
        case What.KEPT:
            pass  # the log itself does it
        case _:
            assert_never(hazard.what)


async def _begin_late(world: World, hazard: Hazard) -> None:
    """Install the sidecars beside brokers that have had their topics for long."""
    world.is_mistyped = hazard.what is What.TYPED
    for process in world.processes:
        process.clock.skew_ms = hazard.skew_ms
    await asyncio.sleep(hazard.sidecars_from_s)
    world.note("the sidecars are installed")
    for process in world.processes:
        if not process.runs:
            process.start()


async def _mistype(world: World, hazard: Hazard) -> None:
    if not hazard.from_start:
        await asyncio.sleep(hazard.begins_s)
        _configure(world, is_mistyped=True)
    await asyncio.sleep(hazard.ends_s - hazard.begins_s if not hazard.from_start else hazard.ends_s)
    _configure(world, is_mistyped=False)


def _configure(world: World, *, is_mistyped: bool) -> None:
    """Restart all; a process that is away begins with what is there then."""
    world.note("a retention is typed" if is_mistyped else "the retention is corrected")
    world.is_mistyped = is_mistyped
    for process in world.processes:
        if process.runs:
            process.kill()
            process.start()


async def _set_clocks_right(world: World, hazard: Hazard) -> None:
    await asyncio.sleep(hazard.ends_s)
    world.note("the clocks are set right")
    for process in world.processes:
        process.clock.skew_ms = 0


async def _delete_before(world: World, partition: SimulatedPartition, before_s: float, target: float) -> None:
    """Delete records at the broker, done once all replicas have it, which is when the user gets the answer; nothing of it has
    been copied by then."""
    await asyncio.sleep(before_s * (0.3 + 0.4 * target))
    if partition.leader is None:
        return
    log = partition.leader_log
    bases = [base for base in log.segments if base < log.high_watermark]
    number = int(target * (len(bases) - 1))
    offset = max(bases[number] + 1, (bases[number] + (*bases, log.high_watermark)[number + 1]) // 2)
    log.raise_log_start(min(offset, log.high_watermark))
    world.note(f"{partition.topic_id_partition} is deleted up to {offset}")
    partition.users_start = offset
    until_s = world.loop.time() + before_s * 0.2
    while any(partition.logs[broker].log_start_offset < offset for broker in world.cluster.alive):
        if world.loop.time() >= until_s:
            return
        await asyncio.sleep(0.5)
    partition.users_deletes.append(UsersDelete(offset, partition.epoch))


async def _keep_transactions_open(world: World, hazard: Hazard) -> None:
    """Keep transactions open: nothing above the first of them may be copied, and the broker's own retention waits for none."""
    world.keeps_transactions_open = True
    await asyncio.sleep(hazard.ends_s)
    world.keeps_transactions_open = False


async def _lower_retention(world: World, hazard: Hazard) -> None:
    """Lower the retention at the brokers, which have kept all since the beginning."""
    await asyncio.sleep(hazard.begins_s)
    world.note("the brokers' retention is lowered")
    world.topic_configs["retention.ms"] = str(RACE_RETENTION_MS)


async def _begin_twin(world: World, hazard: Hazard) -> None:
    """Start a second sidecar beside a broker; each of both stands still for longer than the lease lasts.  At last the holder is
    stopped in order, and started again when the other one has had the role for a while."""
    broker = 1 + int(hazard.targets[0] * len(world.disks))
    twin = Sidecar(world, broker, "twin", TIER_ROLES, instance=f"twin-state-{broker}")
    await asyncio.sleep(hazard.begins_s)
    world.extra_sidecars.append(twin)
    if not twin.runs:
        twin.start()
    both = (world.sidecars[broker], twin)
    for number, target in enumerate(hazard.targets[1:]):
        await asyncio.sleep(4 + 30 * target)
        if world.chances.quiet or not world.chances.happens(f"stop of a twin {number}"):
            continue
        holder = world.lease_rules.holder(broker).partition("/")[0]
        process = next((one.process for one in both if one.instance == holder), None)
        if process is not None:
            process.stop()
            await asyncio.sleep(10 + 40 * target)
            process.go_on()
    await asyncio.sleep(4)
    holder = world.lease_rules.holder(broker).partition("/")[0]
    leaving = next((one for one in both if one.instance == holder), None)
    if leaving is not None and not world.chances.quiet and world.chances.happens("stop of the holder in order"):
        world.note(f"{leaving.instance} is stopped in order")
        await leaving.stop_in_order()
        await asyncio.sleep(8)
        if not leaving.runs:
            leaving.start()


async def _take_turns(world: World, hazard: Hazard) -> None:
    """Have two take turns: the holder stands still until a second one has the role; that one alone pins what the broker then
    deletes, for nothing can be copied; and the first one, which has stood by all the time, has the role again before it can."""
    await asyncio.sleep(hazard.begins_s)
    partition = list(world.cluster.partitions.values())[int(hazard.targets[0] * len(world.cluster.partitions))]
    broker = partition.leader or 1
    first, twin = world.sidecars[broker], Sidecar(world, broker, "twin", TIER_ROLES, instance=f"twin-state-{broker}")
    world.extra_sidecars.append(twin)
    twin.start()
    await asyncio.sleep(5)
    if world.chances.quiet or not world.chances.happens("the role goes to the twin"):
        return
    if not await _let_take(world, twin, still=first):
        return
    is_outage = hazard.targets[1] < 0.5
    world.bucket.away, world.keeps_transactions_open = is_outage, not is_outage
    world.note("the store is away" if is_outage else "transactions stay open")
    await asyncio.sleep(world.scenario.broker_retention_ms / 1000 + _LATE_S + 30 * hazard.targets[2])
    if hazard.targets[3] < 0.5:
        await twin.stop_in_order()
    else:
        twin.kill()
    await _until(lambda: _holds(world, first), 40)
    await asyncio.sleep(5)
    world.bucket.away = world.keeps_transactions_open = False


async def _let_take(world: World, taker: Sidecar, *, still: Sidecar) -> bool:
    """Return whether ``taker`` has the role then; ``still`` goes on in any case."""
    process = still.process
    if process is None:
        return False
    process.stop()
    await _until(lambda: _holds(world, taker) or still.process is not process, 40)
    process.go_on()
    return _holds(world, taker)


def _holds(world: World, one: Sidecar) -> bool:
    return world.lease_rules.holder(one.broker).partition("/")[0] == one.instance


async def _until(condition: Callable[[], bool], most_s: float) -> None:
    for _ in range(int(most_s * 2)):
        if condition():
            return
        await asyncio.sleep(0.5)


async def _depose(world: World, name: str, at_s: float) -> None:
    """Have the sidecar of a leader stand still right when its cleaner may be at work, elect another one, and let it go on when
    that one has cleaned for a while: what it still does comes late."""
    await asyncio.sleep(at_s)
    partition = world.chances.choose(f"{name} of", list(world.cluster.partitions.values()))
    if partition.leader is None or world.chances.quiet or not world.chances.happens(name):
        return
    process = world.sidecars[partition.leader].process
    others = sorted((partition.in_sync & world.cluster.alive) - {partition.leader})
    if process is None or not others:
        return
    process.stop()
    world.cluster.elect(partition, world.chances.choose(f"after {name}", others))
    await asyncio.sleep(world.chances.between(f"{name} for", 2, 20))
    process.go_on()


class Rehearsal(Environment):
    """Another cluster, with copies of the first one's topics, on the same store; what its sidecars do to that is a breach."""

    def __init__(self, world: World) -> None:
        super().__init__(
            replace(world.scenario, brokers=1, partitions=1, broker_rates=NO_FAULTS, topic_rates=NO_FAULTS),
            world.chances,
            world.directory / "rehearsal",
            world.loop,
            cluster_id=_REHEARSAL_ID,
            topic_id=_REHEARSAL_TOPIC_ID,
        )
        self._rehearsed, self.bucket, self.network = world, world.bucket, world.network
        self.trace, self.violations, self.clock = world.trace, world.violations, world.clock
        world.chances.on_fault = lambda name: world.note(f"fault: {name}")
        self.bucket.rules = world.rules
        for name, topic in world.topics.items():
            self.topics[name] = self._mirrored(name, topic)

    def _mirrored(self, name: str, topic: SimulatedTopic) -> SimulatedTopic:
        """Copy all that is there by now; what is written to it here is this cluster's alone."""
        mirror = self.new_topic(name, len(topic.partitions), topic.configs)
        for number, log in enumerate(topic.partitions):
            for record in log:
                mirror.append(
                    number, key=record.key, value=record.value, timestamp_ms=record.timestamp, now_s=self.loop.time()
                )
        return mirror

    def process_ended(self, process: Process, done: asyncio.Task[None]) -> None:
        self._rehearsed.process_ended(process, done)

    def topic_written(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        """Note a record, of which only the lease counts: of segments the rules of the cluster that has them."""
        self.lease_rules.record(key, value)


async def _rehearse(world: World, hazard: Hazard) -> None:
    """Rehearse as docs/operations/disasters.md once advised, without another store."""
    await asyncio.sleep(hazard.begins_s)
    rehearsal = Rehearsal(world)
    rehearsing = Sidecar(rehearsal, 1, "rehearsing sidecar", TIER_ROLES, instance="rehearsing-state")
    world.extra_sidecars.append(rehearsing)
    rehearsing.start()
