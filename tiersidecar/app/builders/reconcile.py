"""Reconcile, as the role ``tier`` starts it."""

from __future__ import annotations

import sys
from functools import partial

from tiersidecar.adapters.programs import IdlePrograms
from tiersidecar.app.parts import Parts
from tiersidecar.tasks.reconcile_schedule import ReconcileSchedule


def build_reconcile_schedule(parts: Parts) -> ReconcileSchedule:
    """Build it by plain constructor calls; the configuration has an interval."""
    config = parts.config
    assert config.reconcile_interval_ms is not None, "no interval, no schedule"
    report = f"{config.state_dir}/reconcile"
    given = ["--config", str(config.file), "--put-report", "--report", report, *config.reconcile_arguments]
    return ReconcileSchedule(
        broker=parts.broker,
        store=parts.store,
        key_prefix=config.store.key_prefix,
        program=partial(IdlePrograms().run_idle, [sys.executable, "-m", "tiersidecar", "reconcile", *given]),
        metadata_topic=config.remote_log_metadata_topic_name,
        broker_id=parts.identity.broker_id,
        interval_s=config.reconcile_interval_ms / 1000,
        edges=parts.edges,
    )
