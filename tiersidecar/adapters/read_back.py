"""Read your writes: the publisher at an offset waits until our own consumer has passed it (S-091)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tiersidecar.domain.errors import TiersidecarError

_REMEMBERED = 1024


class ReadBack:
    """Waiters of one metadata partition, and why the last dropped records were dropped.

    The consumer may be past an offset before its publisher has even learnt the offset, so fates are kept for a while.
    """

    __slots__ = ("_fates", "_position", "_remembering", "_waiters")

    def __init__(self) -> None:
        self._position = 0
        self._remembering = 0
        self._waiters: dict[asyncio.Future[None], int] = {}
        self._fates: OrderedDict[int, TiersidecarError] = OrderedDict()

    def dropped(self, offset: int, error: TiersidecarError) -> None:
        """Note that the state machine refused the record at ``offset``."""
        self._fates[offset] = error
        self._forget()

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """Keep all fates while the body runs: it writes more records than are remembered else."""
        self._remembering += 1
        try:
            yield
        finally:
            self._remembering -= 1
            self._forget()

    def _forget(self) -> None:
        while len(self._fates) > _REMEMBERED and not self._remembering:
            self._fates.popitem(last=False)

    def advance(self, position: int) -> None:
        """Note that everything below ``position`` has been applied."""
        self._position = position
        for waiter, offset in list(self._waiters.items()):
            if offset < position and not waiter.done():
                waiter.set_result(None)

    async def wait(self, offset: int) -> None:
        """Return once the record at ``offset`` has been applied.

        Raises:
            IllegalTransitionError: it was dropped: another leader's event came before it.
            UnknownSegmentError: it was dropped for the same reason.
        """
        await self.reach(offset + 1)
        fate = self._fates.get(offset)
        if fate is not None:
            raise fate

    async def wait_all(self, written: Sequence[range]) -> None:
        """Return once the records at all those offsets, which ascend, have been applied; more than a few are to be written
        while :meth:`remembering`.

        Raises:
            IllegalTransitionError: one was dropped: another leader's event came before it.
            UnknownSegmentError: one was dropped for the same reason.
        """
        await self.reach(written[-1].stop)
        for offset, fate in self._fates.items():
            if any(offset in batch for batch in written):
                raise fate

    async def reach(self, position: int) -> None:
        """Return once everything below ``position`` has been applied, or dropped."""
        if position <= self._position:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = position - 1
        try:
            await waiter
        finally:
            del self._waiters[waiter]
