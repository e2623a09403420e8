"""A filesystem store that Spark's executors open by themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.adapters.stores.filesystem import open_filesystem_store
from tiersidecar.adapters.stores.placed import Place, PlacedStore
from tiersidecar.ports.store import Store


@dataclass(frozen=True, slots=True)
class DirectoryStore:
    """A ``StoreOpener`` for the directory ``root``, and for ``cold``, which is that of the place of this name."""

    root: str
    cold: str | None = None

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Store]:
        async with ThreadBlocking(max_threads=4) as blocking, AsyncExitStack() as stack:

            async def opened(root: str) -> Store:
                opening = open_filesystem_store(root=root, blocking=blocking, clock=SystemClock(), ids=SystemIds())
                return await stack.enter_async_context(opening)

            store = await opened(self.root)
            if self.cold is None:
                yield store
            else:
                yield PlacedStore(store, {"cold": Place(store=await opened(self.cold), key_prefix="")})
