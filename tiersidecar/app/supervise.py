"""Run the daemon: bring the parts up in order, keep the roles running, end on a signal or on the first fatal error.

SIGHUP reads the configuration again and puts into force what may change while the process runs (U14).
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import structlog
import uvloop

from tiersidecar.adapters.ending_loop import EndingRunner
from tiersidecar.adapters.process_limits import leave_no_core, reuse_freed_memory, take_descriptors
from tiersidecar.app.builders.read_path import open_process_read_path
from tiersidecar.app.builders.snapshots import build_cluster_snapshot_lane, build_snapshot_lane
from tiersidecar.app.builders.tier_parts import build_tier_parts
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.report import effective_settings
from tiersidecar.app.config.top_level import Mode, Role
from tiersidecar.app.gateway_role import run_gateway
from tiersidecar.app.gateway_workers.begun_with import flat, require_same
from tiersidecar.app.gateway_workers.place import WorkerPlace, is_served_by_workers
from tiersidecar.app.gateway_workers.start import prepare_workers, remove_what_workers_left, show_workers
from tiersidecar.app.gateway_workers.worker import Worker
from tiersidecar.app.parts import Parts
from tiersidecar.app.process_status import ProcessStatus
from tiersidecar.app.read_role import run_read
from tiersidecar.app.service_manager import ServiceManager, reporting
from tiersidecar.app.state_dir import keep_files_private
from tiersidecar.app.stop_signals import BeforeStop, stop_on_signals
from tiersidecar.app.tier_role import announce_stop, given_back_after, run_tier
from tiersidecar.app.tuning import RELOADABLE, Tuning
from tiersidecar.app.wiring import Ground, open_ground, open_parts
from tiersidecar.domain.errors import ConfigError, TiersidecarError
from tiersidecar.ports.clock import Clock
from tiersidecar.tasks.groups_below_trim import GroupsBelowTrim


class Reloader:
    """Holds what is in force against what the file says.  A file with a fault changes nothing."""

    def __init__(
        self, config: Config, tuning: Tuning, load: Callable[[], Config], then: Callable[[], None] = lambda: None
    ) -> None:
        """``then`` is called when a file has been read."""
        self._started_with, self._in_force, self._tuning, self._load = config, config, tuning, load
        self._then = then

    def reload(self) -> None:
        """Read, compare, apply, and say what came of it."""
        try:
            wanted = self._load()
        except ConfigError as error:
            log.error("config.reload.refused", faults=list(error.faults))  # noqa: TRY400  the faults say it all
            return
        applied = sorted(changed_keys(self._in_force, wanted) & RELOADABLE)
        self._tuning.apply(wanted)
        self._in_force = wanted
        self._then()
        log.info("config.reloaded", applied=applied)
        if waiting := sorted(changed_keys(self._started_with, wanted) - RELOADABLE):
            log.warning("config.reload.needs_restart", keys=waiting)


@asynccontextmanager
async def reloading_on_hangup(reloader: Reloader) -> AsyncIterator[None]:
    """Reload on SIGHUP while the body runs; otherwise the signal would end the process."""
    loop = asyncio.get_running_loop()
    # On the loop: a file of some kilobytes, rarely, and nothing else sees rates that are half applied.
    loop.add_signal_handler(signal.SIGHUP, reloader.reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def changed_keys(before: Config, after: Config) -> frozenset[str]:
    """Return the dotted names of the keys whose values differ.  Secrets are masked, so a changed one is not among them."""
    old, new = (dict(flat(effective_settings(config, units=False))) for config in (before, after))
    return frozenset(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))


log = structlog.get_logger(__name__)

_SWITCH_S = 0.0005
"""How long a thread that looks at records may keep the interpreter from the event loop, which asks for it again after each
system call: with Python's 5 ms a request beside such a thread took 120 ms."""

EXIT_OK, EXIT_FATAL, EXIT_CONFIG = 0, 1, 2

_ANNOUNCING_S, _ANNOUNCING_PART = 5.0, 4
"""How long a process announces its stop, and the part of the whole time that it has to stop."""

RoleMain = Callable[[Any], Coroutine[Any, Any, None]]
_SERVING: dict[Role, RoleMain] = {Role.READ: run_read, Role.GATEWAY: run_gateway}


