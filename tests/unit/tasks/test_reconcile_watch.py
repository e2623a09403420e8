"""The last run's findings are metrics of the daemon."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.manual_clock import ManualClock
from tests.support.recorded_telemetry import RecordedTelemetry
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.decide.reconcile_findings import FindingKind
from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.own_objects import LATEST_REPORT, MOST_REPORT_BYTES
from tiersidecar.ports.metrics.process import RECONCILE_AGE, RECONCILE_FINDINGS
from tiersidecar.ports.store import BytesBody
from tiersidecar.tasks.reconcile_schedule import ReconcileWatch


async def watched(summary: bytes | None) -> RecordedTelemetry:
    clock, telemetry = ManualClock(), RecordedTelemetry()
    store = MemoryStore(clock=clock, ids=SystemIds())
    if summary is not None:
        await store.put_object(f"p/{LATEST_REPORT}", BytesBody(summary))
    await ReconcileWatch(store=store, key_prefix="p/", clock=clock, telemetry=telemetry).look()
    return telemetry


async def test_age_and_counts_of_the_last_run() -> None:
    finished_ms = ManualClock().now_ms() - 90_000
    telemetry = await watched(json.dumps({"finished_ms": finished_ms, "findings": {"orphan-object": 3}}).encode())
    assert telemetry.value(RECONCILE_AGE) == 90
    found = telemetry.by_label(RECONCILE_FINDINGS, "kind")
    assert found == {kind.value: 3 if kind is FindingKind.ORPHAN_OBJECT else 0 for kind in FindingKind}


INFINITE, DEEP = b'{"finished_ms": Infinity, "findings": {}}', b"[" * 100_000
"""What a store that lies may give: either ended the whole process."""
HUGE, MANY = (
    b'{"finished_ms": %s, "findings": {}}' % (b"9" * 400),
    b'{"finished_ms": 1, "findings": {"orphan-object": %s}}' % (b"9" * 400),
)
LARGE = b'{"finished_ms": 1, "findings": {}}' + b" " * MOST_REPORT_BYTES


@pytest.mark.parametrize(
    "summary",
    [None, b"", b"[]", b"{}", b'{"finished_ms": "x", "findings": {}}', b"\xff", INFINITE, DEEP, HUGE, MANY, LARGE],
    ids=lambda summary: str(summary)[:40],
)
async def test_nothing_to_read_is_no_error_and_no_metric(summary: bytes | None) -> None:
    with capture_logs() as told:
        assert (await watched(summary)).values == {}
    assert [one["event"] for one in told] == ([] if summary is None else ["reconcile.summary.unreadable"])


class Away(MemoryStore):
    async def fetch_object(self, key: str, *args: Any, **fields: Any) -> bytes:
        raise StoreError(verb="get", key=key, reason="connection refused")


async def test_a_store_that_is_away_leaves_what_was_known() -> None:
    clock, telemetry = ManualClock(), RecordedTelemetry()
    telemetry.gauge(RECONCILE_AGE, 7)
    store = Away(clock=clock, ids=SystemIds())
    with capture_logs() as told:
        await ReconcileWatch(store=store, key_prefix="p/", clock=clock, telemetry=telemetry).look()
    assert telemetry.value(RECONCILE_AGE) == 7
    assert [(one["event"], one["log_level"]) for one in told] == [("reconcile.summary.unreachable", "info")]


async def test_a_run_that_seems_to_be_of_the_future_is_no_negative_age() -> None:
    finished_ms = ManualClock().now_ms() + 90_000
    telemetry = await watched(json.dumps({"finished_ms": finished_ms, "findings": {}}).encode())
    assert telemetry.value(RECONCILE_AGE) == 0


async def test_it_looks_at_each_interval() -> None:
    clock, telemetry = ManualClock(), RecordedTelemetry()
    store = MemoryStore(clock=clock, ids=SystemIds())
    watch = ReconcileWatch(store=store, key_prefix="p/", clock=clock, telemetry=telemetry)
    summary = json.dumps({"finished_ms": clock.now_ms(), "findings": {}}).encode()
    running = asyncio.create_task(watch.run(60))
    await clock.advance(59)
    await store.put_object(f"p/{LATEST_REPORT}", BytesBody(summary))
    assert telemetry.value(RECONCILE_AGE) is None
    await clock.advance(121)
    assert telemetry.value(RECONCILE_AGE) == 180
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
