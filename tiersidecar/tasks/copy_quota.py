"""Back-pressure by remote.log.manager.copy.max.bytes.per.second: whole segments wait for admission (S-164, S-165)."""

from __future__ import annotations

import asyncio

from tiersidecar.decide.quota import RateQuota
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.copying import COPY_THROTTLE_SECONDS
from tiersidecar.ports.telemetry import NoTelemetry, Telemetry

_RECHECK_S = 1.0


class CopyQuota:
    """One quota for all partitions, first come first served."""

    def __init__(self, *, quota: RateQuota, clock: Clock, telemetry: Telemetry | None = None) -> None:
        self._quota, self._clock, self._telemetry = quota, clock, telemetry or NoTelemetry()
        self._turn = asyncio.Lock()

    @property
    def wait_s(self) -> float:
        """Seconds until the rate allows another segment; 0 where it does."""
        return self._quota.throttle_s(self._clock.monotonic_s())

    async def admit(self, size_bytes: int) -> None:
        """Wait until the rate allows another segment, looking again each second, then charge it whole."""
        async with self._turn:
            while (wait_s := self.wait_s) > 0:
                step_s = min(wait_s, _RECHECK_S)
                await self._clock.sleep(step_s)
                self._telemetry.count(COPY_THROTTLE_SECONDS, step_s)
            self._quota.record(size_bytes, self._clock.monotonic_s())
