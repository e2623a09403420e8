"""The composition root: opens resources into one stack, in order, by plain calls.

First the ground, which needs nothing from outside, so that ``/healthz`` answers and ``/readyz`` says what is waited for; then
the parts, which wait for the broker.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, cast

from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.adapters.copy_journal import open_copy_journal
from tiersidecar.adapters.failpoints import EnvironmentFailpoints
from tiersidecar.adapters.internal_topics import OthersTopics, TopicBroker
from tiersidecar.adapters.kafka.broker import KafkaBroker, open_broker
from tiersidecar.adapters.kafka.connection import ConnectionLimits
from tiersidecar.adapters.log_dirs_fs.log_dirs import FilesystemLogDirs
from tiersidecar.adapters.pins_fs.pins import FilesystemPins
from tiersidecar.adapters.process_limits import enter_idle_io_class
from tiersidecar.adapters.seen_times import FileSeenTimes
from tiersidecar.adapters.telemetry_prometheus import PrometheusTelemetry
from tiersidecar.app.assembly import assemble
from tiersidecar.app.builders.logs import open_metadata_log, open_proposals, open_state_log
from tiersidecar.app.builders.security import bootstrap_servers, broker_security
from tiersidecar.app.builders.store import open_key_ring, open_store
from tiersidecar.app.builders.untouched_store import open_resting_store
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.top_level import IoPriority, Mode, Role
from tiersidecar.app.config.values import plain
from tiersidecar.app.identity import confirm_cluster, identity_of, own_host_name, patiently
from tiersidecar.app.mount_file import read_plan
from tiersidecar.app.parts import Opened, Parts, whole_scan_interval_s
from tiersidecar.app.process_status import ProcessStatus
from tiersidecar.app.service_manager import Progress
from tiersidecar.app.state_dir import instance_of, state_dir_of
from tiersidecar.app.tuning import Tuning, initial_tuning
from tiersidecar.domain.errors import ConfigError, LogDirError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.mounts import Mount, MountedTopic
from tiersidecar.formats import native
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.copy_journal import CopyJournal, NoJournal
from tiersidecar.ports.failpoints import AllFailpoints
from tiersidecar.ports.log_dirs import LogDirIdentity
from tiersidecar.ports.metrics.process import NATIVE_CORE
from tiersidecar.ports.seen_times import NoSeenTimes, SeenTimes
from tiersidecar.ports.shares import Shares
from tiersidecar.ports.store import Store
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.services.descriptors import reason_not_ready
from tiersidecar.services.status.access import Secrets
from tiersidecar.services.status.server import serve_status
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.trash_clock import TrashClock

_BLOCKING_THREADS = 16
"""Files, hashing, compression and encryption of all partitions; more only queue for the same disks and cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """The parts of every process, whatever its roles."""

    config: Config
    tuning: Tuning
    roles: frozenset[Role]
    clock: SystemClock
    ids: SystemIds
    blocking: ThreadBlocking
    failpoints: AllFailpoints
    telemetry: Telemetry
    table: PartitionTable
    status: ProcessStatus
    progress: Progress
    shares: Shares | None = None


async def _names_of_status(config: Config) -> list[str]:
    """Return what callers name the status service."""
    section = config.status
    # The resolver may be slow, and is asked only where the lease has its answer.
    host_name = "" if section.advertised_by("").host else await own_host_name()
    return [section.listen.host, section.advertised_by(host_name).host]


async def open_ground(
    stack: AsyncExitStack,
    config: Config,
    roles: frozenset[Role],
    *,
    telemetry: Telemetry | None = None,
    shares: Shares | None = None,
) -> Ground:
    """Open clock, threads, telemetry and the status service.

    Metrics are kept in ``telemetry``, if given.  Where that cannot be scraped, no status service is opened: another process
    answers for this one.

    Raises:
        ListenError: the status address cannot be listened on.
        ConfigError: failpoints that cannot be read.
    """
    clock, table = SystemClock(), PartitionTable()
    progress = Progress(clock)
    blocking = await stack.enter_async_context(ThreadBlocking(max_threads=_BLOCKING_THREADS))
    package_version = version("tiersidecar")
    telemetry = PrometheusTelemetry(version=package_version) if telemetry is None else telemetry
    telemetry.gauge(NATIVE_CORE, 0 if native.core.walks is None else 1, version=native.core.version)
    status = ProcessStatus(
        version=package_version,
        config=config,
        roles=roles,
        table=table,
        started_ms=clock.now_ms(),
        progress=progress,
        reasons=[reason_not_ready],
    )
    if isinstance(telemetry, PrometheusTelemetry):
        await stack.enter_async_context(
            serve_status(
                host=config.status.listen.host,
                port=config.status.listen.port,
                source=status,
                metrics=telemetry,
                blocking=blocking,
                always_per_partition=config.status.per_partition_series == "always",
                secrets=Secrets(cluster=plain(config.status.cluster_secret), page=plain(config.status.page_password)),
                also_ask=[str(address) for address in config.status.also_ask],
                names=await _names_of_status(config),
            )
        )
    return Ground(
        config=config,
        tuning=initial_tuning(config, clock, shares),
        roles=roles,
        clock=clock,
        ids=SystemIds(),
        blocking=blocking,
        failpoints=EnvironmentFailpoints.from_environment(),
        telemetry=telemetry,
        table=table,
        status=status,
        progress=progress,
        shares=shares,
    )


