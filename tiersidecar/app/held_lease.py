"""Claim, renew and release a lease, so that only one such command acts in a cluster at a time."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from importlib.metadata import version

import structlog

from tiersidecar.app.commands.session import Session
from tiersidecar.domain.errors import LeaseHeldError, TiersidecarError
from tiersidecar.domain.ids import TopicIdPartition, format_uuid
from tiersidecar.domain.lease import Lease, concerns_of
from tiersidecar.ports.clock import Clock, Ids
from tiersidecar.ports.state_records import Leases

_DURATION_MS = 60_000
_MARGIN_MS = 5_000
_LOOK_AGAIN_S = 0.5
_RENEW_EACH_S = 10.0

_log = structlog.get_logger(__name__)


class HeldLease:
    """Claimed.  It counts from the moment at which the last renewal that was read back was *sent*."""

    def __init__(self, leases: Leases, clock: Clock, lease: Lease, *, sent_s: float) -> None:
        self._leases, self._clock, self._lease, self._sent_s = leases, clock, lease, sent_s
        self._taken_by = ""
        self._renewing = asyncio.Lock()

    @property
    def left_ms(self) -> int:
        """Return how long what is sent now may take until it is carried out; not positive where it is too late."""
        if self._taken_by:
            return 0
        return int((self.until_s - self._clock.monotonic_s()) * 1000)

    @property
    def until_s(self) -> float:
        """Return the moment, by the clock's ``monotonic_s``, from which nothing is sent that needs the lease."""
        return self._sent_s + (self._lease.duration_ms - _MARGIN_MS) / 1000

    def require(self) -> None:
        """Return if no other process can have claimed it by now: to be called right before each act, without a wait between.

        Raises:
            LeaseHeldError: the last renewal is too long ago, or another process was seen to have taken it over.
        """
        if self.left_ms <= 0:
            late = "perhaps another process: this process did not renew it in time"
            raise LeaseHeldError(name=self._lease.name, holder=self._taken_by or late)

    async def renew(self) -> None:
        """Renew it, unless that was done lately.

        Raises:
            LeaseHeldError: another process has taken it over, or it has run out.
        """
        if (self._clock.monotonic_s() - self._sent_s) * 1000 >= self._lease.duration_ms / 3:
            await self.renew_now()

    async def renew_now(self) -> None:
        """Renew it, whenever that was done last: what follows may take long.

        Raises:
            LeaseHeldError: another process has taken it over, or it has run out.
        """
        await self._publish(None)

    async def concern(self, owners: Iterable[TopicIdPartition]) -> None:
        """Renew it for these partitions alone: when this returns, cleaners of others need not wait any more, and those of these
        see it when they look next.

        Raises:
            LeaseHeldError: another process has taken it over, or it has run out.
        """
        await self._publish(concerns_of(owners))

    async def _publish(self, concerns: str | None) -> None:
        """Renew it, one renewal after the other: what an earlier one names must not come after what a later one does.

        Once it has run out it is never renewed, though nobody else has claimed it: sidecars, which only wait while it lasts,
        may have begun meanwhile."""
        async with self._renewing:
            self.require()
            lease = self._lease if concerns is None else replace(self._lease, concerns=concerns)
            renewed, sent_s = replace(lease, renewed_ms=self._clock.now_ms(), renewal=True), self._clock.monotonic_s()
            counts = await self._leases.publish_lease(renewed)
            if counts.holder != renewed.holder:
                self._taken_by = _holder(counts)
            _require_same(counts, renewed)
            self.require()  # by the renewal before this one: it may have run out before this one was written
            self._lease, self._sent_s = renewed, sent_s

    async def release(self) -> None:
        """Let the next one claim it at once.  Where another process may have it by now, write nothing: to readers whom
        compaction left no other claim, the last record would say that it is free.

        Raises:
            TimeoutError: it was not written in time, and runs out by itself.
        """
        if self.left_ms <= 0:
            return
        over = replace(self._lease, renewed_ms=self._clock.now_ms(), renewal=True, released=True)
        async with asyncio.timeout(self.left_ms / 1000):
            await self._leases.publish_lease(over)


@asynccontextmanager
async def kept_renewed(lease: HeldLease, clock: Clock) -> AsyncIterator[None]:
    """Renew the lease for as long as the body runs, whatever that waits for.  Where that fails, :meth:`HeldLease.require`
    raises in time."""

    async def renew() -> None:
        while True:
            await clock.sleep(_RENEW_EACH_S)
            try:
                await lease.renew()
            except LeaseHeldError:
                return
            except TiersidecarError as error:
                _log.warning("lease.not_renewed", error=str(error))

    renewing = asyncio.create_task(renew(), name="renew the lease")
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.wait([renewing])


@asynccontextmanager
async def claimed_lease(
    session: Session, ids: Ids, name: str, say: Callable[[str], None] = lambda text: None
) -> AsyncIterator[HeldLease]:
    """Hold the lease for as long as the body runs.

    A lease that another process has is claimed only if it was not renewed for its whole duration, by our own clock; ``say``
    gets for whom we wait, and how long at most.

    Raises:
        LeaseHeldError: another process holds it, or was faster.
        MetadataNotReadyError, PublishTimeoutError: the state topic is away.
    """
    known = await _until_free(session, name, say)
    cluster = await session.broker.describe_cluster()
    claim = Lease(
        name=name,
        cluster_id=cluster.cluster_id,
        broker_id=-1,
        incarnation=format_uuid(ids.random_uuid()),
        term=1 if known is None else known.term + 1,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=version("tiersidecar"),
        renewed_ms=session.clock.now_ms(),
        duration_ms=_DURATION_MS,
    )
    sent_s = session.clock.monotonic_s()
    _require_same(await session.state.publish_lease(claim), claim)
    held = HeldLease(session.state, session.clock, claim, sent_s=sent_s)
    try:
        yield held
    finally:
        with suppress(TiersidecarError, TimeoutError):  # it runs out by itself
            await held.release()


async def _until_free(session: Session, name: str, say: Callable[[str], None]) -> Lease | None:
    await session.state.catch_up()
    known = session.state.lease(name)
    if known is None or known.released:
        return known
    lasts_s = known.duration_ms / 1000
    until_s = session.clock.monotonic_s() + lasts_s
    say(f"waiting up to {lasts_s:.0f} s, since {_holder(known)} has not given back the lease {name!r}; was it killed?")
    while session.clock.monotonic_s() < until_s:
        await session.clock.sleep(_LOOK_AGAIN_S)
        await session.state.catch_up()
        now = session.state.lease(name)
        if now is None or now.released:
            return now
        if now != known:
            raise LeaseHeldError(name=name, holder=_holder(now))
    return known


def _require_same(counts: Lease, ours: Lease) -> None:
    if counts.holder != ours.holder:
        raise LeaseHeldError(name=ours.name, holder=_holder(counts))


def _holder(lease: Lease) -> str:
    return f"process {lease.pid} on {lease.host} (term {lease.term}, incarnation {lease.incarnation})"
