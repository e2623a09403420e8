"""The role ``tier``: copy, trim, clean up and follow, built by plain constructor calls."""

from __future__ import annotations

import asyncio

from tiersidecar.app.builders.copy import build_admission, build_copy, build_recopy, build_uploader, task_backoff
from tiersidecar.app.builders.follow import build_disk_watch, build_follow
from tiersidecar.app.builders.reconcile import build_reconcile_schedule
from tiersidecar.app.builders.retain import (
    DeleteGuard,
    build_log_start_watch,
    build_remover,
    build_retain,
    build_topic_deletion,
)
from tiersidecar.app.builders.trim import build_trim, build_trim_gate
from tiersidecar.app.config.top_level import Mode
from tiersidecar.app.parts import Parts
from tiersidecar.tasks.backfill import Backfill
from tiersidecar.tasks.catch_up import CatchUp
from tiersidecar.tasks.copy_lag import CopyLagReport
from tiersidecar.tasks.copy_quota import CopyQuota
from tiersidecar.tasks.follow import FollowTask
from tiersidecar.tasks.in_flight import InFlight
from tiersidecar.tasks.lanes import Lanes
from tiersidecar.tasks.reconcile_watch import ReconcileWatch
from tiersidecar.tasks.removal import SegmentRemover
from tiersidecar.tasks.store_gate import StoreGate
from tiersidecar.tasks.topic_checks import TopicChecks
from tiersidecar.tasks.watch import Watch

_SWEEP_INTERVAL_MAX_S = 60.0
"""How often at least topics that are gone are looked for."""
_RECONCILE_INTERVAL_S = 300.0
"""How often the summary of the last reconcile run is read."""


async def run_tier(parts: Parts) -> None:
    """Watch and work until cancelled."""
    config, status = parts.config, parts.status
    gate = StoreGate(parts.store, parts.clock)
    backoff = task_backoff(config)
    async with Lanes(clock=parts.clock, ids=parts.ids, telemetry=parts.telemetry, backoff=backoff) as lanes:
        status.lanes = lanes
        status.reasons += [lambda: parts.board.watch_trouble, lambda: gate.closed_reason]
        keeper, follow = build_follow(parts)
        remover = build_remover(parts)
        watch = _watch(parts, lanes, gate, remover, follow)
        async with asyncio.TaskGroup() as group:
            group.create_task(keeper.run(), name="keep pins")
            group.create_task(build_disk_watch(parts).run(), name="disk watch")
            if config.mode is Mode.ENFORCE:
                group.create_task(gate.keep_probing(backoff.maximum_s), name="store probe")
            deletion, interval_s = build_topic_deletion(parts, remover=remover), config.deletes_topic_grace_ms / 10_000
            group.create_task(deletion.run(min(interval_s, _SWEEP_INTERVAL_MAX_S)), name="topic deletion")
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
            if config.reconcile_interval_ms is not None and config.mode is Mode.ENFORCE:
                group.create_task(build_reconcile_schedule(parts).run(), name="reconcile schedule")
            await watch.run()


def _watch(parts: Parts, lanes: Lanes, gate: StoreGate, remover: SegmentRemover, follow: FollowTask) -> Watch:
    config = parts.config
    in_flight = InFlight(clock=parts.clock, telemetry=parts.telemetry, journal=parts.journal)
    quota = CopyQuota(quota=parts.tuning.copy_quota, clock=parts.clock)
    checks = TopicChecks(
        broker=parts.broker,
        board=parts.board,
        policy_for=parts.policies.policy_for,
        max_name_bytes=parts.store.max_name_bytes,
        clock=parts.clock,
        telemetry=parts.telemetry,
    )
    lag = CopyLagReport(board=parts.board, metadata=parts.metadata, clock=parts.clock, telemetry=parts.telemetry)
    backfill = Backfill(
        lags=lag,
        threshold=config.copy_backfill_segments,
        order=config.copy_backfill_order,
        clock=parts.clock,
        telemetry=parts.telemetry,
    )
    uploader = build_uploader(parts, gate=gate, in_flight=in_flight, remover=remover)
    admission = build_admission(parts, quota=quota, backfill=backfill)
    guard = DeleteGuard(config, parts.metadata)
    copy = build_copy(parts, uploader=uploader, admission=admission, lag=lag, guard=guard)
    recopy = build_recopy(
        parts,
        uploader=uploader,
        admission=admission,
        remover=remover,
        in_flight=in_flight,
        guard=guard,
    )
    trim_gate = build_trim_gate(parts)
    trim = build_trim(parts, checks=checks, gate=trim_gate, quota=quota)
    retain = build_retain(parts, in_flight=in_flight, remover=remover, checks=checks, trim=trim)
    caught_up = CatchUp(parts.metadata, parts.state)
    return Watch(
        board=parts.board,
        roster=parts.roster,
        checks=checks,
        metadata=parts.metadata,
        in_flight=in_flight,
        lag=lag,
        backfill=backfill,
        lanes=lanes,
        copy=caught_up.before(copy.run),
        retain=caught_up.before(retain.run),
        retain_has_work=retain.has_work,
        recopy=caught_up.before(recopy.run),
        recopy_has_work=recopy.has_work,
        follow=follow.run,
        follow_has_work=follow.has_work,
        report=trim_gate.report,
        interval_s=parts.look_interval_s,
        telemetry=parts.telemetry,
    )