async def open_parts(stack: AsyncExitStack, ground: Ground) -> Parts:
    """Log dirs, store, broker and both topics; waits for the broker, without end.

    Raises:
        ConfigError: no log dir can be used, or key files cannot; one that no broker has formatted yet is waited for.
        WrongClusterError: log dirs and broker do not belong together.
    """
    config, status, clock = ground.config, ground.status, ground.clock
    state_dir = stack.enter_context(state_dir_of(config, ground.roles))
    journal = await stack.enter_async_context(_open_journal(state_dir, ground))
    trash_clock = await _open_trash_clock(state_dir, ground)
    segment_blocking = await stack.enter_async_context(_segment_threads(config))
    status.calls_ended = lambda: segment_blocking.ended
    log_dirs = FilesystemLogDirs(
        config.log_dirs,
        blocking=ground.blocking,
        segment_blocking=segment_blocking,
        clock=clock,
        whole_every_s=whole_scan_interval_s(config),
    )
    status.starting = f"waiting for a broker's meta.properties in {', '.join(config.log_dirs)}"
    found = identity_of(await _identities(log_dirs, clock))
    instance = instance_of(state_dir, ground.ids.random_uuid) if Role.TIER in ground.roles else ""
    incarnation = f"{instance}/{format_uuid(ground.ids.random_uuid())}"
    status.identity = identity = replace(
        found, instance=instance, incarnation=incarnation, host_name=await own_host_name()
    )
    key_ring = open_key_ring(config)
    mount = mount_of(config)
    store, left_alone = await _open_store(stack, ground)
    status.store = store.description
    broker = await stack.enter_async_context(_open_broker(config))
    status.starting = f"waiting for the broker at {bootstrap_servers(config.broker)}"
    bootstrap = [str(address) for address in config.broker.bootstrap_servers]
    await confirm_cluster(broker, identity, clock, bootstrap=bootstrap)
    kafka_version = await target_version(config, broker, clock)
    keeper, topics_broker = keeper_of(config), cast("TopicBroker", broker)
    if config.source is not None:
        source = OthersTopics(await stack.enter_async_context(_open_broker(keeper)), mount.source_cluster_id)
        status.reasons.append(source.reason_not_ready)
        topics_broker = source
    metadata = await stack.enter_async_context(
        open_metadata_log(
            keeper,
            ground.roles,
            broker=topics_broker,
            kafka_version=kafka_version,
            blocking=ground.blocking,
            clock=clock,
            ids=ground.ids,
            telemetry=ground.telemetry,
            failpoints=ground.failpoints,
        )
    )
    state = await stack.enter_async_context(
        open_state_log(
            keeper,
            broker=topics_broker,
            clock=clock,
            ids=ground.ids,
            telemetry=ground.telemetry,
            failpoints=ground.failpoints,
            broker_id=identity.broker_id,
            incarnation=identity.incarnation,
            roles=ground.roles,
            blocking=ground.blocking,
        )
    )
    status.metadata, status.state, status.leases, status.trash = metadata, state, state, state
    proposals = await stack.enter_async_context(open_proposals(config, broker=broker, clock=clock, ids=ground.ids))
    if config.source is None:
        status.reasons += [lambda: metadata.readiness_reason or "", lambda: state.readiness_reason or ""]
    else:
        status.reasons.append(until_met(reason_unread(ground.table, metadata, state)))
    return assemble(
        stack,
        Opened(
            config=config,
            tuning=ground.tuning,
            roles=ground.roles,
            identity=identity,
            kafka_version=kafka_version,
            table=ground.table,
            status=status,
            log_dirs=log_dirs,
            pins=FilesystemPins(config.log_dirs, blocking=ground.blocking, failpoints=ground.failpoints),
            journal=journal,
            trash_clock=trash_clock,
            broker=broker,
            store=store,
            key_ring=key_ring,
            metadata=metadata,
            state=state,
            proposals=proposals,
            blocking=ground.blocking,
            clock=clock,
            ids=ground.ids,
            failpoints=ground.failpoints,
            telemetry=ground.telemetry,
            commits=broker.groups,
            requests_left_alone=left_alone,
            mount=mount,
            shares=ground.shares,
        ),
    )