def run_daemon(
    config: Config, roles: frozenset[Role], load: Callable[[], Config], place: WorkerPlace | None = None
) -> int:
    """Run until SIGTERM, SIGINT or a fatal error; gives the exit code (0 stopped, 1 fatal, 2 configuration).

    ``load`` reads the configuration anew, for SIGHUP.  ``place`` is that of a worker process, which another one has started.
    """
    if place is not None:
        place.end_with_starter()
        leave_no_core()  # the process that started it aborts it if it hangs; what a unit says of cores is not known here
    keep_files_private()
    take_descriptors()
    faulthandler.enable()  # the watchdog's SIGABRT then leaves the stacks of all threads on stderr
    reuse_freed_memory()  # before the first thread
    sys.setswitchinterval(_SWITCH_S)
    with EndingRunner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_supervise(config, roles, load, place))


async def _supervise(
    config: Config, roles: frozenset[Role], load: Callable[[], Config], place: WorkerPlace | None
) -> int:
    loop, before_stop = asyncio.get_running_loop(), BeforeStop()
    with stop_on_signals(loop) as stopping:
        if place is not None:
            run = _run_worker(config, place, load, before_stop, stopping.set)
        elif is_served_by_workers(config, roles):
            run = _run_with_workers(config, roles, load, before_stop)
        else:
            run = _run(config, roles, load, before_stop)
        daemon = asyncio.create_task(run, name="daemon")
        stop = asyncio.create_task(stopping.wait(), name="stop signal")
        await asyncio.wait((daemon, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not daemon.done():
            log.info("daemon.stopping")
            grace_s = config.shutdown_grace_ms / 1000
            until_s = loop.time() + grace_s
            await before_stop.do(min(_ANNOUNCING_S, grace_s / _ANNOUNCING_PART))
            daemon.cancel()
            _, late = await asyncio.wait((daemon,), timeout=until_s - loop.time())
            if late:
                log.error("daemon.stop.late", grace_ms=config.shutdown_grace_ms)
                return EXIT_FATAL
        return _exit_code(daemon)


def _exit_code(daemon: asyncio.Task[None]) -> int:
    """Say why the daemon ended, without a traceback where we know what it means."""
    error = None if daemon.cancelled() else daemon.exception()
    if error is None:
        log.info("daemon.stopped")
        return EXIT_OK
    causes = _leaves(error)
    for cause in causes:
        if isinstance(cause, TiersidecarError):
            print(f"tiersidecar: {cause}", file=sys.stderr)
            log.error("daemon.failed", error=str(cause))
        else:
            log.error("daemon.failed", error=str(cause), exc_info=cause)
    return EXIT_CONFIG if all(isinstance(cause, ConfigError) for cause in causes) else EXIT_FATAL


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


async def _run(config: Config, roles: frozenset[Role], load: Callable[[], Config], before_stop: BeforeStop) -> None:
    """Run a process that does all itself."""
    if Role.GATEWAY in roles:
        remove_what_workers_left(config)
    async with AsyncExitStack() as stack:
        ground = await open_ground(stack, config, roles)
        await _begin(stack, ground, before_stop, Reloader(config, ground.tuning, load))
        await _run_roles(stack, ground)


async def _run_worker(
    config: Config,
    place: WorkerPlace,
    load: Callable[[], Config],
    before_stop: BeforeStop,
    stop: Callable[[], None],
) -> None:
    """Run a worker of a gateway: its status is a report to the process that started it."""
    require_same(config, place.begun_with)
    async with AsyncExitStack() as stack:
        worker = Worker(place)
        roles = frozenset({Role.GATEWAY})
        ground = await open_ground(stack, config, roles, telemetry=worker.telemetry, shares=worker.shares)
        reloader = Reloader(config, ground.tuning, load)
        await _begin(stack, ground, before_stop, reloader)
        await stack.enter_async_context(
            worker.reporting(
                ground.status,
                progress=ground.progress,
                reload=reloader.reload,
                stop=stop,
                clock=ground.clock,
            )
        )
        await _run_roles(stack, ground)


async def _run_with_workers(
    config: Config, roles: frozenset[Role], load: Callable[[], Config], before_stop: BeforeStop
) -> None:
    """Run a process that has others serve the gateway's clients, and has the other roles itself."""
    async with AsyncExitStack() as stack:
        prepared = await prepare_workers(stack, config)
        ground = await open_ground(stack, config, roles, telemetry=prepared.telemetry, shares=prepared.shares)
        group = prepared.group(ground.clock)
        await _begin(stack, ground, before_stop, Reloader(config, ground.tuning, load, group.reload))
        before_stop.take(group.stop_soon)
        show_workers(group, ground.status)
        await stack.enter_async_context(group.running(config.shutdown_grace_ms / 1000))
        if others := roles - {Role.GATEWAY}:
            await _run_roles(stack, replace(ground, roles=others))
        _started(ground.status)
        await asyncio.Event().wait()


async def _begin(stack: AsyncExitStack, ground: Ground, before_stop: BeforeStop, reloader: Reloader) -> None:
    """Do what every process does before it has any parts."""
    ground.status.before_stop = before_stop
    await stack.enter_async_context(
        reporting(
            ServiceManager.take_from(os.environ, os.getpid()),
            progress=ground.progress,
            waits_for=lambda: "; ".join(ground.status.ready_reasons()),
            clock=ground.clock,
        )
    )
    await stack.enter_async_context(reloading_on_hangup(reloader))
    roles = sorted(role.value for role in ground.roles)
    log.info("daemon.started", roles=roles, mode=ground.config.mode.value)


async def _run_roles(stack: AsyncExitStack, ground: Ground) -> None:
    """Open the parts, and run the roles of ``ground`` until cancelled."""
    config, roles, before_stop = ground.config, ground.roles, ground.status.before_stop
    parts = await open_parts(stack, ground)
    if roles & {Role.READ, Role.GATEWAY}:
        parts = replace(parts, read_path=await open_process_read_path(stack, parts))
    _spare_what_stays()
    tier = build_tier_parts(parts) if Role.TIER in roles else None
    if tier is not None:
        await stack.enter_async_context(given_back_after(parts, tier))
        if tier.lease is not None:
            before_stop.take(partial(announce_stop, parts, tier.lease))
    async with asyncio.TaskGroup() as group:
        for role in sorted(roles):
            main = run_tier(parts, tier) if role is Role.TIER and tier is not None else _SERVING[role](parts)
            group.create_task(_until_cancelled(role, main), name=f"role {role.value}")
        if (snapshots := build_snapshot_lane(parts)) is not None:
            group.create_task(snapshots.run(), name="snapshots")
        if (cluster_snapshots := build_cluster_snapshot_lane(parts)) is not None:
            group.create_task(cluster_snapshots.run(), name="cluster snapshots")
        if Role.TIER in roles and config.mode is Mode.ENFORCE:
            group.create_task(_groups_below_trim(parts).run(), name="groups below trims")
        if ground.shares is not None:
            group.create_task(_show_quotas(ground), name="shared quotas")
        group.create_task(spare_what_is_known(ground.status, ground.clock), name="spare what is known")
        _started(ground.status)


_QUOTAS_SHOWN_S = 0.2


async def _show_quotas(ground: Ground) -> None:
    """Show other processes what is left of what was read lately: it grows less without a read as well."""
    while True:
        await ground.clock.sleep(_QUOTAS_SHOWN_S)
        ground.tuning.look_again(ground.clock.monotonic_s())


def _groups_below_trim(parts: Parts) -> GroupsBelowTrim:
    return GroupsBelowTrim(
        table=parts.table,
        broker=parts.broker,
        state=parts.state,
        clock=parts.clock,
        telemetry=parts.telemetry,
        rests=lambda: parts.status.standing_by(),  # set anew once the role tier runs
    )


def _spare_what_stays() -> None:
    """Exempt what start-up has made from garbage collection: schemas, settings, modules, 100,000 objects that stay for good.
    A full collection that walks over them holds up the event loop, and so each Fetch, for a tenth of a second and more."""
    gc.collect()
    gc.freeze()


_FIRST_ROUNDS_S = 60.0
"""By then each lane has looked at each partition once, and notes of it are kept."""


class Readiness(Protocol):
    """The reasons to wait."""

    def ready_reasons(self) -> Sequence[str]: ...


async def spare_what_is_known(status: Readiness, clock: Clock) -> None:
    """Exempt what was read from the topics, and the first rounds' notes of each partition, as well: with 80,000 segments
    every full collection stopped the process for 0.4 s, twice a minute.  Nothing is collected here, which would do so as well:
    the few cycles that are garbage right now stay."""
    while status.ready_reasons():
        await clock.sleep(1.0)
    gc.freeze()
    await clock.sleep(_FIRST_ROUNDS_S)
    gc.freeze()


def _started(status: ProcessStatus) -> None:
    status.starting = ""
    log.info("daemon.roles.started", cluster_id=status.identity.cluster_id if status.identity else None)


async def _until_cancelled(role: Role, main: Coroutine[Any, Any, None]) -> None:
    await main
    raise RuntimeError(f"role {role.value} ended unasked")
