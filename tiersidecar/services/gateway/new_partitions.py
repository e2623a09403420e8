"""Partitions that were made a moment ago: nothing may be known of them here yet, and not every client asks again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.ports.clock import Clock
from tiersidecar.services.gateway.messages import RowKey

_MOST_NEW = 16
_LOOK_AGAIN_S = 0.05
"""Nothing reports that something has become known."""
_NEW_FOR_S, _FORGOTTEN_AFTER_S, _MOST_REMEMBERED = 5.0, 600.0, 1_000
_T = TypeVar("_T")


def _always() -> bool:
    return True


async def until_ready(
    look: Callable[[], Awaitable[_T]], *, clock: Clock, until_s: float, is_worthwhile: Callable[[], bool] = _always
) -> _T:
    """Return what ``look`` gives once it raises no MetadataNotReadyError any more; until ``until_s`` of the loop's time, and
    while it ``is_worthwhile``.

    Raises:
        MetadataNotReadyError: it still did then.
    """
    while True:
        try:
            return await look()
        except MetadataNotReadyError:
            if asyncio.get_running_loop().time() >= until_s or not is_worthwhile():
                raise
        await clock.sleep(_LOOK_AGAIN_S)


class NewPartitions:
    """Which partitions are worth waiting for: what else the client asks this broker for waits as well.

    A topic that was just made is known soon.  Of what has been unready for longer, each client asks again for itself.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._met_s = clock, dict[RowKey, float]()

    def are_worth_waiting(self, unready: Sequence[RowKey]) -> bool:
        """Return whether there are any, not many, and all met lately."""
        if not 0 < len(unready) <= _MOST_NEW:
            return False
        now_s = self._clock.monotonic_s()
        if len(self._met_s) > _MOST_REMEMBERED:
            self._met_s = {key: met_s for key, met_s in self._met_s.items() if now_s - met_s < _FORGOTTEN_AFTER_S}
        return all(now_s - self._met_s.setdefault(key, now_s) <= _NEW_FOR_S for key in unready)

    def answered(self, keys: Iterable[RowKey]) -> None:
        """Forget ``keys``, which are known now: a topic of that name may be made anew."""
        if self._met_s:
            for key in keys:
                self._met_s.pop(key, None)
