"""A process of ours in the simulated world: the real wiring of its roles over simulated edges."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

from tests.simulation.broker_port import SimulatedBroker
from tests.simulation.chances import SeededIds
from tests.simulation.compacted_topic import INTERVAL_MS, CompactedTopic
from tests.simulation.environment import METADATA_TOPIC, Environment
from tests.simulation.faulty_store import NetworkStore
from tests.simulation.file_events import SimulatedFileEvents, WatchedLogDirs
from tests.simulation.hazards import TOPIC_GRACE_MS, Hazard
from tests.simulation.machine import AtOnce, InlineBlocking, PinsOnDisk, SimulatedClock
from tests.simulation.scratch import ScratchBlocking
from tests.simulation.serving import Serving, open_serving
from tests.simulation.stored_logs import KEY_ID, simulated_key_ring
from tests.simulation.topics import Sends, SimulatedClients
from tests.simulation.trash_rules import DELETE_DELAY_MS, USER_DELETE_DELAY_MS
from tests.simulation.virtual_time import Process
from tiersidecar.adapters.copy_journal import open_copy_journal
from tiersidecar.adapters.metadata_topic.log import open_metadata_topic
from tiersidecar.adapters.metadata_topic.settings import MetadataTopicSettings
from tiersidecar.adapters.null_logs import NullProposals
from tiersidecar.adapters.seen_times import FileSeenTimes
from tiersidecar.adapters.state_topic.log import open_state_topic
from tiersidecar.adapters.state_topic.settings import StateTopicSettings
from tiersidecar.adapters.stores.bounded import BoundedStore, StoreLimits
from tiersidecar.adapters.stores.paced import PacedStore
from tiersidecar.app.assembly import assemble
from tiersidecar.app.builders.read_path import open_process_read_path
from tiersidecar.app.builders.tier_parts import build_tier_parts
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.top_level import Role
from tiersidecar.app.identity import Identity
from tiersidecar.app.parts import Opened, Parts
from tiersidecar.app.process_status import ProcessStatus
from tiersidecar.app.tier_role import given_back_after, run_tier
from tiersidecar.app.tuning import Tuning, initial_tuning
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.metadata.serde import read_event
from tiersidecar.ports.clock import Clock, Ids
from tiersidecar.ports.copy_journal import CopyJournal, NoJournal
from tiersidecar.ports.failpoints import NO_FAILPOINTS
from tiersidecar.ports.seen_times import NoSeenTimes, SeenTimes
from tiersidecar.ports.state_log import StateLog
from tiersidecar.ports.store import Store
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.roster import keep_roster
from tiersidecar.tasks.trash_clock import TrashClock

METADATA_PARTITIONS = 2
_HELD_S = (2.0, 5.0)
"""How long brokers hold Fetches of the metadata topic and of the state topic, as the daemon asks them to."""
ALL_ROLES = frozenset(Role)
TIER_ROLES = frozenset({Role.TIER})
READING_ROLES = frozenset({Role.READ, Role.GATEWAY})
_GONE = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
_UNREAD = "/unread: the key ring is made in memory"


def config_of(world: Environment, broker: int, instance: str = "") -> Config:
    """Return the configuration that a user would write for this cluster, with shorter waits; ``instance`` is the name of the
    state.dir."""
    scenario = world.scenario
    hazard = scenario.hazard if world.is_mistyped else None
    rule: dict[str, object] = {
        "name": world.topic,
        "mode": scenario.mode,
        "retention.ms": scenario.retention_ms if hazard is None else hazard.typed_ms,
        "retention.bytes": scenario.retention_bytes,
        "local.retention.bytes": scenario.local_retention_bytes,
    }
    return Config.model_validate(
        {
            "log.dirs": [str(world.cluster.log_dirs[broker])],
            "state.dir": str(world.directory / (instance or instance_of(broker))),
            "broker": {"bootstrap.servers": "127.0.0.1:9092"},
            "store": {
                "type": "filesystem",
                "root": str(world.directory / "store"),
                "chunk.size": 512,
                "request.timeout": 15_000,
                "upload.stall.timeout": 20_000,
                "compression.enabled": scenario.seed % 3 == 0,
                "encryption.enabled": scenario.seed % 10 == 9,
                "encryption.key.pair.id": KEY_ID,
                "encryption.key.pairs": {KEY_ID: {"public.key.file": _UNREAD, "private.key.file": _UNREAD}},
            },
            "topics": [rule],
            **_of_compaction(scenario.compacted),
            "read": {"chunk.cache.memory.bytes": 2_000} if scenario.rereads else {},
            "disk.pressure.policy": scenario.disk_policy,
            **_of_hazard(scenario.hazard, is_mistyped=world.is_mistyped),
            "delete.delay": DELETE_DELAY_MS,
            "user.delete.delay": USER_DELETE_DELAY_MS,
            "remote.log.metadata.topic.num.partitions": METADATA_PARTITIONS,
            "remote.log.metadata.topic.replication.factor": 1,
            "remote.log.metadata.topic.min.isr": 1,
            "remote.log.metadata.consume.wait.ms": 20_000,
            "remote.log.manager.task.interval.ms": 10_000,
        },
        by_alias=True,
        by_name=False,
    )


def instance_of(broker: int) -> str:
    """Return the name of the state.dir of the sidecar that belongs beside the broker."""
    return f"state-{broker}"


def _of_compaction(topic: CompactedTopic | None) -> dict[str, object]:
    if topic is None:
        return {}
    return {
        "compaction.enabled": True,
        "compaction.trim.enabled": True,
        "compaction.interval.ms": INTERVAL_MS,
        "compaction.dedupe.buffer.size": topic.dedupe_bytes,
    }


def _of_hazard(hazard: Hazard | None, *, is_mistyped: bool) -> dict[str, object]:
    if hazard is None:
        return {"deletes.max.share.per.round": 1.0}
    return {
        "deletes.max.share.per.round": 0.5 if hazard.is_guarded else 1.0,
        "deletes.enabled": hazard.may_delete or not is_mistyped,
        "deletes.topic.grace.ms": TOPIC_GRACE_MS,
        "lease.duration.ms": hazard.lease_ms,
    }


class Sidecar:
    """One incarnation after another beside one broker, with one state.dir, ``instance``.  ``clock`` is the machine's;
    ``serving`` is what clients reach while it is up, of a process that serves."""

    def __init__(self, world: Environment, broker: int, name: str, roles: frozenset[Role], instance: str = "") -> None:
        self.broker, self._world, self._name, self._roles = broker, world, name, roles
        self.instance = instance or instance_of(broker)
        self.clock = SimulatedClock(world.loop)
        self.disk = world.disks[broker]
        self.process: Process | None = None
        self.serving: Serving | None = None
        self._parts: Parts | None = None
        self._incarnation = 0
        self.buried: list[tuple[Process, asyncio.Task[None]]] = []

    @property
    def runs(self) -> bool:
        return self.process is not None

    def doubted(self) -> list[str]:
        """Return why nothing is done with partitions that its broker leads, by the process that has the broker's tier role: the
        directories are right ones here.  Of an empty log that was moved nothing is known until its first record."""
        parts = self._parts
        if parts is None or self._world.lease_rules.holder(self.broker) != parts.identity.incarnation:
            return []
        table, logs = parts.table, self._world.cluster.partitions
        reasons = dict.fromkeys(table.unseen, "its directory is not seen")
        reasons |= {owner: table.doubt(tiered) for owner, tiered in table.assignment.items()}
        return [
            f"{self._name} {self.broker} does nothing with {owner}: {why}"
            for owner, why in reasons.items()
            if why and owner.topic not in table.refused_topics and logs[owner].logs[self.broker].batches
        ]

    def start(self) -> None:
        """Start a new process; it knows only what is durable."""
        self._incarnation += 1
        self.process = process = Process(f"{self._name} {self.broker}.{self._incarnation}", self._world.loop)
        task = process.start(self._main(process))
        self.buried.append((process, task))
        task.add_done_callback(lambda done: self._world.process_ended(process, done))

    def kill(self) -> None:
        """Kill it as kill -9 does."""
        if self.process is not None:
            self.process.kill()
            self.process = self.serving = self._parts = None

    async def stop_in_order(self) -> None:
        """Stop it as SIGTERM does, and wait for its end."""
        if self.process is None:
            return
        process, task = self.buried[-1]
        process.is_asked_to_end = True
        self.process = self.serving = self._parts = None
        task.cancel()
        await asyncio.wait([task])

    async def _main(self, process: Process) -> None:
        """Run the roles as ``app.supervise`` does."""
        async with AsyncExitStack() as stack:
            parts = await open_parts(
                stack,
                self._world,
                self.broker,
                process.name,
                self.clock,
                config_of(self._world, self.broker, self.instance),
                roles=self._roles,
                instance=self.instance,
            )
            if self.process is process:
                self._parts = parts
            if Role.GATEWAY in self._roles:
                bucket = _bucket_of(self._world, parts.ids, informs_rules=False)
                path = await open_process_read_path(stack, replace(parts, store=_store_of(bucket, parts)))
                parts = replace(parts, read_path=path)
                self.serving = open_serving(
                    stack,
                    parts,
                    process,
                    self._world.chances,
                    most_in_sessions=self._world.scenario.most_in_sessions,
                )
            if Role.TIER in self._roles:
                role = build_tier_parts(parts)
                async with given_back_after(parts, role):
                    await run_tier(parts, role)
            else:
                await keep_roster(parts.roster, parts.look_interval_s)


def _bucket_of(
    world: Environment, ids: Ids, *, informs_rules: bool, acts: Callable[[str], None] = lambda what: None
) -> NetworkStore:
    """Return the bucket over the network.  ``informs_rules`` of what is fetched: a consumer's read proves nothing."""
    scenario = world.scenario
    return NetworkStore(
        world.bucket,
        world.network,
        world.chances,
        scenario.store_rates if informs_rules else scenario.reader_rates,
        ids,
        informs_of_reads=informs_rules,
        is_local=scenario.store_is_local,
        acts=acts,
    )


