"""Whose cleaners wait while ``tiersidecar compact`` goes from partition to partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tiersidecar.app.held_lease import HeldLease
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.ports.clock import Clock
from tiersidecar.tasks.clean_engine import Progress

_TURNS = 3
_MOST_AHEAD = 60


class Turns:
    """Lets the cleaners of the partition in hand wait, and of those that come next: one is named ``settle_s`` before its
    turn, if that can be foreseen by how fast turns follow each other."""

    def __init__(self, lease: HeldLease, clock: Clock, settle_s: float, progress: Progress) -> None:
        self._lease, self._clock, self._settle_s, self._progress = lease, clock, settle_s, progress
        self._named_s: dict[TopicIdPartition, float] = {}
        self._begun_s: float | None = None
        self._took_s = deque[float](maxlen=_TURNS)

    async def take_over(
        self, owner: TopicIdPartition, unsettled: Sequence[TopicIdPartition], following: Sequence[TopicIdPartition]
    ) -> None:
        """Name ``owner``, ``unsettled``, and some of ``following``, and no others; return when the cleaner of ``owner`` has
        ended what it had begun.

        Raises:
            LeaseHeldError: another process has the lease.
        """
        if self._begun_s is not None:
            self._took_s.append(self._clock.monotonic_s() - self._begun_s)
        named = [*unsettled, owner, *following[: self._most_ahead()]]
        known, self._named_s = self._named_s, {}  # of a naming that fails it is not known whom it has named
        await self._lease.concern(named)
        now_s = self._clock.monotonic_s()
        self._named_s = {one: known.get(one, now_s) for one in named}
        left_s = self._settle_s - (now_s - self._named_s[owner])
        if left_s > 0:
            reason = f"until the cleaner of partition {owner.partition} has ended what it had begun"
            self._progress(f"waiting {left_s:.0f} s, {reason}")
            await self._clock.sleep(left_s)
        self._begun_s = self._clock.monotonic_s()

    def _most_ahead(self) -> int:
        """Return how many turns the time to settle may take, by the longest of the last ones, and at least one."""
        if not self._took_s or self._settle_s <= 0:
            return 1
        return 1 + min(int(self._settle_s / max(1e-3, *self._took_s)), _MOST_AHEAD)