async def _open_store(stack: AsyncExitStack, ground: Ground) -> tuple[Store, Callable[[], int]]:
    """Open the store; return it, and a count of its requests that were left alone.  One that is the source's alone is not even
    swept, and rests while it is away."""
    config, clock, ids, telemetry = ground.config, ground.clock, ground.ids, ground.telemetry
    if config.source is not None:
        opening = open_resting_store(config, clock=clock, ids=ids, telemetry=telemetry)
        return await stack.enter_async_context(opening), lambda: 0
    store = await stack.enter_async_context(
        open_store(config, pace=ground.tuning.upload_pace, clock=clock, ids=ids, telemetry=telemetry)
    )
    return store, lambda: store.left_alone


def keeper_of(config: Config) -> Config:
    """Return what is configured of the cluster that keeps the sidecars' topics: of a read-only mount the source."""
    return config if config.source is None else config.model_copy(update={"broker": config.source})


class _Readable(Protocol):
    @property
    def readiness_reason(self) -> str | None: ...


def reason_unread(table: PartitionTable, *topics: _Readable) -> Callable[[], str]:
    """Return what says why not all is known of what is mounted.  Before the first look no partition is assigned, and topics
    that are in reach have nothing left to be read."""
    return lambda: table.watch_trouble or next((reason for one in topics if (reason := one.readiness_reason)), "")


def until_met(reason: Callable[[], str]) -> Callable[[], str]:
    """Return ``reason`` until it gives none for the first time, and none from then on: a source that is away keeps no client
    from reading what was known of it."""
    is_met = False

    def ask() -> str:
        nonlocal is_met
        given = "" if is_met else reason()
        is_met = not given
        return given

    return ask


def mount_of(config: Config) -> Mount:
    """Return what is mounted read-only.

    Raises:
        ConfigError: the plan cannot be read, or is none of such a mount.
    """
    if config.source is None:
        return Mount()
    plan = read_plan(Path(config.source.mount_plan))
    if not plan.is_read_only:
        fault = f"{config.source.mount_plan} is not a plan of `tiersidecar mount plan --read-only`"
        raise ConfigError(source="source.mount.plan", faults=(fault,))
    topics = {
        topic.name: MountedTopic(topic_id=topic.topic_id, partitions=len(topic.partitions)) for topic in plan.topics
    }
    return Mount(source_cluster_id=plan.former_cluster_id, topics=topics)


async def target_version(config: Config, broker: KafkaBroker, clock: Clock) -> tuple[int, int]:
    """Return (major, minor) of the Kafka version whose formats we write: as configured, else what the local broker runs."""
    if config.kafka_version is None:
        return await patiently(broker.kafka_version, clock)
    major, minor, *_ = (int(part) for part in config.kafka_version.split("."))
    return major, minor


async def _identities(log_dirs: FilesystemLogDirs, clock: Clock) -> tuple[LogDirIdentity, ...]:
    try:
        return await patiently(log_dirs.identities, clock)
    except LogDirError as error:
        raise ConfigError(source="log.dirs", faults=(str(error),)) from error


def _segment_threads(config: Config) -> ThreadBlocking:
    initializer = enter_idle_io_class if config.copy_io_priority is IoPriority.IDLE else None
    return ThreadBlocking(max_threads=_BLOCKING_THREADS, name="segments", initializer=initializer)


@asynccontextmanager
async def _open_journal(state_dir: Path, ground: Ground) -> AsyncIterator[CopyJournal]:
    """Open the journal of the tier role, whose file is its alone; other processes with this state.dir copy nothing."""
    if Role.TIER not in ground.roles or ground.config.mode is not Mode.ENFORCE:
        yield NoJournal()
        return
    async with open_copy_journal(state_dir, blocking=ground.blocking) as journal:
        yield journal


async def _open_trash_clock(state_dir: Path, ground: Ground) -> TrashClock:
    """Open the trash clock, whose file is the tier role's alone."""
    times: SeenTimes = NoSeenTimes()
    if Role.TIER in ground.roles and ground.config.mode is Mode.ENFORCE:
        times = FileSeenTimes(state_dir, blocking=ground.blocking)
    return TrashClock(clock=ground.clock, times=times, known=await times.read())


def _open_broker(config: Config) -> AbstractAsyncContextManager[KafkaBroker]:
    return open_broker(
        bootstrap_servers(config.broker),
        broker_security(config.broker),
        client_id=config.broker.client_id,
        limits=ConnectionLimits(request_timeout_s=config.broker.request_timeout_ms / 1000),
    )
