"""The fetch quota on the process's clock."""

from __future__ import annotations

from tiersidecar.decide.quota import RateQuota
from tiersidecar.ports.clock import Clock


class ConfiguredFetchQuota:
    """``remote.log.manager.fetch.max.bytes.per.second``, as the read path wants it."""

    def __init__(self, quota: RateQuota, clock: Clock) -> None:
        self._quota, self._clock = quota, clock

    def throttle_s(self) -> float:
        """0 when a read may start, else the seconds until one may."""
        return self._quota.throttle_s(self._clock.monotonic_s())

    def record(self, size_bytes: int) -> None:
        """Charge bytes that a read has returned."""
        self._quota.record(size_bytes, self._clock.monotonic_s())
