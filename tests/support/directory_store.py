"""A filesystem store that Spark's executors open by themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.adapters.stores.filesystem import open_filesystem_store
from tiersidecar.ports.store import Store


@dataclass(frozen=True, slots=True)
class DirectoryStore:
    """A ``StoreOpener`` for the directory ``root``."""

    root: str

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Store]:
        async with (
            ThreadBlocking(max_threads=4) as blocking,
            open_filesystem_store(root=self.root, blocking=blocking, clock=SystemClock(), ids=SystemIds()) as store,
        ):
            yield store