def _store_of(bucket: NetworkStore, parts: Parts) -> Store:
    return _bounded(bucket, parts.config, parts.tuning, parts.clock)


def _bounded(bucket: NetworkStore, config: Config, tuning: Tuning, clock: Clock) -> Store:
    limits = StoreLimits(
        stall_s=config.store.upload_stall_timeout / 1000,
        upload_s=config.store.upload_timeout / 1000,
        request_s=config.store.request_timeout / 1000,
    )
    return PacedStore(BoundedStore(bucket, limits=limits, clock=clock), tuning.upload_pace)


async def open_parts(
    stack: AsyncExitStack,
    world: Environment,
    broker: int,
    name: str,
    clock: SimulatedClock,
    config: Config,
    *,
    roles: frozenset[Role] = TIER_ROLES,
    instance: str = "",
) -> Parts:
    """Open what :func:`tiersidecar.app.wiring.open_parts` opens, with every edge simulated but files."""
    scenario, chances = world.scenario, world.chances
    instance = instance or instance_of(broker)
    incarnation = f"{instance}/{name}"
    acts = world.lease_rules.acting(broker, incarnation)
    ids, telemetry, table = SeededIds(chances, name), NoTelemetry(), PartitionTable()
    blocking = _blocking(world, broker, config)
    port = SimulatedBroker(
        world.cluster,
        world.topics,
        world.network,
        broker_id=broker,
        side=world.sides[broker],
        rates=scenario.broker_rates,
        configs=world.topic_configs,
        new_topic=world.new_topic,
        trimmed=world.trimmed,
        acts=acts,
    )
    clients = SimulatedClients(
        world.topics, world.network, world.loop, chances, scenario.topic_rates, name, _sends(acts)
    )
    metadata_held_s, state_held_s = _HELD_S if scenario.holds_fetches else (0.0, 0.0)
    tuning = initial_tuning(config, clock)
    store = _bounded(_bucket_of(world, ids, informs_rules=True, acts=acts), config, tuning, clock)
    metadata = await stack.enter_async_context(
        open_metadata_topic(
            MetadataTopicSettings(
                bootstrap_servers="simulated",
                partitions=METADATA_PARTITIONS,
                replication_factor=1,
                min_insync_replicas=1,
                consume_wait_ms=config.remote_log_metadata_consume_wait_ms,
            ),
            broker=port,
            clock=clock,
            ids=ids,
            telemetry=telemetry,
            blocking=blocking,
            clients=clients.held(metadata_held_s),
        )
    )
    state = await stack.enter_async_context(
        open_state_topic(
            StateTopicSettings(
                bootstrap_servers="simulated",
                replication_factor=1,
                min_insync_replicas=1,
                consume_wait_ms=config.remote_log_metadata_consume_wait_ms,
                broker_id=broker,
                incarnation=incarnation,
            ),
            broker=port,
            clock=clock,
            ids=ids,
            telemetry=telemetry,
            clients=clients.held(state_held_s),
        )
    )
    return assemble(
        stack,
        Opened(
            config=config,
            tuning=tuning,
            roles=roles,
            identity=Identity(
                cluster_id=world.cluster.cluster_id,
                broker_id=BrokerId(broker),
                instance=instance,
                incarnation=incarnation,
            ),
            kafka_version=(4, 3),
            table=table,
            status=ProcessStatus(
                version="simulated", config=config, roles=roles, table=table, started_ms=clock.now_ms()
            ),
            log_dirs=WatchedLogDirs(
                config.log_dirs,
                blocking=blocking,
                clock=clock,
                events=SimulatedFileEvents(
                    config.log_dirs, clock=clock, events=scenario.file_events, chances=chances, process=name
                ),
            ),
            journal=await stack.enter_async_context(_open_journal(config, roles, blocking)),
            trash_clock=await _open_trash_clock(config, roles, clock),
            pins=PinsOnDisk(config.log_dirs, world.disks[broker], blocking=blocking, failpoints=NO_FAILPOINTS),
            broker=port,
            store=store,
            key_ring=simulated_key_ring(),
            metadata=metadata,
            state=state,
            proposals=NullProposals(),  # users' deletes are said here without a gateway
            blocking=blocking,
            clock=clock,
            ids=ids,
            failpoints=NO_FAILPOINTS,
            telemetry=telemetry,
            requests_left_alone=lambda: 0,
        ),
    )


