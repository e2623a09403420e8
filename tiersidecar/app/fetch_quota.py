"""The quotas of reads, of bytes and of requests to the store, on the process's clock."""

from __future__ import annotations

from tiersidecar.decide.quota import RateQuota
from tiersidecar.ports.clock import Clock


class ConfiguredFetchQuota:
    """``remote.log.manager.fetch.max.bytes.per.second``, or ``read.store.requests.per.minute``, as the read path wants it."""

    def __init__(self, quota: RateQuota, clock: Clock) -> None:
        self._quota, self._clock = quota, clock

    def throttle_s(self) -> float:
        """0 when a read may start, else the seconds until one may."""
        return self._quota.throttle_s(self._clock.monotonic_s())

    def record(self, amount: int) -> None:
        """Charge what a read has returned, or asked of the store."""
        self._quota.record(amount, self._clock.monotonic_s())
