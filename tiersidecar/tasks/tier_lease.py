"""One tier role per broker, by a lease in the state topic: ``lease/<broker id>`` (:mod:`tiersidecar.domain.lease`).

The holder counts itself valid from the moment at which it *sent* the last renewal that was read back; a contender waits for the
whole duration after it has *seen* the last one, each by its own clock.  A process that stood still (SIGSTOP) finds its
lease over when it goes on, and is asked so right before whatever it publishes, deletes or trims.

A process that stops in order gives it back, so that the next one need not wait: after everything that acts by it has ended, and
only while no other process can have claimed it.  A release that got into the topic behind another's claim would pass for the
last word there once compaction has taken that claim.

Each renewal says which time its writer has seen: a process that finds nothing of that in its ``state.dir`` goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from tiersidecar.domain.errors import LeaseLostError, MetadataNotReadyError, RetriableError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.lease import Lease, reason_to_wait_for_sidecars
from tiersidecar.domain.seen_time import SeenTime
from tiersidecar.ports.broker import DescribeCluster
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.process import TIER_LEASE_HELD
from tiersidecar.ports.state_records import Leases
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.tasks.trash_clock import TrashClock

log = structlog.get_logger(__name__)

_LOOKS_PER_DURATION = 12
_CONTENDER_PAUSE_S = 0.5
"""Between looks at what was read: a daemon that starts waits for little more than its topics."""
_MARGIN = 6
"""Part of the duration by which the holder stops before a contender may begin: for clocks that run at different speeds."""
_ANNOUNCE_WITHIN_S = 2.0
_GIVE_BACK_WITHIN_S = 5.0
_GIVE_BACK_PART = 4
"""Part of the duration that a renewal and the release after it may take each.  With the moment that a given-up send still
waits, both are over before a contender may begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """The process that asks for the role.  ``instance`` is our state.dir's: its former processes are dead, for we hold its
    lock."""

    cluster_id: str
    broker_id: BrokerId
    instance: str
    incarnation: str
    host: str
    pid: int
    version: str
    duration_ms: int
    status_address: str = ""

    def claim(self, term: int, now_ms: int) -> Lease:
        """Return the lease in ``term``."""
        return Lease(
            name=str(self.broker_id),
            cluster_id=self.cluster_id,
            broker_id=self.broker_id,
            incarnation=self.incarnation,
            term=term,
            host=self.host,
            pid=self.pid,
            version=self.version,
            renewed_ms=now_ms,
            duration_ms=self.duration_ms,
            status_address=self.status_address,
            decides_proposals=True,
            obeys_pauses=True,
        )

    def is_successor_of(self, holder: Lease) -> bool:
        """Return whether the holder was a former process with our state.dir."""
        return holder.incarnation.partition("/")[0] == self.instance