def _blocking(world: Environment, broker: int, config: Config) -> InlineBlocking:
    scenario, chances, disk = world.scenario, world.chances, world.disks[broker]
    if scenario.compacted is None:
        return InlineBlocking(chances, scenario.disk_rate, disk)
    return ScratchBlocking(
        chances,
        scenario.disk_rate,
        disk,
        scratch=Path(config.state_dir) / "cleaned",
        free_bytes=scenario.compacted.scratch_bytes,
        complain=world.complain,
    )


def _sends(acts: Callable[[str], None]) -> Sends:
    """Call ``acts`` for what is said of segments; that all objects are deleted is no act any more."""

    def sends(topic: str, value: bytes | None) -> None:
        if topic != METADATA_TOPIC or value is None:
            return
        event = read_event(value, where="sent")
        if isinstance(event, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate) and event.state is not _GONE:
            acts(f"says {event.state.name} of {event.remote_log_segment_id}")

    return sends


def _open_journal(
    config: Config, roles: frozenset[Role], blocking: InlineBlocking
) -> AbstractAsyncContextManager[CopyJournal]:
    if Role.TIER not in roles:
        return nullcontext(NoJournal())
    return open_copy_journal(Path(config.state_dir), blocking=blocking)


async def _open_trash_clock(config: Config, roles: frozenset[Role], clock: SimulatedClock) -> TrashClock:
    times: SeenTimes = NoSeenTimes()
    if Role.TIER in roles:
        times = FileSeenTimes(Path(config.state_dir), blocking=AtOnce())
    return TrashClock(clock=clock, times=times, known=await times.read())


async def until_ready(state: StateLog) -> None:
    """Return once the state topic has been read."""
    while state.readiness_reason is not None:  # noqa: ASYNC110 - it has no event for this
        await asyncio.sleep(0.2)
