"""The role ``tier``: copy, trim, clean up and follow, built by plain constructor calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from tiersidecar.adapters.stores.placed import PlaceStore, stores_by_place
from tiersidecar.app.builders.clean import build_clean, drop_key_filters
from tiersidecar.app.builders.copy import (
    build_admission,
    build_copy,
    build_copy_target,
    build_recopy,
    build_transaction_waits,
    build_uploader,
    task_backoff,
)
from tiersidecar.app.builders.follow import build_disk_watch, build_follow
from tiersidecar.app.builders.reconcile import build_reconcile_schedule
from tiersidecar.app.builders.retain import (
    build_expire,
    build_log_start_watch,
    build_lost_logs,
    build_proposals,
    build_remover,
    build_retain,
    build_topic_deletion,
    build_trim,
    build_trim_gate,
)
from tiersidecar.app.builders.tier_parts import TierParts
from tiersidecar.app.config.top_level import Mode
from tiersidecar.app.parts import Parts
from tiersidecar.decide.disk_pressure import DiskState
from tiersidecar.domain.errors import KeyRefusedError, KeyServiceError
from tiersidecar.ports.clock import Clock, Ids
from tiersidecar.ports.key_wrapping import HasThreads, asked_keys
from tiersidecar.ports.metrics.catalogue import LEADER_GAUGES
from tiersidecar.ports.metrics.copying import PINS_BYTES, PINS_ROOM_BYTES, PINS_SEGMENTS, PINS_UNAVAILABLE
from tiersidecar.ports.metrics.process import HALTED_PARTITIONS, MISPLACED_PARTITIONS
from tiersidecar.ports.metrics.retention import (
    DISK_FREE_BYTES,
    DISK_SECONDS_TO_FULL,
    DISK_SIZE_BYTES,
    DISK_STATE,
    UNSAFE_TOPICS,
)
from tiersidecar.tasks.catch_up import CatchUp, LaneWork
from tiersidecar.tasks.copy_admission import Backfill, CopyLagReport, CopyQuota
from tiersidecar.tasks.due_looks import DueLooks
from tiersidecar.tasks.explain import ExplainTask
from tiersidecar.tasks.follow import FollowTask
from tiersidecar.tasks.lanes import Lane, Lanes
from tiersidecar.tasks.place_checks import PlaceChecks
from tiersidecar.tasks.reconcile_schedule import ReconcileWatch
from tiersidecar.tasks.removal import SegmentRemover
from tiersidecar.tasks.roster import keep_roster
from tiersidecar.tasks.store_gates import StoreGates
from tiersidecar.tasks.tier_lease import TierLease
from tiersidecar.tasks.topic_checks import TopicChecks
from tiersidecar.tasks.trash_clock import TrashWatch
from tiersidecar.tasks.watch import LaneSpec, LaneTurns, Watch

log = structlog.get_logger(__name__)

_SWEEP_INTERVAL_MAX_S = 60.0
"""How often at least topics that are gone are looked for."""
_TRASH_INTERVAL_S = 60.0
"""How often what is kept beyond its time is looked for."""
_RECONCILE_INTERVAL_S = 300.0
"""How often the summary of the last reconcile run is read."""
_LAST_PROPOSALS_S = 2.0
"""In which a broker has done a delete, with its followers, and the gateway has proposed the rest."""
_WATCH_STOPPED_S = 900.0
"""A look asks the broker and scans the disks, each with a time limit; the first scan of 100,000 segments takes a minute."""
_LANES_STOPPED_S = 7200.0
"""Twice ``upload.timeout``: a step that only waits for the store ends before."""

_OF_LOG_DIRS = (
    PINS_BYTES,
    PINS_ROOM_BYTES,
    PINS_SEGMENTS,
    PINS_UNAVAILABLE,
    DISK_FREE_BYTES,
    DISK_SECONDS_TO_FULL,
    DISK_SIZE_BYTES,
)


@asynccontextmanager
async def given_back_after(parts: Parts, role: TierParts) -> AsyncIterator[None]:
    """Give the lease back after the body, if that was cancelled: all that acts by the lease runs in it, and has ended then.

    A body that fails does not give it back: the next process with this state.dir need not wait anyway.
    """
    try:
        yield
    except asyncio.CancelledError:
        if role.lease is not None:
            if count := parts.requests_left_alone():
                log.warning("tier_lease.not_given_back", reason=f"{count} requests to the store have not ended")
            else:
                await role.lease.give_back()
        raise


async def announce_stop(parts: Parts, lease: TierLease) -> None:
    """Announce to gateways that this process is to stop, then decide what they made the broker do before they read that."""
    await lease.announce_stop()
    if lease.is_ours and parts.proposals.is_in_use:
        await parts.clock.sleep(_LAST_PROPOSALS_S)


async def keep_probing_keys(keys: HasThreads, clock: Clock, ids: Ids, interval_s: float) -> None:
    """Ask for a data key every ``interval_s`` while there is none to be had, so that this ends without a copy's asking; never
    ends."""
    while True:
        if keys.closed_reason:
            with suppress(KeyServiceError, KeyRefusedError):
                await keys.blocking.run(keys.probe, ids.random_bytes)
        await clock.sleep(interval_s)


async def run_tier(parts: Parts, role: TierParts) -> None:
    """Work while this process holds the lease of its broker's tier role, else stand by, until cancelled."""
    config, status = parts.config, parts.status
    gates = StoreGates(
        stores_by_place(parts.store), config.place_of_topic, clock=parts.clock, telemetry=parts.telemetry
    )
    status.deletes_blocked = role.remote_delete_blocker
    status.reasons.append(lambda: parts.table.watch_trouble)
    encrypts = config.mode is Mode.ENFORCE and config.store.encryption_enabled
    keys = asked_keys(parts.key_ring) if encrypts else None
    if config.mode is Mode.ENFORCE:  # else nothing is written, and the right to is not needed
        status.reasons.append(lambda: gates.default.closed_reason)
        for place, store in stores_by_place(parts.store).items():
            if isinstance(store, PlaceStore):
                store.when_hung = partial(gates.close, place)
    if keys is not None:
        status.reasons.append(lambda: keys.closed_reason)
    async with asyncio.TaskGroup() as group:
        group.create_task(parts.trash_clock.keep(), name="trash clock")
        if config.mode is Mode.ENFORCE:
            group.create_task(gates.keep_probing(task_backoff(config).maximum_s), name="store probe")
        if keys is not None:
            probing = keep_probing_keys(keys, parts.clock, parts.ids, task_backoff(config).maximum_s)
            group.create_task(probing, name="key service probe")
        lease = role.lease
        if lease is None:
            await _work(parts, role, gates)
            return
        status.standing_by = lambda: lease.reason_not_held
        group.create_task(lease.keep(), name="tier lease")
        while True:
            await _while(lease, ours=False, work=keep_roster(parts.roster, parts.look_interval_s))
            parts.roster.begin_anew()
            await _while(lease, ours=True, work=_work(parts, role, gates))
            _forget_role(parts)


