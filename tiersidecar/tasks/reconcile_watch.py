"""What the last reconcile run found, as metrics: read from the summary that it put into the store."""

from __future__ import annotations

import json
from collections.abc import Mapping

import structlog

from tiersidecar.decide.reconcile_findings import FindingKind
from tiersidecar.domain.errors import ObjectNotFoundError, StoreError
from tiersidecar.domain.own_objects import LATEST_REPORT
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.process import RECONCILE_AGE, RECONCILE_FINDINGS
from tiersidecar.ports.store import FetchRange
from tiersidecar.ports.telemetry import Telemetry

log = structlog.get_logger(__name__)


class ReconcileWatch:
    """One small request each ``interval_s``; a store that is away, or a summary that cannot be read, changes nothing."""

    def __init__(self, *, store: FetchRange, key_prefix: str, clock: Clock, telemetry: Telemetry) -> None:
        self._store, self._key, self._clock, self._telemetry = store, f"{key_prefix}{LATEST_REPORT}", clock, telemetry

    async def run(self, interval_s: float) -> None:
        """Look, until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(interval_s)

    async def look(self) -> None:
        """Set the metrics by what is there now."""
        try:
            summary = json.loads(await self._store.fetch_object(self._key))
            finished_ms, findings = _read(summary)
        except ObjectNotFoundError:
            return
        except StoreError as error:
            log.info("reconcile.summary.unreachable", key=self._key, reason=error.reason)
            return
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            log.warning("reconcile.summary.unreadable", key=self._key, reason=repr(error))
            return
        self._telemetry.gauge(RECONCILE_AGE, max(0.0, (self._clock.now_ms() - finished_ms) / 1000))
        for kind in FindingKind:
            self._telemetry.gauge(RECONCILE_FINDINGS, findings.get(kind.value, 0), kind=kind.value)


def _read(summary: object) -> tuple[int, Mapping[str, int]]:
    if not isinstance(summary, dict):
        raise TypeError("not an object")
    findings = {str(kind): int(count) for kind, count in dict(summary["findings"]).items()}
    return int(summary["finished_ms"]), findings