class TierLease:
    """The lease of this process's tier role."""

    def __init__(
        self,
        *,
        contender: Contender,
        leases: Leases,
        broker: DescribeCluster,
        without_sidecar: Collection[int],
        clock: Clock,
        trash_clock: TrashClock,
        telemetry: Telemetry,
    ) -> None:
        self._trash_clock = trash_clock
        self._contender, self._leases, self._broker = contender, leases, broker
        self._without_sidecar, self._clock, self._telemetry = frozenset(without_sidecar), clock, telemetry
        self._duration_s = contender.duration_ms / 1000
        self._sent: tuple[float, int] | None = None
        self._held: Lease | None = None
        self._seen: tuple[Lease | None, float] = (None, clock.monotonic_s())
        self._changed = asyncio.Event()
        self._is_given_back = self._is_stopping = False
        self._blocker = "the brokers of the cluster have not been asked for yet"

    # -- asked

    @property
    def reason_not_held(self) -> str:
        """Return why this process must not act as its broker's tier role now; empty when it may."""
        if self._held is None or self._sent is None:
            return self._standing_by
        counts = self._as_read()
        if counts is not None and counts.holder != self._held.holder:
            return f"the lease of broker {self._contender.broker_id} has been taken by process {counts.pid} on {counts.host}"
        passed_s = self._clock.monotonic_s() - self._sent[0]
        passed_s = max(passed_s, (self._clock.now_ms() - self._sent[1]) / 1000)  # a machine that slept
        if passed_s >= self._duration_s * (1 - 1 / _MARGIN):
            return f"the lease of broker {self._contender.broker_id} has not been renewed for {passed_s:.0f} s"
        return ""

    def _as_read(self) -> Lease | None:
        with suppress(MetadataNotReadyError):  # being read anew: until then the time says whether it is ours
            return self._leases.lease(str(self._contender.broker_id))
        return None

    @property
    def is_ours(self) -> bool:
        """Return whether no other process has been seen to take it since we did."""
        return self._held is not None

    @property
    def _standing_by(self) -> str:
        holder = self._seen[0]
        if self._is_given_back:
            return f"the lease of broker {self._contender.broker_id} has been given back"
        if holder is None:
            return f"the lease of broker {self._contender.broker_id} has not been claimed yet"
        return (
            f"standing by: process {holder.pid} on {holder.host} is the sidecar of broker {self._contender.broker_id} "
            f"(incarnation {holder.incarnation})"
        )

    def require(self) -> None:
        """Return if this process may act now.

        Raises:
            LeaseLostError: it may not.
        """
        reason = self.reason_not_held
        if reason:
            raise LeaseLostError(reason=reason)

    @property
    def remote_delete_blocker(self) -> str:
        """Return why nothing remote may be deleted in the whole cluster: a live broker whose sidecar is of the first format, or
        has none; empty when all are of this one."""
        return self._blocker

    async def wait_while(self, *, ours: bool) -> None:
        """Return as soon as :attr:`is_ours` is not ``ours`` any more."""
        while self.is_ours is ours:
            self._changed.clear()
            await self._changed.wait()

    # -- kept

    async def keep(self) -> None:
        """Claim it when it is free, renew it while it is ours; never ends."""
        trouble = ""
        while True:
            try:
                await self.look()
            except RetriableError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("tier_lease.retry", error=trouble)
            else:
                trouble = ""
            self._telemetry.gauge(TIER_LEASE_HELD, 0 if self.reason_not_held else 1)
            pause_s = self._duration_s / _LOOKS_PER_DURATION
            await self._clock.sleep(pause_s if self.is_ours else min(pause_s, _CONTENDER_PAUSE_S))

    async def look(self) -> None:
        """Look once, and do what is due.

        Raises:
            RetriableError: the state topic, or the broker, is away.
        """
        counts = self._what_counts()
        if self._held is not None and counts is not None and counts.holder == self._held.holder:
            if self._sent is None or self._clock.monotonic_s() - self._sent[0] >= self._duration_s / 4:
                renewed = self._contender.claim(counts.term, self._clock.now_ms())
                await self._publish(replace(renewed, renewal=True))
                await self._look_for_former_sidecars()
            return
        if self._held is not None:
            self._lose()
        if not self._may_claim(counts):
            return
        # Silence in a time in which we did not read, because we stood still or were cut off, says nothing of the holder.
        await self._leases.catch_up()
        counts = self._what_counts()
        if self._may_claim(counts):
            self._trash_clock.succeed(self._seen_before(counts))
            await self._publish(self._contender.claim(1 if counts is None else counts.term + 1, self._clock.now_ms()))
            await self._look_for_former_sidecars()

    async def announce_stop(self) -> None:
        """Have gateways ask this process for nothing more, if the lease is ours: a delete that is never decided is half done.

        To be called while all that acts by it still works.
        """
        self._is_stopping = True
        if self._held is None or self.reason_not_held:
            return
        try:
            async with asyncio.timeout(_ANNOUNCE_WITHIN_S):
                await self._publish(replace(self._contender.claim(self._held.term, self._clock.now_ms()), renewal=True))
        except (RetriableError, TimeoutError) as error:
            log.warning("tier_lease.stop_not_announced", reason=str(error) or f"not done in {_ANNOUNCE_WITHIN_S:.0f} s")

    async def give_back(self) -> None:
        """Let the next one claim it at once, if it is ours; else, or where the topic is away, it runs out by itself.

        To be called when :meth:`keep` and all that asks :meth:`require` has ended: nothing may be written behind a release.
        """
        if self._held is None or self.reason_not_held:
            return
        limit_s = min(_GIVE_BACK_WITHIN_S, self._duration_s / _GIVE_BACK_PART)
        try:
            async with asyncio.timeout(limit_s):  # from here on no other process can claim it for the whole duration
                await self._publish(replace(self._contender.claim(self._held.term, self._clock.now_ms()), renewal=True))
            self.require()
            release = self._contender.claim(self._held.term, self._clock.now_ms())
            self._held, self._sent, self._is_given_back = None, None, True
            self._telemetry.gauge(TIER_LEASE_HELD, 0)
            async with asyncio.timeout(limit_s):
                await self._leases.publish_lease(
                    replace(release, renewal=True, released=True, seen=self._trash_clock.seen)
                )
        except (RetriableError, TimeoutError) as error:
            log.warning("tier_lease.not_given_back", reason=str(error) or f"not done in {limit_s:.0f} s")
        else:
            log.info("tier_lease.given_back", broker_id=release.broker_id, term=release.term)

    def _what_counts(self) -> Lease | None:
        """Return the last lease as far as it is read, and note since when we have seen it."""
        counts = self._leases.lease(str(self._contender.broker_id))
        if counts != self._seen[0]:
            self._seen = (counts, self._clock.monotonic_s())
        return counts

    def _may_claim(self, counts: Lease | None) -> bool:
        if counts is None or counts.released or self._contender.is_successor_of(counts):
            return True
        return self._clock.monotonic_s() - self._seen[1] >= max(counts.duration_ms / 1000, self._duration_s)

    def _seen_before(self, counts: Lease | None) -> SeenTime | None:
        """Return what the holder before us had seen, if it was beside this very broker."""
        ours = (self._contender.cluster_id, self._contender.broker_id)
        return counts.seen if counts is not None and (counts.cluster_id, counts.broker_id) == ours else None

    async def _publish(self, lease: Lease) -> None:
        lease = replace(lease, seen=self._trash_clock.seen, stopping=self._is_stopping)
        sent = (self._clock.monotonic_s(), self._clock.now_ms())
        counts = await self._leases.publish_lease(lease)
        self._seen = (counts, self._clock.monotonic_s())
        if counts.holder != lease.holder:
            if self._held is not None:
                self._lose()
            return
        self._sent = sent
        if self._held is None:
            self._held = lease
            self._changed.set()
            log.info("tier_lease.held", broker_id=lease.broker_id, term=lease.term, incarnation=lease.incarnation)

    def _lose(self) -> None:
        self._held = self._sent = None
        self._changed.set()
        log.error("tier_lease.lost", reason=self._standing_by)

    async def _look_for_former_sidecars(self) -> None:
        described = await self._broker.describe_cluster()
        self._blocker = reason_to_wait_for_sidecars(described.brokers, self._leases.lease, self._without_sidecar)