def _forget_role(parts: Parts) -> None:
    """Forget the role's findings once :func:`_work` has ended and another process of the broker has the role: they are out of
    date from now on, and that process reports the gauges.  Nothing is left when the role comes back."""
    table, telemetry = parts.table, parts.telemetry
    for log_dir in map(str, map(Path, parts.config.log_dirs)):
        for metric in _OF_LOG_DIRS:
            telemetry.forget(metric, log_dir=log_dir)
        for state in DiskState:
            telemetry.forget(DISK_STATE, log_dir=log_dir, state=state.value)
    topic_id_partitions = {*table.assignment, *table.unseen, *table.records, *table.misplaced}
    for topic_id_partition in topic_id_partitions:
        for metric in (*LEADER_GAUGES, HALTED_PARTITIONS, MISPLACED_PARTITIONS):
            telemetry.forget(metric, topic=topic_id_partition.topic, partition=str(topic_id_partition.partition))
    for topic in {*(one.topic for one in topic_id_partitions), *table.refused_topics, *table.untrimmable_topics}:
        telemetry.forget(UNSAFE_TOPICS, topic=topic)
    parts.status.lanes = parts.status.explains = None
    table.begin_anew()


async def _while(lease: TierLease, *, ours: bool, work: Coroutine[Any, Any, None]) -> None:
    """Do ``work``, which never ends, for as long as the lease is ours, or is not; its errors end it, too."""
    working = asyncio.ensure_future(work)
    changed = asyncio.ensure_future(lease.wait_while(ours=ours))
    try:
        await asyncio.wait((working, changed), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
    finally:
        for task in (working, changed):
            task.cancel()
        await asyncio.wait((working, changed))


async def _work(parts: Parts, role: TierParts, gates: StoreGates) -> None:
    """Run all that copies, trims, expires and follows; never ends."""
    config = parts.config
    async with Lanes(
        clock=parts.clock,
        ids=parts.ids,
        telemetry=parts.telemetry,
        backoff=task_backoff(config),
        has_logged=lambda error: gates.has_logged(error) or parts.roster.has_logged(error),
    ) as lanes:
        parts.status.lanes = lanes
        keeper, follow = build_follow(parts)
        remover = build_remover(parts, role)
        watch = _watch(parts, role, lanes, gates, remover, follow)
        async with _watched_over(parts, watch, lanes), asyncio.TaskGroup() as group:
            group.create_task(keeper.run(), name="keep pins")
            group.create_task(build_disk_watch(parts, role.actor.guard).run(), name="disk watch")
            deletion = build_topic_deletion(parts, role, remover=remover)
            interval_s = config.deletes_topic_grace_ms / 10_000
            group.create_task(deletion.run(min(interval_s, _SWEEP_INTERVAL_MAX_S)), name="topic deletion")
            trash = TrashWatch(
                table=parts.table,
                state=parts.state,
                trash_clock=parts.trash_clock,
                clock=parts.clock,
                telemetry=parts.telemetry,
            )
            group.create_task(trash.run(_TRASH_INTERVAL_S), name="trash watch")
            reconciled = ReconcileWatch(
                store=parts.store,
                key_prefix=config.store.key_prefix,
                clock=parts.clock,
                telemetry=parts.telemetry,
            )
            group.create_task(reconciled.run(_RECONCILE_INTERVAL_S), name="reconcile watch")
            group.create_task(
                build_log_start_watch(parts).run(config.remote_log_manager_task_interval_ms / 1000),
                name="log start watch",
            )
            if config.mode is Mode.ENFORCE:
                group.create_task(build_proposals(parts, role).run(), name="proposals")
            if config.reconcile_interval_ms is not None and config.mode is Mode.ENFORCE:
                group.create_task(build_reconcile_schedule(parts).run(), name="reconcile schedule")
            await watch.run(parts.look_interval_s)


@asynccontextmanager
async def _watched_over(parts: Parts, watch: Watch, lanes: Lanes) -> AsyncIterator[None]:
    """Count the watch's looks, and what the lanes do: one that copies for hours neither begins nor ends, but reads."""
    progress, status = parts.status.progress, parts.status
    if progress is None:
        yield
        return

    def turns() -> int:
        return lanes.turns + status.calls_ended()

    with (
        progress.counting("the watch of log dirs and leaders", lambda: watch.looks, limit_s=_WATCH_STOPPED_S),
        progress.counting("lanes", turns, limit_s=_LANES_STOPPED_S, busy=lanes.any_running),
    ):
        yield


def _watch(
    parts: Parts, role: TierParts, lanes: Lanes, gates: StoreGates, remover: SegmentRemover, follow: FollowTask
) -> Watch:
    config = parts.config
    quota = CopyQuota(quota=parts.tuning.copy_quota, clock=parts.clock, telemetry=parts.telemetry)
    checks = TopicChecks(
        broker=parts.broker,
        table=parts.table,
        policy_for=parts.policies.policy_for,
        max_name_bytes=parts.store.max_name_bytes,
        clock=parts.clock,
        telemetry=parts.telemetry,
        tiers_compacted=config.compaction_enabled,
    )
    lag = CopyLagReport(table=parts.table, metadata=parts.metadata, clock=parts.clock, telemetry=parts.telemetry)
    backfill = Backfill(
        lags=lag,
        threshold=config.copy_backfill_segments,
        order=config.copy_backfill_order,
        clock=parts.clock,
        telemetry=parts.telemetry,
    )
    waits = build_transaction_waits(parts)
    target = build_copy_target(parts, gates=gates, remover=remover)
    uploader = build_uploader(parts, role, target=target, waits=waits)
    admission = build_admission(parts, gates=gates, quota=quota, backfill=backfill)
    copy = build_copy(parts, role, uploader=uploader, admission=admission, lag=lag, waits=waits)
    recopy = build_recopy(parts, role, target=target, uploader=uploader, admission=admission)
    trim_gate = build_trim_gate(parts)
    trim = build_trim(parts, role, checks=checks, gate=trim_gate, quota=quota)
    expire = build_expire(
        parts,
        role,
        in_flight=target.in_flight,
        remover=remover,
        checks=checks,
        has_failed=lambda topic_id_partition: bool(lanes.reason_at_rest(topic_id_partition, Lane.RETAIN)),
    )
    retain = build_retain(parts, role, expire=expire, trim=trim)

    caught_up = CatchUp(parts.metadata, parts.state)
    lost = build_lost_logs(parts)

    places = PlaceChecks(parts.metadata, parts.blocking, parts.table, config.places)

    def led(work: LaneWork, *, otherwise: LaneWork | None = None) -> LaneWork:
        return caught_up.before(lost.before(places.before(work, otherwise=otherwise)))

    cleaning: dict[Lane, LaneSpec] = {}
    if config.compaction_enabled and config.mode is Mode.ENFORCE:
        clean = build_clean(parts, role, target=target)
        cleaning[Lane.CLEAN] = LaneSpec(run=led(clean.run), has_work=clean.has_work)
    if not config.compaction_enabled:
        drop_key_filters(Path(config.state_dir))

    def report() -> None:
        target.in_flight.report_age()
        trim_gate.report()
        waits.report()

    parts.status.explains = ExplainTask(
        sources=parts.sources,
        edges=parts.edges,
        actor=role.actor,
        lanes=lanes,
        caught_up=caught_up,
        copy=copy,
        retain=retain,
        stores=gates,
    )

    return Watch(
        sources=parts.sources,
        edges=parts.edges,
        roster=parts.roster,
        checks=checks,
        backfill=backfill,
        turns=LaneTurns(
            lanes=lanes,
            due=DueLooks(
                sources=parts.sources,
                edges=parts.edges,
                lanes=lanes,
                interval_s=config.remote_log_manager_task_interval_ms / 1000,
            ),
            work={
                Lane.FOLLOW: LaneSpec(run=follow.run, has_work=follow.has_work, may_act=follow.may_act),
                Lane.RECOPY: LaneSpec(run=led(recopy.run), has_work=recopy.has_work, may_act=recopy.may_act),
                Lane.COPY: LaneSpec(run=led(copy.run), may_act=copy.may_act),
                Lane.RETAIN: LaneSpec(
                    run=led(retain.run, otherwise=retain.make_room), has_work=retain.has_work, may_act=retain.may_act
                ),
                **cleaning,
            },
        ),
        report=report,
    )
